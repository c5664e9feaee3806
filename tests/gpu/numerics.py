"""Measures numbers: the device against the CPU, packed against padded batches, micro-batches, bf16 and fp16, repetition, one-rank NCCL.

Every measure trains what `harness.training.loop.train` trains, on random weights and tokens, without dropout except where it is
named. On a CPU the device is compared with itself: the same code, so a difference of 0.
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
import torch
from gpu.models import (
    BATCH,
    CPU,
    FEW_SHOT,
    SEED,
    SHAPES,
    Setting,
    Trained,
    built,
    inputs_of,
    needs,
    random_tokens,
    trained,
)
from torch import Tensor, distributed
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForMaskedLM

from harness.encoders.families import FAMILIES
from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import load_encoder
from harness.encoders.models.weights import weights_digest
from harness.encoders.tokens import Tokens
from harness.objectives.base import TrainingObjective
from harness.specs import Optim
from harness.streams import seed_of, stream
from harness.training.forward_backward import Placement, autocast, seed_dropout
from harness.training.loop import train
from harness.training.process_group import ProcessGroup

LR = 1e-3
COMPARED = ("ft", "mlm", "cmlm", "taco", "coco_lm")
"""Objectives of the tests that do not run all of them."""
SPLIT = ("ft", "scl", "mlm", "cmlm-simclr", "taco", "coco_lm")
_CODE = {kind: replace(family, title="", tokenizer=(), seen="") for kind, family in FAMILIES.items() if family.packed}
KINDS = (*(kind for kind in _CODE if kind == next(other for other in _CODE if _CODE[other] == _CODE[kind])), "mpnet")
"""Families whose layers run packed, of those that share their code (RoBERTa, CamemBERT) the first; and one that runs padded."""

LOSSES = {"first": 1e-5, "worst": 1e-3}
"""Tolerances of a loss in float32 on another device, relative to it (to 0.1 where it is smaller): before any update, where
only the order of sums differs; and over all updates, which amplify that."""
BLOCKED = {"states": 1e-4, "gradient": 1e-4}
"""Of hidden states, relative to their largest entry, and of the gradient, relative to its norm."""
MICRO_BATCHES = {"worst": 1e-4}
HALF = {"bf16": {"mean": 5e-2, "worst": 2e-1}, "fp16": {"first": 1e-2, "worst": 5e-1}}
"""Of a loss in half precision against float32, relative to it: bf16 has 8 bits of precision, 4e-3. fp16 has 11, but skips some of
its first updates, which float32 makes: COCO-LM's five of ten."""
REPEATED = {"losses": 0.0, "weights": 0.0}
DROPOUT = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 1e-2}
"""Of hidden states with and without gradient, relative to their largest entry. Another mask differs by about 1."""
PRODUCT = 1e-5
"""Of a float32 matrix product of inner size 1024, relative to its largest entry. TF32 has 10 bits: 1e-4 and more."""
GROUP = {"ft": 1e-4, "mlm": 1e-4, "coco_lm": 1e-4}
"""Of the gradient in a group of one, relative to its norm, by objective."""

Run = list[dict[str, float]]
"""The terms of each update, by name."""


def losses_of(
    setting: Setting,
    what: Trained,
    device: torch.device,
    *,
    config: Mapping[str, Any] | None = None,
    steps: int = 0,
    precision: Any = "fp32",
    dropout: float = 0.0,
    micro_batch: int = 0,
) -> tuple[Run, TrainingObjective]:
    """Train from the same weights on the same batches; the loss and the terms of each update, and the objective afterwards."""
    config = config or setting.config
    optim = Optim(LR, BATCH, steps or setting.steps, schedule="constant", dropout=dropout, precision=precision)
    objective = built(what, config, dropout)
    placement = Placement(device, micro_batch=micro_batch)
    result = train(objective, inputs_of(what, config), optim, SEED, placement=placement, log_every=1)
    return [
        {n: v for n, v in entry.items() if n not in ("step", "measures", "curve")} for entry in result.history
    ], objective


def differences(one: Run, other: Run) -> list[float]:
    """The largest relative difference of any term, by update. Infinite where the terms are not the same ones."""
    if len(one) != len(other) or any(a.keys() != b.keys() for a, b in zip(one, other, strict=False)):
        return [float("inf")]
    return [max(abs(a[name] - b[name]) / max(abs(a[name]), 0.1) for name in a) for a, b in zip(one, other, strict=True)]


def losses(setting: Setting, name: str) -> dict[str, Any]:
    """The losses of updates on the device against those on the CPU (float32, no TF32, no dropout), and both runs."""
    what = trained()[name]
    on_cpu, _ = losses_of(setting, what, CPU)
    on_device, _ = losses_of(setting, what, setting.device)
    by_update = differences(on_cpu, on_device)
    return {"first": by_update[0], "worst": max(by_update), "cpu": on_cpu, "device": on_device}


def product(setting: Setting) -> float:
    """The error of a float32 product on the device: neither a library nor the environment switched TF32 on."""
    size = 1024 if setting.cuda else 256
    random = torch.Generator().manual_seed(SEED)
    left, right = (torch.randn(size, size, generator=random) for _ in range(2))
    exact = left.double() @ right.double()
    computed = (left.to(setting.device) @ right.to(setting.device)).cpu().double()
    return float((computed - exact).abs().max() / exact.abs().max())


def micro_batches(setting: Setting, name: str) -> dict[str, float]:
    """A batch of 8 in micro-batches of 3, which cut contrast groups, against the whole batch."""
    what = trained()[name]
    whole, _ = losses_of(setting, what, setting.device, steps=5)
    split, _ = losses_of(setting, what, setting.device, steps=5, micro_batch=3)
    return {"worst": max(differences(whole, split))}


def half(setting: Setting, name: str, precision: str) -> dict[str, float]:
    """How far the losses of bf16 or fp16 are from float32's over the updates."""
    needs(setting, precision)
    what = trained()[name]
    single, _ = losses_of(setting, what, setting.device, steps=10)
    low, _ = losses_of(setting, what, setting.device, steps=10, precision=precision)
    by_update = [abs(a["loss"] - b["loss"]) / max(abs(a["loss"]), 0.1) for a, b in zip(single, low, strict=True)]
    return {"first": by_update[0], "mean": float(np.mean(by_update)), "worst": float(np.max(by_update))}


def repeated(setting: Setting, name: str, precision: str) -> dict[str, float]:
    """The same stage twice gives the same bits, with dropout: CONTRIBUTING.md, law 1."""
    needs(setting, precision)
    what = trained()[name]
    ended = []
    for _ in range(2):
        run, objective = losses_of(
            setting,
            what,
            setting.device,
            config=SHAPES[setting.repeated],
            steps=5,
            precision=precision,
            dropout=0.1,
        )
        ended.append((run, weights_digest(objective.encoder.parts())))
    (one, before), (other, after) = ended
    return {"losses": max(differences(one, other)), "weights": float(before != after)}


def dropout(setting: Setting, precision: str) -> float:
    """How far hidden states with gradient are from those without: one seed draws one mask, since split contrast groups run a pass
    of each kind."""
    needs(setting, precision)
    what = trained()["cmlm-simclr"]
    objective = built(what, setting.config, 0.1).to(setting.device)
    batch = Batch.of(inputs_of(what, setting.config).train.tokens, setting.device)
    states = []
    for mode in (torch.no_grad, torch.enable_grad):
        seed_dropout(SEED, setting.device)
        with mode(), autocast(setting.device, precision):
            states.append(objective.encoder(batch).detach().float())
    without, with_gradient = states
    return float((without - with_gradient).abs().max() / without.abs().max())


# -------------------------------------------------------------------------------------------- packed and padded


def blocked(setting: Setting, kind: str) -> dict[str, float]:
    """Hidden states and gradient of a block against the library's own model on the padded batch."""
    folder = setting.folder / kind
    _save(kind, setting.config, folder)
    ours = load_encoder(folder, f"made-{kind}", seed=SEED).to(setting.device).train()
    plain: Any = AutoModelForMaskedLM.from_pretrained(str(folder), attn_implementation="eager", dtype=torch.float32)
    plain = plain.to(setting.device).train()
    for module in plain.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ours.set_dropout(0.0)
    limit = min(FEW_SHOT.longest, setting.config["max_position_embeddings"] - 2)
    tokens = random_tokens(BATCH, setting.config["vocab_size"], FEW_SHOT.mean, limit)
    block = Batch.of(tokens, setting.device, block=True)
    hidden = ours(block)[block.packing.real_tokens]
    batch = {name: tensor.to(setting.device) for name, tensor in padded(tokens, plain.config.pad_token_id).items()}
    expected = plain.base_model(**batch)[0][batch["attention_mask"].bool()]
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(SEED)).to(setting.device)
    gradients = []
    for states, model in ((hidden, ours.base), (expected, plain.base_model)):
        (states * weights).sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    one, other = gradients
    assert one.keys() == other.keys(), "gradients of other parameters"
    error = float((hidden - expected).detach().abs().max() / expected.detach().abs().max())
    apart = torch.stack([(one[n] - other[n]).square().sum() for n in other]).sum()
    whole = torch.stack([gradient.square().sum() for gradient in other.values()]).sum()
    return {"states": error, "gradient": float((apart / whole).sqrt())}


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


def padded(tokens: Tokens, pad: int, ids: Any = None) -> dict[str, Tensor]:
    """An ordinary padded batch [B, L]: `input_ids`, `attention_mask`."""
    width = int(tokens.lengths.max())
    real = np.arange(width)[None, :] < tokens.lengths[:, None]
    filled = np.full(real.shape, pad, dtype=np.int64)
    filled[real] = tokens.ids if ids is None else ids
    return {"input_ids": torch.from_numpy(filled), "attention_mask": torch.from_numpy(real.astype(np.int64))}


# ------------------------------------------------------------------------------------------------ a group of one


def group_of_one(setting: Setting) -> dict[str, float]:
    """A process group of one rank, on NCCL where there is a GPU: collectives on both kinds of tensors, and gradients through
    DistributedDataParallel as `ForwardBackward` sets it up, against plain ones."""
    backend = "cpu:gloo,cuda:nccl" if setting.cuda else "gloo"
    if sys.platform == "linux":  # the host's name need not resolve
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        store = FileStore(str(Path(folder) / "store"), 1)
        distributed.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timedelta(seconds=60))
        try:
            assert ProcessGroup.current() == ProcessGroup(0, 1)
            for device in {CPU, setting.device}:
                _collectives(device)
            return {name: _apart(setting, name) for name in GROUP}
        finally:
            distributed.destroy_process_group()


def _collectives(device: torch.device) -> None:
    """Those that `ProcessGroup` makes. Raises AssertionError for a wrong result."""
    rows = torch.arange(6.0, device=device).view(3, 2)
    summed, gathered = rows.clone(), [torch.empty_like(rows)]
    distributed.all_reduce(summed)
    distributed.all_gather(gathered, rows)
    objects: list[Any] = [None]
    distributed.all_gather_object(objects, {"loss": 0.5})
    assert torch.equal(summed, rows), f"all_reduce on {device}"
    assert torch.equal(gathered[0], rows), f"all_gather on {device}"
    assert objects == [{"loss": 0.5}], f"all_gather_object on a group with {device}"


def _apart(setting: Setting, name: str) -> float:
    """Distance between the gradients with and without DistributedDataParallel, relative to their norm."""
    what, gradients = trained()[name], []

    def wrapped(objective: TrainingObjective) -> Any:
        return DistributedDataParallel(objective, find_unused_parameters=True, forward_sync_buffers=False)

    wraps: tuple[Callable[[TrainingObjective], Any], ...] = (lambda objective: objective, wrapped)
    for wrap in wraps:
        objective = built(what, setting.config).to(setting.device)
        model, inputs = wrap(objective), inputs_of(what, setting.config)
        rows = np.arange(BATCH)
        labels = None if inputs.labels is None else inputs.labels[rows]
        views = objective.prepare(inputs.train.take(rows), labels, lambda p, *m: stream(SEED, p, 1, *m))
        seed_dropout(seed_of(SEED, "dropout", 1), setting.device)
        terms = model(views.on(setting.device))
        objective.loss(terms).backward()
        gradients.append({n: p.grad for n, p in objective.named_parameters() if p.grad is not None})
    plain, through = gradients
    zeros = {n: torch.zeros_like(gradient) for n, gradient in (plain | through).items()}
    one, other = ({**zeros, **given} for given in gradients)
    apart = torch.stack([(one[n] - other[n]).square().sum() for n in zeros]).sum()
    whole = torch.stack([gradient.square().sum() for gradient in one.values()]).sum()
    return float((apart / whole).sqrt())
