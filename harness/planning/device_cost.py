"""What is left of a plan on devices of a data sheet: time, money, updates a second, memory and the micro-batch that fits, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.devices import Device
from harness.planning.estimate import PROBE, WINDOW, Estimate, estimated, spread_of
from harness.planning.memory import Memory, fitting, memory_of
from harness.planning.runs import Plan
from harness.planning.work import Item
from harness.specs import Stage
from harness.store import Speed

SHARE = 0.3
"""Share of a data sheet's peak that a large step reaches. A guess: no run of the harness on a GPU is recorded with this repository."""
LAYER_SECONDS = 1e-3
"""An update takes at least so long for each layer, however little it computes: its kernels are started one after another. A guess."""
BESIDE_LAYERS = 3
"""What an update does beside its layers (the batch's transfers, the head, the optimizer) counts as so many of them. A guess."""


@dataclass(frozen=True)
class Share:
    """The share of a device's peak that runs reach, how it is known, and the standard deviation of its logarithm. `measured`: it is of
    whole stages, so nothing is added for starting kernels."""

    value: float
    known_by: str
    spread: float
    measured: bool


def share_of(speeds: Iterable[Speed], encoder: str, device: Device) -> Share:
    """From the last finished stages of this encoder (its digest) on this device, the newest first; else a guess."""
    timed = [s for s in speeds if s.peak and s.encoder == encoder and s.seconds > 0.5 and device.is_named(s.device)]
    timed = timed[:WINDOW]
    if not timed:
        return Share(SHARE, "a guess: this store has no stage of this encoder on this device", PROBE, False)
    value = math.fsum(s.flops for s in timed) / math.fsum(s.seconds * s.peak for s in timed)
    spread = spread_of(s.flops / (s.seconds * s.peak) / value for s in timed)
    return Share(value, f"measured on {len(timed)} stages of this encoder on this device", spread, True)


@dataclass(frozen=True)
class RowCost:
    """A printed row: what is left of it, and the stage of it that needs the most memory, with the examples of its batch on one
    device and those that the device takes at once (0: not one)."""

    row: str
    updates: int
    device_seconds: float
    memory: Memory
    batch: int
    micro_batch: int

    @property
    def updates_per_second(self) -> float:
        """Of one run."""
        return self.updates / self.device_seconds if self.device_seconds else 0.0


@dataclass(frozen=True)
class DeviceCost:
    """`rows`: a stage of several is in the first of them. `seconds`: until the last stage ends. `price`: of a device-hour."""

    device: Device
    count: int
    share: Share
    rows: tuple[RowCost, ...]
    seconds: float
    price: float | None

    @property
    def expected(self) -> Estimate:
        return estimated(self.seconds, self.share.spread)

    @property
    def busy(self) -> float:
        """Device-hours in which something is trained."""
        return math.fsum(row.device_seconds for row in self.rows) / 3600

    @property
    def rented(self) -> float:
        """Device-hours of all devices until the last stage ends."""
        return self.count * self.seconds / 3600

    @cached_property
    def too_large(self) -> tuple[str, ...]:
        """Rows with a stage of which not one example fits."""
        return tuple(row.row for row in self.rows if not row.micro_batch)


def device_cost(
    plan: Plan,
    items: Sequence[Item],
    speeds: Iterable[Speed],
    device: Device,
    count: int,
    price: float | None = None,
    micro_batch: int = 0,
) -> DeviceCost:
    """Of the stages to train, each on as many of `count` devices as the table has workers. `micro_batch`: the user's."""
    known = list(speeds)
    shares = [share_of(known, part.located.encoder.digest, device) for part in plan.parts]
    share = next((each for each in shares if not each.measured), shares[0])  # what is shown: a guess where there is one
    share_by = dict(zip((part.located.encoder.digest for part in plan.parts), shares, strict=True))
    workers = min(count, plan.resolved.num_workers)
    steps = {item.stage.key: item.until or item.stage.optim.steps for item in items}
    seconds = {
        item.stage.key: _seconds(item, plan, share_by.get(item.stage.encoder.digest, share), device) for item in items
    }
    rows, left = [], dict(seconds)
    for title, stages in stages_of(plan).items():
        own = {key: left.pop(key) for key in stages if key in left}
        largest = max(stages.values(), key=lambda stage: _memory(stage, plan, workers, 0).total)
        batch = math.ceil(largest.optim.batch_size / workers)
        fits = fitting(largest, plan.part_of(largest).located.config, device.memory, min(batch, micro_batch or batch))
        memory = _memory(largest, plan, workers, micro_batch or fits)
        rows.append(RowCost(title, sum(steps[key] for key in own), math.fsum(own.values()), memory, batch, fits))
    chains = (math.fsum(seconds.get(s.key, 0.0) for s in run.stage.chain) for run in plan.runs)
    ends = max(math.fsum(seconds.values()) / count, max(chains, default=0.0) / workers)
    return DeviceCost(device, count, share, tuple(rows), ends, price)


def stages_of(plan: Plan) -> dict[str, dict[str, Stage]]:
    """The stages of each printed row by key, those of its first configuration first."""
    titles = plan.resolved.titles
    rows: dict[str, dict[str, Stage]] = {title: {} for title in plan.resolved.printed_rows}
    for run in plan.runs:
        rows[titles[run.row]] |= {stage.key: stage for stage in run.stage.chain}
    return {title: stages for title, stages in rows.items() if stages}


def _memory(stage: Stage, plan: Plan, workers: int, rows: int) -> Memory:
    return memory_of(stage, plan.part_of(stage).located.config, rows or math.ceil(stage.optim.batch_size / workers))


def _seconds(item: Item, plan: Plan, share: Share, device: Device) -> float:
    """Device-seconds of a stage."""
    seconds = item.cost / (share.value * device.peak(item.stage.optim.precision))
    if share.measured:
        return seconds
    layers = plan.part_of(item.stage).located.config.get("num_hidden_layers", 0)
    least = LAYER_SECONDS * (layers + BESIDE_LAYERS)
    return max(seconds, float((item.until or item.stage.optim.steps) * least))
