"""Nothing gets slower unseen: what is computed, held, read and written, counted rather than timed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.encoders.kernels.packing import SIMILAR, PaddedLayout, step_size
from harness.encoders.models import text_encoder as model_module
from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import load_encoder
from harness.encoders.models.weights import weights_digest
from harness.encoders.tokens import EVALUATION_TOKENS, by_length
from harness.methods import DEFINITIONS
from harness.training import loop
from harness.training.loop import predict, train
from harness.training.update import trainable

CPU = torch.device("cpu")
CASES = (
    *(("bert", name) for name in ("cross_entropy", "mlm", "cmlm-simsiam", "cssl-simsiam")),
    *(("roberta", "cmlm-simclr"), ("electra", "scl")),
)


def rows_seen(module: nn.Module, *, training: bool = False) -> list[int]:
    """How many rows each pass of a layer gets, from now on; `training` leaves out those of evaluations."""
    seen: list[int] = []

    def look(layer: nn.Module, given: Any) -> None:
        if layer.training or not training:
            seen.append(given[0].shape[:-1].numel())

    module.register_forward_pre_hook(look)
    return seen


def passes(encoder: nn.Module, *, training: bool = False) -> list[tuple[Batch, Tensor | None]]:
    """What each pass of an encoder is given, from now on; `training` leaves out those of evaluations."""
    seen: list[tuple[Batch, Tensor | None]] = []

    def look(module: nn.Module, given: Any) -> None:
        if module.training or not training:
            seen.append((given[0], given[1] if len(given) > 1 else None))

    encoder.register_forward_pre_hook(look)
    return seen


class TestOneStep:
    @pytest.fixture(params=CASES, ids="-".join)
    def case(self, request: pytest.FixtureRequest, folders: dict[str, Path]) -> tuple[Any, Any, Any, int]:
        """(objective, what it reads, its recipe, the sequences of a text)."""
        kind, name = request.param
        spec = tiny.OBJECTIVES[name]
        supervised = DEFINITIONS[spec.name].labelled
        stage, inputs = (tiny.fine_tuning if supervised else tiny.post_training)(folders[kind], spec, steps=1)
        views = {"cmlm": 1 + int(spec.params.get("num_views", 0)), "cssl": 2}.get(spec.name, 1)
        return tiny.built(folders[kind], spec, dropout=0.1), inputs, stage.optim, views

    def test_no_more_than_is_asked(self, case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """One pass for all views, with no padding; the last layer and the MLM's head for what the loss reads alone."""
        objective, inputs, optim, views = case
        made: list[Batch] = []
        prepare = objective.prepare
        monkeypatch.setattr(objective, "prepare", lambda *given: made.append(prepare(*given)) or made[-1])
        encoder = objective.encoder
        asked, whole = passes(encoder, training=True), []
        encoder.base.encoder.register_forward_pre_hook(lambda stack, _: whole.append(1) if stack.training else None)
        layers = list(encoder.base.encoder.layer)
        queries = [rows_seen(layer.attention.self.query, training=True) for layer in layers]
        dense = [rows_seen(layer.intermediate.dense, training=True) for layer in layers]
        outputs = [rows_seen(layer.attention.output.dense, training=True) for layer in layers]
        decoded = rows_seen(encoder.model.get_output_embeddings())
        train(objective, inputs, optim, 1)

        step, ((batch, wanted),) = made[0], asked  # the views after it are measured
        assert len(whole) == 1
        size = optim.batch_size * views
        tokens, masked = int(step.tokens.lengths.sum()), step.num_predicted
        assert len(step.tokens) == len(batch.first) == size
        assert len(batch.ids) == tokens < size * int(step.tokens.lengths.max())  # else there were nothing to pad
        if objective.uses_mlm_head:
            assert 0 < masked < tokens // 4  # else the head's rows would say nothing
        first = size if not objective.uses_mlm_head or views > 1 else 0
        assert wanted is not None
        assert len(wanted) == masked + first
        assert step_size(len(wanted)) < step_size(tokens)
        assert queries == [[step_size(tokens)]] * len(layers)
        expected = [[step_size(tokens)]] * (len(layers) - 1) + [[step_size(len(wanted))]]
        assert dense == outputs == expected
        assert decoded[:1] == ([masked] if objective.uses_mlm_head else [])

    @pytest.mark.parametrize(("name", "only_first"), [("cross_entropy", True), ("cssl-simsiam", True), ("mlm", False)])
    def test_attention(self, name: str, only_first: bool, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Little padding in every layer; in the last, one query a sequence and head where first tokens are asked."""
        laid: list[PaddedLayout] = []
        layout = Batch.layout
        monkeypatch.setattr(Batch, "layout", lambda *given: laid.append(layout(*given)) or laid[-1])
        spec = tiny.OBJECTIVES[name]
        supervised = DEFINITIONS[spec.name].labelled
        stage, inputs = (tiny.fine_tuning if supervised else tiny.post_training)(bert, spec, steps=1)
        objective = tiny.built(bert, spec, dropout=0.1)
        asked = passes(objective.encoder)
        train(objective, inputs, stage.optim, 1)
        layers, heads = objective.encoder.config.num_hidden_layers, objective.encoder.config.num_attention_heads
        lengths = asked[0][0].tokens.lengths
        whole, last = laid[0], laid[-1]
        assert len(laid) == layers
        assert all(each is whole for each in laid[:-1])  # laid out once a batch, not once a layer
        assert (last is whole) == (not only_first)
        least, padded = heads * int((lengths**2).sum()), heads * len(lengths) * int(lengths.max()) ** 2
        assert least <= whole.area <= least / SIMILAR**2
        assert whole.area < padded
        if only_first:
            assert len(last.queries.gather) == heads * len(lengths)
            assert heads * int(lengths.sum()) <= last.area <= heads * int(lengths.sum()) / SIMILAR


@pytest.mark.parametrize("kind", ["bert", "electra"])
def test_the_optimizer_holds_the_rows_that_occur(
    kind: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fine-tuning: of the word embeddings, and of Adam's two moments of each."""
    stage, inputs = tiny.fine_tuning(folders[kind], steps=1)
    objective = tiny.built(folders[kind], stage.objective)
    words = objective.encoder.model.get_input_embeddings().weight
    every = sum(parameter.numel() for parameter in trainable(objective).values())
    held: list[int] = []
    step = torch.optim.AdamW.step

    def spy(self: torch.optim.AdamW, *given: Any, **named: Any) -> Any:
        found = step(self, *given, **named)
        held.append(sum(parameter.numel() for group in self.param_groups for parameter in group["params"]))
        held.append(sum(each[name].numel() for each in self.state.values() for name in ("exp_avg", "exp_avg_sq")))
        return found

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    train(objective, inputs, stage.optim, 1)
    used = len(np.unique(inputs.train.tokens.ids))
    expected = every - (len(words) - used) * words.shape[1]
    assert held == [expected, 2 * expected]
    assert used < len(words)


class TestEvaluation:
    @settings(max_examples=30)
    @given(st.lists(st.integers(1, 700) | st.sampled_from([EVALUATION_TOKENS, EVALUATION_TOKENS + 1]), max_size=60))
    def test_batches_of_similar_length(self, lengths: list[int]) -> None:
        widths = np.array(lengths, dtype=np.int64)
        batches = list(by_length(widths))
        order = np.concatenate([[], *batches]).astype(np.int64)
        assert sorted(order.tolist()) == list(range(len(lengths)))
        assert (np.diff(widths[order]) >= 0).all()
        for i, rows in enumerate(batches):
            assert len(rows) == 1 or len(rows) * widths[rows].max() <= EVALUATION_TOKENS
            if i + 1 < len(batches):  # and never fewer than fit
                assert (len(rows) + 1) * widths[batches[i + 1][0]] > EVALUATION_TOKENS

    @pytest.mark.parametrize("room", [1, 100, EVALUATION_TOKENS])
    def test_one_pass_a_batch(self, room: int, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No token twice and no padding; of the last layer the first tokens alone, of dropout and gradients nothing."""
        monkeypatch.setattr(loop, "EVALUATION_TOKENS", room)
        stage, inputs = tiny.fine_tuning(bert)
        objective = tiny.built(bert, stage.objective, dropout=0.1)
        examples, gold = inputs.evaluations["dev"]
        tokens = examples.tokens
        asked = passes(objective.encoder)
        last = rows_seen(objective.encoder.base.encoder.layer[-1].intermediate.dense)
        predict(objective, (examples, gold), "fp32", CPU)
        batches = list(by_length(tokens.lengths, room))
        assert len(batches) == {1: len(tokens), EVALUATION_TOKENS: 1}.get(room, len(asked))
        assert [len(batch.ids) for batch, _ in asked] == [int(tokens.lengths[rows].sum()) for rows in batches]
        assert all(wanted is batch.first for batch, wanted in asked)
        assert last == [step_size(len(rows)) for rows in batches]


@pytest.mark.parametrize("kind", ["bert", "deberta-v2"])
def test_an_encoder_is_read_once_a_process(
    kind: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time there is no file any more; another encoder in between does not push it out."""
    reads: list[str] = []
    read = model_module.AutoModelForMaskedLM.from_pretrained

    def spy(folder: str, **named: Any) -> Any:
        reads.append(folder)
        return read(folder, **named)

    monkeypatch.setattr(model_module.AutoModelForMaskedLM, "from_pretrained", spy)
    model_module._template.cache_clear()
    folder = Path(shutil.copytree(folders[kind], tmp_path / kind))
    other = Path(shutil.copytree(folders[kind], tmp_path / "other"))
    first = load_encoder(folder, "one", seed=1)
    before = weights_digest(first.parts())
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()  # a stage trains its own copy
    load_encoder(other, "other", seed=1)
    shutil.rmtree(folder)
    for seed in (1, 2):
        assert weights_digest(load_encoder(folder, "one", seed=seed).parts()) == before
    assert reads == [str(folder), str(other)]
    model_module._template.cache_clear()
