"""A linear layer through oneDNN is torch's own, value and gradients, up to the rounding of float32; it goes that way
only where it is worth it, and no parameter notices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.encoders.kernels import cpu
from harness.encoders.kernels.cpu import Dropout, Linear, dropout_mask, linear, use_cpu_kernels
from harness.machine import on_cpu

UNIT = 2.0**-24
"""Of rounding in float32."""
K, M = 128, 64
EDGE = cpu.ONEDNN_FROM // (K * M)
"""Rows from which on a product of this width is worth it."""
SHAPES = {"worth": (EDGE, K), "worth-3d": (4, EDGE // 4, K), "below": (EDGE - 1, K)}


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def laid(x: Tensor, how: str) -> Tensor:
    """The same kind of values in another memory."""
    if how == "transposed":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if how == "strided":
        return torch.stack([x, x + 1], dim=-1)[..., 0]
    if how == "expanded":
        return x[:1].expand_as(x)
    return x


@pytest.fixture(autouse=True)
def default_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever processor the tests run on."""
    monkeypatch.setattr(cpu, "kernels", lambda: "default")


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shape of x in every product through oneDNN."""
    seen: list[tuple[int, ...]] = []
    product = cpu.linear_pointwise

    def spy(x: Tensor, *rest: Any) -> Tensor:
        seen.append(tuple(x.shape))
        return product(x, *rest)

    monkeypatch.setattr(cpu, "linear_pointwise", spy)
    return seen


@pytest.mark.parametrize("how", ["contiguous", "transposed", "strided", "expanded"])
@pytest.mark.parametrize(("shape", "with_bias"), [("worth", False), ("worth-3d", True), ("below", True)])
def test_value_and_gradients(shape: str, with_bias: bool, how: str, products: list[Any]) -> None:
    """For a gradient that is laid out like nothing else: a slice, or one number expanded."""
    leaf = drawn(*SHAPES[shape], seed=1).requires_grad_()
    x, weight = laid(leaf, how), drawn(M, K, seed=2).requires_grad_()
    x.retain_grad()
    bias = drawn(M, seed=3).requires_grad_() if with_bias else None
    found = linear(x, weight, bias)
    given = laid(drawn(*found.shape, seed=4), "strided")
    if how == "expanded":
        given = given.flatten()[:1].expand_as(found)
    found.backward(given)
    assert bool(products) == shape.startswith("worth")
    a, w, g = (each.detach().double().reshape(-1, each.shape[-1]) for each in (x, weight, given))
    b = torch.zeros(M).double() if bias is None else bias.detach().double()

    def check(one: Tensor, exact: Tensor, size: Tensor, terms: int) -> None:
        """Within what a sum of so many float32 terms may be off in any order; `size` is the sum of their magnitudes."""
        assert one.dtype == torch.float32
        bound = 1.01 * (terms + 1) * UNIT * size
        assert bool(((one.reshape(exact.shape).double() - exact).abs() <= bound).all())

    assert found.shape == (*x.shape[:-1], M)
    check(found.detach(), a @ w.T + b, a.abs() @ w.abs().T + b.abs(), K + 1)
    check(x.grad, g @ w, g.abs() @ w.abs(), M)
    check(weight.grad, g.T @ a, g.abs().T @ a.abs(), len(a))
    if bias is not None:
        check(bias.grad, g.sum(0), g.abs().sum(0), len(a))


def test_where_it_goes(products: list[Any]) -> None:
    """By the number of multiplications, in float32 alone, never under autocast; the library's own result elsewhere."""
    weight, bias = drawn(M, K, seed=2), drawn(M, seed=3)

    def goes(x: Tensor, w: Tensor = weight, b: Tensor = bias) -> bool:
        products.clear()
        linear(x, w, b)
        return bool(products)

    assert not goes(drawn(0, K, seed=1))
    assert not goes(drawn(EDGE, K, seed=1).double(), weight.double(), bias.double())
    assert not goes(drawn(EDGE, K, seed=1).bfloat16(), weight.bfloat16(), bias.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = drawn(EDGE, K, seed=1)
        assert not goes(x)
        assert torch.equal(linear(x, weight, bias), nn.functional.linear(x, weight, bias))
    with torch.inference_mode():
        assert goes(drawn(EDGE, K, seed=1))


def test_intel_stays_with_mkl(products: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "kernels", lambda: "mkl")
    x, weight = drawn(16 * EDGE, K, seed=1), drawn(M, K, seed=2)
    assert torch.equal(linear(x, weight), nn.functional.linear(x, weight))
    assert not products


@pytest.mark.parametrize("asked", [(x, w, b) for x in (0, 1) for w in (0, 1) for b in (0, 1) if x + w + b])
def test_what_asks_for_no_gradient_gets_none(asked: tuple[int, ...], products: list[Any]) -> None:
    tensors = [drawn(EDGE, K, seed=1), drawn(M, K, seed=2), drawn(M, seed=3)]
    for tensor, wanted in zip(tensors, asked, strict=True):
        tensor.requires_grad_(bool(wanted))
    linear(*tensors).sum().backward()
    assert [int(tensor.grad is not None) for tensor in tensors] == list(asked)
    assert len(products) == 1 + asked[0] + asked[1]  # nothing is multiplied in vain


def test_parameters_stay_the_same_ones() -> None:
    class Own(nn.Linear):
        """A kind of layer that is not the library's plain one."""

    inner = nn.Sequential(nn.Linear(K, M), nn.GELU(), nn.Dropout(0.0))
    model = nn.Sequential(inner, Own(M, K), nn.Linear(K, M, bias=False))
    model[2].weight = inner[0].weight
    before = dict(model.named_parameters(remove_duplicate=False))
    use_cpu_kernels(model)
    assert [type(module) for module in (*inner, *model[1:])] == [Linear, nn.GELU, Dropout, Own, Linear]
    after = dict(model.named_parameters(remove_duplicate=False))
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)


def test_a_record_names_kernels_of_a_cpu_or_of_another_device() -> None:
    assert all(on_cpu({"kernels": name, "device": "another"}) for name in ("default", "mkl"))
    assert not any(on_cpu({"kernels": name, "device": "another"}) for name in ("", "padded"))


MANY = 400_001
"""An odd number: the last integer serves one value alone."""


@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.9])
def test_draws_are_independent_and_keep_their_share(probability: float) -> None:
    """Of whatever lies 1 to 4 apart; the two halves of one integer, and the end of one and the start of the next."""
    torch.manual_seed(0)
    mask = dropout_mask(torch.empty(MANY), probability)
    assert (mask.dtype, mask.shape) == (torch.float32, (MANY,))
    kept, spread = (mask != 0).double(), (probability * (1 - probability)) ** 0.5
    torch.testing.assert_close(mask.double(), kept / (1 - probability))
    assert abs(float(kept.mean()) - (1 - probability)) < 5 * spread / MANY**0.5
    whole = (kept - (1 - probability)) / spread
    pairs = {f"lag {lag}": (whole[:-lag], whole[lag:]) for lag in (1, 2, 3, 4)}
    even = whole[: MANY - 1].view(-1, 2)
    pairs |= {"halves": (even[:, 0], even[:, 1]), "ends": (even[:-1, 1], even[1:, 0])}
    for name, (one, other) in pairs.items():
        assert abs(float((one * other).mean())) < 5 / len(one) ** 0.5, name


@pytest.mark.parametrize(
    ("dtype", "probability"), [(torch.float32, 0.1), (torch.float64, 0.5), (torch.bfloat16, 0.999)]
)
def test_values_and_gradient_share_one_mask(probability: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x, given = (torch.rand(51, 97, generator=generator).add(1).to(dtype) for _ in range(2))
    x.requires_grad_()
    torch.manual_seed(4)
    found = Dropout(probability)(x)
    found.backward(given)
    kept = found.detach() != 0
    assert found.dtype == dtype
    assert 0 < int(kept.sum()) < kept.numel()
    for each, whole in ((found, x), (x.grad, given)):
        assert each is not None
        torch.testing.assert_close(each, torch.where(kept, whole / (1 - probability), 0))


@pytest.mark.parametrize(("probability", "training"), [(0.5, False), (0.0, True)])
def test_nothing_is_done_or_drawn(probability: float, training: bool) -> None:
    x = torch.ones(100)
    before = torch.get_rng_state()
    assert torch.equal(Dropout(probability).train(training)(x), x)
    assert torch.equal(torch.get_rng_state(), before)
