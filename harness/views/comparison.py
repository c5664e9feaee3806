"""Comparisons and variances as text, Markdown, LaTeX, CSV or JSON. Pure.

The texts show points (x100), CSV and JSON hold every number unrounded on the metric's own scale.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.planning.aggregation import AVERAGE
from harness.planning.resolved import ResolvedTable
from harness.statistics.difference import Difference, Interval
from harness.tasks.protocols import protocol_named
from harness.views.caption import means_lines
from harness.views.cells import Grid
from harness.views.document import DASH, Document, Table, in_format
from harness.views.numbers.comparison import LEVEL, Comparison, Comparisons, columns_of
from harness.views.table import column_name, size_name
from harness.views.variance import SOURCES, CellVariance, Source
from harness.wording import counted, in_points, some_of, training_examples

if TYPE_CHECKING:
    import pandas as pd

MANY = 12
"""Remarks that are all printed."""
IMPROVED = 0.75
"""Probability of improvement that Bouthillier et al. (2021) call meaningful."""


# ------------------------------------------------------------------------------------------------------------ sentences


def conclusion(comparisons: Comparisons) -> str:
    """One sentence: what separates from the reference row, or that nothing does."""
    places: dict[tuple[str, str], list[str]] = {}
    several = len(comparisons.grid.resolved.sizes) > 1
    for c in comparisons.comparisons:
        about = [training_examples(c.size, comparisons.grid.resolved.size_unit)] if several else []
        about += [fell] if (fell := _collapsed(c)) else []
        where = f"{c.title} ({'; '.join(about)})" if about else c.title
        places.setdefault((c.row, c.verdict), []).append(where)
    decided = [
        f"{row} is {verdict} {'to' if verdict == 'equivalent' else 'than'} {comparisons.against} in {some_of(where, 4)}"
        for (row, verdict), where in places.items()
        if verdict in ("higher", "lower", "equivalent")
    ]
    counts = Counter(c.verdict for c in comparisons.comparisons)
    rest, judged = counts["not separable"], len(comparisons.comparisons) - counts["no verdict"]
    if not judged:
        return f"No row can be compared with {comparisons.against} yet: each needs at least two runs in common with it."
    if not counts["higher"] + counts["lower"] + counts["equivalent"]:
        return f"No difference from {comparisons.against} is significant ({counted(judged, 'comparison')})."
    others = f"; not significant: {counted(rest, 'other difference')}" if rest else ""
    return f"{'; '.join(decided)}{others}."


def sentence(comparison: Comparison, comparisons: Comparisons) -> str:
    """What a comparison says, in plain words."""
    c, d = comparison, comparison.difference
    left_out = f" ({'; '.join(c.left_out)})" if c.left_out else ""
    place = f"{c.row} - {c.against}, {comparisons.grid.title(c.column)}, {training_examples(c.size, comparisons.grid.resolved.size_unit)}"
    if d is None:
        return f"{place}: no verdict{left_out}."
    if d.interval is None or d.p is None or c.p_holm is None:
        return f"{place}: no verdict: {in_points(d.mean, sign=True)} points, and {d.why}{left_out}."
    over = f"{counted(d.num_subsets, 'subset')} x {counted(d.num_seeds, 'seed')}"
    figures = (
        f"{in_points(d.mean, sign=True)} points, unadjusted 95 % interval {interval_text(d.interval)} over {over}"
        f"{' and the test items' if d.item_share is not None else ''}; p {p_text(d.p)}, by Holm {p_text(c.p_holm)}"
    )
    fell = f"; {words}" if (words := _collapsed(c)) else ""
    words = f"equivalent within ±{in_points(comparisons.region)} points" if c.verdict == "equivalent" else c.verdict
    return f"{place}: {words}: {figures}{_limits(d.num_subsets, d.num_seeds)}{_machines(c)}{fell}{left_out}."


def remarks(comparisons: Comparisons) -> list[str]:
    """The comparisons of which the table does not say all: runs are left out, collapsed or on other hardware, or there is no verdict. Of many, those that are decided."""
    found = [
        c
        for c in comparisons.comparisons
        if c.left_out or c.across_hardware or any(c.collapsed) or c.verdict == "no verdict"
    ]
    if len(found) > MANY:
        found = [c for c in found if c.verdict not in ("not separable", "no verdict")]
    return [sentence(c, comparisons) for c in found]


def _collapsed(c: Comparison) -> str:
    """How many of the compared runs collapsed, and what the verdict is without them; '' where none did."""
    d = c.difference
    if d is None or c.without_collapsed is None:
        return ""
    runs = d.num_subsets * d.num_seeds
    rows = [
        f"{count} of {runs} runs of {row}" for row, count in zip((c.row, c.against), c.collapsed, strict=True) if count
    ]
    return f"{' and '.join(rows)} collapsed, without them {c.without_collapsed}"


def _machines(c: Comparison) -> str:
    """How much of a difference may be one of machines."""
    assert c.difference is not None
    pairs = c.difference.num_subsets * c.difference.num_seeds
    return f"; {c.across_hardware} of {counted(pairs, 'pair')} ran on different hardware" if c.across_hardware else ""


def _limits(num_subsets: int, num_seeds: int) -> str:
    """What a design says nothing about."""
    if num_seeds == 1:
        return "; one seed says nothing about others"
    return "; one subset says nothing about others" if num_subsets == 1 else ""


def notes(comparisons: Comparisons) -> list[str]:
    """What the figures are, for below the table."""
    exact, r = (
        "" if comparisons.items else "Exact p: sign flips of the subsets' means, unadjusted. ",
        comparisons.grid.resolved,
    )
    over = f"{counted(max(len(r.subsets_at(size)) for size in r.sizes), 'subset')} and {counted(len(r.seeds), 'seed')}"
    lines = [
        f"Differences from {comparisons.against} in points (x100), pair by pair. Interval and p: crossed t over {over}{', and test items' if comparisons.items else ''}, "
        f"unadjusted. Holm: p adjusted for {_family(comparisons)}. {exact}"
        f"Better: share of pairs in which the row is better; {IMPROVED:g} is called meaningful.",
        f"Verdict: higher or lower where p by Holm is below {LEVEL:g}; equivalent where two one-sided tests by Holm put the difference within "
        f"±{in_points(comparisons.region)} points; else not separable.",
    ]
    intervals = [d.interval for c in comparisons.comparisons if (d := c.difference) and d.interval]
    if any({-each.low, each.high} & {1.0, 2.0} for each in intervals):
        lines.append(
            "Intervals are cut where the scale ends: so few subsets and seeds tell little; 'harness plan --detect POINTS' names a design that tells more."
        )
    floors = {d.flip.floor for c in comparisons.comparisons if (d := c.difference) and d.flip}
    if floors and min(floors) >= LEVEL:
        lines.append(
            f"So few subsets or seeds cannot reach p {LEVEL:g} by sign flips: the smallest possible p is {min(floors):.4g}."
        )
    lines += means_lines(comparisons.grid, "comparisons")
    lines += _overlap_lines(comparisons.grid.resolved)
    if comparisons.items:
        lines.append(comparisons.unit)
    else:
        items = "; --items asks whether they hold for another one (accuracy, EM, answer F1)"
        items = items if comparisons.grid.resolved.aggregate.scores == "test" else ""
        lines.append(f"Verdicts hold for this {comparisons.grid.resolved.scored_set}{items}.")
    if any(c.across_hardware for c in comparisons.comparisons):
        lines.append(
            "Different hardware rounds differently, and training can amplify that: a difference there may be one of machines. "
            "'harness verify FILE --rerun K' says how far runs differ that are trained again on this machine."
        )
    if AVERAGE in columns_of(comparisons.grid):
        lines.append("Avg takes its columns as given: it says nothing of further tasks.")
    return [*lines, *comparisons.left_out]


def _overlap_lines(resolved: ResolvedTable) -> list[str]:
    """What intervals over folds, or over redrawn full training sets, do not hold for: the crossed t test takes subsets as independent draws."""
    folds = protocol_named(resolved.protocol).num_subsets is not None
    if len(resolved.subsets) < 2 or not (folds or (0 in resolved.sizes and len(resolved.subsets_at(0)) > 1)):
        return []
    which = "Subsets" if folds else "Subsets of the full training set"
    return [
        f"{which} share half of their training rows or more: intervals and p hold for these rows, and for new ones they are likely too narrow."
    ]


def _family(comparisons: Comparisons) -> str:
    """Which comparisons p is adjusted for: those of the table's rows, and by themselves those with a reference row."""
    further = sum(c.of_reference for c in comparisons.comparisons)
    shown = len(comparisons.comparisons) - further

    def planned(family: int, shown: int) -> str:
        about = f"the {counted(family, 'comparison')} with {comparisons.against} that the table's benches plan"
        return f"{about}, {shown} of them shown" if family > shown else about

    apart = f"those with a reference row by themselves: {planned(comparisons.reference_family, further)}"
    if not shown:
        return apart
    return f"{planned(comparisons.family, shown)}{f'; {apart}' if further else ''}"


# --------------------------------------------------------------------------------------------------------------- tables


def rendered(comparisons: Comparisons, format: str) -> str:
    """Ends with a newline. Raises UserError for an unknown format."""
    body = {
        "table": comparisons.grid.resolved.table.name,
        "against": comparisons.against,
        "region": comparisons.region,
        "items": comparisons.items,
        "comparisons": [],
        "family": comparisons.family,
        "reference_family": comparisons.reference_family,
        "conclusion": conclusion(comparisons),
        "seal": comparisons.seal,
        "plan": list(comparisons.plan),
        "notes": notes(comparisons),
    }
    frame, document = comparison_frame(comparisons), comparison_document(comparisons)
    return in_format(format, frame, "comparisons", body, document)


def comparison_document(comparisons: Comparisons) -> Document:
    """Every comparison as a row, the sentences, and the notes on them."""
    exact, plans = () if comparisons.items else ("Exact p",), ["Plan"] if comparisons.seal else []
    place, tests = ("Column", f"Minus {comparisons.against}"), ("Unadjusted 95 %", "p", "Holm", *exact)
    head = (*place, "Points", *tests, "Better", "Verdict", *plans)
    left = frozenset({0, 1, head.index("Verdict"), len(head) - 1})
    tables = []
    for size in comparisons.grid.resolved.sizes:
        rows = [_row(comparison, comparisons) for comparison in comparisons.comparisons if comparison.size == size]
        tables.append(Table(size_name(size, comparisons.grid.resolved.size_unit), head, rows, left, stacked=True))
    about = notes(comparisons)
    name = f"{comparisons.grid.resolved.table.name}-comparisons"
    plan = comparisons.plan
    lines = [conclusion(comparisons), *plan, *remarks(comparisons), *about]
    return Document(name, tables, lines, caption=[*about[:2], *(plan[:1] if comparisons.seal else ())])


def _row(c: Comparison, comparisons: Comparisons) -> list[str]:
    d, dash = c.difference, DASH
    place = [column_name(comparisons.grid, c.column), c.row]
    last = [c.verdict, *([plan_word(c)] if comparisons.seal else [])]
    if d is None:
        return [*place, *[dash] * (5 if comparisons.items else 6), *last]
    better = "" if d.improvement is None else f"{d.improvement:.2f}"
    if d.interval is None or d.p is None or c.p_holm is None:
        return [*place, in_points(d.mean, sign=True), *[dash] * (3 if comparisons.items else 4), better, *last]
    exact = [] if comparisons.items else [p_text(d.flip.p) if d.flip else dash]
    values = [interval_text(d.interval), p_text(d.p), p_text(c.p_holm), *exact]
    return [*place, in_points(d.mean, sign=True), *values, better, *last]


def plan_word(c: Comparison) -> str:
    return "planned" if c.planned else "exploratory"


def rendered_variance(variances: Sequence[CellVariance], grid: Grid, format: str) -> str:
    """Ends with a newline. Raises UserError for an unknown format."""
    body, document = {"table": grid.resolved.table.name, "variance": []}, variance_document(variances, grid)
    return in_format(format, variance_frame(variances), "variance", body, document)


def variance_document(variances: Sequence[CellVariance], grid: Grid) -> Document:
    """Every cell as a row, what the columns are, and why a source is not known."""
    head = ("Column", "Row", *(name.capitalize() for name in SOURCES))
    tables = []
    for size in grid.resolved.sizes:
        rows = [
            [column_name(grid, each.column), each.row, *(_source(source) for source in each.sources)]
            for each in variances
            if each.size == size
        ]
        tables.append(Table(size_name(size, grid.resolved.size_unit), head, rows, frozenset({0, 1})))
    name = f"{grid.resolved.table.name}-variance"
    return Document(name, tables, [VARIANCE, *unknown_sources(variances, grid)], caption=[VARIANCE])


VARIANCE = (
    "Standard deviation of one run's score in points (x100) by source, its 95 % interval and its share of the variance. Interaction: "
    "of subset and seed, with the run's own noise. Test items: what another test set of this size would change in all "
    "runs alike; what it would change in single runs is in the other columns."
)
"""What the columns of the variances are."""


def unknown_sources(variances: Sequence[CellVariance], grid: Grid) -> list[str]:
    """Why sources of variance are not known, each reason once, with the cells that it holds for."""
    cells: dict[tuple[str, str], list[str]] = {}
    for cell in variances:
        for source in (source for source in cell.sources if source.why):
            cells.setdefault((source.name, source.why), []).append(
                f"{cell.row}, {cell.title}, {training_examples(cell.size, grid.resolved.size_unit)}"
            )
    return [
        f"{name.capitalize()}: {why} ({'all cells' if len(places) == len(variances) else some_of(places, 3)})."
        for (name, why), places in cells.items()
    ]


def _source(source: Source) -> str:
    if source.variance is None or source.low is None or source.high is None:
        return DASH
    sd, low, high = (in_points(value**0.5) for value in (source.variance, source.low, source.high))
    share = "" if source.share is None else f", {100 * source.share:.0f} %"
    return f"{sd} ({low} to {high}){share}"


# --------------------------------------------------------------------------------------------------------------- frames


COLUMNS = (
    *("size", "column", "metric", "row", "against", "num_subsets", "num_seeds"),
    *("difference", "low", "high", "error", "p", "p_holm"),
    *("sign_flip_p", "sign_flip_p_holm", "sign_flip_floor", "improvement", "improvement_low", "improvement_high"),
    *("equivalence_p", "equivalence_p_holm", "item_share", "across_hardware", "collapsed", "collapsed_against"),
    *("verdict", "verdict_without_collapsed", "plan", "sentence"),
)


def comparison_frame(comparisons: Comparisons) -> pd.DataFrame:
    """One row a comparison, on the metric's own scale; `docs/statistics.md` has the columns."""
    import pandas as pd

    return pd.DataFrame([_flat(each, comparisons) for each in comparisons.comparisons], columns=[*COLUMNS])


def _flat(c: Comparison, comparisons: Comparisons) -> dict[str, Any]:
    d = c.difference or Difference(math.nan, 0, 0)
    values: dict[str, Any] = {**vars(d), **vars(c), "difference": None if c.difference is None else d.mean}
    for name in ("", "improvement_"):
        interval = values.get(f"{name}interval")
        values |= {f"{name}low": interval and interval.low, f"{name}high": interval and interval.high}
    values |= {"sign_flip_p": d.flip and d.flip.p, "sign_flip_p_holm": c.flip_p_holm}
    values |= {"sign_flip_floor": d.flip and d.flip.floor, "collapsed": c.collapsed[0]}
    values |= {"collapsed_against": c.collapsed[1], "verdict_without_collapsed": c.without_collapsed}
    values |= {"plan": plan_word(c), "sentence": sentence(c, comparisons)}
    return {name: values[name] for name in COLUMNS}


def variance_frame(variances: Sequence[CellVariance]) -> pd.DataFrame:
    """One row a cell and source: variances on the metric's own scale squared."""
    import pandas as pd

    names = ("size", "row", "column", "metric", "num_subsets", "num_seeds")
    rows = [
        {
            **{name: getattr(each, name) for name in names},
            "source": source.name,
            **{k: v for k, v in vars(source).items() if k != "name"},
        }
        for each in variances
        for source in each.sources
    ]
    return pd.DataFrame(rows, columns=[*names, "source", "variance", "low", "high", "share", "why"])


def interval_text(interval: Interval) -> str:
    return f"{in_points(interval.low, sign=True)} to {in_points(interval.high, sign=True)}"


def p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
