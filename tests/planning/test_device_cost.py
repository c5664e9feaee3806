"""A plan on devices of a data sheet: memory against what autograd saves, and costs against loops."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from requested import resolve_table

from harness.devices import DEVICES, device_and_count, device_called
from harness.encoders import locate
from harness.encoders.flops import parameters
from harness.errors import UserError
from harness.planning.device_cost import BESIDE_LAYERS, LAYER_SECONDS, SHARE, device_cost
from harness.planning.memory import activations, auxiliary_parameters, fitting, memory_of
from harness.planning.runs import make_plan
from harness.planning.work import work
from harness.specs import Data, Objective, RowSet, Selection, Stage
from harness.store import Speed
from harness.training.forward_backward import ForwardBackward
from harness.training.process_group import SINGLE_PROCESS

META = torch.device("meta")
DATA = Data(RowSet("d"), max_length=24)


def stage_of(spec: Objective, encoder: Any, **changes: Any) -> Stage:
    return Stage(spec, replace(DATA, num_labels=2), tiny.optim(), 1, encoder, **changes)


@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "distilbert"])
def test_parameters_are_counted_exactly(name: str) -> None:
    assert parameters(tiny.shape_of(name)) == sum(each.numel() for each in tiny.model(name).parameters())


@pytest.mark.parametrize("name", ["mlm", "cross_entropy", "coco_lm", "electra-narrow", "taco"])
def test_memory_is_that_of_a_step(name: str, bert: Path) -> None:
    """Weights, gradients and AdamW's state within the heads that an objective adds, activations between 0.67 and 1.6 times what autograd saves on
    texts of the greatest length."""
    spec, rows = tiny.OBJECTIVES[name], 8
    objective = tiny.built(bert, spec, dropout=0.1).to(META)
    examples = tiny.read(bert, [("w1 w2 w3 w4 w5 w6 w7 w8 " * 4,)] * rows, spec)
    labels = np.arange(rows) % 2 if name == "cross_entropy" else None
    views = objective.prepare(examples, labels, tiny.draw_of())
    length = int(examples.tokens.lengths.max())
    config, stage = tiny.shape_of("bert"), stage_of(spec, locate(str(bert), download=False).encoder)
    stage = replace(stage, data=replace(stage.data, max_length=length))
    own = {parameter.untyped_storage()._cdata for parameter in objective.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if (storage := tensor.untyped_storage()._cdata) not in own:
            saved[storage] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        ForwardBackward(objective, SINGLE_PROCESS, 0, "fp32", META, 1).run(views, 1, None)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    # meta takes no fused attention, so the scores are kept as well
    squares = rows * length * length * config["num_attention_heads"] * config["num_hidden_layers"]
    assert 0.67 < (activations(stage, config, rows) + 12 * squares) / measured < 1.6
    memory = memory_of(stage, config, rows)
    assert memory.weights == 4 * (parameters(config) + auxiliary_parameters(stage, config))
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    assert memory.gradients == pytest.approx(4 * sum(each.numel() for each in trained), rel=0.15)
    optimizer = torch.optim.AdamW(trained)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    states = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    assert memory.optimizer == pytest.approx(sum(each.untyped_storage().nbytes() for each in states), rel=0.15)


def test_memory_grows_with_what_it_holds(bert: Path) -> None:
    config, encoder = tiny.shape_of("bert"), locate(str(bert), download=False).encoder
    stage = stage_of(tiny.OBJECTIVES["mlm"], encoder)
    one, two = (memory_of(stage, config, rows) for rows in (1, 2))
    assert two.activations == pytest.approx(2 * one.activations)
    assert (one.weights, one.optimizer) == (two.weights, two.optimizer)
    selected = memory_of(replace(stage, selection=Selection("accuracy")), config, 1)
    assert selected.total == pytest.approx(one.total + one.weights)
    half = memory_of(replace(stage, optim=replace(stage.optim, precision="bf16")), config, 1)
    assert half.activations < one.activations
    assert half.weights == pytest.approx(1.5 * one.weights)
    room = (one.total - one.activations + 3.5 * one.activations + 1e9) / 0.9
    assert fitting(stage, config, room, 2) == 2
    assert fitting(stage, config, room, 16) == 3
    assert fitting(stage, config, 1e9, 16) == 0


def test_the_cost_of_a_table_is_a_loop_over_its_stages() -> None:
    resolved = resolve_table("few_shot", "paper", tasks=("sst2",), methods=("ft", "tapt"), subsets=(0,), seeds=(31, 42))
    located = replace(locate("roberta-base", download=False), config=tiny.shape_of("roberta"))
    plan = make_plan(resolved, None, located)
    items, _ = work(plan, {}, lambda name: False, False)
    device = DEVICES["h100"]
    guess = device_cost(plan, items, [], device, 8, price=2.0)
    assert (guess.share.value, guess.share.measured) == (SHARE, False)
    seconds = {
        item.stage.key: max(
            item.cost / (SHARE * device.single),
            item.stage.optim.steps * LAYER_SECONDS * (located.config["num_hidden_layers"] + BESIDE_LAYERS),
        )
        for item in items
    }
    assert guess.busy * 3600 == pytest.approx(math.fsum(seconds.values()))
    assert sum(row.updates for row in guess.rows) == sum(item.stage.optim.steps for item in items)
    chain = max(sum(seconds[stage.key] for stage in run.stage.chain) for run in plan.runs)
    assert guess.seconds == pytest.approx(max(sum(seconds.values()) / 8, chain))
    assert guess.rented * 3600 == pytest.approx(8 * guess.seconds)
    assert all(row.micro_batch == row.batch for row in guess.rows)
    # measured: stages of this encoder on this device, whatever the host; others say nothing
    mine = located.encoder.digest
    speeds = [
        Speed("NVIDIA H100 80GB HBM3", mine, 1e15, 10.0, 1e15),
        Speed("NVIDIA H200", mine, 9e15, 10.0, 1e15),
        Speed("NVIDIA H100 80GB HBM3", "other", 9e15, 10.0, 1e15),
        Speed("AMD EPYC", mine, 9e15, 10.0, 0.0),
    ]
    timed = device_cost(plan, items, speeds, device, 1)
    assert (timed.share.value, timed.share.measured) == (pytest.approx(0.1), True)
    assert timed.seconds == pytest.approx(sum(item.cost for item in items) / (0.1 * device.single))
    done = device_cost(plan, [], speeds, device, 1)
    assert (done.seconds, done.busy, [row.updates for row in done.rows]) == (0.0, 0.0, [0, 0])


def test_devices_by_name() -> None:
    names = {
        "Tesla T4": "t4", "Tesla V100-SXM2-16GB": "v100-16", "Tesla V100-PCIE-32GB": "v100-32",
        "NVIDIA GeForce RTX 3090": "rtx3090", "NVIDIA GeForce RTX 4090": "rtx4090", "NVIDIA A10G": "a10g", "NVIDIA L4": "l4",
        "NVIDIA L40S": "l40s", "NVIDIA A100-PCIE-40GB": "a100-40", "NVIDIA A100-SXM4-80GB": "a100-80", "NVIDIA A100 80GB PCIe": "a100-80",
        "NVIDIA H100 80GB HBM3": "h100", "NVIDIA H100 PCIe": "h100-pcie", "NVIDIA H200": "h200", "NVIDIA B200": "b200",
    }  # fmt: skip
    assert {name: device_called(name) for name in names} == {name: DEVICES[short] for name, short in names.items()}
    assert set(names.values()) == set(DEVICES)
    for other in ("NVIDIA H200 NVL", "NVIDIA GH200 480GB", "NVIDIA GeForce RTX 3090 Ti", "AMD EPYC 9R14", "cpu"):
        assert device_called(other) is None
    assert DEVICES["t4"].peak("bf16") == DEVICES["t4"].single
    assert device_and_count("H100:8", "--device") == (DEVICES["h100"], 8)
    assert device_and_count("l4", "--device") == (DEVICES["l4"], 1)
    for wrong, sentence in {"h100:0": "not a number of devices", "h10:8": "h100", "a100": "a100-40, a100-80"}.items():
        with pytest.raises(UserError, match=sentence):
            device_and_count(wrong, "--device")
