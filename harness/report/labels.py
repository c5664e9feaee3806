"""What more labels are worth, in words and tables. Pure.

The texts show points (x100), CSV and JSON hold every number unrounded on the metric's own scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.analysis.labels import Figure, Kind, Labels
from harness.report.document import DASH, Document, Table, in_format
from harness.report.table import column_name
from harness.statistics.learning_curve import EXPONENTS
from harness.tasks import protocol_named
from harness.wording import counted, in_points, per_class

if TYPE_CHECKING:
    import pandas as pd


def sentences(labels: Labels) -> Iterator[str]:
    """The answer for each column and row: what more labels are worth, what another method is worth, and which of both is more."""
    if not labels.figures:
        yield "No row has a finished run in any size."
    for place in dict.fromkeys((each.column, each.row) for each in labels.figures):
        of = {each.kind: each for each in labels.figures if (each.column, each.row) == place and each.kind != "score"}
        worth, more = of["labels"], f"{counted(labels.more, 'more label')}{per_class(labels.grid.resolved.size_unit)}"
        start = worth.size - labels.more
        line = f"{worth.row}, {labels.grid.title(worth.column)}, {counted(worth.num_subsets, 'subset')} x {counted(worth.num_seeds, 'seed')}: "
        if worth.estimate is not None:
            line += f"{more} than {start:,} are worth about {_points(worth)}"
        else:
            line += f"what {more} than {start:,} are worth cannot be said, because {worth.why}"
            if step := of.get("step"):
                line += f"; from {step.sizes[-2]:,} to {step.sizes[-1]:,} it was {_points(step)}"
        if method := of.get("method"):
            line += f"; {method.row} instead of {method.against} at {start:,}: {_points(method)}"
        if (less := of.get("labels less method")) and less.low is not None and less.high is not None:
            which = "the labels are worth more" if less.low > 0 else "the method is worth more" if less.high < 0 else ""
            line += f"; {which or 'which is worth more cannot be told'} (labels with {less.against} less the method: {_points(less)})"
        yield f"{line}."


def notes(labels: Labels) -> list[str]:
    """What the figures are, for below the tables."""
    nested = protocol_named(labels.grid.resolved.protocol).nested
    return [
        "Points (x100) with 95 % intervals, each alone, crossed over subsets and seeds. Labels: by a power law a + b (1 - n^-c) / c through the recorded sizes, over all exponents c from "
        f"{EXPONENTS[0]:g} to {EXPONENTS[-1]:g} that they do not reject. (+): no run has so many labels.",
        "A curve of this model never stops rising, or falling: a low end just above 0 is no evidence that more labels help. "
        f"{'A larger training set holds the smaller one' if nested else 'Training sets of two sizes are drawn independently: a larger one does not hold a smaller one'}. A curve that bends beyond the largest size, as one that has not left chance, is not foreseen; "
        "docs/statistics.md says how often the intervals held.",
    ]


def rendered_labels(labels: Labels, format: str) -> str:
    """Ends with a newline. Raises UserError for an unknown format."""
    name = labels.grid.resolved.table.name
    lines = list(sentences(labels))
    body = {
        "table": name,
        "more": labels.more,
        "against": labels.against,
        "labels": [],
        "sentences": lines,
        "notes": notes(labels),
    }
    tables = [_table(labels, column) for column in dict.fromkeys(each.column for each in labels.figures)]
    document = Document(f"{name}-labels", tables, [*lines, *notes(labels)], caption=notes(labels)[:1])
    return in_format(format, labels_frame(labels), "labels", body, document)


def _table(labels: Labels, column: str) -> Table:
    """The curve of each row, and what labels and the method are worth."""
    figures = [each for each in labels.figures if each.column == column]
    sizes = sorted({(each.size, each.extrapolated) for each in figures if each.kind == "score"})
    worths: tuple[Kind, ...] = ("labels", "method")
    kinds = [kind for kind in worths if any(each.kind == kind for each in figures)]
    names: dict[Kind, str] = {
        "labels": f"{labels.more:,} more labels{per_class(labels.grid.resolved.size_unit)}",
        "method": "Instead of " + labels.against,
    }
    head = [
        "Method",
        *(f"{size:,}{' (+)' if beyond else ''}" for size, beyond in sizes),
        *(names[kind] for kind in kinds),
    ]
    rows: list[list[str]] = []
    for row in dict.fromkeys(each.row for each in figures):
        mine = [each for each in figures if each.row == row]
        scores = {(each.size, each.extrapolated): each for each in mine if each.kind == "score"}
        others = {each.kind: each for each in mine}
        rows.append([row, *(_cell(scores.get(size)) for size in sizes), *(_cell(others.get(kind)) for kind in kinds)])
    return Table(column_name(labels.grid, column), head, rows)


def _cell(figure: Figure | None) -> str:
    if figure is None or figure.estimate is None:
        return DASH
    sign = figure.kind != "score"
    ends = (
        ""
        if figure.low is None or figure.high is None
        else f" ({in_points(figure.low, sign)} to {in_points(figure.high, sign)})"
    )
    return in_points(figure.estimate, sign) + ends


def _points(figure: Figure) -> str:
    """'+2.00 points (0.50 to 3.40)'."""
    if figure.estimate is None:
        return "not known"
    points = f"{in_points(figure.estimate, sign=True)} points"
    if figure.low is None or figure.high is None:
        return f"{points} ({figure.why})"
    return f"{points} ({in_points(figure.low, sign=True)} to {in_points(figure.high, sign=True)})"


def labels_frame(labels: Labels) -> pd.DataFrame:
    """One row a figure, on the metric's own scale; `docs/statistics.md` has the columns."""
    import pandas as pd

    names = (
        *("kind", "column", "row", "against", "size", "extrapolated"),
        *("estimate", "low", "high", "num_subsets", "num_seeds", "why"),
    )
    return pd.DataFrame(
        [
            {
                **{name: getattr(each, name) for name in names},
                "metric": labels.metrics[each.column],
                "num_sizes": len(each.sizes),
                "exponent_low": each.exponents and each.exponents[0],
                "exponent_high": each.exponents and each.exponents[1],
            }
            for each in labels.figures
        ]
    )
