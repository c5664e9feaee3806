"""A whole layer as one operator computes what the library's modules compute: states, gradients and dropout's draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from harness.encoders.kernels import cpu
from harness.encoders.kernels import layer as layer_module
from harness.encoders.kernels.layer import WholeLayer
from harness.encoders.kernels.packing import rounded
from harness.encoders.models.text_encoder import Batch, TextEncoder
from harness.encoders.tokens import Tokens
from harness.streams import seed_of
from harness.training.forward_backward import autocast, seed_dropout

CPU = torch.device("cpu")
KINDS = ("bert", "roberta", "electra")
LENGTHS = np.array([9, 3, 12, 5, 5, 1, 8])
BY_MODULES, WHOLE = cpu.DEFAULT, cpu.INTEL


@pytest.fixture
def encoder(kind: str, folders: dict[str, Path]) -> TextEncoder:
    return tiny.built(folders[kind], tiny.OBJECTIVES["cross_entropy"], dropout=0.1).encoder


def batch_of() -> Batch:
    total = int(LENGTHS.sum())
    ids = np.random.default_rng(0).integers(5, 40, total).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    return Batch.of(Tokens(ids, np.zeros(total, np.int8), np.zeros(total, np.bool_), offsets), CPU)


def asked(batch: Batch, which: str) -> Tensor | None:
    """Which tokens' states are computed; a position that is asked twice counts twice."""
    return {"all": None, "first": batch.packing.first, "some": torch.tensor([4, 0, 11, 11, 40])}[which]


def passed(
    encoder: TextEncoder,
    kernels: cpu.Kernels,
    which: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    precision: str = "fp32",
    dropout: float = 0.1,
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """(states, gradients by name, the generator's state after dropout's draws) of one pass forward and backward."""
    monkeypatch.setattr(cpu, "kernels", lambda: kernels)
    encoder.train()
    encoder.set_dropout(dropout)
    encoder.zero_grad()
    batch = batch_of()
    seed_dropout(seed_of(0, "dropout", 1), CPU)
    with autocast(CPU, precision):
        found = encoder(batch, asked(batch, which))
    state = torch.get_rng_state()
    weights = torch.linspace(-1, 1, found.numel()).view(found.shape)
    (found.float() * weights).sum().backward()
    gradients = {name: each.grad.clone() for name, each in encoder.named_parameters() if each.grad is not None}
    return found.detach(), gradients, state


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("which", ["all", "first", "some"])
@pytest.mark.parametrize("kind", KINDS)
def test_is_what_the_modules_compute(
    encoder: TextEncoder, which: str, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout's draws included: the generators end in the same state. In double precision but for padding's mask."""
    encoder.double()
    expected, theirs, state = passed(encoder, BY_MODULES, which, monkeypatch, dropout=dropout)
    found, ours, own_state = passed(encoder, WHOLE, which, monkeypatch, dropout=dropout)
    assert torch.equal(own_state, state)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert ours.keys() == theirs.keys()
    for name, each in ours.items():
        torch.testing.assert_close(each, theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("precision", "near"), [("fp32", 1e-5), ("bf16", 6e-2), ("fp16", 8e-3)])
@pytest.mark.parametrize("kind", KINDS)
def test_precisions(encoder: TextEncoder, precision: str, near: float, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, theirs, _ = passed(encoder, BY_MODULES, "first", monkeypatch, precision=precision)
    found, ours, _ = passed(encoder, WHOLE, "first", monkeypatch, precision=precision)
    assert (found - expected).abs().max() <= near * expected.abs().max()
    assert all(each.dtype == torch.float32 for each in ours.values())
    whole = torch.cat(
        [each.flatten() for each in theirs.values()]
    ).norm()  # a key's bias has a gradient of rounding alone
    for name, each in ours.items():
        assert (each - theirs[name]).norm() <= near * whole, name


@pytest.mark.parametrize("which", ["all", "first", "some"])
@pytest.mark.parametrize("kind", KINDS)
def test_evaluation(encoder: TextEncoder, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, found = batch_of(), []
    encoder.eval()
    for kernels in (BY_MODULES, WHOLE):
        monkeypatch.setattr(cpu, "kernels", lambda kernels=kernels: kernels)
        with torch.inference_mode():
            found.append(encoder(batch, asked(batch, which)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert"])
def test_repeats_to_the_bit(encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without gradient, as the pass that gathers rows draws."""
    one, gradients, _ = passed(encoder, WHOLE, "first", monkeypatch)
    other, again, _ = passed(encoder, WHOLE, "first", monkeypatch)
    assert torch.equal(one, other)
    assert all(torch.equal(each, again[name]) for name, each in gradients.items())
    seed_dropout(seed_of(0, "dropout", 1), CPU)
    batch = batch_of()
    with torch.no_grad():
        assert torch.equal(encoder(batch, batch.packing.first), one)


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_more_than_is_asked(encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the last layer, keys and values of all tokens and everything else of the first tokens alone."""
    rows: list[int] = []
    product = layer_module._product

    def spy(x: Tensor, *rest: Tensor) -> Any:
        rows.append(len(x))
        return product(x, *rest)

    monkeypatch.setattr(layer_module, "_product", spy)
    passed(encoder, WHOLE, "first", monkeypatch)
    whole, first = rounded(int(LENGTHS.sum())), rounded(len(LENGTHS))
    assert first < whole
    assert rows == [whole] * 6 * (len(encoder.layers) - 1) + [first, whole, whole, first, first, first]


@pytest.mark.parametrize("kind", KINDS)
def test_where_the_modules_run(encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """On other processors, and with relative positions, whose bias has a gradient."""
    assert all(isinstance(layer, WholeLayer) for layer in encoder.layers)
    calls: list[int] = []
    apply = layer_module._Layer.apply
    monkeypatch.setattr(layer_module._Layer, "apply", lambda *given: calls.append(1) or apply(*given))
    passed(encoder, BY_MODULES, "first", monkeypatch)
    assert not calls
    passed(encoder, WHOLE, "first", monkeypatch)
    assert len(calls) == len(encoder.layers)
    encoder.add_relative_positions()
    _, gradients, _ = passed(encoder, WHOLE, "first", monkeypatch)
    assert len(calls) == len(encoder.layers)
    assert any("relative_positions" in name for name in gradients)


@pytest.mark.parametrize("kind", ["bert"])
def test_what_would_change_a_layer_is_refused(encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "kernels", lambda: WHOLE)
    batch = batch_of()
    with pytest.raises(ValueError, match="does not compute head_mask"):
        encoder.layers[0](torch.zeros(1, 48, 32), packing=batch.packing, head_mask=torch.ones(1))


def test_another_activation_stays_with_the_modules(folders: dict[str, Path]) -> None:
    encoder = tiny.built(folders["bert"], tiny.OBJECTIVES["cross_entropy"]).encoder
    layer = type(encoder.layers[0]).__mro__[2](encoder.config)
    layer.intermediate.intermediate_act_fn = torch.nn.ReLU()
    layer_module.use_whole_layers([layer])
    assert not isinstance(layer, WholeLayer)


def test_the_kind_of_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected in (
        ("vendor_id : GenuineIntel\n", "intel"),
        ("vendor_id : AuthenticAMD\n", "default"),
        (None, "default"),
    ):

        def read(_: Path, text: str | None = text) -> str:
            if text is None:
                raise FileNotFoundError
            return text

        cpu.kernels.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", read)
            assert cpu.kernels().name == expected
    cpu.kernels.cache_clear()
