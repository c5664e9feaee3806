"""Recorded stages trained again in a scratch place, and what comes out held against their records. The store and its weights are only
read."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError

from harness.commands.execution import storage_of
from harness.commands.prepare import Prepared, prepare
from harness.commands.train import train
from harness.commands.verify import Verification
from harness.encoders.models.weights import checked
from harness.errors import UserError
from harness.specs import Parent, Record, Stage
from harness.statistics.crossed import half_width, mean_squares
from harness.statistics.design import full_grid
from harness.storage import Storage, weights_of
from harness.store import Store
from harness.tables.work import work

if TYPE_CHECKING:
    from harness.tables.lifecycle import Event

View = Callable[[Prepared, str], AbstractContextManager[Callable[["Event"], None]]]
HARDWARE = ("device", "kernels", "torch", "threads", "workers", "micro_batch")
"""What a record's provenance says of the kind of hardware: where all are equal, numbers are bit-identical."""
LEVEL = 0.05
"""Of all tolerances together: the probability that one is exceeded where nothing is wrong."""
START = {"fp32": 1e-3, "bf16": 2e-2, "fp16": 2e-2}
"""Relative tolerance of the first losses of a stage on other hardware, by precision: rounding has not grown yet. fp16 rounds more finely than bf16,
but another device may skip another of its first updates."""


@dataclass(frozen=True)
class Rerun:
    """A stage trained again. `agrees`: with its record, bit for bit on the same kind of hardware, else within the tolerance."""

    key: str
    agrees: bool
    sentence: str


@dataclass(frozen=True)
class Tolerance:
    """How far the test score of a run may lie from its record on other hardware, on the metric's own scale; `runs`: of its cell."""

    metric: str
    evaluation: str
    value: float
    runs: int


def rerun(found: Verification, count: int, seed: int, view: View, *, storage: str | None = None) -> list[Rerun]:
    """Train `count` stages again, drawn by `seed` from the chains of the file's finished runs, and compare them with their records.

    `storage`: where weights are kept: those of a parent that are there as they were recorded are used, others are trained again. Raises UserError
    where no finished run of the file can be planned here.
    """
    planned: list[tuple[Prepared, dict[str, Record]]] = []
    population: dict[str, int] = {}
    for request in {id(each): each for each in found.requests.values()}.values():
        keys = {key for key, each in found.requests.items() if each is request}
        prepared = prepare(request, train=True)
        chains = {s.key for run in prepared.plan.runs if run.stage.key in keys for s in run.stage.chain}
        records = {k: r for k, r in found.store.records(chains, predictions=True).items() if r.status == "done"}
        population |= {key: len(planned) for key in records if key not in population}
        planned.append((prepared, records))
    if not population:
        raise UserError(
            f"--rerun: no finished run of {found.published.path} can be planned here; nothing can be trained again."
        )
    drawn = random.Random(seed).sample(sorted(population), min(count, len(population)))
    again: list[Rerun] = []
    for place, (prepared, records) in enumerate(planned):
        mine = [key for key in drawn if population[key] == place]
        groups: dict[tuple[int, int, bool], list[str]] = {}
        for key in mine:
            origin = records[key].provenance
            how = (int(origin.get("workers", 1)), int(origin.get("micro_batch", 0)), bool(origin.get("kernels")))
            groups.setdefault(how, []).append(key)
        names = prepared.plan.names()
        for how, keys_of_group in groups.items():
            ended = _trained(prepared, records, keys_of_group, how, storage, view)
            again += [
                _judged(
                    found,
                    prepared.plan.stages[key],
                    names[key],
                    records[key],
                    ended.get(key),
                    len(drawn),
                )
                for key in keys_of_group
            ]
    return again


def _trained(
    prepared: Prepared,
    records: Mapping[str, Record],
    keys: Iterable[str],
    how: tuple[int, int, bool],
    storage: str | None,
    view: View,
) -> dict[str, Record]:
    """The records of stages trained in a folder that is deleted at the end; `how`: workers, micro-batch, and whether on a CPU."""
    workers, micro_batch, on_cpu = how
    if workers != prepared.resolved.num_workers:
        prepared = prepare(replace(prepared.request, num_workers=workers), train=True)
    plan, kept = prepared.plan, storage_of(replace(prepared.request, storage=storage), prepared.store)
    with tempfile.TemporaryDirectory(prefix="harness-verify-") as folder:
        scratch = Storage(str(Path(folder) / "artifacts"))
        wanted: set[str] = set()

        def want(stage: Stage) -> None:
            """It, and those before it whose weights are not there as they were recorded."""
            wanted.add(stage.key)
            if isinstance(stage.init, Parent) and not _copied(stage, records.get(stage.key), kept, scratch):
                want(stage.init.stage)

        for key in keys:
            want(plan.stages[key])
        others = {key: ("done", 1) for key in plan.stages if key not in wanted}
        items, _ = work(plan, others, scratch.exists, False, "all")  # type: ignore[arg-type]
        request = replace(
            prepared.request,
            store=f"sqlite:///{folder}/harness.db",
            storage=scratch.uri,
            keep="all",
            micro_batch=micro_batch,
            gpus_per_run=0.0 if on_cpu else None,
            checkpoint_minutes=0.0,
        )
        store = Store(request.store)  # type: ignore[arg-type]
        train(replace(prepared, request=request, store=store, items=items, statuses={}), view, remember=False)
        return store.records(keys, predictions=True)


def _copied(stage: Stage, record: Record | None, kept: Storage, scratch: Storage) -> bool:
    """Whether the weights that a stage starts from are in `scratch` now: those in `kept`, where their digest is the recorded one."""
    assert isinstance(stage.init, Parent)
    name = weights_of(stage.init.stage.key, stage.init.step)
    if scratch.exists(name):
        return True
    wanted = record.provenance.get("parent_product") if record else None
    if wanted is None or not kept.exists(name):
        return False
    content = kept.read(name)
    try:
        _, digest = checked(content)
    except SafetensorError:
        return False
    if digest != wanted:
        return False
    scratch.write(name, content)
    return True


# ------------------------------------------------------------------------------------------------------ comparing


def _judged(
    found: Verification, stage: Stage, names: list[str], record: Record, ended: Record | None, judged: int
) -> Rerun:
    several = f" and {len(names) - 1} more" if len(names) > 1 else ""
    name = f"{stage.key[:12]}, {stage.phase} of {names[0]}{several}"
    if ended is None or ended.status != "done":
        why = ended.reason if ended else "no worker returned it"
        return Rerun(stage.key, False, f"{name}: could not be trained again: {why}")
    there, here = ({each: one.provenance.get(each) for each in HARDWARE} for one in (record, ended))
    if there == here:
        agrees, said = bit_for_bit(record, ended)
        return Rerun(stage.key, agrees, f"{name}: {said} (the same kind of hardware: {here['device']})")
    moved = ", ".join(f"{each} {here[each]} instead of {there[each]}" for each in HARDWARE if there[each] != here[each])
    agrees, said = within_tolerance(stage, record, ended, tolerance_of(found, stage, judged))
    return Rerun(stage.key, agrees, f"{name}: {said} (other hardware: {moved})")


def losses_of(record: Record) -> list[tuple[int, float]]:
    return [(int(entry["step"]), float(entry["loss"])) for entry in record.history if "loss" in entry]


def bit_for_bit(record: Record, ended: Record) -> tuple[bool, str]:
    """Whether two records hold the same numbers, and the sentence about it."""
    differs = []
    if losses_of(record) != losses_of(ended):
        differs.append("its losses")
    if (record.selected_step, record.dev_scores) != (ended.selected_step, ended.dev_scores):
        differs.append("its selected update or dev scores")
    greatest = max(
        (
            float(np.abs(each.logits - ended.predictions[digest].logits).max())
            for digest, each in record.predictions.items()
        ),
        default=0.0,
    )
    if greatest or any(
        not np.array_equal(each.gold, ended.predictions[d].gold) for d, each in record.predictions.items()
    ):
        differs.append(f"its predictions (logits by up to {greatest:.2g})")
    if record.weights_digest and record.weights_digest != ended.weights_digest:
        differs.append("its weights")
    if (start := record.provenance.get("parent_product")) and start != ended.provenance.get("parent_product"):
        differs.append("the weights that it starts from")
    if differs:
        return False, f"DIFFERS from its record in {', '.join(differs)}"
    rows = sum(len(each.gold) for each in record.predictions.values())
    weights = " and weights" if record.weights_digest else ""
    losses = f"{len(losses_of(record)):,} mean losses"
    return True, f"bit-identical: {losses}, {rows:,} predictions{weights}"


def within_tolerance(stage: Stage, record: Record, ended: Record, tolerance: Tolerance | None) -> tuple[bool, str]:
    """Whether the first losses agree up to rounding and the test score lies within the tolerance, and the sentence about it."""
    from harness.tasks import score

    start, limit = _start(record), START[stage.optim.precision]
    apart = abs(start - _start(ended)) / abs(start) if start else 0.0
    said = [f"first losses differ by {apart:.1e} of their value, tolerance {limit:.0e}"]
    agrees = apart <= limit
    if tolerance is None:
        return agrees, "; ".join(
            [
                *said,
                "no score is compared"
                if stage.selection is None
                else "its cell has too few runs for a tolerance of scores",
            ]
        )
    digest = next(each.digest for each in stage.data.tests if each.name.endswith(f"/{tolerance.evaluation}"))
    then, now = (
        score(tolerance.metric, p.gold, p.logits) for p in (record.predictions[digest], ended.predictions[digest])
    )
    said.append(
        f"test {tolerance.metric} {100 * now:.2f} instead of {100 * then:.2f}, tolerance {100 * tolerance.value:.2f} points by the runs of its cell ({tolerance.runs})"
    )
    return agrees and abs(now - then) <= tolerance.value, "; ".join(said)


def _start(record: Record) -> float:
    """The mean loss of the first updates that the record tells apart."""
    first: dict[str, Any] = next((entry for entry in record.history if "loss" in entry), {"loss": 0.0})
    points = first.get("curve", {}).get("loss")
    return float(points[0][1] if points else first["loss"])


def tolerance_of(found: Verification, stage: Stage, judged: int) -> Tolerance | None:
    """Two runs of one subset and seed on different hardware differ by the run's own noise. Its variance is at most the mean square of interaction
    and run in the cell, so that the difference lies within t * sqrt(2 * mean square) with 95 %, over all `judged` stages together."""
    row = next((row for row in found.published.rows if row["key"] == stage.key and row["test"] is not None), None)
    if row is None:
        return None
    cell = ("row", "column", "size", "metric")
    scores = {
        (each["subset"], each["seed"]): each["test"]
        for each in found.published.rows
        if each["test"] is not None and all(each[name] == row[name] for name in cell)
    }
    subsets, seeds = full_grid(list(scores))
    if len(subsets) * len(seeds) < 2:
        return None
    squares = mean_squares([[scores[s, r] for r in seeds] for s in subsets])
    a, b, ab = squares.degrees
    square, degrees = (squares.residual, ab) if ab else (squares.subset + squares.seed, max(a, b))
    value = float(half_width(2 * square, np.asarray(float(degrees)), 1 - LEVEL / judged))
    return Tolerance(row["metric"], row["evaluation"], value, len(subsets) * len(seeds))
