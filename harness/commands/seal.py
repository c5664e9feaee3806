"""A prepared table's comparison sealed before its first run, and when the runs of a sealed one began."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.commands.prepare import Prepared
from harness.commands.report import grid_of
from harness.errors import UserError
from harness.specs import Run
from harness.store import DEFAULT_URL, Store, StoredSeal
from harness.views.differences import REGION
from harness.views.seal import plan_of
from harness.wording import counted, some_of


def seal(
    prepared: Prepared, against: str = "", region: float = REGION, items: bool = False, wanted: float | None = None
) -> StoredSeal:
    """Keep the plan of a comparison in the store, which is made where there is none; a plan that is sealed already stays as it is. `against`, `region`,
    `items`: as of `differences_of`; `wanted`: the difference that is looked for. Scores are on the metric's own scale.

    Raises UserError where a run is recorded, where keys are not known yet, and where there is nothing to compare.
    """
    plan = prepared.plan
    if plan.unresolved:
        raise UserError(
            f"plan --seal: {some_of(plan.unresolved, 3)} is not at hand, so that the runs have no keys to seal; name the data with --data, and "
            "run what comes before (back-translations, the runs that others start from)."
        )
    planned = plan_of(grid_of(prepared), plan.runs, against, region, items, wanted)
    store, keys = Store(prepared.request.store or DEFAULT_URL), {run.stage.key for run in plan.runs}
    if recorded := store.keep_seal(planned["table"], planned, keys):
        first, number = max(prepared.resolved.subsets) + 1, len(prepared.resolved.subsets)
        raise UserError(
            f"plan --seal: {len(recorded):,} of its {counted(len(keys), 'run')} are recorded in {store.shown}, and a plan is made before its runs; seal one of "
            f"subsets that no run has used, such as --subsets {','.join(str(first + k) for k in range(number))}."
        )
    kept = next((each for each in store.seals(planned["table"]) if each.intact and each.plan == planned), None)
    if kept is None:
        raise UserError(
            f"plan --seal: the store {store.shown} has this seal, but not as it was sealed; restore a copy of the store."
        )
    return kept


def began(store: Store, keys: Iterable[str]) -> dict[str, float]:
    """When recorded stages began (Unix time), by the clocks of the machines that recorded them."""
    kept = {*keys}
    times = store.committed_at(kept)
    return {key: times[key] - record.seconds for key, record in store.records(kept).items()}


def runs_began(store: Store, runs: Sequence[Run]) -> dict[str, float]:
    """When the runs that have ended began, by their keys: with their last stage, or with an earlier one that failed or diverged."""
    stages = {stage.key for run in runs for stage in run.stage.chain}
    times, known = began(store, stages), store.statuses(stages)
    ended: dict[str, float] = {}
    for last in (run.stage for run in runs):
        for stage in reversed(last.chain):
            if stage.key in known and (stage.key == last.key or known[stage.key][0] != "done"):
                ended.setdefault(last.key, times[stage.key])
    return ended
