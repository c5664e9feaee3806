"""What is asked of some tokens alone is what a whole pass says of them: hidden states, and every weight's gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.encoders.kernels.packing import step_size
from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import TextEncoder, set_dropout

CPU = torch.device("cpu")
KINDS = ("bert", "electra", "distilbert", "modernbert", "mpnet")
WANTED = ("first", "mixture", "all", "none")


def chosen(how: str, batch: Batch) -> Tensor:
    total, first = len(batch.ids), batch.first
    return {
        "first": first,  # this very tensor is known for what it is
        "mixture": torch.cat([torch.tensor([total - 1, 3, 3, 0, total - 1, 5]), first.flip(0)]),
        "all": torch.arange(total),
        "none": torch.empty(0, dtype=torch.long),
    }[how]


def gradients(encoder: TextEncoder, hidden: Tensor) -> dict[str, Tensor]:
    """Of every weight, zeros where there is none, for a loss that weighs each number differently."""
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    encoder.zero_grad(set_to_none=True)
    (hidden * weights).sum().backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in encoder.named_parameters()}


def assert_is_the_whole_pass(encoder: TextEncoder, batch: Batch, wanted: Tensor) -> None:
    whole = encoder(batch)[wanted]
    expected = gradients(encoder, whole)
    found = encoder(batch, wanted)
    assert found.shape == (len(wanted), encoder.hidden_size)
    torch.testing.assert_close(found, whole, atol=2e-6, rtol=1e-6)
    for name, gradient in gradients(encoder, found).items():
        torch.testing.assert_close(gradient, expected[name], atol=2e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    assert bool(len(wanted)) == any(gradient.any() for gradient in expected.values())


@pytest.fixture(scope="module")
def encoders(folders: dict[str, Path]) -> dict[str, TextEncoder]:
    """Of each kind, and one with relative positions."""
    made = {kind: tiny.encoder(folder).train() for kind, folder in folders.items()}
    made["relative"] = tiny.encoder(folders["bert"]).train()
    made["relative"].add_relative_positions()
    torch.nn.init.normal_(made["relative"].base.relative_positions.table, 0.0, 0.5, torch.Generator().manual_seed(0))
    for encoder in made.values():
        set_dropout(encoder, 0.0)
    return made


@pytest.mark.parametrize(("count", "how"), [*((7, how) for how in WANTED), (1, "first")])
@pytest.mark.parametrize("kind", [*KINDS, "relative"])
def test_is_the_whole_pass(
    kind: str, count: int, how: str, folders: dict[str, Path], encoders: dict[str, TextEncoder]
) -> None:
    folder = folders["bert" if kind == "relative" else kind]
    batch = Batch.of(tiny.tokens(folder, tiny.texts(count, seed=4, pairs=True)[0]), CPU)
    assert_is_the_whole_pass(encoders[kind], batch, chosen(how, batch))


@pytest.mark.parametrize("how", ["first", "mixture"])
@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_the_same_with_and_without_gradient(kind: str, how: str, folders: dict[str, Path]) -> None:
    """From the same state of the generator: parts of a batch are looked at first, and then learned from."""
    encoder = tiny.encoder(folders[kind]).train()
    set_dropout(encoder, 0.2)
    batch = Batch.of(tiny.tokens(folders[kind], tiny.texts(7, seed=4)[0]), CPU)
    wanted = chosen(how, batch)
    torch.manual_seed(3)
    found = encoder(batch, wanted).detach()
    torch.manual_seed(3)
    with torch.no_grad():
        torch.testing.assert_close(encoder(batch, wanted), found, atol=2e-6, rtol=1e-6)


def test_the_next_pass_is_a_whole_one(bert: Path, encoders: dict[str, TextEncoder]) -> None:
    """Also after one that broke off."""
    encoder, batch = encoders["bert"], Batch.of(tiny.tokens(bert, tiny.texts(7, seed=4)[0]), CPU)
    before = encoder(batch)
    encoder(batch, batch.first)
    assert torch.equal(encoder(batch), before)
    with pytest.raises((IndexError, RuntimeError)):  # as torch says it
        encoder(batch, torch.tensor([10**6]))
    assert torch.equal(encoder(batch), before)
    assert not any(module._forward_pre_hooks for module in encoder.modules())


@given(st.integers(0, 2**40))
def test_a_rounded_number_is_a_little_more(count: int) -> None:
    assert count <= step_size(count) <= count + max(15, count // 16)
    assert step_size(step_size(count)) == step_size(count) <= step_size(count + 1)
    assert step_size(count) % 16 == 0
