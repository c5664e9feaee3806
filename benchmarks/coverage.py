"""Coverage of every interval and error rate of every test of `harness.statistics`, measured on simulated designs.

    python benchmarks/coverage.py [--designs 4000] [--seed 0]      # about a minute

Simulated paired differences, in points: subset effect (sd from 0 to 3, also heavy-tailed: t with 3 degrees of freedom), seed effect (sd from 0
to 1) and run (sd 1), for 2 to 10 subsets x 1 to 5 seeds; 'ties' are rounded to a test set of 100. In each row every design has a
true difference of 0. Monte-Carlo error: 0.3 points at 95 % of 4,000 designs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtr
from tabulate import tabulate

from harness.statistics.bootstrap import percentile_interval, resampled_means
from harness.statistics.crossed import (
    component_interval,
    half_width,
    item_variance,
    mean_squares,
    p_value,
    t_inference,
    variance_interval,
)
from harness.statistics.difference import improvement_interval
from harness.statistics.power import Components, detectable, precision
from harness.statistics.sequential import LOOK_LEVEL, path
from harness.statistics.sign_flip import holm, sign_flip

Floats = NDArray[np.float64]

DESIGNS = ((2, 1), (5, 1), (10, 1), (2, 2), (2, 3), (3, 2), (3, 3), (5, 2), (5, 3), (5, 5), (10, 2), (10, 3), (10, 5))
"""Subsets x seeds."""
LEVEL = 0.95


@dataclass(frozen=True)
class World:
    """Where differences come from: standard deviations of the effects, in points."""

    name: str
    subset: float
    seed: float
    run: float = 1.0
    heavy: bool = False
    step: float = 0.0

    def draw(self, rng: np.random.Generator, designs: int, subsets: int, seeds: int, mean: float = 0.0) -> Floats:
        """(designs, subsets, seeds)."""
        shape = (designs, subsets, 1)
        tailed = rng.standard_t(3, shape) / np.sqrt(3) if self.heavy else rng.normal(size=shape)
        found = self.subset * tailed + self.seed * rng.normal(size=(designs, 1, seeds)) + mean
        found = found + self.run * rng.normal(size=(designs, subsets, seeds))
        return np.round(found / self.step) * self.step if self.step else found


WORLDS = (
    World("runs alone", 0, 0),
    World("subsets", 1, 0),
    World("large subsets", 3, 0),
    World("seeds", 0, 1),
    World("both", 1, 1),
    World("subsets, small seeds", 1, 0.5),
    World("heavy subsets", 3, 0.5, heavy=True),
    World("ties", 1, 0.5, step=1.0),
)


def crossed(d: Floats) -> float:
    """Share of the designs whose crossed t interval holds 0."""
    squares = mean_squares(d)
    return float(np.mean(np.abs(squares.mean) <= half_width(*t_inference(squares), LEVEL) + 1e-12))


def subsets_alone(d: Floats) -> float:
    """The t interval over subset means, which leaves the seed's main effect out: for comparison."""
    squares = mean_squares(d)
    runs = squares.num_subsets * squares.num_seeds
    degrees = np.full_like(squares.mean, squares.num_subsets - 1)
    return float(np.mean(np.abs(squares.mean) <= half_width(squares.subset / runs, degrees, LEVEL) + 1e-12))


def bootstrapped(d: Floats) -> float:
    """Share whose two-way bootstrap interval holds 0; with the median degrees of freedom of these designs."""
    held = 0
    for part in np.array_split(d, max(1, len(d) // 500)):
        means = resampled_means(part, 1000)
        for each, degrees in zip(means, t_inference(mean_squares(part))[1], strict=True):
            low, high = percentile_interval(each, max(1.0, float(degrees)), LEVEL)
            held += bool(low - 1e-12 <= 0 <= high + 1e-12)
    return held / len(d)


def improved(d: Floats, truth: float) -> float:
    low, high = improvement_interval(d, LEVEL)
    return float(np.mean((low <= truth) & (truth <= high)))


def components(d: Floats, world: World) -> list[float]:
    """Shares whose interval holds the variance of subset, seed and interaction; normal effects only."""
    squares = mean_squares(d)
    a, b, ab = squares.degrees
    if not ab:
        return []
    found = []
    for square, degrees, count, truth in (
        (squares.subset, a, squares.num_seeds, world.subset**2),
        (squares.seed, b, squares.num_subsets, world.seed**2),
    ):
        _, low, high = component_interval(square, squares.residual, (degrees, ab), count, LEVEL)
        found.append(float(np.mean((low <= truth) & (truth <= high))))
    low, high = variance_interval(squares.residual, ab, LEVEL)
    return [*found, float(np.mean((low <= world.run**2) & (world.run**2 <= high)))]


def equivalent(d: Floats, region: float) -> float:
    """Share called equivalent by two one-sided tests at 5 %."""
    squares = mean_squares(d)
    variance, degrees = t_inference(squares)
    error = np.sqrt(np.maximum(variance, 1e-30))
    return float(np.mean(stdtr(degrees, (np.abs(squares.mean) - region) / error) < 1 - LEVEL))


def measured(designs: int, seed: int, boot: int) -> list[list[str]]:
    """A row for each world and design: figures in %."""
    rows = []
    for world in WORLDS:
        for subsets, seeds in DESIGNS:
            if seeds == 1 and world.seed:  # one seed says nothing about others: the truth is that of this seed
                continue
            d = world.draw(np.random.default_rng(seed), designs, subsets, seeds)
            flips = float(np.mean(sign_flip(d.mean(axis=2)) < 1 - LEVEL + 1e-12))
            sd = np.sqrt(world.subset**2 + world.seed**2 + world.run**2)
            at_edge = d + 0.5 * sd
            one = components(d, world) if not world.heavy and not world.step else []
            figures = [crossed(d), subsets_alone(d), bootstrapped(d[:boot]), improved(d, 0.5)]
            if world.heavy or world.step:
                others = [flips, equivalent(at_edge, 0.5 * sd)]
            else:
                figures[3] = min(figures[3], improved(at_edge, float(ndtr(0.5))))
                others = [flips, equivalent(at_edge, 0.5 * sd)]
            rows.append([world.name, f"{subsets}x{seeds}", *(f"{100 * x:.1f}" for x in [*figures, *others, *one])])
    return rows


HEADS = (
    "effects",
    "subsets x seeds",
    "crossed t",
    "subsets alone",
    "bootstrap",
    "P(better)",
    "sign flip",
    "equivalence",
    "subset",
    "seed",
    "interaction",
)


def powers(designs: int, seed: int) -> list[list[str]]:
    """How often designs find the difference that they should find with 80 % power."""
    rows = []
    for world in WORLDS[:6]:
        for subsets, seeds in DESIGNS:
            if seeds == 1 and world.seed:
                continue
            wanted = detectable(precision(Components(world.subset**2, world.seed**2, world.run**2), subsets, seeds))
            squares = mean_squares(world.draw(np.random.default_rng(seed), designs, subsets, seeds, wanted))
            found = (p_value(squares.mean, *t_inference(squares)) < 1 - LEVEL) & (squares.mean > 0)
            rows.append([world.name, f"{subsets}x{seeds}", f"{wanted:.2f}", f"{100 * float(np.mean(found)):.1f}"])
    return rows


def family_errors(designs: int, seed: int, rows: int = 4) -> list[list[str]]:
    """How often Holm's correction rejects any of `rows` equal rows against one more."""
    found = []
    for world in WORLDS:
        for subsets, seeds in ((5, 3), (10, 3)):
            rng = np.random.default_rng(seed)
            scores = np.stack([world.draw(rng, designs, subsets, seeds) for _ in range(rows + 1)])
            squares = [mean_squares(row - scores[0]) for row in scores[1:]]
            values = np.stack([p_value(each.mean, *t_inference(each)) for each in squares], axis=1)
            wrong = np.mean([min(holm(list(each))) < 1 - LEVEL for each in values])
            found.append([world.name, f"{subsets}x{seeds}", f"{100 * wrong:.1f}"])
    return found


SHARES = (0.4, 0.5, 0.6, 0.75, 0.9, 1.1, 1.3)
"""Wanted half widths of `sequential`, in standard deviations of one run's difference."""


def sequential(designs: int, seed: int, budgets: Sequence[int] = (50, 150)) -> list[list[str]]:
    """`bench --until` simulated: the crossed interval at the look at which it is narrow enough, or at the last one. Per world the worst of
    several wanted widths: % that hold the truth, at `LOOK_LEVEL` and at 95 %, % that got as narrow, and the mean number of replicates."""
    rows = []
    for world in WORLDS:
        sd = np.sqrt(world.subset**2 + world.seed**2 + world.run**2)
        for most in budgets:
            grids = list(path(1, 1, most))
            drawn = world.draw(np.random.default_rng(seed), designs, *grids[-1])
            held, nominal, reached, runs = min(stopped(drawn, grids, [share * sd for share in SHARES]))
            rows.append([world.name, f"{most}", *(f"{100 * x:.1f}" for x in (held, nominal, reached)), f"{runs:.0f}"])
    return rows


def stopped(
    drawn: Floats, grids: Sequence[tuple[int, int]], wanted: Sequence[float]
) -> list[tuple[float, float, float, float]]:
    """(held at LOOK_LEVEL, held at 95 %, narrow enough, mean replicates) for each wanted width, of (designs, subsets, seeds)."""
    ended = np.zeros((len(wanted), len(drawn)), dtype=bool)
    figures = np.zeros((4, len(wanted), len(drawn)))
    for a, b in grids:
        squares = mean_squares(drawn[:, :a, :b])
        variance, degrees = t_inference(squares)
        wide, usual = (half_width(variance, degrees, level) for level in (LOOK_LEVEL, LEVEL))
        narrow = wide <= np.asarray(wanted)[:, None]
        now = ~ended & (narrow | ((a, b) == grids[-1]))
        off = np.abs(squares.mean) - 1e-12
        each = np.broadcast_arrays(off <= wide, off <= usual, narrow, float(a * b))
        for figure, values in zip(figures, each, strict=True):
            figure[now] = np.broadcast_to(values, now.shape)[now]
        ended |= now
    return [tuple(float(each) for each in figures[:, k].mean(axis=1)) for k in range(len(wanted))]  # type: ignore[misc]


def items_held(designs: int, seed: int, subsets: int, seeds: int, count: int = 372) -> tuple[float, float]:
    """(coverage of the item variance, bias of its estimate in % of the truth): right or wrong answers to `count` items, whose log odds
    vary by item (sd 1.5), item x subset, item x seed and run (sd 0.5 each)."""
    rng = np.random.default_rng(seed)

    def chance(items: int) -> Floats:
        shape = [(items, 1, 1), (items, subsets, 1), (items, 1, seeds), (items, subsets, seeds)]
        effects = (sd * rng.normal(size=each) for sd, each in zip((1.5, 0.5, 0.5, 0.5), shape, strict=True))
        return sum(effects, start=np.full((items, 1, 1), 0.7))

    base = rng.normal(size=200_000) * 1.5 + 0.7
    noise = np.sqrt(3) * 0.5 * rng.normal(size=(20, 200_000))
    truth = float((1 / (1 + np.exp(-(base + noise)))).mean(axis=0).var()) - _noise(base, noise)
    estimates, held = [], 0
    for _ in range(designs):
        odds = chance(count)
        right = (rng.random(odds.shape) < 1 / (1 + np.exp(-odds))).astype(float)
        found = item_variance(right)
        low, high = found.interval(LEVEL)
        held += low <= truth / count <= high
        estimates.append(found.variance * count)
    return held / designs, 100 * (float(np.mean(estimates)) / truth - 1)


def _noise(base: Floats, noise: Floats) -> float:
    """The variance that the mean over 20 draws of noise keeps."""
    return float((1 / (1 + np.exp(-(base + noise)))).var(axis=0, ddof=1).mean()) / len(noise)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--designs", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    print(f"Intervals that hold the truth (95 wanted) and wrong rejections (5 wanted), %, {given.designs} designs")
    print(tabulate(measured(given.designs, given.seed, given.designs // 8), HEADS, disable_numparse=True))
    print("\nPower at the difference that a design should detect with 80 %:")
    heads = ["effects", "subsets x seeds", "difference", "found, %"]
    print(tabulate(powers(given.designs, given.seed), heads, disable_numparse=True))
    print("\nAny wrong rejection among four rows against a fifth, by Holm, %:")
    print(tabulate(family_errors(given.designs, given.seed), [*heads[:2], "rejected"], disable_numparse=True))
    print("\nReplicates added until the interval is narrow enough (bench --until), worst of seven widths:")
    heads = ["effects", "replicates", "holds, %", "95 % interval holds", "narrow enough, %", "mean replicates"]
    print(tabulate(sequential(given.designs, given.seed), heads, disable_numparse=True))
    for subsets, seeds in ((2, 2), (5, 3), (10, 2)):
        held, bias = items_held(given.designs // 20, given.seed, subsets, seeds)
        print(f"Test items, {subsets}x{seeds}: interval holds {100 * held:.1f} %, bias {bias:+.1f} %")
    print(f"\n{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
