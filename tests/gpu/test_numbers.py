"""Numbers on a GPU are those of the CPU within a tolerance: the device against the CPU, blocks against the library's padded batches, micro-batches,
bf16 and fp16, one-rank NCCL. docs/gpu.md explains the figures.

Every test trains what `harness.training.loop.train` trains, on random weights and tokens, without dropout except where it is named. On a CPU, where
the device would be compared with itself, one objective shows that each test runs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from gpu.models import BATCH, CPU, FEW_SHOT, SEED, Setting, Trained, built, inputs_of, needs, random_tokens, trained
from torch import distributed
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForMaskedLM

from harness.encoders.families import FAMILIES
from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import load_encoder, set_dropout
from harness.methods import DEFINITIONS
from harness.objectives.base import TrainingObjective
from harness.specs import Optim
from harness.streams import stream
from harness.training.forward_backward import Placement, autocast, seed_dropout
from harness.training.loop import train
from harness.training.process_group import ProcessGroup

Measured = Callable[..., None]
Run = list[dict[str, float]]
"""The terms of each update, by name."""
LR = 1e-3
COMPARED = ("ft", "mlm", "cmlm", "taco", "coco_lm")
"""Objectives of the tests that do not run all of them."""
_CODE = {kind: replace(family, title="", tokenizer=(), seen="") for kind, family in FAMILIES.items() if family.packed}
KINDS = (*(kind for kind in _CODE if kind == next(other for other in _CODE if _CODE[other] == _CODE[kind])), "mpnet")
"""Families whose layers run packed, of those that share their code (RoBERTa, CamemBERT) the first; and one that runs padded."""
HALF = {"bf16": {"mean": 5e-2, "worst": 2e-1}, "fp16": {"first": 1e-2, "worst": 5e-1}}
"""Of a loss in half precision against float32, relative to it: bf16 has 8 bits of precision, 4e-3. fp16 has 11, but skips some of
its first updates, which float32 makes: COCO-LM's five of ten."""
DROPOUT = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 1e-2}
"""Of hidden states with and without gradient, relative to their largest entry. Another mask differs by about 1."""


def on_a_gpu(*names: str) -> Any:
    """All objectives on a GPU, the first of them on a CPU."""
    cases = [("cpu", names[0]), *(pytest.param("cuda", name, marks=pytest.mark.gpu) for name in names)]
    return pytest.mark.parametrize(("setting", "name"), cases, indirect=["setting"])


def losses_of(
    setting: Setting,
    what: Trained,
    *,
    device: torch.device | None = None,
    steps: int = 10,
    micro_batch: int = 0,
    **named: Any,
) -> tuple[Run, TrainingObjective]:
    """Train from the same weights on the same batches; the loss and the terms of each update, and the objective afterwards."""
    config = named.pop("config", setting.config)
    optim = Optim(LR, BATCH, steps, schedule="constant", **{"dropout": 0.0, **named})
    objective = built(what, config, optim.dropout)
    placement = Placement(device or setting.device, micro_batch=micro_batch)
    result = train(objective, inputs_of(what, config), optim, SEED, placement=placement, log_every=1)
    left_out = ("step", "measures", "curve")
    return [{n: v for n, v in entry.items() if n not in left_out} for entry in result.history], objective


def differences(one: Run, other: Run) -> list[float]:
    """The largest relative difference of any term, by update. Infinite where the terms are not the same ones."""
    if len(one) != len(other) or any(a.keys() != b.keys() for a, b in zip(one, other, strict=False)):
        return [float("inf")]
    return [max(abs(a[name] - b[name]) / max(abs(a[name]), 0.1) for name in a) for a, b in zip(one, other, strict=True)]


@on_a_gpu(*trained())
def test_losses(name: str, setting: Setting, measured: Measured) -> None:
    """Against those on the CPU, relative to them (to 0.1 where they are smaller; float32, no TF32): before any update, where only the order of sums
    differs; and over all updates, which amplify that."""
    runs = [losses_of(setting, trained()[name], device=device)[0] for device in (CPU, setting.device)]
    by_update = differences(*runs)
    values = {"first": by_update[0], "worst": max(by_update), "cpu": runs[0], "device": runs[1]}
    measured(values, {"first": 1e-5, "worst": 1e-3} if setting.cuda else {"first": 0.0, "worst": 0.0})


def test_float32_product(setting: Setting, measured: Measured) -> None:
    """Of inner size 1024, relative to its largest entry: neither a library nor the environment switched TF32 on, which has 10 bits: 1e-4 and more."""
    size = 1024 if setting.cuda else 256
    random = torch.Generator().manual_seed(SEED)
    left, right = (torch.randn(size, size, generator=random) for _ in range(2))
    exact = left.double() @ right.double()
    computed = (left.to(setting.device) @ right.to(setting.device)).cpu().double()
    measured({"error": float((computed - exact).abs().max() / exact.abs().max())}, {"error": 1e-5})


@on_a_gpu("ft", "coco_lm", "scl", "mlm", "cmlm-simclr", "taco")
def test_micro_batches(name: str, setting: Setting, measured: Measured) -> None:
    """A batch of 8 in micro-batches of 3, which cut contrast groups, against the whole batch."""
    whole, split = (losses_of(setting, trained()[name], steps=5, micro_batch=size)[0] for size in (0, 3))
    measured({"worst": max(differences(whole, split))}, {"worst": 1e-4})


@pytest.mark.parametrize("precision", HALF)
@on_a_gpu(*COMPARED)
def test_half_precision(name: str, precision: str, setting: Setting, measured: Measured) -> None:
    needs(setting, precision)
    single, low = (losses_of(setting, trained()[name], precision=each)[0] for each in ("fp32", precision))
    by_update = [abs(a["loss"] - b["loss"]) / max(abs(a["loss"]), 0.1) for a, b in zip(single, low, strict=True)]
    values = {"first": by_update[0], "mean": float(np.mean(by_update)), "worst": float(np.max(by_update))}
    measured(values, HALF[precision])


@pytest.mark.parametrize("precision", DROPOUT)
def test_dropout(precision: str, setting: Setting, measured: Measured) -> None:
    """How far hidden states with gradient are from those without: one seed draws one mask, since split contrast groups run a pass
    of each kind."""
    needs(setting, precision)
    what, states = trained()["cmlm-simclr"], []
    objective = built(what, setting.config, 0.1).to(setting.device)
    batch = Batch.of(inputs_of(what, setting.config).train.tokens, setting.device)
    for mode in (torch.no_grad, torch.enable_grad):
        seed_dropout(SEED, setting.device)
        with mode(), autocast(setting.device, precision):
            states.append(objective.encoder(batch).detach().float())
    without, with_gradient = states
    apart = float((without - with_gradient).abs().max() / without.abs().max())
    measured({"difference": apart}, {"difference": DROPOUT[precision]})


def test_every_objective_and_family_is_compared() -> None:
    named = {what.spec.name for what in trained().values()}
    assert named == {name for name, definition in DEFINITIONS.items() if not definition.fitted}
    packed = {kind for kind, family in FAMILIES.items() if family.packed}
    assert set(KINDS) == (packed - {"camembert", "xlm-roberta"}) | {"mpnet"}


# -------------------------------------------------------------------------------------------- packed and padded


@pytest.mark.parametrize("kind", KINDS)
def test_block(kind: str, setting: Setting, measured: Measured) -> None:
    """Hidden states, relative to their largest entry, and gradient of a block, relative to its norm, against the library's own model on the padded batch."""
    folder = setting.folder / kind
    _save(kind, setting.config, folder)
    ours = load_encoder(folder, f"made-{kind}", seed=SEED).to(setting.device).train()
    plain: Any = AutoModelForMaskedLM.from_pretrained(str(folder), attn_implementation="eager", dtype=torch.float32)
    plain = plain.to(setting.device).train()
    for module in plain.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    set_dropout(ours, 0.0)
    limit = min(FEW_SHOT.longest, setting.config["max_position_embeddings"] - 2)
    tokens = random_tokens(BATCH, setting.config["vocab_size"], FEW_SHOT.mean, limit)
    block = Batch.of(tokens, setting.device, block=True)
    hidden = ours(block)[block.real_tokens]
    padded = tiny.padded(tokens, pad=plain.config.pad_token_id)
    batch = {name: padded[name].to(setting.device) for name in ("input_ids", "attention_mask")}
    expected = plain.base_model(**batch)[0][batch["attention_mask"].bool()]
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(SEED)).to(setting.device)
    for states in (hidden, expected):
        (states * weights).sum().backward()
    error = float((hidden - expected).detach().abs().max() / expected.detach().abs().max())
    apart = distance(ours.base, plain.base_model)
    measured({"states": error, "gradient": apart}, {"states": 1e-4, "gradient": 1e-4})


def _save(kind: str, config: Mapping[str, Any], folder: Path) -> None:
    """A folder with a random encoder of a model type, in the shape of a configuration of BERT's and without dropout."""
    family = FAMILIES[kind]
    fields = {name: config[name] for name in _NUMBERS}
    fields = {family.names.get(name, name): value for name, value in fields.items()} | dict.fromkeys(_DROPOUTS, 0.0)
    fields |= {"pad_token_id": 1, "type_vocab_size": 1} if family.after_padding else {"pad_token_id": 0}
    fields |= _OWN.get(kind, {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **fields))
        with torch.no_grad():
            for parameter in model.parameters():  # biases too: constructors leave them at 0
                parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(str(folder))


_NUMBERS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "initializer_range"),
)
_OWN = {"modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2}}
"""So that one layer of two attends to near tokens only."""
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")


# ------------------------------------------------------------------------------------------------ a group of one


def test_process_group_of_one(setting: Setting, measured: Measured) -> None:
    """One rank, on NCCL where there is a GPU: gradients through DistributedDataParallel as `ForwardBackward` sets it up, against plain ones, relative to
    their norm."""
    backend = "cpu:gloo,cuda:nccl" if setting.cuda else "gloo"
    if sys.platform == "linux":  # the host's name need not resolve
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        store = FileStore(str(Path(folder) / "store"), 1)
        distributed.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timedelta(seconds=60))
        try:
            assert ProcessGroup.current() == ProcessGroup(0, 1)
            found = {name: _apart(setting, name) for name in ("ft", "mlm", "coco_lm")}
        finally:
            distributed.destroy_process_group()
    measured(found, dict.fromkeys(found, 1e-4))


def _apart(setting: Setting, name: str) -> float:
    """Distance between the gradients with and without DistributedDataParallel, relative to their norm."""
    found = []
    for wrapped in (False, True):
        objective, inputs = (
            built(trained()[name], setting.config).to(setting.device),
            inputs_of(trained()[name], setting.config),
        )
        model: Any = objective
        if wrapped:
            model = DistributedDataParallel(objective, find_unused_parameters=True, forward_sync_buffers=False)
        rows = np.arange(BATCH)
        labels = None if inputs.labels is None else inputs.labels[rows]
        batch = objective.prepare(inputs.train.take(rows), labels, lambda p, *m: stream(SEED, p, 1, *m))
        objective.loss(model(batch.on(setting.device))).backward()
        found.append(objective)
    return distance(*found)


def distance(one: torch.nn.Module, other: torch.nn.Module) -> float:
    """Between the gradients of two modules, relative to the norm of the other's; infinite where they are of other parameters."""
    mine, theirs = ({n: p.grad for n, p in each.named_parameters() if p.grad is not None} for each in (one, other))
    if mine.keys() != theirs.keys():
        return float("inf")
    apart = torch.stack([(mine[n] - theirs[n]).square().sum() for n in theirs]).sum()
    return float((apart / torch.stack([each.square().sum() for each in theirs.values()]).sum()).sqrt())
