"""Figures of probes: what pre-training does to representations, by row and update, as points, a table, CSV and drawn by matplotlib."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from harness.tables.figure import LINES, MARKERS, file_of, panels_of

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


def table_of(figure: ProbeFigure, found: Sequence[Probed]) -> list[list[str]]:
    """A header and a line for each row and update, as text."""
    lines = [["Row", "Update", *figure.measures]]
    for each in found:
        values = [each.values.get(name) for name in figure.measures]
        lines.append([each.row, f"{each.update:,}", *("-" if v is None else f"{v:.4f}" for v in values)])
    return lines


def csv_of(figure: ProbeFigure, found: Sequence[Probed]) -> str:
    """A line for each value, and for each number behind the values with its place; what is undefined is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for each in found:
        place = (each.row, each.key, each.update)
        writer.writerows((*place, name, "", each.values.get(name)) for name in figure.measures)
        if figure.last_only:
            writer.writerows((*place, name, i, v) for name, many in each.samples.items() for i, v in enumerate(many))
    return text.getvalue()


def drawn(figure: ProbeFigure, found: Sequence[Probed], format: str) -> bytes:
    """The figure as a file. Lines and classes differ in marker, stroke and filling, never in colour alone."""
    draw = {"curves": _curves, "histogram": _histograms, "plane": _planes}[figure.kind]
    return file_of(lambda: draw(figure, found), format)


def _canvas(count: int) -> tuple[Any, list[Any]]:
    return panels_of(count, 2 if count in (2, 4) else 3, PANEL, more=(0, 0.4))


def _curves(figure: ProbeFigure, found: Sequence[Probed]) -> Any:
    """A panel for each measure, a line for each row."""
    rows = list(dict.fromkeys(each.row for each in found))
    canvas, panels = _canvas(len(figure.measures))
    handles: dict[str, Any] = {}
    for axes, (name, title) in zip(panels, figure.measures.items(), strict=True):
        for index, row in enumerate(rows):
            points = [
                (each.update, v) for each in found if each.row == row and (v := each.values.get(name)) is not None
            ]
            if not points:
                continue
            (line,) = axes.plot(
                *zip(*points, strict=True),
                color=str(0.65 * index / max(1, len(rows) - 1)),
                marker=MARKERS[index % len(MARKERS)],
                linestyle=LINES[index % len(LINES)],
                markersize=4,
                markevery=max(1, len(points) // 12),
            )
            handles.setdefault(row, line)
        axes.set(title=title, xlabel="updates")
        if "accuracy" in name:  # 0 and 1 mean something
            axes.set_ylim(-0.03, 1.03)
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(axis="y", color="0.85", linewidth=0.6)
    canvas.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)), frameon=False
    )
    return canvas


def _histograms(figure: ProbeFigure, found: Sequence[Probed]) -> Any:
    """A panel for each row: densities of the cosines in bins, with a kernel density estimate of each."""
    canvas, panels = _canvas(len(found))
    lowest = min(0.0, min(min(each.samples[name]) for each in found for name in figure.measures))
    edges, places = np.linspace(lowest, 1.0, BINS + 1), np.linspace(lowest, 1.0, 400)
    handles: dict[str, Any] = {}
    for axes, each in zip(panels, found, strict=True):
        for (name, title), (colour, hatch, stroke) in zip(
            figure.measures.items(), (("0.75", "", "-"), ("0.35", "///", "--")), strict=True
        ):
            cosines = np.asarray(each.samples[name])
            filled = {"color": colour, "alpha": 0.6} if not hatch else {"facecolor": "none", "edgecolor": colour}
            _, _, bars = axes.hist(cosines, edges, density=True, hatch=hatch, linewidth=0.4, **filled)
            handles.setdefault(title, bars)
            axes.plot(places, _density(cosines, places, edges[1] - edges[0]), "k", linestyle=stroke, linewidth=1.0)
        axes.set(title=f"{each.row}, {each.update:,} updates", xlabel="cosine", ylabel="density")
        axes.locator_params(axis="x", nbins=5)
    canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, frameon=False)
    return canvas


def _density(values: Any, places: Any, narrowest: float) -> Any:
    """A Gaussian kernel density estimate at `places`, by Scott's rule and at least as wide as `narrowest`: after little training all
    cosines are one number."""
    width = max(float(values.std()) * len(values) ** -0.2, narrowest)
    kernels = np.exp(-0.5 * ((places[:, None] - values[None, :]) / width) ** 2)
    return kernels.mean(axis=1) / (width * np.sqrt(2 * np.pi))


def _planes(figure: ProbeFigure, found: Sequence[Probed]) -> Any:
    """A panel for each row: both texts of all pairs as points, some pairs with a shape of their own."""
    canvas, panels = _canvas(len(found))
    for axes, each in zip(panels, found, strict=True):
        points = np.stack([each.samples["x"], each.samples["y"]], axis=1).reshape(-1, 2, 2)
        axes.scatter(*points.reshape(-1, 2).T, s=5, color="0.75", linewidths=0)
        chosen = np.linspace(0, len(points) - 1, min(CONNECTED, len(points))).astype(int)
        for index, pair in enumerate(points[chosen]):
            inner = "none" if index >= len(MARKERS) else "0.4"
            axes.plot(*pair.T, color="0.0", linewidth=0.7)
            axes.scatter(
                *pair.T, s=30, marker=MARKERS[index % len(MARKERS)], facecolors=inner, edgecolors="0.0", zorder=3
            )
        mean = each.values["similar_cosine"]
        axes.set_title(f"{each.row}, {each.update:,} updates\nmean cosine of pairs {mean:.3f}", fontsize=8.5)
        axes.set(xticks=[], yticks=[])
    return canvas
