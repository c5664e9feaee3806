"""Which replicates of a design can be analysed: the largest full grid of subsets x seeds."""

from __future__ import annotations

from collections.abc import Collection

Pair = tuple[int, int]
"""(subset, seed)."""


def full_grid(pairs: Collection[Pair]) -> tuple[list[int], list[int]]:
    """The grid of the most pairs: subsets and seeds, in ascending order, such that every pair of them is among `pairs`; both empty where there
    is none.

    Of equally large grids that whose smaller side is longer, then that with more subsets, then that of the lowest subsets and seeds.
    Branch and bound: the subset that lacks most of the seeds is left out, or the seeds that it lacks are. 30 x 30 pairs of which some
    lack take a second or so.
    """
    levels = sorted({seed for _, seed in pairs})
    bit = {seed: 1 << place for place, seed in enumerate(levels)}
    there = {
        subset: sum(bit[seed] for other, seed in set(pairs) if other == subset)
        for subset in sorted({s for s, _ in pairs})
    }
    best: tuple[tuple[int, int, int], list[int], list[int]] = ((0, 0, 0), [], [])
    open_grids = [([*there], (1 << len(levels)) - 1)]
    while open_grids:
        subsets, seeds = open_grids.pop()
        having = sorted(((there[subset] & seeds).bit_count() for subset in subsets), reverse=True)
        # the first `a` of them have `b` seeds or more, so no grid of `a` subsets here has more
        bound = min(((-a * b, -min(a, b), -a) for a, b in enumerate(having, 1)), default=(0, 0, 0))
        if bound > best[0] or not bound[0]:
            continue
        worst = min(subsets, key=lambda subset: (there[subset] & seeds).bit_count())
        if there[worst] & seeds == seeds:
            best = min(best, (bound, subsets, [seed for seed in levels if bit[seed] & seeds]))
        else:
            open_grids += [([s for s in subsets if s != worst], seeds), (subsets, seeds & there[worst])]
    return best[1], best[2]
