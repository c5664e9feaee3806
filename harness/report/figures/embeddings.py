"""The figure of embeddings (SCL, figures 2 and 3): test examples in the plane by t-SNE, beside numbers of the space that they come from.

t-SNE shows neighbourhoods, and neither distances nor densities; so what is compared are two numbers of the embeddings themselves, by
cosine distance: the silhouette of the true classes (Rousseeuw 1987) and the share of an example's nearest neighbours in its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.analysis.schema import csv_text
from harness.report.figures.panels import file_of, legend_below, mark, panels_of
from harness.wording import examples

EMBEDDINGS = "embeddings"
"""The name of the figure."""
MOST = 2000
"""Examples that are drawn and measured: pairwise distances of more need gigabytes."""
NEIGHBOURS = 10
PERPLEXITY = 30.0
"""Of t-SNE: scikit-learn's default, less where there are few examples."""
PANEL = (2.9, 3.0)
"""Inches of one panel."""
FIELDS = ("row", "size", "subset", "seed", "key", "example", "x", "y", "gold", "predicted", "silhouette", "purity")


@dataclass(frozen=True, eq=False)
class Embedded:
    """The test examples under one run: `vectors` float [n, d], `gold` and `predicted` class codes int [n]."""

    row: str
    size: int
    subset: int
    seed: int
    key: str
    vectors: NDArray[Any]
    gold: NDArray[Any]
    predicted: NDArray[Any]
    size_unit: str = "training examples"

    @cached_property
    def silhouette(self) -> float | None:
        return silhouette(self.vectors, self.gold)

    @cached_property
    def purity(self) -> float:
        return neighbour_purity(self.vectors, self.gold)

    @cached_property
    def plane(self) -> NDArray[Any]:
        return plane(self.vectors)

    @property
    def title(self) -> str:
        return f"{self.row}, {examples(self.size, self.size_unit) if self.size else 'full training set'}"

    @property
    def numbers(self) -> str:
        value = "undefined" if self.silhouette is None else f"{self.silhouette:.3f}"
        return f"silhouette {value}, purity {self.purity:.3f}"


def silhouette(vectors: NDArray[Any], labels: NDArray[Any]) -> float | None:
    """The mean silhouette of classes `labels` [n] over `vectors` [n, d] by cosine distance, in [-1, 1]; None with one class, or with
    as many as vectors. A vector alone in its class has 0."""
    from sklearn.metrics import silhouette_score

    if not 1 < len(np.unique(labels)) < len(labels):
        return None
    return float(silhouette_score(vectors.astype(np.float64), labels, metric="cosine"))


def neighbour_purity(vectors: NDArray[Any], labels: NDArray[Any], neighbours: int = NEIGHBOURS) -> float:
    """The mean over `vectors` [n, d] of the share of the nearest other vectors by cosine that have the same label [n]. Of equally
    near ones the first count."""
    from sklearn.metrics.pairwise import cosine_similarity

    cosines = cosine_similarity(vectors.astype(np.float64))
    np.fill_diagonal(cosines, -np.inf)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, : min(neighbours, len(vectors) - 1)]
    return float((labels[nearest] == labels[:, None]).mean())


def plane(vectors: NDArray[Any], seed: int = 0) -> NDArray[Any]:
    """t-SNE of `vectors` [n, d] by cosine distance, from their principal components (equal vectors: from noise): float [n, 2]."""
    from sklearn.manifold import TSNE

    vectors = np.asarray(vectors, dtype=np.float64)
    # Of equal vectors the components are zero, and scikit-learn (1.9) divides by their spread and ends the process.
    start = "pca" if np.ptp(vectors, axis=0).any() else "random"
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    projection = TSNE(2, perplexity=perplexity, metric="cosine", init=start, random_state=seed)
    points: NDArray[Any] = projection.fit_transform(vectors)
    return points


def csv_of(panels: Sequence[Embedded], classes: Sequence[str]) -> str:
    """A line for each example under each run, with the numbers of the run in each of its lines."""
    import pandas as pd

    rows = [
        (*run, i, x, y, classes[panel.gold[i]], classes[panel.predicted[i]], panel.silhouette, panel.purity)
        for panel in panels
        for run in [(panel.row, panel.size, panel.subset, panel.seed, panel.key)]
        for i, (x, y) in enumerate(panel.plane.tolist())
    ]
    return csv_text(pd.DataFrame(rows, columns=list(FIELDS), dtype=object))


def drawn(panels: Sequence[Embedded], classes: Sequence[str], format: str) -> bytes:
    """The figure as a file: a line of panels for each size, a column for each row of the table. Classes differ in marker and colour."""
    return file_of(lambda: _figure(panels, classes), format)


def _figure(panels: Sequence[Embedded], classes: Sequence[str]) -> Any:
    sizes, rows = (list(dict.fromkeys(getattr(panel, name) for panel in panels)) for name in ("size", "row"))
    canvas, places = panels_of(len(rows) * len(sizes), len(rows), PANEL, more=(0, 0.3))
    handles: dict[str, Any] = {}
    for axes in places:
        axes.set_axis_off()
    for panel in panels:
        axes = places[sizes.index(panel.size) * len(rows) + rows.index(panel.row)]
        axes.set_axis_on()
        radius = max(1.5, min(4.5, 60 / len(panel.gold) ** 0.5))  # many points would hide one another
        for code, name in enumerate(classes):
            style = mark(code) | {"markersize": radius, "markeredgewidth": 0, "alpha": 0.6}
            (handles[name],) = axes.plot(*panel.plane[panel.gold == code].T, **style)
        axes.set_title(f"{panel.title}\n{panel.numbers}", fontsize=8.5)
        axes.set(xticks=[], yticks=[])
    legend_below(canvas, handles)
    return canvas
