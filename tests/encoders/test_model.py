"""Packed passes against the library's own padded ones, the parts of the weights, weights files, and counted FLOPs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import family_encoders
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from harness.encoders import locate, with_weights
from harness.encoders.models import text_encoder as model_module
from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import TextEncoder
from harness.encoders.models.weights import checked_weights, save_weights, weights_digest
from harness.encoders.tokens import Tokens
from harness.errors import UserError
from harness.storage import Storage

CPU = torch.device("cpu")


def hidden(encoder: TextEncoder, tokens: Tokens, ids: Any = None) -> torch.Tensor:
    encoder.eval()
    with torch.no_grad():
        return encoder(Batch.of(tokens if ids is None else replace(tokens, ids=ids), CPU))


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_padding_id_inside_a_text_is_a_token_like_others(kind: str, folders: dict[str, Path]) -> None:
    """Random replacement may draw it: the tokens after it keep their positions."""
    encoder, tokens = tiny.encoder(folders[kind]), tiny.tokens(folders[kind], [("w1 w2 w3 w4 w5",)])
    tables = [module for module in encoder.modules() if isinstance(module, torch.nn.Embedding)]
    words = next(table for table in tables if table.num_embeddings == encoder.config.vocab_size)
    ids, pad = tokens.ids.copy(), encoder.config.pad_token_id
    ids[2] = pad
    with torch.no_grad():
        words.weight[pad] = words.weight[tokens.ids[2]]
    torch.testing.assert_close(hidden(encoder, tokens, ids), hidden(encoder, tokens), atol=1e-6, rtol=0)


def test_words_of_another_width(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="are 16 wide and its hidden states 32: take an encoder"):
        tiny.encoder(folders["electra"]).embedding_logits(torch.zeros(1, 32))


class TestParts:
    @pytest.fixture(params=(*tiny.KINDS, *tiny.MORE))
    def folder(self, request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
        return folders[request.param]

    @staticmethod
    def other(folder: Path) -> TextEncoder:
        """An encoder with every weight moved."""
        moved = tiny.encoder(folder)
        with torch.no_grad():
            for parameter in moved.parameters():
                parameter.add_(0.25)
        return moved

    def test_round_trip_through_a_file(self, folder: Path, tmp_path: Path) -> None:
        """Every parameter is in one part, and tied ones stay tied."""
        moved, again, tokens = self.other(folder), tiny.encoder(folder), tiny.tokens(folder, [("w1 w2",)])
        parts, storage = moved.parts(), Storage(str(tmp_path))
        assert sum(t.numel() for t in parts.values()) == sum(p.numel() for p in moved.parameters())
        digest = save_weights(parts, storage, "key")
        found = checked_weights(storage, "key")[0]
        assert [p.name for p in tmp_path.iterdir()] == ["key.safetensors"]
        again.load_parts(found, ("encoder", "mlm_head"))
        assert digest == weights_digest(parts) == weights_digest(found) == weights_digest(again.parts())
        words, out = again.model.get_input_embeddings().weight, again.model.get_output_embeddings().weight
        assert words.data_ptr() == out.data_ptr()
        before = again.mlm_logits(hidden(again, tokens))
        torch.testing.assert_close(before, moved.mlm_logits(hidden(moved, tokens)))
        with torch.no_grad():
            words.zero_()
        assert not torch.equal(again.mlm_logits(hidden(again, tokens)), before)

    @pytest.mark.parametrize("part", ["encoder", "mlm_head"])
    def test_missing_parts(self, bert: Path, part: str) -> None:
        lacking = tiny.encoder(bert).parts()
        del lacking[next(name for name in sorted(lacking) if name.startswith(part))]
        with pytest.raises(ValueError, match=r"lack .* \(1 tensors\)"):
            tiny.encoder(bert).load_parts(lacking, ("encoder", "mlm_head"))


def test_the_digest_of_weights_changes_with_any_tensor() -> None:
    tensors = {"encoder/a": torch.arange(6.0).view(2, 3), "mlm_head/b": torch.ones(4)}
    before = weights_digest(tensors)
    for name, tensor in tensors.items():
        changed = tensor.clone()
        changed.view(-1)[-1] += 1e-6
        for other in (changed, tensor.double(), tensor.reshape(-1, 2)):
            assert weights_digest({**tensors, name: other}) != before
        assert weights_digest({f"{n}x" if n == name else n: t for n, t in tensors.items()}) != before
    assert weights_digest(dict(reversed(tensors.items()))) == before
    assert weights_digest({**tensors, "encoder/a": tensors["encoder/a"].T.contiguous().T}) == before


class TestFreshHead:
    @pytest.fixture(params=(*tiny.KINDS, *tiny.MORE))
    def headless(self, request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path: Path) -> Path:
        """The encoder's folder without its MLM head, as a plain encoder checkpoint is."""
        folder = tmp_path / f"headless-{request.param}"
        shutil.copytree(folders[request.param], folder)
        weights = load_file(folder / "model.safetensors")
        heads = ("cls.", "lm_head.", "generator_", "vocab_", "head.", "decoder.", "predictions.")
        kept = {n: t for n, t in weights.items() if not n.startswith(heads)}
        assert len(kept) < len(weights)
        save_file(kept, str(folder / "model.safetensors"), metadata={"format": "pt"})
        return folder

    def test_what_is_there_of_a_head_is_kept(self, bert: Path, tmp_path: Path) -> None:
        folder = Path(shutil.copytree(bert, tmp_path / "copy"))
        weights = load_file(folder / "model.safetensors")
        lacks = "cls.predictions.transform.dense.weight"
        weights[lacks] = torch.zeros_like(weights.pop(lacks))
        save_file({n: t for n, t in weights.items() if n != lacks}, str(folder / "model.safetensors"))
        found = tiny.encoder(folder, 3).model.state_dict()
        assert [n for n, t in weights.items() if not torch.equal(found[n], t)] == [lacks]
        located = with_weights(locate(str(folder)))
        assert (located.lacks, located.unread, bool(located.head_training)) == ((lacks,), (), True)

    @pytest.mark.parametrize("kind", ["deberta", "deberta-v2"])
    def test_a_head_under_another_name_is_read(self, kind: str, tmp_path: Path) -> None:
        folder = family_encoders.encoder_folder(tmp_path, kind, tiny.WORDS, legacy=False)
        config = json.loads((folder / "config.json").read_text())
        del config["legacy"]  # as the published ones
        (folder / "config.json").write_text(json.dumps(config))
        weights, found = load_file(folder / "model.safetensors"), tiny.encoder(folder, 3)
        assert any(name.startswith("lm_predictions.lm_head.dense") for name in weights)
        assert all(torch.equal(found.model.state_dict()[name], tensor) for name, tensor in weights.items())
        assert not found.fresh_head
        assert with_weights(locate(str(folder))).head_training is None
        states, table = torch.randn(3, found.hidden_size), found.base.get_input_embeddings()
        assert torch.equal(found.mlm_logits(states), found.model.lm_predictions(states, table))

    def test_drawn_from_the_seeds_stream(self, headless: Path, folders: dict[str, Path]) -> None:
        """And the encoder is the checkpoint's."""

        def parts(seed: int, noise: int) -> dict[str, torch.Tensor]:
            torch.manual_seed(noise)
            model_module._template.cache_clear()
            made = tiny.encoder(headless, seed)
            assert made.fresh_head
            return made.parts()

        first, again, other = parts(1, 10), parts(1, 11), parts(2, 10)
        whole = tiny.encoder(folders[headless.name.removeprefix("headless-")]).parts()
        assert weights_digest(first) == weights_digest(again)
        for name, tensor in first.items():
            if name.startswith("encoder/"):
                assert torch.equal(tensor, whole[name])
            elif tensor.dim() > 1:
                assert not torch.equal(tensor, other[name])
            else:
                is_scale = "norm" in name.lower() and name.endswith("weight")
                assert torch.equal(tensor, torch.full_like(tensor, float(is_scale))), name


class TestLoading:
    @pytest.fixture
    def folder(self, bert: Path, tmp_path: Path) -> Path:
        return Path(shutil.copytree(bert, tmp_path / "copy"))

    def test_missing_encoder_weights(self, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        del weights["bert.encoder.layer.1.output.dense.weight"]
        save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
        with pytest.raises(UserError, match=r"lacks the weights .*layer\.1\.output\.dense\.weight"):
            tiny.encoder(folder)

    @pytest.mark.parametrize("prefix", ["bert.", ""])
    def test_layers_that_the_config_does_not_have(self, prefix: str, folder: Path) -> None:
        weights = {n.replace("bert.", prefix): t for n, t in load_file(folder / "model.safetensors").items()}
        extra = {f"{prefix}pooler.dense.bias": torch.zeros(1), f"{prefix}encoder.layer.0.adapter.bias": torch.zeros(1)}
        save_file({**weights, **extra}, str(folder / "model.safetensors"), metadata={"format": "pt"})
        assert with_weights(locate(str(folder))).unread == ("encoder.layer.0.adapter.bias",)
        tiny.edit(folder / "config.json", num_hidden_layers=1)
        with pytest.raises(UserError, match=r"layers that its config.json does not have \(encoder\.layer\.1\."):
            with_weights(locate(str(folder)))

    @pytest.mark.parametrize("change", [{"intermediate_size": 64}, {"num_attention_heads": 5}])
    def test_what_contradicts_the_config(self, change: dict[str, int], folder: Path) -> None:
        tiny.edit(folder / "config.json", **change)
        with pytest.raises(UserError, match="cannot be loaded"):
            tiny.encoder(folder)
