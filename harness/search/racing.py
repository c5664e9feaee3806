"""Racing over replicates: a point is dropped once its replicates so far show that it is worse than the best complete point.

All trials run the same replicates in the same order, so a trial is compared with the best complete one, the incumbent, replicate by replicate: what a
subset or a seed does to all points cancels. What it does to one point does not, so runs are not independent evidence: the test takes subsets and seeds as
crossed (`harness.statistics.crossed`), as all comparisons here do. Pure: no optuna, no ray.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.statistics.crossed import ROUNDING, half_width, mean_squares, t_inference

Replicates = Sequence[tuple[int, int]]
"""(subset, seed), all pairs of them, across subsets first: the order that is the same for all trials."""
ERROR_RATE = 0.05
"""Probability, at most, that a point that is not worse than the incumbent is dropped, over all looks together."""
MIN_CLUSTERS = 3
"""Clusters (subsets; the seeds where there is one subset) that a look needs; two where there are just two subsets."""


def looks(replicates: Replicates) -> tuple[int, ...]:
    """After how many replicates `paired` looks at a trial: 3, 4, 5 and 10 for 5 subsets x 3 seeds. After each subset of the first round from the third on,
    and after whole rounds, since inside a later one clusters would have unequal variances; never at the end, where nothing is left to save."""
    subsets, every = len({subset for subset, _ in replicates}), len(replicates)
    if subsets <= 1:
        return tuple(range(MIN_CLUSTERS, every))
    first = range(2 if subsets == 2 else MIN_CLUSTERS, subsets + 1)
    return tuple(done for done in (*first, *range(2 * subsets, every, subsets)) if done < every)


def paired(candidate: Sequence[float], incumbent: Sequence[float], replicates: Replicates, name: str) -> str:
    """Why a trial is dropped after its first replicates, in one sentence with the numbers that calls the incumbent `name`; '' where it goes on.

    Test: one-sided crossed t on the differences, candidate minus incumbent on the same replicates; while one seed has run that is
    the paired t over subsets, and with one subset the one over its seeds. The error rate is shared equally among the `looks`
    (Bonferroni): against a fixed incumbent, a point that is in truth not worse is dropped at any look with probability at
    most ERROR_RATE. It assumes that subsets and seeds are independent draws with normal effects. While one seed has run, or with one subset,
    it is about that one alone. Points as good as an incumbent that was lucky are dropped more often, at no loss.

    Small dev sets tie. Where all differences are equal, t has no spread to divide by: the trial is dropped if they are
    negative and there are at least three; two that agree are no evidence.
    """
    assert np.isfinite([*candidate, *incumbent]).all(), "a failed replicate counts with the metric's worst value"
    done, places = len(candidate), looks(replicates)
    if done not in places:
        return ""
    subsets = min(len({subset for subset, _ in replicates}), done)
    seeds = done // subsets
    squares = mean_squares(np.subtract(candidate, incumbent[:done]).reshape(seeds, subsets).T)
    variances, degrees = t_inference(squares)
    worse, error = -float(squares.mean), float(np.sqrt(variances.sum()))
    limit = -float(half_width(variances, degrees, 1 - 2 * ERROR_RATE / len(places)))
    if error * math.sqrt(done) < ROUNDING:
        t = -math.inf if worse > ROUNDING and max(subsets, seeds * (subsets == 1)) >= MIN_CLUSTERS else 0.0
    else:
        t, limit = -worse / error, limit / error
    design = f"{subsets} subsets x {seeds} seeds"
    over = f"{seeds} seeds" if subsets == 1 else f"{subsets} subsets" if seeds == 1 else design
    lost = f"{100 * worse:.1f} points worse"
    return f"paired t {t:.1f} over {over} against {name} (limit {limit:.1f}): {lost}" if t < limit else ""
