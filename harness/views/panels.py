"""The panels that all figures are drawn on: sizes, colours, marks, legends, and figures as files.

Text and axes have the colour INK, series those of `SERIES`. Series differ in marker and stroke too, never in colour alone.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Any

INK, MUTED, FAINT = "#000000", "#57606a", "#d0d7de"
"""Colours of text and axes, of lines of reference, and of the grid."""
SERIES = ("#0b6bb5", "#660000", "#ff5500", "#994433", "#401070", "#1a8cff", "#8c8c8c", "#0000cc")
"""Colours of series, at least 0.11 apart in OKLab for full and for red-, green- and blue-blind sight (Machado et al. 2009)."""
MARKERS, STROKES = "osD^vPX*", ("-", "--", ":", "-.")
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
    count: int, panel: tuple[float, float] = (3.4, 2.6), legend: float = 0, sharex: bool = False
) -> tuple[Any, list[Any]]:
    """(figure of matplotlib, its `count` axes in rows of up to two). `panel`: width and height in inches of each; `legend`: the height below them."""
    from matplotlib.figure import Figure  # no pyplot: no backend and no global state

    wide, high = max(1, min(2, count)), max(1, -(-count // 2))
    canvas = Figure(figsize=(panel[0] * wide, panel[1] * high + legend), layout="constrained")
    axes: list[Any] = []
    for place in range(count):
        axes.append(canvas.add_subplot(high, wide, place + 1, sharex=axes[0] if sharex and axes else None))
    return canvas, axes


def legend_below(canvas: Any) -> None:
    """A legend of all panels, each name once."""
    found = [axes.get_legend_handles_labels() for axes in canvas.axes]
    handles = {label: handle for each in found for handle, label in zip(*each, strict=True)}
    if len(handles) > 1:
        canvas.legend(handles.values(), handles, loc="outside lower center", ncols=min(3, len(handles)))


def file_of(make: Callable[[], Any], format: str) -> bytes:
    """The figure of matplotlib that `make` returns, as a file: the same bytes each time. An SVG is well-formed whatever its texts hold."""
    import matplotlib

    file = io.BytesIO()
    no_date: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make().savefig(file, format=format, metadata=no_date.get(format), dpi=200)
    return _NOT_XML.sub("", file.getvalue().decode()).encode() if format == "svg" else file.getvalue()
