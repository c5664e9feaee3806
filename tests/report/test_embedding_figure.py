"""The numbers of the figure of embeddings against naive loops, and its files."""

from __future__ import annotations

import csv
import io
import math
import re

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.report.figures.embeddings import Embedded, csv_of, drawn, neighbour_purity, plane, silhouette
from harness.report.figures.panels import FAINT, SERIES, mark

Array = NDArray[np.float64]


def cosine(a: Array, b: Array) -> float:
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 0.0


def naive_silhouette(vectors: Array, labels: NDArray[np.int64]) -> float:
    values = []
    for i, vector in enumerate(vectors):
        means = {}
        for label in set(labels.tolist()):
            others = [1 - cosine(vector, vectors[j]) for j in range(len(vectors)) if labels[j] == label and j != i]
            if others:
                means[label] = sum(others) / len(others)
        if labels[i] not in means:
            values.append(0.0)
            continue
        inner = means.pop(labels[i])
        outer = min(means.values())
        values.append((outer - inner) / max(outer, inner))
    return sum(values) / len(values)


def naive_purity(vectors: Array, labels: NDArray[np.int64], k: int) -> float:
    shares = []
    for i in range(len(vectors)):
        others = sorted((j for j in range(len(vectors)) if j != i), key=lambda j: -cosine(vectors[i], vectors[j]))[:k]
        shares.append(sum(labels[j] == labels[i] for j in others) / len(others))
    return sum(shares) / len(shares)


@pytest.mark.parametrize(("examples", "classes", "seed"), [(5, 2, 0), (23, 2, 1), (40, 3, 2), (12, 5, 3)])
def test_both_numbers_are_those_of_naive_loops(examples: int, classes: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, examples)
    labels[:classes] = range(classes)
    vectors = draw.normal(size=(examples, 7)) + np.eye(7)[labels]
    assert silhouette(vectors, labels) == pytest.approx(naive_silhouette(vectors, labels), abs=1e-12)
    for k in (1, 3, 10):
        assert neighbour_purity(vectors, labels, k) == pytest.approx(naive_purity(vectors, labels, k), abs=1e-12)


def test_neither_depends_on_lengths_or_on_rotation() -> None:
    draw = np.random.default_rng(5)
    labels = np.arange(30) % 3
    vectors = draw.normal(size=(30, 6)) + 2 * np.eye(6)[labels]
    rotation, _ = np.linalg.qr(draw.normal(size=(6, 6)))
    other = draw.uniform(0.1, 9, size=(30, 1)) * vectors @ rotation
    assert silhouette(other, labels) == pytest.approx(silhouette(vectors, labels))
    assert neighbour_purity(other, labels) == pytest.approx(neighbour_purity(vectors, labels))


def test_closed_forms() -> None:
    """Classes that are one direction each, opposite: 1 and 1. One direction for all: 0, and of equally near ones the first count."""
    labels = np.array([0, 0, 0, 1, 1, 1])
    apart = np.array([[1.0, 0]] * 3 + [[-2.0, 0]] * 3)
    assert silhouette(apart, labels) == pytest.approx(1)
    assert neighbour_purity(apart, labels, 2) == 1
    collapsed = np.ones((6, 2))
    assert silhouette(collapsed, labels) == pytest.approx(0, abs=1e-9)
    assert neighbour_purity(collapsed, labels, 2) == pytest.approx((1 + 1 + 1 + 0 + 0 + 0) / 6)
    assert silhouette(apart, np.zeros(6, dtype=int)) is None
    assert neighbour_purity(apart, np.zeros(6, dtype=int)) == 1
    assert np.isfinite(neighbour_purity(np.zeros((6, 2)), labels))
    assert silhouette(np.zeros((6, 2)), labels) == pytest.approx(0)


def test_the_plane_is_the_same_each_time_and_keeps_clusters_together() -> None:
    draw = np.random.default_rng(3)
    labels = np.arange(60) % 2
    vectors = draw.normal(scale=0.1, size=(60, 8)) + np.eye(8)[labels]
    found = plane(vectors)
    assert found.shape == (60, 2)
    assert np.array_equal(found, plane(vectors))
    distances = np.linalg.norm(found[:, None] - found[None], axis=2) + np.where(np.eye(60), np.inf, 0)
    assert (labels[distances.argmin(axis=1)] == labels).mean() > 0.95
    assert plane(np.ones((4, 3))).shape == (4, 2)


@pytest.fixture(scope="module")
def panels() -> list[Embedded]:
    draw = np.random.default_rng(0)
    found = []
    for number, (row, size) in enumerate((row, size) for size in (20, 0) for row in ("CE", "CE + SCL")):
        gold = draw.integers(0, 2, 40)
        vectors = draw.normal(size=(40, 5)) + number * np.eye(5)[gold]
        found.append(Embedded(row, size, number, 31, f"key{number}", vectors, gold, 1 - gold))
    return found


def test_the_csv_has_every_point_and_the_numbers(panels: list[Embedded]) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_of(panels, ("bad", "good")))))
    assert len(rows) == 4 * 40
    for panel in panels:
        mine = [row for row in rows if row["key"] == panel.key]
        assert [(float(row["x"]), float(row["y"])) for row in mine] == [tuple(point) for point in panel.plane.tolist()]
        assert [row["gold"] for row in mine] == [("bad", "good")[code] for code in panel.gold]
        assert all(row["gold"] != row["predicted"] for row in mine)
        assert {float(row["silhouette"]) for row in mine} == {panel.silhouette}
        assert {float(row["purity"]) for row in mine} == {panel.purity}


@pytest.mark.parametrize(("format", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_figure_is_the_same_file_each_time_and_classes_differ_in_marker_too(
    panels: list[Embedded], format: str, begins: bytes
) -> None:
    file = drawn(panels, ("bad", "good"), format)
    assert file.startswith(begins)
    assert file == drawn(panels, ("bad", "good"), format)
    if format == "svg":
        colours = set(re.findall(r"#[0-9a-f]{6}", file.decode()))
        assert colours <= {*SERIES[:2], "#000000", "#ffffff", FAINT}, colours
    assert len({mark(code)["marker"] for code in range(8)}) == 8
