"""Recorded stages trained again in a scratch place, and what comes out held against their records. The store and its weights are only read."""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from safetensors import SafetensorError

from harness.commands.execution import storage_of
from harness.commands.prepare import Prepared, prepare
from harness.commands.recorded import learning_curve
from harness.commands.train import Show, train
from harness.commands.verify import Verified
from harness.devices import on_cpu
from harness.encoders.models.weights import checked
from harness.errors import UserError
from harness.planning.work import work
from harness.specs import Parent, Record, Stage
from harness.statistics.crossed import half_width, mean_squares
from harness.statistics.design import full_grid
from harness.storage import Storage, weights_of
from harness.store import Store
from harness.tasks.metrics import score

if TYPE_CHECKING:
    import pandas as pd

HARDWARE = ("device", "kernels", "torch", "threads", "workers", "micro_batch")
"""What a record's provenance says of the kind of hardware: where all are equal, numbers are bit-identical."""
LEVEL = 0.05
"""Of all tolerances together: the probability that one is exceeded where nothing is wrong."""
START = {"fp32": 1e-3, "bf16": 2e-2, "fp16": 2e-2}
"""Relative tolerance of the first losses of a stage on other hardware, by precision: rounding has not grown yet. fp16 rounds more finely than bf16,
but another device may skip another of its first updates."""


class Tolerance(NamedTuple):
    """How far the test score of a run may lie from its record on other hardware, on the metric's own scale; `runs`: of its cell."""

    metric: str
    evaluation: str
    value: float
    runs: int


def rerun(
    verified: Verified, count: int, seed: int, show: Show, *, storage: str | None = None
) -> list[tuple[bool, str]]:
    """Train `count` stages again, drawn by `seed` from the chains of the file's finished runs, and compare them with their records: whether
    each agrees, bit for bit on the same kind of hardware, else within the tolerance, and a sentence.

    `storage`: where weights are kept: those of a parent that are there as they were recorded are used, others are trained again. Raises UserError
    where no finished run of the file can be planned here.
    """
    keys, plans = {*verified.keys}, dict[str, Prepared]()
    for prepared in (prepare(each.request, train=True, writes=False) for each in verified.benches if not each.textless):
        runs = [run.stage for run in prepared.plan.runs if run.stage.key in keys]
        plans |= {stage.key: prepared for run in runs for stage in run.chain if stage.key not in plans}
    done = sorted(key for key, (status, _) in verified.store.statuses(plans).items() if status == "done")
    if not done:
        raise UserError(
            f"--rerun: no finished run of {verified.path} can be planned here; nothing can be trained again."
        )
    drawn = random.Random(seed).sample(done, min(count, len(done)))
    chains = {stage.key for key in drawn for stage in plans[key].plan.stages[key].chain}
    records = verified.store.records(chains, predictions=True)
    groups = defaultdict[tuple[int, int, int, bool], list[str]](list)
    for key in drawn:
        origin = records[key].provenance
        how = (int(origin.get("workers", 1)), int(origin.get("micro_batch", 0)), on_cpu(origin))
        groups[(id(plans[key]), *how)].append(key)
    found = []
    for (_, workers, micro_batch, is_cpu), group in groups.items():
        prepared = plans[group[0]]
        request = replace(prepared.request, num_workers=workers, micro_batch=micro_batch or None)
        request = replace(request, gpus_per_run=0.0 if is_cpu else None, storage=storage)
        if workers != prepared.resolved.num_workers:
            prepared = prepare(request, train=True, writes=False)
        ended, names = _trained(replace(prepared, request=request), records, group, show), prepared.plan.names()
        for key in group:
            stage, (name, *others) = prepared.plan.stages[key], names[key]
            several = f" and {len(others)} more" if others else ""
            tolerance = tolerance_of(verified.results, key, len(drawn))
            agrees, sentence = judged(stage, records[key], ended.get(key), tolerance)
            found.append((agrees, f"{key[:12]}, {stage.phase} of {name}{several}: {sentence}"))
    return found


def _trained(prepared: Prepared, records: Mapping[str, Record], keys: Iterable[str], show: Show) -> dict[str, Record]:
    """The records of stages trained in a folder that is deleted at the end."""
    plan, kept = prepared.plan, storage_of(prepared.request, prepared.store)
    with tempfile.TemporaryDirectory(prefix="harness-verify-") as folder:
        scratch = Storage(str(Path(folder) / "artifacts"))
        wanted: set[str] = set()

        def want(stage: Stage) -> None:
            """It, and those before it whose weights are not there as they were recorded."""
            wanted.add(stage.key)
            if isinstance(stage.init, Parent) and not _copied(stage.init, records.get(stage.key), kept, scratch):
                want(stage.init.stage)

        for key in keys:
            want(plan.stages[key])
        others = {key: ("done", 1) for key in plan.stages if key not in wanted}
        items, _ = work(plan, others, scratch.exists, False, "all")  # type: ignore[arg-type]
        url = f"sqlite:///{folder}/harness.db"
        request = replace(prepared.request, store=url, storage=scratch.uri, keep="all", checkpoint_minutes=0.0)
        store = Store(url)
        train(replace(prepared, request=request, store=store, items=items, statuses={}), show, remember=False)
        return store.records(keys, predictions=True)


def _copied(init: Parent, record: Record | None, kept: Storage, scratch: Storage) -> bool:
    """Whether the weights that a stage starts from are in `scratch` now: those in `kept`, where their digest is the recorded one."""
    name, wanted = weights_of(init.stage.key, init.step), record.provenance.get("parent_product") if record else None
    if not scratch.exists(name) and wanted is not None and kept.exists(name):
        with suppress(SafetensorError):
            if checked(content := kept.read(name))[1] == wanted:
                scratch.write(name, content)
    return scratch.exists(name)


# ------------------------------------------------------------------------------------------------------ comparing


def judged(stage: Stage, record: Record, ended: Record | None, tolerance: Tolerance | None) -> tuple[bool, str]:
    """Whether a stage that was trained again agrees with its record, and the sentence about it."""
    if ended is None or ended.status != "done":
        return False, f"could not be trained again: {ended.reason if ended else 'no worker returned it'}"
    there, here = ({part: one.provenance.get(part) for part in HARDWARE} for one in (record, ended))
    if there == here:
        agrees, sentence = bit_for_bit(record, ended)
        return agrees, f"{sentence} (the same kind of hardware: {here['device']})"
    moved = ", ".join(f"{part} {here[part]} instead of {there[part]}" for part in HARDWARE if there[part] != here[part])
    agrees, sentence = within_tolerance(stage, record, ended, tolerance)
    return agrees, f"{sentence} (other hardware: {moved})"


def bit_for_bit(record: Record, ended: Record) -> tuple[bool, str]:
    """Whether two records hold the same numbers, and the sentence about it."""
    losses, again = ([(e["step"], e["loss"]) for e in one.history if "loss" in e] for one in (record, ended))
    pairs = [(predicted, ended.predictions[digest]) for digest, predicted in record.predictions.items()]
    greatest = max((then.difference(now) for then, now in pairs), default=0.0)
    same_gold = all(np.array_equal(then.gold, now.gold) for then, now in pairs)
    selected, selected_again = ((one.selected_step, one.dev_scores) for one in (record, ended))
    start = record.provenance.get("parent_product")
    equal = {
        "its losses": losses == again,
        "its selected update or dev scores": selected == selected_again,
        f"its predictions (logits by up to {greatest:.2g})": not greatest and same_gold,
        "its weights": not record.weights_digest or record.weights_digest == ended.weights_digest,
        "the weights that it starts from": not start or start == ended.provenance.get("parent_product"),
    }
    if differs := [what for what, same in equal.items() if not same]:
        return False, f"DIFFERS from its record in {', '.join(differs)}"
    rows = sum(len(predicted.gold) for predicted in record.predictions.values())
    weights = " and weights" if record.weights_digest else ""
    return True, f"bit-identical: {len(losses):,} mean losses, {rows:,} predictions{weights}"


def within_tolerance(stage: Stage, record: Record, ended: Record, tolerance: Tolerance | None) -> tuple[bool, str]:
    """Whether the first losses agree up to rounding and the test score lies within the tolerance, and the sentence about it."""
    limit = START[stage.optim.precision]
    start, again = (next((loss for _, loss in learning_curve(each, stage)[0]), 0.0) for each in (record, ended))
    apart = abs(start - again) / abs(start) if start else 0.0
    first = f"first losses differ by {apart:.1e} of their value, tolerance {limit:.0e}"
    if tolerance is None:
        few = "its cell has too few runs for a tolerance of scores" if stage.selection else "no score is compared"
        return apart <= limit, f"{first}; {few}"
    digest = next(rows.digest for rows in stage.data.tests if rows.name.endswith(f"/{tolerance.evaluation}"))
    then, now = (score(tolerance.metric, one.predictions[digest]) for one in (record, ended))
    return apart <= limit and abs(now - then) <= tolerance.value, (
        f"{first}; test {tolerance.metric} {100 * now:.2f} instead of {100 * then:.2f}, tolerance {100 * tolerance.value:.2f} points by "
        f"the runs of its cell ({tolerance.runs})"
    )


def tolerance_of(results: pd.DataFrame, key: str, judged: int) -> Tolerance | None:
    """Two runs of one subset and seed on different hardware differ by the run's own noise. Its variance is at most the mean square of interaction
    and run in the cell, so that the difference lies within t * sqrt(2 * mean square) with 95 %, over all `judged` stages together."""
    scored = results[results["test"].notna()]
    one = scored[scored["key"] == key].head(1)
    scores = scored.merge(one[["row", "column", "size", "metric"]]).set_index(["subset", "seed"])["test"]
    subsets, seeds = full_grid(list(scores.index))
    if len(subsets) * len(seeds) < 2:
        return None
    squares = mean_squares(scores.unstack().loc[[*subsets], [*seeds]].to_numpy())
    a, b, ab = squares.degrees
    square, degrees = (squares.residual, ab) if ab else (squares.subset + squares.seed, max(a, b))
    value = float(half_width([2 * square], [degrees], 1 - LEVEL / judged))
    metric, evaluation = one[["metric", "evaluation"]].iloc[0]
    return Tolerance(metric, evaluation, value, len(subsets) * len(seeds))
