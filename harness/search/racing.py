"""Racing over replicates: a point is dropped once its replicates so far show that it is worse than the best point.

All trials run the same replicates in the same order, so a trial is compared with the best fully replicated one, the
incumbent, replicate by replicate: what a subset or a seed does to all points cancels. What it does to one point does not, so
runs are not independent evidence: the test takes subsets and seeds as crossed (`harness.statistics.crossed`), as all comparisons here do.
Pure: no optuna, no ray.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.planning.aggregation import mean
from harness.search.trials import ReplicateOutcome
from harness.statistics.crossed import ROUNDING, half_width, mean_squares, t_inference

ERROR_RATE = 0.05
"""Probability, at most, that a point that is not worse than the incumbent is dropped, over all looks together."""

MIN_CLUSTERS = 3
"""Clusters (subsets; the seeds where there is one subset) that a look needs; two where there are just two subsets."""

Replicates = Sequence[tuple[int, int]]
"""(subset, seed) in the order that is the same for all trials."""


@dataclass(frozen=True)
class Decision:
    """`reason`: one sentence with the numbers; empty where nothing was tested."""

    drop: bool
    reason: str = ""


def looks(replicates: Replicates) -> tuple[int, ...]:
    """After how many replicates `paired` looks at a trial: 3, 4, 5 and 10 for 5 subsets x 3 seeds, across subsets first.

    Where at least `MIN_CLUSTERS` subsets have begun and have equally many seeds each, since inside a later round clusters
    would have unequal variances; and never at the end, where nothing is left to save. So three replicates, or two of one
    subset, have no look, and racing saves nothing there.
    """
    least = 2 if _num_subsets(replicates) == 2 else MIN_CLUSTERS
    places = []
    for done in range(1, len(replicates)):
        sizes = [len(cluster) for cluster in _clusters(replicates, done)]
        if len(sizes) >= least and len(set(sizes)) == 1:
            places.append(done)
    return tuple(places)


def paired(
    candidate: Sequence[float],
    incumbent: Sequence[float],
    replicates: Replicates,
    *,
    error_rate: float = ERROR_RATE,
    name: str = "the incumbent",
) -> Decision:
    """One look at a trial after its first replicates: is it worse than the fully replicated incumbent?

    Test: one-sided crossed t on the differences, candidate minus incumbent on the same replicates; while one seed has run that is
    the paired t over subsets, and with one subset the one over its seeds. The error rate is shared equally among the `looks`
    (Bonferroni): against a fixed incumbent, a point that is in truth not worse is dropped at any look with probability at
    most `error_rate`. Between looks nothing is tested.

    Assumes: subsets and seeds are independent draws with normal effects. Not that all points vary equally. "In truth" is over
    all subsets and seeds that could be drawn; while one seed has run, or with one subset, it is about that one alone, which
    may rank points differently from others. An incumbent that is the best of many is best by luck too: points as good
    as it in truth are then dropped more often than `error_rate`, at no loss.

    Small dev sets tie. Where all differences are equal, t has no spread to divide by: the trial is dropped if they are
    negative and there are at least three; two that agree are no evidence.

    `name`: whom the sentence names ('trial 4').
    """
    assert 0 < error_rate < 1
    assert 0 < len(candidate) <= len(replicates) == len(incumbent)
    assert all(map(math.isfinite, (*candidate, *incumbent))), "a failed replicate counts with the metric's worst value"
    done = len(candidate)
    if done not in looks(replicates):
        return Decision(False)
    differences = crossed(np.subtract(candidate, incumbent[:done]), replicates)
    t, bound = (float(number) for number in statistic(differences, error_rate / len(looks(replicates))))
    difference = float(differences.mean())
    subsets, seeds = differences.shape
    design = f"{subsets} subsets x {seeds} seeds"
    over = f"{seeds} seeds" if subsets == 1 else f"{subsets} subsets" if seeds == 1 else design
    how = f"{100 * abs(difference):.1f} points {'worse' if difference < 0 else 'better'}"
    return Decision(t < bound, f"paired t {t:.1f} over {over} against {name} (limit {bound:.1f}): {how}")


def failed_replicate(outcomes: Sequence[ReplicateOutcome], replicates: Replicates) -> Decision:
    """Drops a trial at its first failed or diverged replicate: only a point with all replicates done can be the best.

    The paired test would keep such a trial: one worst value among three makes the spread as large as the difference. A run
    that failed for a reason outside the point (memory, a lost node) is retried before this rule applies.
    """
    for (subset, seed), outcome in zip(replicates, outcomes, strict=False):
        if outcome.status != "done":
            return Decision(True, f"subset {subset}, seed {seed} {outcome.status}: such a point cannot be the best")
    return Decision(False)


def projected(values: Sequence[float], complete: Sequence[Sequence[float]]) -> float:
    """The value of a dropped trial for the sampler: an estimate of its mean over all replicates.

    The running mean would mislead: subsets are easy or hard for all points alike, so a trial that ended on the easy ones looks
    better than a complete one that equals it. So: its running mean, plus what the other replicates add to the mean of the
    `complete` trials (the values of each, fully replicated). Exact where effects of point and replicate add up. Without a
    complete trial the running mean. It is no measurement: no table shows it, and it may lie outside the metric's range.
    """
    assert len(values)
    running = mean(values)
    if not len(complete):
        return running
    reference = [mean(column) for column in zip(*complete, strict=True)]
    assert len(values) <= len(reference)
    return running + mean(reference) - mean(reference[: len(values)])


def crossed(values: ArrayLike, replicates: Replicates) -> NDArray[np.float64]:
    """(..., done) -> (..., subsets, seeds) of the first `done` replicates, which are those of a look: equally many of each subset."""
    numbers = np.asarray(values, dtype=np.float64)
    return (
        numbers[..., None, :]
        if _num_subsets(replicates) == 1
        else numbers[..., _clusters(replicates, numbers.shape[-1])]
    )


def statistic(differences: NDArray[np.float64], share: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(..., subsets, seeds) -> (...): t of their mean against zero, and the t below which a trial is dropped at a look with this `share` of the
    error rate. Without a spread t is -inf for three clusters that are equally worse, otherwise 0."""
    num_subsets, num_seeds = differences.shape[-2:]
    clusters = num_subsets if num_subsets > 1 else num_seeds
    assert clusters > 1
    squares = mean_squares(differences)
    variances, degrees = t_inference(squares)
    variance = variances.sum(axis=-1)
    flat = variance * num_subsets * num_seeds < ROUNDING**2
    equally_worse = flat & (squares.mean < -ROUNDING) & (clusters >= MIN_CLUSTERS)
    error = np.sqrt(np.where(flat, 1.0, variance))
    limit = -half_width(variances, degrees, 1 - 2 * share) / error
    return np.where(equally_worse, -np.inf, np.where(flat, 0.0, squares.mean / error)), limit


def _num_subsets(replicates: Replicates) -> int:
    return len({subset for subset, _ in replicates})


def _clusters(replicates: Replicates, done: int) -> list[list[int]]:
    """Places among the first `done` replicates by subset; each its own where there is one subset in all."""
    single = _num_subsets(replicates) == 1
    clusters: dict[tuple[int, int], list[int]] = {}
    for place, (subset, seed) in enumerate(replicates[:done]):
        clusters.setdefault((subset, seed if single else 0), []).append(place)
    return list(clusters.values())
