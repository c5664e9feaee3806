"""T5's relative positions against a loop over pairs and an attention by hand, and their way through weights files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from harness.encoders import adapted
from harness.encoders.kernels.attention import packed_attention
from harness.encoders.models.batch import Batch
from harness.encoders.models.relative_positions import RelativePositions, buckets_of
from harness.encoders.models.weights import checked_weights, save_weights
from harness.errors import UserError
from harness.specs import Encoder
from harness.storage import Storage

CPU = torch.device("cpu")
PUBLISHED = [(32, 128), (64, 128), (128, 256)]
"""COCO-LM's base, base++ and large++ (docs/papers.md L11)."""
KINDS = [kind for kind in tiny.KINDS if kind != "mpnet"]


def bucket(query: int, key: int, buckets: int, max_distance: int) -> int:
    """T5's bucket of one pair, both directions, as transformers has it."""
    return int(T5Attention._relative_position_bucket(torch.tensor([key - query]), True, buckets, max_distance))


@pytest.mark.parametrize(("buckets", "max_distance"), [*PUBLISHED, (8, 20), (6, 9), (4, 2)])
def test_buckets_are_those_of_t5_as_released(buckets: int, max_distance: int) -> None:
    distance = torch.arange(-511, 512)
    theirs = T5Attention._relative_position_bucket(distance, True, buckets, max_distance)
    assert buckets_of(512, buckets, max_distance).tolist() == theirs.tolist()
    # T5 counts on while distances are below max_distance, and uses every bucket but the one of "0 to the right"
    assert set(range(buckets)) - set(theirs.tolist()) == {buckets // 2}


@pytest.mark.parametrize(("buckets", "distance"), [(2, 128), (7, 128), (32, 8), (32, 0), (-4, 3)])
def test_shapes_that_cannot_be(buckets: int, distance: int) -> None:
    asked, known = {"relative_buckets": buckets, "relative_distance": distance}, Encoder("5" * 32, "odd")
    for config in ({"model_type": "bert"}, {"model_type": "mpnet"}, {"relative_buckets": 64, "relative_distance": 128}):
        with pytest.raises(UserError, match=r"set an even number of 4 or more|of its own; set|leave"):
            adapted(known, asked, config)


class TestAttention:
    LENGTHS = (5, 2, 9, 1)

    def by_hand(self, table: torch.Tensor, qkv: list[torch.Tensor], scaling: float, max_distance: int) -> torch.Tensor:
        """Each sequence by itself, pair by pair: [1, H, T, D] -> [1, T, H, D]."""
        out, start = [], 0
        for length in self.LENGTHS:
            query, key, value = (x[0, :, start : start + length] for x in qkv)
            scores = query @ key.transpose(1, 2) * scaling
            pairs = [[bucket(i, j, len(table), max_distance) for j in range(length)] for i in range(length)]
            out.append((scores + table[torch.tensor(pairs)].permute(2, 0, 1)).softmax(dim=-1) @ value)
            start += length
        return torch.cat(out, dim=1).transpose(0, 1)[None]

    def test_against_pairs_by_hand(self) -> None:
        generator = torch.Generator().manual_seed(0)
        qkv = [torch.randn(1, 3, 17, 4, generator=generator).requires_grad_() for _ in range(3)]
        relative = RelativePositions(3, 8, 6)
        with torch.no_grad():
            relative.table.normal_(generator=generator)
        inputs, batch = [*qkv, relative.table], relative(tiny.packed(self.LENGTHS))
        found, _ = packed_attention(torch.nn.Identity(), *qkv, None, 0.5, batch=batch)
        expected = self.by_hand(relative.table, qkv, 0.5, 6)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
        weights = torch.randn(found.shape, generator=generator)
        of_found, of_expected = (torch.autograd.grad((out * weights).sum(), inputs) for out in (found, expected))
        torch.testing.assert_close(of_found, of_expected, atol=3e-6, rtol=1e-5)


def moved(encoder: Any, spread: float = 1.0) -> Any:
    """The encoder with a table that is not zero."""
    with torch.no_grad():
        encoder.relative_positions.table.normal_(0.0, spread, generator=torch.Generator().manual_seed(3))
    return encoder


@pytest.mark.parametrize("kind", KINDS)
class TestEncoder:
    def batch(self, folder: Path) -> Batch:
        return Batch.of(tiny.tokens(folder, tiny.texts(9, seed=4)[0]), CPU)

    def test_against_the_librarys_padded_model(self, kind: str, folders: dict[str, Path]) -> None:
        """With the bias in its attention mask, which the library adds to the scores of every layer."""
        encoder = tiny.encoder(folders[kind]).eval()
        encoder.add_relative_positions(8, 6)
        table = moved(encoder).relative_positions.table.detach()
        plain = tiny.plain_model(folders[kind]).eval()
        tokens = tiny.tokens(folders[kind], tiny.texts(9, seed=4)[0])
        padded = tiny.padded(tokens, pad=plain.config.pad_token_id)
        real = padded["attention_mask"].bool()
        width = real.shape[1]
        pairs = torch.tensor([[bucket(i, j, 8, 6) for j in range(width)] for i in range(width)])
        bias = table[pairs].permute(2, 0, 1)[None]
        padded["attention_mask"] = bias.masked_fill(~real[:, None, None, :], torch.finfo(torch.float32).min)
        with torch.no_grad():
            positions = torch.arange(width) + encoder.family.after_padding * (plain.config.pad_token_id + 1)
            expected = getattr(plain, plain.base_model_prefix)(**padded, position_ids=positions[None])[0][real]
            torch.testing.assert_close(encoder(Batch.of(tokens, CPU)), expected, atol=2e-6, rtol=1e-6)

    def test_travel_in_a_weights_file(self, kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
        parent, batch = tiny.encoder(folders[kind]), self.batch(folders[kind])
        parent.add_relative_positions(16, 40)
        moved(parent).eval()
        save_weights(parent.parts(), Storage(str(tmp_path)), "key")
        weights = checked_weights(Storage(str(tmp_path)), "key")[0]
        assert {name.split("/")[0] for name in weights} == {"encoder", "mlm_head"}
        child = tiny.encoder(folders[kind])
        child.add_relative_positions(8, 20)
        child.load_parts(weights, ("encoder",))
        child.add_relative_positions(16, 40)  # a later stage that asks for the same keeps what was learnt
        assert child.relative_positions.shape == (16, 40)
        with torch.no_grad():
            assert torch.equal(child.eval()(batch), parent(batch))
        head_only = tiny.encoder(folders[kind])
        head_only.load_parts(weights, ("mlm_head",))
        assert head_only.relative_positions is None
