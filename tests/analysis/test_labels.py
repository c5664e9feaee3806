"""What more labels are worth: curves of recorded sizes, beside another method, or the reason why nothing is said."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from analysis.runs import filled, result
from requested import resolve_table

from harness.analysis.cells import Grid
from harness.analysis.labels import Figure, Labels, labels_worth
from harness.errors import UserError
from harness.report.document import FORMATS
from harness.report.figures.labels import drawn
from harness.report.labels import labels_frame, rendered_labels, sentences
from harness.statistics.learning_curve import more_examples, worth

SIZES = (20, 100, 1000)
GAINS = {"FT": 0.0, "SCL": 0.05}


def grid(
    sizes: tuple[int, ...] = SIZES,
    bend: float = 0.0,
    without: tuple[str, int] = ("", 0),
    noise: float = 0.002,
    **more: Any,
) -> Grid:
    """FT and SCL on SST-2, log-linear in the size, SCL 5 points higher; the middle size lower by `bend`; a row without a size."""
    r = resolve_table("few_shot", "paper", **{"methods": ("FT", "SCL"), "tasks": ("sst2",), "sizes": sizes, **more})
    rng = np.random.default_rng(5)
    runs = []
    for size in r.sizes:
        for row, gain in GAINS.items():
            if (row, size) != without:
                mean = 0.5 + 0.04 * np.log(max(size, 1)) + gain - (bend if size == 100 else 0.0)
                runs += [
                    result(r, row, size, "sst2", s, t, mean + noise * rng.normal(), key="k")
                    for s, t in r.replicates_at(size)
                ]
    return filled(r, runs)


def only(labels: Labels, kind: str, row: str) -> Figure:
    (figure,) = (each for each in labels.figures if (each.kind, each.row) == (kind, row))
    return figure


def test_labels_and_method_are_those_of_the_replicates() -> None:
    g = grid()
    found = labels_worth(g, 100)
    results = g.results.set_index(["row", "size", "subset", "seed"])["test"]
    r = g.resolved
    y = {row: np.array([[[results[row, n, s, t] for t in r.seeds] for s in r.subsets] for n in SIZES]) for row in GAINS}
    naive = worth(y["FT"], SIZES, more_examples(1000, 100))
    mine = only(found, "labels", "FT")
    assert [mine.estimate, mine.low, mine.high] == pytest.approx(
        [float(end) for end in (naive.estimate, naive.low, naive.high)]
    )
    difference = y["SCL"][-1] - y["FT"][-1]
    assert only(found, "method", "SCL").estimate == pytest.approx(difference.mean())
    naive = worth(y["FT"], SIZES, more_examples(1000, 100), difference)
    mine = only(found, "labels less method", "SCL")
    assert [mine.estimate, mine.low, mine.high] == pytest.approx(
        [float(end) for end in (naive.estimate, naive.low, naive.high)]
    )
    assert [each.size for each in found.figures if (each.kind, each.row) == ("score", "FT")] == [*SIZES, 1100]
    said = [*sentences(found)]
    assert said[0].startswith("FT, SST-2, 5 subsets x 3 seeds: 100 more labels than 1,000 are worth about +0.")
    assert "SCL instead of FT at 1,000: +4." in said[1]
    assert "the method is worth more (labels with FT less the method: -4." in said[1]


def test_every_format_has_every_figure() -> None:
    found = labels_worth(grid(), 100)
    frame = labels_frame(found)
    assert len(frame) == len(found.figures)
    read = json.loads(rendered_labels(found, "json"))
    assert [each["kind"] for each in read["labels"]] == frame["kind"].tolist()
    for format in FORMATS:
        assert rendered_labels(found, format).endswith("\n")
    assert drawn(found, "svg") == drawn(found, "svg")
    assert "1,100 (+)" in rendered_labels(found, "text")


@pytest.mark.parametrize(
    ("sizes", "bend", "says"),
    [
        ((1000,), 0.0, "what 100 more labels than 1,000 are worth cannot be said, because 1 size fits every curve."),
        ((100, 1000), 0.0, "cannot be said, because 2 sizes fit every curve; from 100 to 1,000 it was +9."),
        (
            SIZES,
            0.3,
            "because no power law with an exponent from -0.5 to 1.5 fits 20, 100 and 1000 examples; from 100 to 1,000 it was +39.",
        ),
    ],
)
def test_where_nothing_can_be_extrapolated_it_says_why(sizes: tuple[int, ...], bend: float, says: str) -> None:
    said = next(iter(sentences(labels_worth(grid(sizes, bend), 100))))
    assert says in said, said


def test_one_run_a_size_has_no_interval() -> None:
    found = labels_worth(grid(subsets=(0,), seeds=(31,)), 100)
    assert only(found, "labels", "FT").why == "one run a size has no spread"


def test_a_size_that_is_missing_is_not_in_the_curve() -> None:
    found = labels_worth(grid(without=("SCL", 1000)), 100)
    assert only(found, "labels", "FT").size == 1100
    assert only(found, "labels", "SCL").size == 200, "beyond the largest size of this row"
    assert only(found, "method", "SCL").size == 100


def test_no_row_is_extrapolated_beyond_twice_its_own_largest_size() -> None:
    """SCL has no runs at 1,000 yet: 1,000 labels more than its 100 are eleven times as many."""
    found = labels_worth(grid(without=("SCL", 1000)), 1000)
    assert only(found, "labels", "FT").estimate is not None
    assert (only(found, "labels", "SCL").estimate, only(found, "labels", "SCL").why) == (
        None,
        "more than twice the largest size that is recorded, 100",
    )


def test_without_runs_it_says_so() -> None:
    r = resolve_table("few_shot", "paper", methods=("FT", "SCL"), tasks=("sst2",), sizes=SIZES)
    assert [*sentences(labels_worth(filled(r), 100))] == ["No row has a finished run in any size."]


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(UserError, match="--labels 2000: reaches beyond twice the largest size, 1,000"):
        labels_worth(grid(), 2000)
    with pytest.raises(UserError, match="labels: this table has the full training set alone"):
        labels_worth(filled(resolve_table("full_size", "paper", methods=("FT", "SCL"), tasks=("sst2",))), 100)
    with pytest.raises(UserError, match="against"):
        labels_worth(grid(), 100, "no row")


def test_the_order_of_sizes_changes_nothing() -> None:
    assert {*labels_worth(grid((1000, 20, 100), noise=0), 100).figures} == {*labels_worth(grid(noise=0), 100).figures}


def test_k_shot_counts_labels_per_class_and_its_training_sets_are_nested() -> None:
    said = rendered_labels(labels_worth(grid(protocol="k_shot"), 100), "text")
    assert ": 100 more labels per class than 1,000 are worth about " in said
    assert "A larger training set holds the smaller one" in said
    drawn_apart = rendered_labels(labels_worth(grid(), 100), "text")
    assert ": 100 more labels than 1,000 are worth about " in drawn_apart
    assert "a larger one does not hold a smaller one" in drawn_apart
