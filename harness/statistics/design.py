"""Which replicates of a design can be analysed: the largest full grid of subsets x seeds."""

from __future__ import annotations

from collections.abc import Collection

Pair = tuple[int, int]
"""(subset, seed)."""


def full_grid(pairs: Collection[Pair]) -> tuple[list[int], list[int]]:
    """Subsets and seeds, in ascending order, such that every pair of them is among `pairs`; both empty where there is none.

    Leaves out, one after the other, the subset or seed of which the largest share of runs is missing; of equal ones that
    which costs fewer runs.
    """
    there = set(pairs)
    subsets, seeds = sorted({s for s, _ in there}), sorted({r for _, r in there})
    while subsets and seeds and (missing := [(s, r) for s in subsets for r in seeds if (s, r) not in there]):
        worst_subset = max(subsets, key=lambda s: sum(pair[0] == s for pair in missing))
        worst_seed = max(seeds, key=lambda r: sum(pair[1] == r for pair in missing))
        of_subset = sum(pair[0] == worst_subset for pair in missing) / len(seeds)
        of_seed = sum(pair[1] == worst_seed for pair in missing) / len(subsets)
        if (of_subset, -len(seeds)) >= (of_seed, -len(subsets)):
            subsets.remove(worst_subset)
        else:
            seeds.remove(worst_seed)
    return (subsets, seeds) if subsets and seeds else ([], [])
