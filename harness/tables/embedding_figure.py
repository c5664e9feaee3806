"""The figure of embeddings (SCL, figures 2 and 3): test examples in the plane by t-SNE, beside numbers of the space that they come from.

t-SNE shows neighbourhoods, and neither distances nor densities; so what is compared are two numbers of the embeddings themselves, by
cosine distance: the silhouette of the true classes (Rousseeuw 1987) and the share of an example's nearest neighbours in its class.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.tables.figure import MARKERS, file_of

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
        return f"{self.row}, {f'{self.size:,} examples' if self.size else 'full training set'}"

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
    distances = np.clip(1.0 - _cosines(vectors), 0.0, 2.0)
    np.fill_diagonal(distances, 0.0)
    return float(silhouette_score(distances, labels, metric="precomputed"))


def neighbour_purity(vectors: NDArray[Any], labels: NDArray[Any], neighbours: int = NEIGHBOURS) -> float:
    """The mean over `vectors` [n, d] of the share of the nearest other vectors by cosine that have the same label [n]. Of equally
    near ones the first count."""
    cosines = _cosines(vectors)
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
    found: NDArray[Any] = TSNE(2, perplexity=perplexity, metric="cosine", init=start, random_state=seed).fit_transform(
        vectors
    )
    return found


def _cosines(vectors: NDArray[Any]) -> NDArray[Any]:
    """[n, n]; 0 for a vector of length 0."""
    vectors = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(lengths > 0, lengths, 1.0)
    product: NDArray[Any] = units @ units.T
    return product


def csv_of(panels: Sequence[Embedded], classes: Sequence[str]) -> str:
    """A line for each example under each run, with the numbers of the run in each of its lines."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for each in panels:
        run = (each.row, each.size, each.subset, each.seed, each.key)
        for i, (x, y) in enumerate(each.plane.tolist()):
            names = (classes[each.gold[i]], classes[each.predicted[i]])
            writer.writerow((*run, i, x, y, *names, each.silhouette, each.purity))
    return text.getvalue()


def drawn(panels: Sequence[Embedded], classes: Sequence[str], format: str) -> bytes:
    """The figure as a file: a line of panels for each size, a column for each row of the table. Classes differ in marker and
    filling, never in colour alone."""
    return file_of(lambda: _figure(panels, classes), format)


def _figure(panels: Sequence[Embedded], classes: Sequence[str]) -> Any:
    from matplotlib.figure import Figure as Canvas  # no pyplot: no backend and no global state

    sizes, rows = (list(dict.fromkeys(getattr(each, name) for each in panels)) for name in ("size", "row"))
    canvas = Canvas(figsize=(PANEL[0] * len(rows), PANEL[1] * len(sizes) + 0.3), layout="constrained")
    handles: dict[str, Any] = {}
    for each in panels:
        place = sizes.index(each.size) * len(rows) + rows.index(each.row) + 1
        axes = canvas.add_subplot(len(sizes), len(rows), place)
        for code, name in enumerate(classes):
            marker, inner = MARKERS[code % len(MARKERS)], "none" if code % 2 else "0.55"
            points = each.plane[each.gold == code].T
            made = axes.scatter(
                points[0], points[1], s=14, marker=marker, facecolors=inner, edgecolors="0.0", linewidths=0.6
            )
            handles.setdefault(name, made)
        axes.set_title(f"{each.title}\n{each.numbers}", fontsize=8.5)
        axes.set(xticks=[], yticks=[])
    canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    return canvas
