"""A sealed plan in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from harness.store import StoredSeal
from harness.views.numbers.seal import sealed_runs, time_of
from harness.wording import counted, in_points, listed

ALONE = (
    "A seal in a store of your own shows others nothing: who has the store can make it again. Publish the digest before the first run, in a commit, a mail or a "
    "registry; 'harness verify FILE --seal DIGEST' checks it. Even then runs may have been tried elsewhere before."
)


def seal_lines(seal: StoredSeal) -> Iterator[str]:
    """What is sealed: digest, design, decision rule, power."""
    plan = seal.plan
    rule, runs = plan["rule"], sealed_runs(plan)
    yield f"Sealed: {seal.digest}, sealed {time_of(seal)} by this machine's clock."
    drawn = sorted({subset for _, _, _, subset, _ in runs})  # of a full training set one, whatever was asked for
    rows, columns, sizes, subsets, seeds = (
        listed(map(str, names)) for names in (plan["rows"], plan["columns"], plan["sizes"], drawn, plan["seeds"])
    )
    unknown = sum(not run.key for run in runs.values())
    keys = f", {unknown:,} of them by their settings, as their keys are known later" if unknown else ""
    yield f"Rows {rows}; columns {columns}; sizes {sizes}; subsets {subsets}; seeds {seeds}: {counted(len(runs), 'run')}{keys}."
    items = "subsets, seeds and test items" if rule["items"] else "subsets and seeds"
    yield (
        f"Decision: each difference from {rule['against']}, {rule['test']}, over {items}; {100 * rule['level']:g} % by {rule['correction']} over "
        f"{counted(rule['family'], 'comparison')}; equivalent within ±{in_points(rule['region'])} points."
    )
    detects = [each[2] for each in plan["power"]["detects"] if each[2] is not None]
    if detects:
        span = in_points(min(detects)) + (f" to {in_points(max(detects))}" if max(detects) > min(detects) else "")
        wanted = plan["power"]["wanted"]
        sought = "" if wanted is None else f"; sought: {in_points(wanted)}"
        yield f"Detects with {100 * plan['power']['probability']:g} % power, by the defaults of 'plan --detect': {span} points, by column and size{sought}."
