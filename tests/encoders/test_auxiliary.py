"""The network beside an encoder: what it shares with it, what it starts from, and that it runs as the encoder does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from harness.encoders.flops import forward_flops, mlm_head_flops
from harness.encoders.models.auxiliary import Auxiliary
from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import TextEncoder, set_dropout
from harness.encoders.models.weights import weights_digest

CPU = torch.device("cpu")
KINDS = [kind for kind in tiny.KINDS if kind != "mpnet"]


def beside(encoder: TextEncoder, *, relative: bool = False, **changes: Any) -> Auxiliary:
    """One copied layer over the encoder's own embeddings, unless told otherwise; `relative` gives both relative positions."""
    if relative:
        encoder.add_relative_positions(8, 6)
    return Auxiliary(encoder, **{"layers": 1, "hidden": 0, "initial": "encoder", "shared": True, "seed": 1, **changes})


def batch_of(folder: Path) -> Batch:
    return Batch.of(tiny.tokens(folder, tiny.texts(9, seed=4)[0]), CPU)


def digest(auxiliary: Auxiliary) -> str:
    return weights_digest(auxiliary.parts())


NARROW = {"hidden": 8, "layers": 3, "initial": "random"}
RELATIVE = {"relative": True}
VARIANTS = [{}, {"layers": 2}, {"initial": "random"}, NARROW, {**NARROW, **RELATIVE}, RELATIVE]
PAIRS = [(variant, bool(place % 2)) for place, variant in enumerate(VARIANTS)]


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


class TestSharing:
    @pytest.mark.parametrize(("variant", "shared"), PAIRS)
    def test_gradient_reaches_the_shared_embeddings_and_nothing_else(
        self, variant: dict[str, Any], shared: bool, folder: Path
    ) -> None:
        encoder, batch = tiny.encoder(folder), batch_of(folder)
        auxiliary = beside(encoder, shared=shared, **variant)
        logits = auxiliary.logits(auxiliary(batch))
        nn.functional.cross_entropy(logits, batch.ids).backward()
        for name, parameter in encoder.model.named_parameters():
            reached = parameter.grad is not None and bool(parameter.grad.any())
            assert reached == (shared and ".embeddings." in name), name
        for name, parameter in auxiliary.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name

    def test_dropout_is_its_own(self, folder: Path) -> None:
        """L6: the sampling pass has none while the encoder trains; and the encoder keeps its mode."""
        encoder, batch = tiny.encoder(folder), batch_of(folder)
        auxiliary = beside(encoder.train())
        set_dropout(encoder, 0.4)
        set_dropout(auxiliary, 0.4)
        assert not torch.equal(auxiliary(batch), auxiliary(batch))
        auxiliary.eval()
        with torch.no_grad():
            still = auxiliary(batch)
            assert torch.equal(auxiliary(batch), still)
        assert all(m.training for m in encoder.modules())
        auxiliary.train()
        set_dropout(auxiliary, 0.0)
        torch.testing.assert_close(auxiliary(batch), still, rtol=0, atol=2e-6)


class TestStart:
    @pytest.mark.parametrize("relative", [False, True])
    @pytest.mark.parametrize("layers", [1, 2])
    def test_a_copy_is_the_truncated_encoder(self, layers: int, relative: bool, folder: Path) -> None:
        encoder, batch = tiny.encoder(folder).eval(), batch_of(folder)
        if relative:
            encoder.add_relative_positions(8, 6)
            nn.init.normal_(encoder.relative_positions.table)
        auxiliary = beside(encoder, layers=layers).eval()
        truncated = copy.deepcopy(encoder)
        truncated.stack.layer = truncated.stack.layer[:layers]
        with torch.no_grad():
            expected = truncated(batch)
            assert torch.equal(auxiliary(batch), expected)
            assert torch.equal(auxiliary.logits(expected), truncated.mlm_logits(expected))

    @pytest.mark.parametrize("variant", [{"initial": "random"}, NARROW, {**NARROW, **RELATIVE}])
    def test_a_random_start_is_a_function_of_the_seed(self, variant: dict[str, Any], folder: Path) -> None:
        torch.manual_seed(1)
        state = torch.get_rng_state()
        first = digest(beside(tiny.encoder(folder), **variant))
        assert torch.equal(torch.get_rng_state(), state)
        torch.manual_seed(2)
        moved = tiny.encoder(folder)
        with torch.no_grad():
            for parameter in moved.parameters():
                parameter.add_(0.2)
        assert digest(beside(moved, **variant)) == first
        assert digest(beside(moved, **{**variant, "seed": 2})) != first


class TestRuns:
    def test_narrow(self, folder: Path) -> None:
        encoder, batch = tiny.encoder(folder), batch_of(folder)
        auxiliary = beside(encoder, **NARROW)
        hidden = auxiliary(batch)
        assert hidden.shape == (len(batch.ids), 8)
        assert auxiliary.logits(hidden[:5]).shape == (5, encoder.config.vocab_size)
        numbers = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        assert [auxiliary.config[name] for name in numbers] == [8, 3, 1, 32]
        assert sum(parameter.shape == (32, 8) for parameter in auxiliary.transformer.parameters()) == 3
        assert encoder.config.hidden_size == 32  # the encoder's configuration is its own

    @pytest.mark.parametrize("variant", [{}, NARROW, {**NARROW, "layers": 1}])
    def test_counted_flops(self, variant: dict[str, Any], folders: dict[str, Path]) -> None:
        folder = folders["bert"]
        auxiliary = beside(tiny.encoder(folder), **variant).eval()
        tokens = tiny.tokens(folder, [(" ".join(["w1"] * 30),)] * 2)
        batch = Batch.of(tokens, CPU)
        attention = 4.0 * auxiliary.config["num_hidden_layers"] * auxiliary.config["hidden_size"] * 2 * 32**2
        with torch.no_grad():
            with FlopCounterMode(display=False) as layers:
                hidden = auxiliary(batch)
            with FlopCounterMode(display=False) as head:
                auxiliary.logits(hidden)
        width = auxiliary.config["hidden_size"]
        projection = 0 if auxiliary.project is None else 2 * 64 * 32 * width
        counted = forward_flops(auxiliary.config, 64, 2 * 32**2) + projection
        # torch's counter does not know the fused attention of the CPU
        assert layers.get_total_flops() in (pytest.approx(counted), pytest.approx(counted - attention))
        assert mlm_head_flops(auxiliary.config, 64) == head.get_total_flops()
