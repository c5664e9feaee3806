"""Reliability drawn: the share of right predictions over the probability of the predicted class, a panel for each column and size. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.analysis.examples import ExampleFrames
from harness.analysis.schema import csv_text, records
from harness.report.document import Picture, Table
from harness.report.figures.panels import INK, file_of, handles_of, legend_below, look, panels_of
from harness.report.figures.picture import picture
from harness.report.table import column_name
from harness.wording import examples, in_points

RELIABILITY = "reliability"
"""The name of the figure, which every table with classes has."""
PANEL = (3.2, 3.2)
MOST = 12
"""Panels of a page; of more those of the largest sizes."""

Panels = Mapping[tuple[int, str], Sequence[dict[str, Any]]]
"""The bins of a column at a size."""


def csv_of(frames: ExampleFrames) -> str:
    return csv_text(frames.bins)


def drawn(frames: ExampleFrames, format: str) -> bytes:
    """The figure as a file, one legend for all panels."""

    return file_of(lambda: _figure(_panels(frames), frames), format)


def pictures_of(frames: ExampleFrames) -> list[Picture]:
    """A picture for each panel, with its bins as a table."""
    panels = [*_panels(frames).items()][-MOST:]
    return [_picture(number, place, bins, frames) for number, (place, bins) in enumerate(panels)]


def _panels(frames: ExampleFrames) -> dict[tuple[int, str], list[dict[str, Any]]]:
    panels: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in records(frames.bins):
        panels.setdefault((row["size"], row["column"]), []).append(row)
    return panels


def _picture(number: int, place: tuple[int, str], bins: Sequence[dict[str, Any]], frames: ExampleFrames) -> Picture:
    title = _title(place, frames)
    rows = [
        [row["row"], str(row["bin"]), in_points(row["probability"]), in_points(row["right"]), f"{row['examples']:.0f}"]
        for row in bins
    ]
    data = Table(f"Reliability, {title}", ["Row", "Bin", "Probability", "Right", "Examples"], rows)
    described = (
        f"{title}: of each bin the share of right predictions over their mean probability; on the line they are equal."
    )
    figure = picture(lambda: _figure({place: bins}, frames), f"reliability{number}", f"Reliability, {title}", described)
    return Picture(figure, described, data)


def _title(place: tuple[int, str], frames: ExampleFrames) -> str:
    return f"{column_name(frames.grid, place[1])}, {examples(place[0], frames.grid.resolved.size_unit)}"


def _figure(panels: Panels, frames: ExampleFrames) -> Any:
    rows = [*frames.grid.resolved.printed_rows]
    canvas, drawn_on = panels_of(len(panels), 3, PANEL, (0, 0.4))
    for axes, (place, bins) in zip(drawn_on, panels.items(), strict=True):
        lowest = 100.0
        for row in dict.fromkeys(each["row"] for each in bins):
            points = [(100 * each["probability"], 100 * each["right"]) for each in bins if each["row"] == row]
            axes.plot(*zip(*points, strict=True), **look(rows.index(row)), label=row)
            lowest = min(lowest, *(min(point) for point in points))
        edge = max(0.0, 10 * (lowest // 10))
        axes.plot([edge, 100], [edge, 100], color=INK, linewidth=0.8, linestyle=":")
        axes.set(xlim=(edge, 102), ylim=(edge, 102), title=_title(place, frames))
        axes.set(xlabel="probability of the predicted class, %", ylabel="right, %")
    legend_below(canvas, handles_of(canvas))
    return canvas
