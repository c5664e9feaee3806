"""A prepared table's comparison sealed before its first run, and what a store knows of a sealed one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.commands.prepare import Prepared, lacking
from harness.commands.report import grid_of
from harness.errors import UserError
from harness.specs import Run
from harness.store import DEFAULT_URL, Store, StoredSeal
from harness.views.numbers.comparison import REGION
from harness.views.numbers.seal import Recorded, plan_of
from harness.wording import counted, some_of


def seal(
    prepared: Prepared, against: str = "", region: float = REGION, items: bool = False, wanted: float | None = None
) -> StoredSeal:
    """Keep the plan of a comparison in the store, which is made where there is none; a plan that is sealed already stays as it is. `against`, `region`,
    `items`: as of `comparisons_of`; `wanted`: the difference that is looked for. Scores are on the metric's own scale.

    Raises UserError where a run is recorded, where data are missing, and where there is nothing to compare.
    """
    plan = prepared.plan
    if missing := lacking(plan):
        raise UserError(
            f"plan --seal: {some_of(missing, 3)} is not at hand, so that the runs have no keys to seal; name the data with --data."
        )
    grid, _ = grid_of(prepared)
    provisional = {run.stage.key for run in plan.runs if run.stage.unresolved}
    planned = plan_of(grid, plan.runs, provisional, against, region, items, wanted)
    store = Store(prepared.request.store or DEFAULT_URL)
    keys = {run.stage.key for run in plan.runs}
    if recorded := store.keep_seal(planned["table"], planned, keys):
        first = max(prepared.resolved.subsets) + 1
        fresh = ",".join(str(first + k) for k in range(len(prepared.resolved.subsets)))
        raise UserError(
            f"plan --seal: {len(recorded):,} of its {counted(len(keys), 'run')} are recorded in {store.shown}, and a plan is made before its runs; seal one of "
            f"subsets that no run has used, such as --subsets {fresh}."
        )
    kept = next((each for each in store.seals(planned["table"]) if each.intact and each.plan == planned), None)
    if kept is None:
        raise UserError(
            f"plan --seal: the store {store.shown} has this seal, but not as it was sealed; restore a copy of the store."
        )
    return kept


def recorded_runs_of(store: Store, keys: Iterable[str]) -> dict[str, Recorded]:
    """How the runs of these keys ended and when they began, by the clocks of the machines that recorded them."""
    kept = {*keys}
    times = store.committed_at(kept)
    return {key: Recorded(record.status, times[key] - record.seconds) for key, record in store.records(kept).items()}


def ends_of(store: Store, runs: Sequence[Run]) -> dict[str, Recorded]:
    """As `recorded_runs_of`; one without a record of its own ended with an earlier stage of it that failed or diverged."""
    found = recorded_runs_of(store, (run.stage.key for run in runs))
    rest = [run.stage for run in runs if run.stage.key not in found]
    earlier = recorded_runs_of(store, (stage.key for last in rest for stage in last.chain))
    blocking = {key: each for key, each in earlier.items() if each.status != "done"}
    return found | {last.key: blocking[stage.key] for last in rest for stage in last.chain if stage.key in blocking}
