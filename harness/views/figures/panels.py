"""The panels that all figures are drawn on: sizes, colours, marks, legends, and figures as files.

Text and axes have the colour INK, series those of `SERIES`. Series
differ in marker and stroke too, never in colour alone.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

FORMATS = ("png", "svg", "pdf")
PANEL = (3.4, 2.6)
"""Inches of one panel."""
INK, MUTED, FAINT = "#000000", "#57606a", "#d0d7de"
"""Colours of text and axes, of lines of reference, and of the grid."""
SERIES = ("#0b6bb5", "#660000", "#ff5500", "#994433", "#401070", "#1a8cff", "#8c8c8c", "#0000cc")
"""Colours of series, at least 0.11 apart in OKLab for full and for red-, green- and blue-blind sight (Machado et al. 2009)."""
MARKERS, STROKES = "osD^vPX*", ("-", "--", ":", "-.")
LETTER, SAMPLE = 0.066, 0.6
"""Inches of a letter of a legend, and of a line's sample with the space around it."""
SETTINGS: Any = {
    "svg.hashsalt": "harness",
    "text.parse_math": False,
    "font.size": 9,
    "axes.titlesize": 9,
    "lines.markersize": 4.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
}
"""Of matplotlib, for every figure. Its texts are data: a `$` begins no formula."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML admits nowhere, not even escaped."""


def look(place: int) -> dict[str, Any]:
    """Colour, marker and stroke of the row at a place of its table, so that it looks alike in every figure: of 64 rows no two alike."""
    colour, turn = place % len(SERIES), place // len(SERIES)
    marker = MARKERS[(place + turn) % len(MARKERS)]
    return {"color": SERIES[colour], "marker": marker, "linestyle": STROKES[(place + turn) % len(STROKES)]}


def panels_of(
    count: int, wide: int = 2, panel: tuple[float, float] = PANEL, more: tuple[float, float] = (0, 0)
) -> tuple[Any, list[Any]]:
    """(figure of matplotlib, its `count` axes in rows of up to `wide`). `panel`, `more`: width and height in inches of each, and of what
    stands beside and below them."""
    from matplotlib.figure import Figure  # no pyplot: no backend and no global state

    wide = max(1, min(wide, count))
    high = max(1, -(-count // wide))
    canvas = Figure(figsize=(panel[0] * wide + more[0], panel[1] * high + more[1]), layout="constrained")
    return canvas, [canvas.add_subplot(high, wide, place + 1) for place in range(count)]


def rows_on(axes: Any, places: Sequence[float], names: Sequence[str]) -> None:
    """Names at places of the vertical axis, the first on top, with lines that go up."""
    axes.set_yticks(places, names, fontsize=8)
    axes.set(ylim=(max(places) + 0.9, min(places) - 0.9))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=FAINT)


def handles_of(canvas: Any) -> dict[str, Any]:
    """What the legend of all panels names, each name once."""
    found = [axes.get_legend_handles_labels() for axes in canvas.axes]
    return {label: handle for handles, labels in found for handle, label in zip(handles, labels, strict=True)}


def legend_below(canvas: Any) -> None:
    """A legend of all panels, in as many columns as go below them."""
    if handles := handles_of(canvas):
        most = int(canvas.get_size_inches()[0] / (SAMPLE + LETTER * max(map(len, handles))))
        canvas.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), max(1, most))
        )


def file_of(make: Callable[[], Any], format: str) -> bytes:
    """The figure of matplotlib that `make` returns, as a file: the same bytes each time. An SVG is well-formed whatever its texts hold."""
    import matplotlib

    file = io.BytesIO()
    no_date: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make().savefig(file, format=format, metadata=no_date.get(format), dpi=200)
    return _NOT_XML.sub("", file.getvalue().decode()).encode() if format == "svg" else file.getvalue()
