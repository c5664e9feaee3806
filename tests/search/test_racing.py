"""The paired racing test: when it looks, its error rate, and what it may not depend on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import t as student
from scipy.stats import ttest_rel

from harness.search import racing
from harness.search.racing import ERROR_RATE, looks


def paired(candidate: list[float], incumbent: list[float], replicates: list[tuple[int, int]]) -> bool:
    """Whether the point is dropped."""
    return bool(racing.paired(candidate, incumbent, replicates, "the incumbent"))


def replicates_of(subsets: int, seeds: int) -> list[tuple[int, int]]:
    return [(subset, seed) for seed in range(31, 31 + seeds) for subset in range(subsets)]


designs = st.tuples(st.integers(1, 6), st.integers(1, 4)).map(lambda pair: replicates_of(*pair))


@st.composite
def looked(draw: st.DrawFn) -> tuple[list[float], list[float], list[tuple[int, int]]]:
    """(candidate up to a look, incumbent, replicates); scores are correct answers of 256: they tie, and are exact in binary."""
    replicates = draw(designs.filter(looks))
    done, scores = draw(st.sampled_from(looks(replicates))), st.integers(110, 220).map(lambda correct: correct / 256)
    ours, theirs = (draw(st.lists(scores, min_size=n, max_size=n)) for n in (done, len(replicates)))
    return ours, theirs, replicates


@pytest.mark.parametrize(
    ("subsets", "seeds", "expected"),
    [(5, 3, (3, 4, 5, 10)), (5, 1, (3, 4)), (3, 3, (3, 6)), (2, 3, (2, 4)), (1, 5, (3, 4)), (3, 1, ()), (2, 1, ())],
)
def test_it_looks_where_clusters_are_alike(subsets: int, seeds: int, expected: tuple[int, ...]) -> None:
    assert looks(replicates_of(subsets, seeds)) == expected


@given(designs)
def test_it_looks_never_at_the_end_and_tests_only_there(replicates: list[tuple[int, int]]) -> None:
    found = looks(replicates)
    assert list(found) == sorted(set(found))
    assert all(2 <= done < len(replicates) for done in found)
    for done in range(1, len(replicates) + 1):
        assert not paired([0.0] * done, [1.0] * len(replicates), replicates) or done in found


@given(looked())
def test_it_is_the_paired_t_test_of_one_seed_or_one_subset_and_else_crossed(case: Any) -> None:
    """Against scipy's, and the mean squares as loops."""
    candidate, incumbent, replicates = case
    done, share = len(candidate), ERROR_RATE / len(looks(replicates))
    subsets, seeds = ({place[k] for place in replicates[:done]} for k in (0, 1))
    d = {place: c - i for place, c, i in zip(replicates, candidate, incumbent, strict=False)}
    if np.std([*d.values()]) < 1e-9:
        return
    if len(subsets) == 1 or len(seeds) == 1:
        expected = ttest_rel(candidate, incumbent[:done], alternative="less").pvalue < share
        assert paired(candidate, incumbent, replicates) == expected
        return
    mean = sum(d.values()) / done
    by_subset = [np.mean([d[s, r] for r in seeds]) for s in subsets]
    by_seed = [np.mean([d[s, r] for s in subsets]) for r in seeds]
    of_subset = len(seeds) * sum((each - mean) ** 2 for each in by_subset) / (len(subsets) - 1)
    of_seed = len(subsets) * sum((each - mean) ** 2 for each in by_seed) / (len(seeds) - 1)
    if of_subset + of_seed < 1e-9:
        return
    squares = ((of_subset, len(subsets) - 1), (of_seed, len(seeds) - 1))
    limit = math.sqrt(sum(square * student.ppf(share, degrees) ** 2 for square, degrees in squares) / done)
    assert paired(candidate, incumbent, replicates) == (mean < -limit)


@pytest.mark.parametrize(("subsets", "seeds", "drop"), [(3, 2, True), (1, 5, True), (2, 2, False)])
def test_ties(subsets: int, seeds: int, drop: bool) -> None:
    """0.1 + 0.2 - 0.3 and the like are not a spread; two equal differences are no evidence."""
    replicates = replicates_of(subsets, seeds)
    incumbent = [0.1 + 0.2, 0.7, 0.9, 0.8, 0.6, 0.5][: len(replicates)]
    for difference, expected in ((-0.1, drop), (0.0, False), (0.1, False), (-1e-12, False)):
        candidate = [value + difference for value in incumbent[: looks(replicates)[0]]]
        assert paired(candidate, incumbent, replicates) == expected


def simulated(subsets: int, seeds: int, points: int, better: float = 0.0, rounded: float = 0.0) -> NDArray[np.float64]:
    """Scores [points, replicates] with a run's spread 1, an effect of each subset and seed on all points, and one of subset x point. The
    first point is `better` than all others."""
    draw = np.random.default_rng(0)
    of_all = 3 * draw.normal(size=(seeds, subsets))
    scores = of_all + draw.normal(size=(points, 1, subsets)) + draw.normal(size=(points, seeds, subsets))
    scores[0] += better
    return (np.round(scores / rounded) * rounded if rounded else scores).reshape(points, -1)


@pytest.mark.slow
@pytest.mark.parametrize(("subsets", "seeds"), [(3, 2), (5, 3), (2, 3)])
@pytest.mark.parametrize("rounded", [0.0, 1.0])
def test_a_point_as_good_as_the_incumbent_is_dropped_at_most_at_the_error_rate(
    subsets: int, seeds: int, rounded: float
) -> None:
    """At any look, against a fixed incumbent drawn anew for each; also with scores of a small dev set, which tie."""
    scores, replicates = simulated(subsets, seeds, 4000, rounded=rounded).tolist(), replicates_of(subsets, seeds)
    pairs = zip(scores[::2], scores[1::2], strict=True)
    dropped = [any(paired(ours[:done], theirs, replicates) for done in looks(replicates)) for ours, theirs in pairs]
    assert np.mean(dropped) - 3 * math.sqrt(ERROR_RATE / len(dropped)) < ERROR_RATE
