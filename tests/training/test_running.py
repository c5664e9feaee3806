"""run_stage: a stage becomes a record whatever happens, and its weights weights that a later stage starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from harness.encoders.models.weights import checked_weights, weights_digest
from harness.methods import definition_of
from harness.objectives.classification import CrossEntropy
from harness.objectives.masked import MaskedText
from harness.running import run_stage
from harness.specs import Encoder, Objective, Parent, Record, Stage
from harness.storage import Storage, checkpoint_of
from harness.training.loop import Inputs


def record_of(folder: Path, artifacts: Path, stage: Stage, inputs: Inputs, **options: Any) -> Record:
    return tiny.record_of(stage, inputs, tiny.worker_setup(folder, artifacts), **{"keep_weights": False, **options})


@lru_cache
def plain_record(folder: Path) -> Record:
    """Of fine-tuning without a stage before it."""
    stage, inputs = tiny.fine_tuning(folder, steps=2, every=1)
    return record_of(folder, folder, stage, inputs)


def test_a_record_of_fine_tuning(bert: Path, tmp_path: Path) -> None:
    stage, inputs = tiny.fine_tuning(bert, pairs=True, steps=4, every=2)
    record = record_of(bert, tmp_path, stage, inputs)
    assert (record.status, record.reason) == ("done", "")
    assert record.key == stage.key
    assert record.weights_digest is None
    assert list(tmp_path.iterdir()) == []
    assert record.predictions.keys() == {"dev", "test"}
    assert record.predictions["test"].logits.shape == (25, 2)
    assert sum(record.histogram) == 30
    assert record.collapsed == (0 in record.histogram)
    assert record.flops > 0
    assert record.provenance["encoder"] == stage.encoder.digest


UNSUPERVISED = {
    tiny.OBJECTIVES[name].name: (kind, name) for kind, name in tiny.SPREAD if name not in tiny.SUPERVISED
}.values()
"""One setting of each objective, on a kind of encoder that it trains."""


class TestEveryObjective:
    """From a record to its weights to a fine-tuned child."""

    @pytest.mark.parametrize(("kind", "name"), UNSUPERVISED)
    def test_post_training_then_fine_tuning(
        self, kind: str, name: str, folders: dict[str, Path], tmp_path: Path
    ) -> None:
        folder, spec = folders[kind], tiny.OBJECTIVES[name]
        stage, inputs = tiny.post_training(folder, spec)
        record = record_of(folder, tmp_path, stage, inputs, keep_weights=True)
        assert (record.status, record.reason) == ("done", "")
        assert record.predictions == {}
        assert record.flops > 0
        assert record.history[-1]["measures"]
        weights = checked_weights(Storage(str(tmp_path)), stage.key)[0]
        assert record.weights_digest == weights_digest(weights)
        assert any(n.startswith("auxiliary/") for n in weights) == (spec.name == "auxiliary_mlm")
        child, inputs = tiny.fine_tuning(folder, init=Parent(stage), steps=2, every=1)
        after = record_of(folder, tmp_path, child, inputs)
        assert (after.status, after.reason) == ("done", "")
        assert after.provenance["parent_product"] == record.weights_digest
        without = plain_record(folder)
        close = np.allclose(without.predictions["dev"].logits, after.predictions["dev"].logits, atol=1e-4)
        assert close == (spec.name in ("auxiliary_mlm", "mlm_head"))  # which leave the encoder as it was
        if spec.name == "mlm_head":
            equal = np.array_equal(without.predictions["dev"].logits, after.predictions["dev"].logits)
            assert equal, "bit-identical: only the head was trained"

    @pytest.mark.parametrize(
        ("name", "kind"),
        {name: kind for name in tiny.OBJECTIVES for kind in tiny.KINDS if not tiny.trains(kind, name)}.items(),
    )
    def test_what_an_encoder_cannot_do_is_said_before(
        self, name: str, kind: str, folders: dict[str, Path], tmp_path: Path
    ) -> None:
        """And it is so: what is refused would fail."""
        reason = definition_of(tiny.OBJECTIVES[name]).refused(tiny.config(kind).to_dict())
        assert reason is not None
        assert ";" in reason, "what to do about it"
        stage, inputs = tiny.post_training(folders[kind], tiny.OBJECTIVES[name], steps=1)
        record = record_of(folders[kind], tmp_path, stage, inputs)
        assert record.status == "failed"


class TestChain:
    @pytest.mark.parametrize("kind", ["half of it", "one bit", "none"])
    def test_damaged_or_deleted_weights_of_the_parent_are_said(self, kind: str, bert: Path, tmp_path: Path) -> None:
        parent, inputs = tiny.post_training(bert, steps=2)
        record_of(bert, tmp_path, parent, inputs, keep_weights=True)
        file = tmp_path / f"{parent.key}.safetensors"
        content = bytearray(file.read_bytes())
        content[-100] ^= 1  # within a tensor: the file still loads
        file.write_bytes(content[:1000] if kind == "half of it" else content)
        if kind == "none":
            file.unlink()
        child, inputs = tiny.fine_tuning(bert, init=Parent(parent))
        record = record_of(bert, tmp_path, child, inputs)
        assert record.status == "failed"
        said = f"{parent.key} are no longer in {tmp_path}" if kind == "none" else f"{parent.key[:10]} were damaged"
        assert f"the weights of its parent stage {said}" in record.reason
        assert not file.exists()

    def test_a_later_stage_starts_from_the_parents_weights(self, bert: Path, tmp_path: Path) -> None:
        """With a learning rate of almost nothing the child's weights are the parent's."""
        parent, inputs = tiny.post_training(bert, steps=4)
        first = record_of(bert, tmp_path, parent, inputs, keep_weights=True)
        for parts in (("encoder", "mlm_head"), ("encoder",)):
            stage, inputs = tiny.post_training(bert, steps=1, lr=1e-30)
            child = Stage(stage.objective, stage.data, stage.optim, 9, Parent(parent, parts=parts))
            second = record_of(bert, tmp_path, child, inputs, keep_weights=True)
            assert second.status == "done"
            mine, theirs = (checked_weights(Storage(str(tmp_path)), s.key)[0] for s in (child, parent))
            same = {name for name in mine if torch.equal(mine[name], theirs[name])}
            carried = {name for name in mine if name.split("/")[0] in parts}
            assert carried <= same
            assert (second.weights_digest == first.weights_digest) == ("mlm_head" in parts)

    def test_a_later_stage_takes_the_word_embeddings_alone_and_leaves_them(self, bert: Path, tmp_path: Path) -> None:
        """All else starts as without the parent: with a learning rate of almost nothing it is the encoder's own."""
        parent, inputs = tiny.post_training(bert, steps=4)
        assert record_of(bert, tmp_path, parent, inputs, keep_weights=True).status == "done"
        fixed = tiny.of_method("mlm", embeddings="pretrained")
        words = "encoder/bert.embeddings.word_embeddings.weight"
        found = {}
        for name, lr in (("still", 1e-30), ("moved", 1e-2)):
            stage, inputs = tiny.post_training(bert, fixed, steps=2, lr=lr)
            for init in (stage.init, Parent(parent, parts=("word_embeddings",))):
                child = replace(stage, init=init)
                assert record_of(bert, tmp_path, child, inputs, keep_weights=True).status == "done"
                found[name, init is stage.init] = checked_weights(Storage(str(tmp_path)), child.key)[0]
        before = checked_weights(Storage(str(tmp_path)), parent.key)[0]
        own, taken, moved = found["still", True], found["still", False], found["moved", False]
        assert torch.equal(taken[words], before[words])
        assert torch.equal(moved[words], before[words])
        assert not torch.equal(own[words], before[words])
        assert {name for name in own if not torch.equal(own[name], taken[name])} == {words}
        assert all(not torch.equal(moved[name], taken[name]) for name in moved if name != words and moved[name].any())

    def test_a_last_step_that_spoils_the_weights(self, bert: Path, tmp_path: Path) -> None:
        """The loss of the last step is finite, its gradient is not: no weights may come of it."""

        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            return gradient * float("nan")

        stage, inputs = tiny.post_training(bert, steps=1)
        masked_lm = MaskedText.token_term

        def spoiled(self: MaskedText, hidden: torch.Tensor, *more: Any) -> torch.Tensor:
            if hidden.requires_grad:
                hidden.register_hook(spoil)
            return masked_lm(self, hidden, *more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MaskedText, "token_term", spoiled)
            record = record_of(bert, tmp_path, stage, inputs, keep_weights=True)
        assert record.status == "diverged"
        assert "after step 1" in record.reason
        assert list(tmp_path.iterdir()) == []

    def test_what_the_parent_does_not_keep(self, bert: Path, folders: dict[str, Path], tmp_path: Path) -> None:
        """The selected weights of a stage that selects nothing; and a part that the parent's kind of encoder does not have."""
        for kind, step, said in (("bert", "selected", "keeps its last weights"), ("electra", "last", "weights lack")):
            parent, inputs = tiny.post_training(folders[kind], steps=1)
            assert record_of(folders[kind], tmp_path, parent, inputs, keep_weights=True).status == "done"
            stage, inputs = tiny.fine_tuning(bert, init=Parent(parent, step=step))
            setup = replace(tiny.worker_setup(bert, tmp_path), encoders={stage.encoder.digest: (bert, None)})
            record = tiny.record_of(stage, inputs, setup, keep_weights=False)
            assert record.status == "failed"
            assert said in record.reason


def raising(error: BaseException) -> Callable[[torch.Tensor], torch.Tensor]:
    def fail(loss: torch.Tensor) -> torch.Tensor:
        raise error

    return fail


def spoil_step_3(act: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the loss of the third batch."""
    classify, calls = CrossEntropy.classify, [0]

    def spoiled(self: CrossEntropy, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        loss = classify(self, logits, labels)
        return act(loss) if calls[0] == 3 else loss

    monkeypatch.setattr(CrossEntropy, "classify", spoiled)


class TestWhatGoesWrong:
    @pytest.mark.parametrize(
        ("act", "status", "reason"),
        [
            (lambda loss: loss * float("nan"), "diverged", "at step 3 "),
            (raising(IndexError("index 7 is out\nand more")), "failed", "IndexError: index 7 is out (test_running.py:"),
            (raising(SystemExit(0)), "failed", "SystemExit: 0 (test_running.py:"),
            (raising(torch.OutOfMemoryError("Tried 2 GiB.")), "failed", "out of memory: Tried 2 GiB."),
            (raising(MemoryError("Tried 2 GiB.")), "failed", "out of memory: Tried 2 GiB."),
            (lambda loss: loss + torch.empty(1 << 60).sum(), "failed", "out of memory: "),
        ],
    )
    def test_a_stage_that_fails_is_a_record(
        self, act: Any, status: str, reason: str, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spoil_step_3(act, monkeypatch)
        stage, inputs = tiny.fine_tuning(bert)
        record = record_of(bert, tmp_path, stage, inputs, keep_weights=True)
        assert (record.key, record.status) == (stage.key, status)
        assert reason in record.reason
        assert (record.predictions, record.weights_digest, record.selected_step) == ({}, None, None)
        assert record.seconds > 0
        assert "host" not in record.provenance
        assert list(tmp_path.iterdir()) == []

    def test_what_ray_ends_a_worker_with_is_not_the_stages(
        self, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exits = FunctionType(compile("raise SystemExit(1)", "worker.py", "exec"), {"__name__": "ray._private.worker"})
        spoil_step_3(lambda loss: exits(), monkeypatch)
        stage, inputs = tiny.fine_tuning(bert)
        with pytest.raises(SystemExit):
            record_of(bert, tmp_path, stage, inputs)

    def test_a_diverged_record_says_that_there_is_a_checkpoint(
        self, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is deleted by that when the record is committed."""
        spoil_step_3(lambda loss: loss * float("nan"), monkeypatch)
        stage, inputs = tiny.fine_tuning(bert, every=1)
        setup = replace(tiny.worker_setup(bert, tmp_path), checkpoint_seconds=1e-9)
        record = tiny.record_of(stage, inputs, setup, keep_weights=False)
        assert record.status == "diverged"
        assert record.provenance["checkpoints"] > 0
        assert Storage(str(tmp_path)).exists(checkpoint_of(stage.key))

    def test_a_device_that_does_not_start(self, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its name is asked for first; that this fails is no reason to end the worker's call without a record."""

        def fail(*_: Any, **__: Any) -> Any:
            raise AssertionError("CUDA error: out of memory")

        monkeypatch.setattr("torch.cuda.get_device_name", fail)
        monkeypatch.setattr("torch.nn.Module.to", fail)
        stage, inputs = tiny.fine_tuning(bert)
        setup = replace(tiny.worker_setup(bert, tmp_path), device="cuda")
        record = tiny.record_of(stage, inputs, setup, keep_weights=False)
        assert (record.status, record.provenance["device"]) == ("failed", "cuda")
        assert "CUDA error: out of memory" in record.reason

    @pytest.mark.parametrize(("objective", "encoder", "reason"), [(99, None, "version"), (None, "other", "nowhere")])
    def test_what_cannot_be_built(
        self, objective: int | None, encoder: str | None, reason: str, bert: Path, tmp_path: Path
    ) -> None:
        stage, inputs = tiny.fine_tuning(bert, *([Objective("cross_entropy", objective)] if objective else []))
        stage = replace(stage, init=Encoder(encoder)) if encoder else stage
        setup = tiny.worker_setup(bert, tmp_path)
        setup = replace(setup, encoders={encoder: (tmp_path / "nowhere", None)}) if encoder else setup
        record = run_stage(stage, inputs, tiny.vocabulary(bert), tiny.METRICS, setup, keep_weights=False)
        assert (record.status, reason in record.reason) == ("failed", True), record.reason
