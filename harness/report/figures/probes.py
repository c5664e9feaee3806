"""Figures of probes: what pre-training does to representations, by row and update, as points, a table, CSV and drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from harness.analysis.schema import csv_text
from harness.report.figures.panels import FAINT, INK, MARKERS, MUTED, SERIES, file_of, legend_below, look, panels_of

PANEL = (3.2, 2.5)
"""Inches of one panel."""
BINS = 40
CONNECTED = 8
"""Pairs that are marked by a shape of their own and connected, in the plane."""
FIELDS = ("row", "key", "update", "measure", "number", "value")


@dataclass(frozen=True)
class ProbeFigure:
    """What a figure shows. `probe`: what is measured of weights, '' for what a stage logged as it was trained; `measures`: in the order
    of the panels, with their titles; `kind`: lines over updates, or histograms or planes of the last update; `source`: the paper's."""

    name: str
    probe: Literal["", "context", "words", "sequences", "plane"]
    kind: Literal["curves", "histogram", "plane"]
    measures: Mapping[str, str]
    source: str

    @property
    def last_only(self) -> bool:
        return self.kind != "curves"


_SEQUENCES = {"random_cosine": "random pairs", "similar_cosine": "similar pairs"}
FIGURES: Mapping[str, ProbeFigure] = {
    figure.name: figure
    for figure in (
        ProbeFigure(
            "context",
            "context",
            "curves",
            {
                "intra_context_cosine": "cosine within a context",
                "inter_context_cosine": "cosine between contexts",
                "contextual_score": "contextual score",
            },
            "TACO, Figures 3(b) and 6(a)",
        ),
        ProbeFigure(
            "words",
            "words",
            "curves",
            {"cooccurring_cosine": "co-occurring words", "other_cosine": "words paired at random"},
            "TACO, Figure 3(a)",
        ),
        ProbeFigure("cosines", "sequences", "histogram", _SEQUENCES, "COCO-LM, Figures 1 and 5"),
        ProbeFigure(
            "alignment",
            "sequences",
            "curves",
            {"alignment": "alignment of similar pairs", "uniformity": "uniformity", **_SEQUENCES},
            "Wang and Isola (2020), section 4.1",
        ),
        ProbeFigure("similar_pairs", "plane", "plane", {"similar_cosine": "similar pairs"}, "COCO-LM, Figure 6"),
        ProbeFigure(
            "contrast",
            "",
            "curves",
            {"positive_sequence_cosine": "positive pairs", "negative_sequence_cosine": "negative pairs"},
            "COCO-LM, Figure 7(a) and (b)",
        ),
        ProbeFigure(
            "copying",
            "",
            "curves",
            {
                "copy_accuracy_replaced": "copy accuracy, replaced",
                "copy_accuracy_original": "copy accuracy, original",
                "lm_accuracy_replaced": "LM accuracy, replaced",
                "lm_accuracy_original": "LM accuracy, original",
            },
            "COCO-LM, Figure 8",
        ),
    )
}


@dataclass(frozen=True)
class Probed:
    """What was measured of a row after an update. `values`: scalars, None where one is undefined; `samples`: lists of numbers behind
    them, by name; in the plane 'x' and 'y', the two texts of a pair side by side."""

    row: str
    key: str
    update: int
    values: Mapping[str, float | None]
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)


def table_of(figure: ProbeFigure, probes: Sequence[Probed]) -> list[list[str]]:
    """A header and a line for each row and update, as text."""
    lines = [["Row", "Update", *figure.measures]]
    for probed in probes:
        values = [probed.values.get(name) for name in figure.measures]
        lines.append([probed.row, f"{probed.update:,}", *("-" if v is None else f"{v:.4f}" for v in values)])
    return lines


def csv_of(figure: ProbeFigure, probes: Sequence[Probed]) -> str:
    """A line for each value, and for each number behind the values with its place; what is undefined is empty."""
    import pandas as pd

    rows: list[tuple[Any, ...]] = []
    for probed in probes:
        place = (probed.row, probed.key, probed.update)
        rows += [(*place, name, None, probed.values.get(name)) for name in figure.measures]
        if figure.last_only:
            rows += [(*place, name, i, v) for name, many in probed.samples.items() for i, v in enumerate(many)]
    return csv_text(pd.DataFrame(rows, columns=list(FIELDS), dtype=object))


def drawn(figure: ProbeFigure, probes: Sequence[Probed], format: str) -> bytes:
    """The figure as a file. Lines and classes differ in marker, stroke and filling, never in colour alone."""
    draw = {"curves": _curves, "histogram": _histograms, "plane": _planes}[figure.kind]
    return file_of(lambda: draw(figure, probes), format)


def _canvas(count: int) -> tuple[Any, list[Any]]:
    return panels_of(count, 2 if count in (2, 4) else 3, PANEL, more=(0, 0.4))


def _curves(figure: ProbeFigure, probes: Sequence[Probed]) -> Any:
    """A panel for each measure, a line for each row."""
    rows = list(dict.fromkeys(probed.row for probed in probes))
    canvas, panels = _canvas(len(figure.measures))
    handles: dict[str, Any] = {}
    for axes, (name, title) in zip(panels, figure.measures.items(), strict=True):
        for index, row in enumerate(rows):
            of_row = [(probed.update, probed.values.get(name)) for probed in probes if probed.row == row]
            points = [(update, value) for update, value in of_row if value is not None]
            if points:
                every = max(1, len(points) // 12)
                (handles[row],) = axes.plot(*zip(*points, strict=True), **look(index), markevery=every)
        axes.set(title=title, xlabel="updates")
        if "accuracy" in name:  # 0 and 1 mean something
            axes.set_ylim(-0.03, 1.03)
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    legend_below(canvas, {row: handles[row] for row in rows if row in handles})
    return canvas


def _histograms(figure: ProbeFigure, probes: Sequence[Probed]) -> Any:
    """A panel for each row: densities of the cosines in bins, with a kernel density estimate of each."""
    from scipy.stats import gaussian_kde

    canvas, panels = _canvas(len(probes))
    lowest = min(0.0, min(min(probed.samples[name]) for probed in probes for name in figure.measures))
    edges, places = np.linspace(lowest, 1.0, BINS + 1), np.linspace(lowest, 1.0, 400)
    handles: dict[str, Any] = {}
    for axes, probed in zip(panels, probes, strict=True):
        for index, (name, title) in enumerate(figure.measures.items()):
            cosines, colour = np.asarray(probed.samples[name]), SERIES[index]
            _, _, handles[title] = axes.hist(cosines, edges, density=True, color=colour, alpha=0.4, hatch="///" * index)
            if spread := float(
                cosines.std(ddof=1)
            ):  # Scott's rule, and at least as wide as a bin: cosines may be nearly one number
                width = max(len(cosines) ** -0.2, (edges[1] - edges[0]) / spread)
                axes.plot(places, gaussian_kde(cosines, width)(places), color=colour, linestyle=("-", "--")[index])
        axes.set(title=f"{probed.row}, {probed.update:,} updates", xlabel="cosine", ylabel="density")
        axes.locator_params(axis="x", nbins=5)
    legend_below(canvas, handles)
    return canvas


def _planes(figure: ProbeFigure, probes: Sequence[Probed]) -> Any:
    """A panel for each row: both texts of all pairs as points, some pairs with a shape of their own."""
    canvas, panels = _canvas(len(probes))
    for axes, probed in zip(panels, probes, strict=True):
        pairs = np.stack([probed.samples["x"], probed.samples["y"]], axis=1).reshape(-1, 2, 2)
        axes.scatter(*pairs.reshape(-1, 2).T, s=5, color=FAINT, linewidths=0)
        chosen = np.linspace(0, len(pairs) - 1, min(CONNECTED, len(pairs))).astype(int)
        for index, pair in enumerate(pairs[chosen]):
            axes.plot(*pair.T, color=MUTED, linewidth=0.7)
            style = {"marker": MARKERS[index], "facecolors": SERIES[index], "edgecolors": INK}
            axes.scatter(*pair.T, s=30, linewidths=0.6, zorder=3, **style)
        mean = probed.values["similar_cosine"]
        axes.set_title(f"{probed.row}, {probed.update:,} updates\nmean cosine of pairs {mean:.3f}", fontsize=8.5)
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
    return canvas
