"""Comparisons and variances as text, Markdown, LaTeX, CSV or JSON. Pure.

The texts show points (x100), CSV and JSON hold every number unrounded on the metric's own scale.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from harness.errors import unknown
from harness.statistics.difference import Interval
from harness.tables.caption import counted, in_points, training_examples
from harness.tables.cells import Grid
from harness.tables.comparison import LEVEL, Comparison, Comparisons
from harness.tables.render import STYLES, column_name, latex_table, size_name, table_lines
from harness.tables.schema import csv_text, records
from harness.tables.variance import SOURCES, CellVariance, Source

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["text", "md", "latex", "csv", "json"]
FORMATS: tuple[Format, ...] = ("text", "md", "latex", "csv", "json")
MANY = 12
"""Comparisons of which each gets its sentence."""
IMPROVED = 0.75
"""Probability of improvement that Bouthillier et al. (2021) call meaningful."""


# ------------------------------------------------------------------------------------------------------------ sentences


def sentence(comparison: Comparison, found: Comparisons) -> str:
    """What a comparison says, in plain words."""
    c, d = comparison, comparison.difference
    left_out = f" ({'; '.join(c.left_out)})" if c.left_out else ""
    place = f"{c.row} - {c.against}, {found.grid.title(c.column)}, {training_examples(c.size)}"
    if d is None:
        return f"{place}: no verdict{left_out}."
    if d.interval is None or d.p is None or d.flip is None or c.p_holm is None:
        return f"{place}: no verdict: {in_points(d.mean, sign=True)} points, and {d.why}{left_out}."
    over = _design(d.num_subsets, d.num_seeds)
    figures = (
        f"{in_points(d.mean, sign=True)} points, 95 % interval {interval_text(d.interval)} over {over}"
        f"{' and the test items' if d.item_share is not None else ''}; p {_p(d.p)}, by Holm {_p(c.p_holm)}"
    )
    words = f"equivalent within ±{in_points(found.region)} points" if c.verdict == "equivalent" else c.verdict
    return f"{place}: {words}: {figures}{_exact(c)}{_limits(d.num_subsets, d.num_seeds)}{left_out}."


def _sentences(found: Comparisons) -> list[str]:
    """A sentence for each comparison; of many, for those that are decided."""
    if len(found.comparisons) <= MANY:
        return [sentence(each, found) for each in found.comparisons]
    said = [sentence(each, found) for each in found.comparisons if each.verdict in ("higher", "lower", "equivalent")]
    rest = Counter(each.verdict for each in found.comparisons if each.verdict in ("not separable", "no verdict"))
    counts = ", ".join(f"{verdict}: {number}" for verdict, number in rest.items())
    return [*said, *([f"Other comparisons: {counts}; --format csv has a sentence for each."] if counts else [])]


def _exact(c: Comparison) -> str:
    """What the exact test says, where it says something else or can say nothing."""
    assert c.difference is not None
    flip = c.difference.flip
    assert flip is not None
    units = "subsets" if c.difference.num_subsets > 1 else "seeds"
    if flip.floor >= LEVEL:
        return f"; with {flip.count} {units} the smallest possible p of the exact sign-flip test is {flip.floor:.4g} (here {_p(flip.p)})"
    return f"; exact sign-flip p {_p(flip.p)} over {flip.count} {units}"


def _limits(num_subsets: int, num_seeds: int) -> str:
    """What a design says nothing about."""
    if num_seeds == 1:
        return "; one seed says nothing about others"
    if num_subsets == 1:
        return "; one subset says nothing about others"
    return ""


def notes(found: Comparisons) -> list[str]:
    """What the figures are, for below the table."""
    lines = [
        f"Differences from {found.against} in points (x100), pair by pair. Interval and p: crossed t over "
        f"{'subsets, seeds and test items' if found.items else 'subsets and seeds'}, Satterthwaite's degrees of freedom. Holm: p adjusted for "
        f"the {counted(len(found.comparisons), 'comparison')} shown. Exact p: sign flips of the subsets' means, unadjusted. "
        f"Better: share of pairs in which the row is better; {IMPROVED:g} is called meaningful.",
        f"Verdict: higher or lower where p by Holm is below {LEVEL:g}; equivalent where two one-sided tests by Holm put the difference within "
        f"±{in_points(found.region)} points; else not separable.",
    ]
    aggregation = found.grid.resolved.aggregate
    if aggregation.center != "mean":
        lines.append(f"A cell of this table is the {aggregation.label} of its runs; comparisons are of their means.")
    if not found.items:
        lines.append("The test set is taken as given; --items asks whether it would hold on another one (accuracy).")
    lines += found.left_out
    for ranking in found.rankings:
        shares = ", ".join(
            f"{row} {100 * share:.0f} %" for row, share in sorted(ranking.shares.items(), key=lambda each: -each[1])
        )
        lines.append(
            f"Best in resamples of subsets and seeds, {ranking.title}, {training_examples(ranking.size)}: {shares}."
        )
    return lines


# --------------------------------------------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Layout:
    """A table without markup. `blocks`: a title, that of a size, and its rows; `left`: columns of text; `about`: what the figures are;
    `sentences`: what they say, cell by cell."""

    name: str
    head: tuple[str, ...]
    blocks: tuple[tuple[str, list[list[str]]], ...]
    left: tuple[int, ...]
    about: tuple[str, ...]
    sentences: tuple[str, ...]


def rendered(found: Comparisons, format: str) -> str:
    """Ends with a newline. Raises UserError for an unknown format."""
    if format == "csv":
        return csv_text(comparison_frame(found))
    if format == "json":
        body = {
            "table": found.grid.resolved.table.name,
            "against": found.against,
            "region": found.region,
            "items": found.items,
            "comparisons": records(comparison_frame(found)),
            "rankings": records(ranking_frame(found)),
            "notes": notes(found),
        }
        return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    layout = comparison_layout(found)
    return laid_out(layout, [*layout.sentences, *layout.about], format)


def comparison_layout(found: Comparisons) -> Layout:
    """Every comparison as a row, the sentences, and the notes on them."""
    head = ("Column", f"Minus {found.against}", "Points", "95 % interval", "p", "Holm", "Exact p", "Better", "Verdict")
    blocks = []
    for size in found.grid.resolved.sizes:
        mine = [each for each in found.comparisons if each.size == size]
        blocks.append((size_name(size), [_row(each, found) for each in mine]))
    sentences = tuple(_sentences(found))
    name = f"{found.grid.resolved.table.name}-comparisons"
    return Layout(name, head, tuple(blocks), (0, 1, 8), tuple(notes(found)), sentences)


def _row(c: Comparison, found: Comparisons) -> list[str]:
    d, dash = c.difference, STYLES["text"].dash
    place = [column_name(found.grid, c.column), c.row]
    if d is None:
        return [*place, *[dash] * 6, c.verdict]
    better = "" if d.improvement is None else f"{d.improvement:.2f}"
    if d.interval is None or d.p is None or d.flip is None or c.p_holm is None:
        return [*place, in_points(d.mean, sign=True), *[dash] * 4, better, c.verdict]
    values = [interval_text(d.interval), _p(d.p), _p(c.p_holm), _p(d.flip.p)]
    return [*place, in_points(d.mean, sign=True), *values, better, c.verdict]


def rendered_variance(found: Sequence[CellVariance], grid: Grid, format: str) -> str:
    """Ends with a newline. Raises UserError for an unknown format."""
    if format == "csv":
        return csv_text(variance_frame(found))
    if format == "json":
        body = {"table": grid.resolved.table.name, "variance": records(variance_frame(found))}
        return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    layout = variance_layout(found, grid)
    return laid_out(layout, [*layout.about, *layout.sentences], format)


def variance_layout(found: Sequence[CellVariance], grid: Grid) -> Layout:
    """Every cell as a row, what the columns are, and why a source is not known."""
    blocks = []
    for size in grid.resolved.sizes:
        rows = [
            [column_name(grid, each.column), each.row, *(_source(source) for source in each.sources)]
            for each in found
            if each.size == size
        ]
        blocks.append((size_name(size), rows))
    about = (
        "Standard deviation of one run's score in points (x100) by source, its 95 % interval and its share of the variance. Interaction: "
        "of subset and seed, with the run's own noise. Test items: what another test set of this size would change in all "
        "runs alike; what it would change in single runs is in the other columns."
    )
    sentences = dict.fromkeys(
        f"{each.row}, {each.title}, {training_examples(each.size)}: {source.name}: {source.why}."
        for each in found
        for source in each.sources
        if source.why
    )
    head = ("Column", "Row", *(name.capitalize() for name in SOURCES))
    name = f"{grid.resolved.table.name}-variance"
    return Layout(name, head, tuple(blocks), (0, 1), (about,), tuple(sentences))


def _source(source: Source) -> str:
    if source.variance is None or source.low is None or source.high is None:
        return STYLES["text"].dash
    sd, low, high = (in_points(value**0.5) for value in (source.variance, source.low, source.high))
    share = "" if source.share is None else f", {100 * source.share:.0f} %"
    return f"{sd} ({low} to {high}){share}"


def laid_out(layout: Layout, lines: Sequence[str], format: str) -> str:
    """Its tables, then `lines`. Raises UserError for an unknown format."""
    if format not in ("text", "md", "latex"):
        raise unknown("format", format, FORMATS)
    style, parts = STYLES[format], []
    if format == "latex":
        layout = replace(layout, blocks=tuple((name, _typeset(body)) for name, body in layout.blocks))
    head = [style.escape(cell) for cell in layout.head]
    blocks = [
        (style.escape(name), [[style.escape(cell) for cell in row] for row in body]) for name, body in layout.blocks
    ]
    if format == "latex":  # what the columns are is the caption; the rest are comments, as below a table
        about = [style.escape(line) for line in layout.about[:2]]
        rest = [line for line in lines if line not in layout.about[:2]]
        return latex_table(layout.name, head, blocks, about, (), layout.left, rest)
    for name, body in blocks:
        parts += [f"### {name}\n" if format == "md" else name]
        parts += [*table_lines(head, body, format, layout.left), ""]
    bullet = "- " if format == "md" else ""
    return "\n".join([*parts, *(bullet + style.escape(line) for line in lines)]) + "\n"


def _typeset(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """With signs as LaTeX sets them: '-1.88 to +3.64' with a minus, no hyphen."""
    return [[re.sub(r"(?<!\w)-(?=\d)", "−", cell) for cell in row] for row in rows]


# --------------------------------------------------------------------------------------------------------------- frames


def comparison_frame(found: Comparisons) -> pd.DataFrame:
    """One row a comparison, on the metric's own scale; `docs/statistics.md` has the columns."""
    import pandas as pd

    return pd.DataFrame([_flat(each, found) for each in found.comparisons])


def _flat(c: Comparison, found: Comparisons) -> dict[str, Any]:
    d = c.difference

    def ends(name: str, interval: Interval | None) -> dict[str, float | None]:
        low, high = f"{name}low", f"{name}high"
        return {low: interval.low, high: interval.high} if interval else {low: None, high: None}

    return {
        "size": c.size,
        "column": c.column,
        "metric": c.metric,
        "row": c.row,
        "against": c.against,
        "num_subsets": d.num_subsets if d else 0,
        "num_seeds": d.num_seeds if d else 0,
        "difference": d.mean if d else None,
        **ends("", d.interval if d else None),
        "error": d.error if d else None,
        "degrees": d.degrees if d else None,
        "p": d.p if d else None,
        "p_holm": c.p_holm,
        "sign_flip_p": d.flip.p if d and d.flip else None,
        "sign_flip_p_holm": c.flip_p_holm,
        "sign_flip_floor": d.flip.floor if d and d.flip else None,
        **ends("bootstrap_", d.bootstrap if d else None),
        "improvement": d.improvement if d else None,
        **ends("improvement_", d.improvement_interval if d else None),
        "equivalence_p": d.equivalence_p if d else None,
        "equivalence_p_holm": c.equivalence_p_holm,
        "item_share": d.item_share if d else None,
        "verdict": c.verdict,
        "sentence": sentence(c, found),
    }


def ranking_frame(found: Comparisons) -> pd.DataFrame:
    """One row a size, column and row: the share of the resamples in which it is the best."""
    import pandas as pd

    rows = [
        {"size": each.size, "column": each.column, "row": row, "best": share}
        for each in found.rankings
        for row, share in each.shares.items()
    ]
    return pd.DataFrame(rows, columns=["size", "column", "row", "best"])


def variance_frame(found: Sequence[CellVariance]) -> pd.DataFrame:
    """One row a cell and source: variances on the metric's own scale squared."""
    import pandas as pd

    names = ("size", "row", "column", "metric", "num_subsets", "num_seeds")
    rows = [
        {
            **{name: getattr(each, name) for name in names},
            "source": source.name,
            **{k: v for k, v in vars(source).items() if k != "name"},
        }
        for each in found
        for source in each.sources
    ]
    return pd.DataFrame(rows, columns=[*names, "source", "variance", "low", "high", "share", "why"])


def interval_text(interval: Interval) -> str:
    return f"{in_points(interval.low, sign=True)} to {in_points(interval.high, sign=True)}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def _design(num_subsets: int, num_seeds: int) -> str:
    return f"{counted(num_subsets, 'subset')} x {counted(num_seeds, 'seed')}"
