"""Rows of a table minus one of them: paired differences with interval, p by Holm over the table's family, and a verdict, and the rows that are tied for best; in words, as a
table, and drawn.

Pure. `docs/statistics.md` says what each figure is and how often it is right.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import pandas as pd

from harness.errors import UserError
from harness.planning.aggregation import AVERAGE
from harness.statistics.crossed import ROUNDING, difference, holm
from harness.statistics.power import LEVEL
from harness.views.cells import (
    Grid,
    Place,
    Reference,
    answers_of,
    family_sizes,
    means_lines,
    no_runs,
    on_grid,
    reference_of,
)
from harness.views.figures import INK, look, panels_of
from harness.views.view import DASH, Table, View, best
from harness.wording import counted, in_points, listed, some_of, training_examples

REGION = 0.01
"""Default half width of the region of practical equivalence: one point."""
DECIDED = {"higher": "higher than", "lower": "lower than", "equivalent": "equivalent to"}
COLUMNS = (
    *("size", "column", "metric", "row", "against", "num_subsets", "num_seeds"),
    *("difference", "low", "high", "error", "p", "p_holm", "improvement"),
    *("equivalence_p", "equivalence_p_holm", "item_share", "across_hardware", "collapsed", "collapsed_against"),
    *("paper", "verdict", "verdict_without_collapsed", "plan", "remark"),
)
"""Of the frame; `docs/statistics.md` has what they are."""
BEST = f"{best('Marked')}: statistically tied for best in its column (95 %, by the tests of 'harness compare')."
"""What a marked cell is."""

Difference = dict[str, Any]
"""One row of the frame, with `of_reference` (one of its rows is a reference row), `why` there is no interval, and which runs are `left_out`."""
Follow = Callable[[Sequence[Difference], str], tuple[str, set[int], str]]
"""Of differences from a row: the digest of the seal that they are held against ('': none), which of them follow it, and a sentence."""


def differences(
    grid: Grid, against: str = "", region: float = REGION, *, unit: str = "", follow: Follow | None = None
) -> View:
    """Every row of the grid against one of them, its first unless `against` names another (`reference_of`). `region`: on the metric's own scale.
    `unit`: a sentence what a test item is, where the grid has `answers`.

    Raises UserError for fewer than two rows and for an unknown one."""
    r, items = grid.resolved, grid.answers is not None
    if len(titles := r.printed_rows) < 2:
        rows = "one row" if titles else "no row"
        raise UserError(f"compare: table {r.table.name} has {rows} here; name two or more with --methods.")
    named, reference = reference_of(r, against)
    found, families = judged(grid, reference, region)
    if any(map(_fell, found)):
        others, _ = judged(replace(grid, collapsed=False), reference, region)
        for each, other in zip(found, others, strict=True):
            each["verdict_without_collapsed"] = other["verdict"] if _fell(each) else None
    seal, planned, plan = follow(found, named) if follow else ("", set[int](), "")
    for k, each in enumerate(found):
        each["plan"] = "planned" if k in planned else "exploratory"
        each["remark"] = _remark(each)
    not_run = [row for row in titles if all(cell.skip for (_, name, _), cell in grid.cells.items() if name == row)]
    lines = [conclusion(grid, named, found), *([plan] if plan else []), *_remarks(grid, found)]
    lines += [f"Not run: {', '.join(not_run)} ('harness report' says why)."] if not_run else []
    about = {"table": r.table.name, "against": named, "region": region, "items": items}
    about |= {"family": families[0], "reference_family": families[1], "seal": seal}
    return View(
        "comparisons",
        pd.DataFrame(found, columns=[*COLUMNS]),
        [_table(grid, named, size, found, bool(seal)) for size in r.sizes],
        [*lines, *_notes(grid, named, found, families, region, unit if items else "")],
        partial(_drawn, grid, named, found, region) if any(each["low"] is not None for each in found) else None,
        about,
    )


def judged(grid: Grid, reference: Reference, region: float = REGION) -> tuple[list[Difference], tuple[int, int]]:
    """Every row against its `reference` where it is run, with verdicts, and the sizes of the two families (`family_sizes`)."""
    places = grid.places
    found = [
        _compared(grid, (size, row, column), reference(row), region)
        for size in grid.resolved.sizes
        for column in grid.compared
        for row in grid.resolved.printed_rows
        if row != reference(row) and (size, row, column) in places
    ]
    families = family_sizes(places | grid.elsewhere, reference, grid.resolved.reference_titles)
    for of_reference, size in enumerate(families):
        family = [each for each in found if each["of_reference"] == bool(of_reference)]
        for name in ("p", "equivalence_p"):
            known = [each for each in family if each[name] is not None]
            for each, adjusted in zip(known, holm([each[name] for each in known], size), strict=True):
                each[f"{name}_holm"] = adjusted
    for each in (each for each in found if each["p"] is not None):
        each["verdict"] = "equivalent" if each["equivalence_p_holm"] < LEVEL else "not separable"
        if each["p_holm"] < LEVEL:
            each["verdict"] = "higher" if each["difference"] > 0 else "lower"
    return found, families


def _compared(grid: Grid, place: Place, against: str, region: float) -> Difference:
    (size, row, column), r = place, grid.resolved
    runs, design = grid.scores, len(r.replicates_at(size))
    both = {name: runs.get((size, name, column), no_runs()) for name in (row, against)}
    (ours, theirs), (scores, pairs) = both.values(), on_grid(*both.values())
    values = scores[0] - scores[1]
    found: Difference = {**dict.fromkeys(COLUMNS), "size": size, "column": column, "row": row, "against": against}
    found |= dict.fromkeys(("num_subsets", "num_seeds", "across_hardware", "collapsed", "collapsed_against"), 0)
    found |= {"metric": grid.metric(column), "verdict": "no verdict", "why": "", "left_out": ""}
    found["of_reference"] = not r.reference_titles.isdisjoint(both)
    printed = [value for name in both if (value := r.paper_value(size, name, column))]
    found["paper"] = printed[0][0] - printed[1][0] if len(printed) == 2 else None
    if len(ours.index.intersection(theirs.index)) < design:
        counts = [f"{count} of {name}" for name, of_row in both.items() if (count := design - len(of_row))]
        several = any(len(r.printed_rows[name]) > 1 for name in both)
        absent = "missing, failed or not selected yet" if several else "missing or failed"
        kept = f"compared over {' x '.join(map(counted, values.shape, ('subset', 'seed')))}"
        kept = kept if pairs else "no replicate is done in both rows"
        found["left_out"] = f"of {design} runs each, {' and '.join(counts)} {absent}: {kept}"
    if not pairs:
        return found
    items = None
    if grid.answers is not None:
        known = [answers_of(each, pairs) for each in both.values()]
        items = None if known[0] is None or known[1] is None else (known[0] - known[1]).reshape(-1, *values.shape)
    found |= vars(difference(values, region, items))
    if found["low"] is not None:
        span = 1 - grid.lowest(column)
        found |= {"low": max(found["low"], -span), "high": min(found["high"], span)}
    devices = zip(ours["hardware"][pairs], theirs["hardware"][pairs], strict=True)
    # a run that does not say its hardware counts as run on the other's
    found["across_hardware"] = sum(a != b for a, b in devices if a and b)
    fell, fell_against = (int(each["collapsed"][pairs].sum()) for each in (ours, theirs))
    return found | {"collapsed": fell, "collapsed_against": fell_against}


@lru_cache(maxsize=2)
def sets_of_the_best(grid: Grid) -> frozenset[Place]:
    """The complete rows that are tied for best in their column and size; none where no row is shown to be below another.

    By the verdicts of `harness compare`: those of the table's own comparison, and for a pair that is not in it those of all rows against the highest one. A row is tied for best
    where the highest row is not higher than it by its verdict, and no row is by those of the table's own. Where a pair has no test the lower row is not.
    """
    if len(grid.resolved.printed_rows) < 2:
        return frozenset()
    named, reference = reference_of(grid.resolved)
    own, found = judged(grid, reference)[0], set[Place]()
    against_top = {named: own}
    for size, column in dict.fromkeys((size, column) for size, _, column in grid.cells):
        cells = {row: grid.cells[size, row, column] for row in grid.resolved.printed_rows}
        scores = {row: cell.value for row, cell in cells.items() if cell.value is not None}
        if len(scores) < 2:
            continue
        top = max(scores, key=lambda row: scores[row])
        if top not in against_top:
            against_top[top] = judged(grid, lambda row, top=top: top)[0]  # type: ignore[misc]
        every = against_top[top], own
        others, shown = ([c for c in of if (c["size"], c["column"]) == (size, column)] for of in every)
        pairs = {frozenset((c["row"], c["against"])): c for c in (*others, *shown)}
        to_top = {row: pairs[frozenset((row, top))] for row in scores if row != top}
        lower = {{"lower": c["row"], "higher": c["against"]}.get(c["verdict"]) for c in (*shown, *to_top.values())}
        tested = {row for row, c in to_top.items() if c["verdict"] != "no verdict"}
        equal = {row for row, c in to_top.items() if c["difference"] is not None and abs(c["difference"]) <= ROUNDING}
        if tested and not lower.isdisjoint(scores) and top not in lower:
            found |= {(size, row, column) for row in {top, *tested, *equal} - lower}
    return frozenset(found)


def ranks_view(grid: Grid) -> View:
    """Of each complete row its rank among the complete rows of its column and size, where there are several: those above and below it count whose p, times the number of
    all pairs of the table and its benches, is below `LEVEL`. Marked where it is tied for best."""
    r, leading, found = grid.resolved, sets_of_the_best(grid), []
    planned = Counter((size, column) for size, _, column in grid.places | grid.elsewhere)
    pairs = sum(math.comb(rows, 2) for rows in planned.values())
    for size, column in itertools.product(r.sizes, grid.columns):
        runs = {row: grid.scores.get((size, row, column), no_runs()) for row in r.printed_rows}
        runs = {row: each for row, each in runs.items() if grid.cells[size, row, column].complete}
        above, below = Counter[str](), Counter[str]()
        for one, other in itertools.combinations(runs, 2):
            (ours, theirs), common = on_grid(runs[one], runs[other])
            each = difference(ours - theirs, REGION) if common else None
            if each and each.p is not None and each.p * pairs < LEVEL:
                above[other if each.difference > 0 else one] += 1
                below[one if each.difference > 0 else other] += 1
        for row in runs if len(runs) > 1 else ():
            first = (size, row, column) in leading
            low = 1 if first else 1 + above[row]
            found.append((size, row, column, low, len(runs) - below[row], len(runs), first))
    names = ("size", "row", "column", "rank_low", "rank_high", "num_rows", "best")
    texts = {each[:3]: f"{each[3]} to {each[4]}" if each[3] < each[4] else f"{each[3]}" for each in found}
    texts |= {place: best(text) for place, text in texts.items() if place in leading}
    head, tables = ["Method", *map(grid.column_name, grid.columns)], []
    for size in r.sizes:
        rows = [[row, *(texts.get((size, row, column), DASH) for column in grid.columns)] for row in r.printed_rows]
        tables.append(Table(grid.size_name(size), head, rows))
    lines = [
        "Rank intervals: from 1 + the rows that are surely above a row to the number of rows less those that are surely below it, by the paired crossed t test; all intervals of the table hold "
        f"together with 95 % (Bonferroni). {BEST} Rows that lack runs have no rank.",
        *means_lines(grid, "ranks"),
    ]
    return View("ranks", pd.DataFrame(found, columns=names), tables, lines, about={"table": r.table.name})


# ---------------------------------------------------------------------------------------------------------------- words


def conclusion(grid: Grid, named: str, found: Sequence[Difference]) -> str:
    """One sentence: what separates from the reference row, or that nothing does."""
    places: dict[tuple[str, str], list[str]] = {}
    for each in found:
        about = (
            [training_examples(each["size"], grid.resolved.protocol.size_unit)] if len(grid.resolved.sizes) > 1 else []
        )
        about += [fell] if (fell := _collapsed(each)) else []
        title = grid.title(each["column"])
        where = f"{title} ({'; '.join(about)})" if about else title
        places.setdefault((each["row"], each["verdict"]), []).append(where)
    verdicts = ((row, DECIDED[verdict], where) for (row, verdict), where in places.items() if verdict in DECIDED)
    decided = [f"{row} is {verdict} {named} in {some_of(where, 4)}" for row, verdict, where in verdicts]
    counts = Counter(each["verdict"] for each in found)
    if not (tested := len(found) - counts["no verdict"]):
        return f"No row can be compared with {named} yet: each needs at least two runs in common with it."
    if not decided:
        return f"No difference from {named} is significant ({counted(tested, 'comparison')})."
    rest = counts["not separable"]
    others = f"; not significant: {counted(rest, 'other difference')}" if rest else ""
    return f"{'; '.join(decided)}{others}."


def _remark(each: Difference) -> str:
    """What its numbers do not say: why there is no verdict, and runs that collapsed, ran on other hardware or are left out."""
    across, pairs = each["across_hardware"], each["num_subsets"] * each["num_seeds"]
    hardware = f"{across} of {counted(pairs, 'pair')} ran on different hardware" if across else ""
    return "; ".join(filter(None, (each["why"], hardware, _collapsed(each), each["left_out"])))


def _fell(each: Difference) -> int:
    return int(each["collapsed"] + each["collapsed_against"])


def _collapsed(each: Difference) -> str:
    """How many of the compared runs collapsed, and what the verdict is without them; '' where none did."""
    if each["verdict_without_collapsed"] is None:
        return ""
    runs, names = each["num_subsets"] * each["num_seeds"], (("collapsed", "row"), ("collapsed_against", "against"))
    rows = [f"{each[count]} of {runs} runs of {each[row]}" for count, row in names if each[count]]
    return f"{' and '.join(rows)} collapsed, without them {each['verdict_without_collapsed']}"


def _remarks(grid: Grid, found: Sequence[Difference]) -> Iterator[str]:
    """A sentence for each comparison with a remark; of many for those that are decided."""
    some = [each for each in found if each["remark"]]
    for each in some:
        if len(some) <= 12 or each["verdict"] in DECIDED:
            where = training_examples(each["size"], grid.resolved.protocol.size_unit)
            yield f"{each['row']} - {each['against']}, {grid.title(each['column'])}, {where}: {each['remark']}."


def _notes(
    grid: Grid, named: str, found: Sequence[Difference], families: tuple[int, int], region: float, unit: str
) -> Iterator[str]:
    """What the figures are. `unit`: what a test item is, where they are a factor."""
    r = grid.resolved
    levels = {"subset": max(len(r.subsets_at(size)) for size in r.sizes), "seed": len(r.seeds)}
    over = " and ".join(counted(count, name) for name, count in levels.items())
    if single := [f"one {name}" for name, count in levels.items() if count == 1]:
        over += f" ({listed(single)} say{'s' * (len(single) == 1)} nothing about others)"
    yield (
        f"Points (x100): the row minus {named}, pair by pair. Interval and p: crossed t over {over}{', and test items' if unit else ''}, unadjusted. "
        f"Holm: p adjusted for {_family(named, found, families)}. Better: share of pairs in which the row is better (0.75: meaningful)."
    )
    within = f"equivalent (within ±{in_points(region)} points)"
    yield f"Verdict: by Holm at {LEVEL:g} higher or lower, or {within}; else not separable."
    if any({-each["low"], each["high"]} & {1.0, 2.0} for each in found if each["low"] is not None):
        yield "Intervals are cut where the scale ends: so few subsets and seeds tell little; 'harness plan --detect POINTS' names a design that tells more."
    yield from means_lines(grid, "comparisons")
    folds = r.protocol.num_subsets is not None
    if len(r.subsets) > 1 and (folds or (0 in r.sizes and len(r.subsets_at(0)) > 1)):
        yield (
            f"{'Subsets' if folds else 'Subsets of the full training set'} share half of their training rows or more: intervals and p hold for these rows, "
            "and for new ones they are likely too narrow."
        )
    asks = "; --items asks whether they hold for another one (accuracy, EM, answer F1)"
    if unit and (others := [each for each in found if each["low"] is not None and each["item_share"] is None]):
        columns = listed(dict.fromkeys(grid.title(each["column"]) for each in others))
        yield f"Test items are no factor in {columns}: they are one for accuracy, EM and answer F1 of one task."
    yield unit or f"Verdicts hold for this {r.scored_set}{asks if r.aggregate.scores == 'test' else ''}."
    if any(each["across_hardware"] for each in found):
        yield "Machines round differently and training can amplify it; 'harness verify FILE --rerun K' measures how far."
    if AVERAGE in grid.compared:
        yield "Avg takes its columns as given: it says nothing of further tasks."


def _family(named: str, found: Sequence[Difference], families: tuple[int, int]) -> str:
    """Which comparisons p is adjusted for: those of the table's rows, and by themselves those with a reference row."""
    shown, said = Counter(each["of_reference"] for each in found), []
    for apart, whose in ((False, ""), (True, "those with a reference row by themselves: ")):
        part = f", {shown[apart]} of them shown" if families[apart] > shown[apart] else ""
        planned = counted(families[apart], "comparison")
        said += [f"{whose}the {planned} with {named} that the table's benches plan{part}"] * bool(shown[apart])
    return "; ".join(said)


# ------------------------------------------------------------------------------------------------------- table, picture


def _table(grid: Grid, named: str, size: int, found: Sequence[Difference], sealed: bool) -> Table:
    head = ["Column", f"Minus {named}", "Points", "Unadjusted 95 %", "p", "Holm", "Better", "Verdict"]
    head += ["Plan"] if sealed else []
    rows = []
    for each in (each for each in found if each["size"] == size):
        points = DASH if each["difference"] is None else in_points(each["difference"], sign=True)
        better = "" if each["improvement"] is None else f"{each['improvement']:.2f}"
        shown = [points, _interval(each), _p(each["p"]), _p(each["p_holm"]), better, each["verdict"], each["plan"]]
        rows.append([grid.column_name(each["column"]), each["row"], *shown][: len(head)])
    return Table(grid.size_name(size), head, rows, {0, 1, *range(7, len(head))})


def _interval(each: Difference) -> str:
    return DASH if each["low"] is None else " to ".join(in_points(each[end], sign=True) for end in ("low", "high"))


def _p(value: float | None) -> str:
    if value is None:
        return DASH
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def _drawn(grid: Grid, named: str, found: Sequence[Difference], region: float) -> Any:
    """A panel for each size: each difference with its interval beside 0, filled where the verdict is higher or lower, and the paper's; of too
    many the last."""
    known = [each for each in found if each["low"] is not None]
    of_size = {size: [each for each in known if each["size"] == size][-40:] for size in grid.resolved.sizes}
    panels = {size: shown for size, shown in of_size.items() if shown}
    rows, margin = [*grid.resolved.printed_rows], 100 * region
    canvas, every = panels_of(len(panels), (4.2, 0.19 * max(map(len, panels.values())) + 0.9), sharex=True)
    for axes, (size, shown) in zip(every, panels.items(), strict=True):
        for place, each in enumerate(shown):
            style = look(rows.index(each["row"]))
            axes.plot([100 * each["low"], 100 * each["high"]], [place, place], color=style["color"])
            filled = style["color"] if each["verdict"] in ("higher", "lower") else "none"
            axes.plot([100 * each["difference"]], [place], **style, markerfacecolor=filled)
            if each["paper"] is not None:
                axes.plot([100 * each["paper"]], [place], "x", color=INK)
        several = len({each["column"] for each in shown}) > 1
        names = [f"{grid.title(each['column'])}  " * several + each["row"] for each in shown]
        axes.set_yticks(range(len(shown)), names, fontsize=8)
        axes.set(ylim=(len(shown) - 0.1, -0.9))  # the first on top
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.grid(axis="x")
        axes.axvline(0, color=INK, linewidth=0.8)
        for edge in (-margin, margin):
            axes.axvline(edge, color=INK, linewidth=0.7, linestyle=":")
        printed = "\ncrosses: the paper's differences" if any(each["paper"] is not None for each in shown) else ""
        axes.set_xlabel(f"minus {named}, points (95 %, unadjusted){printed}")
        axes.set_title(grid.size_name(size) if len(panels) > 1 else "")
    return canvas
