"""Simulated designs, of which the tests of tests/statistics measure how often intervals hold the truth and how often tests err.

Simulated paired differences, in points: subset effect (sd from 0 to 3, also heavy-tailed: t with 3 degrees of freedom), seed effect (sd from 0
to 3) and run (sd 1), for 2 to 20 subsets x 1 to 5 seeds; 'ties' are rounded to a test set of 100. Every table has its shares in %.
Monte-Carlo error: 0.3 points at 95 % of 4,000 designs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.statistics.crossed import (
    MeanSquares,
    component_interval,
    difference,
    half_width,
    item_variance,
    mean_squares,
    published_half_width,
    t_inference,
    variance_interval,
)
from harness.statistics.power import (
    MOST_SEEDS,
    MOST_SUBSETS,
    Components,
    cheapest,
    detectable,
    power,
    precision,
    upper_components,
)

Floats = NDArray[np.float64]

DESIGNS = (
    *((2, 1), (5, 1), (10, 1), (2, 2), (2, 3), (3, 2), (3, 3), (5, 2), (5, 3), (5, 5)),
    *((10, 2), (10, 3), (10, 5), (20, 2), (20, 3)),
)
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

    @property
    def sd(self) -> float:
        """Of one difference."""
        return float(np.sqrt(self.subset**2 + self.seed**2 + self.run**2))

    @property
    def normal(self) -> bool:
        return not self.heavy and not self.step

    @property
    def components(self) -> Components:
        return Components(self.subset**2, self.seed**2, self.run**2)

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
    World("large seeds", 0, 3),
    World("both", 1, 1),
    World("large both", 3, 3),
    World("subsets, small seeds", 1, 0.5),
    World("heavy subsets", 3, 0.5, heavy=True),
    World("ties", 1, 0.5, step=1.0),
)


def crossed(squares: MeanSquares, level: float) -> Floats:
    return half_width(*t_inference(squares), level)


def held(squares: MeanSquares) -> float:
    """Share of the designs whose interval holds 0."""
    return float(np.mean(np.abs(squares.mean) <= crossed(squares, LEVEL) + 1e-12))


SHIFTS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""True differences, and regions of equivalence, in standard deviations of one difference."""


def equivalent(squares: MeanSquares, sd: float) -> float:
    """Share called equivalent by two one-sided tests at 5 % where the true difference is the edge of the region: the largest over the regions."""
    half = crossed(squares, 2 * LEVEL - 1)
    return max(float(np.mean(np.abs(squares.mean + shift * sd) + half < shift * sd)) for shift in SHIFTS)


def components(squares: MeanSquares, world: World) -> list[float]:
    """Shares whose interval holds the variance of subset, seed and interaction; normal effects only."""
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


def measured(designs: int, seed: int) -> pd.DataFrame:
    """Of each world and design: how often intervals hold the truth and tests err."""
    rows = []
    for world in WORLDS:
        for subsets, seeds in DESIGNS:
            if seeds == 1 and world.seed:  # one seed says nothing about others: the truth is that of this seed
                continue
            d = world.draw(np.random.default_rng(seed), designs, subsets, seeds)
            squares = mean_squares(d)
            row = {
                "world": world.name,
                "design": f"{subsets}x{seeds}",
                "crossed t": 100 * held(squares),
                "equivalence": 100 * equivalent(squares, world.sd),
            }
            if world.normal:
                shares = zip(("subset", "seed", "interaction"), components(squares, world), strict=False)
                row |= {name: 100 * share for name, share in shares}
            rows.append(row)
    return table(rows)


def table(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows).set_index([name for name in ("world", "design", "budget") if name in rows[0]])


FAMILIES = ((4, 1), (4, 4))
"""Rows against one more, and columns."""


def family_errors(designs: int, seed: int) -> pd.DataFrame:
    """How often Holm's correction rejects any of several equal rows against one more in any of several columns, in %. It rejects any exactly where the
    smallest p is below the level divided by the number of comparisons."""
    found = []
    for world in WORLDS:
        for subsets, seeds in ((2, 3), (5, 2), (5, 3), (10, 2), (10, 3)):
            row: dict[str, Any] = {"world": world.name, "design": f"{subsets}x{seeds}"}
            for rows, columns in FAMILIES:
                rng, wrong = np.random.default_rng(seed), np.zeros(designs, dtype=bool)
                for _ in range(columns):
                    first = world.draw(rng, designs, subsets, seeds)
                    for _ in range(rows):
                        squares = mean_squares(world.draw(rng, designs, subsets, seeds) - first)
                        half = crossed(squares, 1 - (1 - LEVEL) / (rows * columns))
                        wrong |= np.abs(squares.mean) > half + 1e-12
                row[f"{rows} rows x {columns}"] = 100 * float(wrong.mean())
            found.append(row)
    return table(found)


def powers(designs: int, seed: int) -> pd.DataFrame:
    """How often designs find the difference that they should find with 80 % power, in %."""
    rows = []
    for world in filter(lambda world: world.normal, WORLDS):
        for subsets, seeds in DESIGNS:
            if seeds == 1 and world.seed:
                continue
            wanted = detectable(precision(world.components, subsets, seeds))
            squares = mean_squares(world.draw(np.random.default_rng(seed), designs, subsets, seeds, wanted))
            found = 100 * float(np.mean(squares.mean > crossed(squares, LEVEL)))
            rows.append({"world": world.name, "design": f"{subsets}x{seeds}", "difference": wanted, "found": found})
    return table(rows)


def planned(pilots: int, seed: int, designs: Sequence[tuple[int, int]] = ((5, 3), (3, 3))) -> pd.DataFrame:
    """Designs planned at the upper limits of a pilot's components for 80 % power at the difference that 8 subsets x 4 seeds detect: their mean power in %,
    and their mean number of replicates. Where no design that is proposed is enough, the largest counts."""
    rows = []
    for world in filter(lambda world: world.normal, WORLDS):
        wanted = detectable(precision(world.components, 8, 4))
        for subsets, seeds in designs:
            rng = np.random.default_rng(seed)
            limits = (upper_components(mean_squares(world.draw(rng, 1, subsets, seeds)[0])) for _ in range(pilots))
            found = [cheapest([each], wanted, lambda a, b: a * b) for each in limits]
            sizes = [(each.num_subsets, each.num_seeds) if each else (MOST_SUBSETS, MOST_SEEDS) for each in found]
            mean = np.mean([power(wanted, precision(world.components, *size)) for size in sizes])
            row = {"world": world.name, "design": f"{subsets}x{seeds}", "power": 100 * mean}
            rows.append(row | {"replicates": np.mean([a * b for a, b in sizes])})
    return table(rows)


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
    estimates, within = [], 0
    for _ in range(designs):
        odds = chance(count)
        right = (rng.random(odds.shape) < 1 / (1 + np.exp(-odds))).astype(float)
        found = item_variance(right)
        low, high = found.interval(LEVEL)
        within += low <= truth / count <= high
        estimates.append(found.variance * count)
    return within / designs, 100 * (float(np.mean(estimates)) / truth - 1)


def item_differences_held(
    designs: int, seed: int, runs: float, subsets: int = 5, seeds: int = 3, count: int = 372
) -> tuple[float, float]:
    """(share of intervals without items, share of intervals with items) that hold the difference of two rows on all test sets, which is 0: latent margins of a
    right answer that vary by item (sd 1), item x row (0.7), run (sd `runs`) and answer (0.3)."""
    rng = np.random.default_rng(seed)
    held = np.zeros(2)
    for _ in range(designs):
        items = rng.normal(size=(count, 1, 1))

        def right(items: Floats = items) -> Floats:
            margins = 0.5 + items + 0.7 * rng.normal(size=items.shape) + runs * rng.normal(size=(subsets, seeds))
            return (margins + 0.3 * rng.normal(size=(count, subsets, seeds)) > 0).astype(float)

        answers = right() - right()
        for k, factor in enumerate((None, answers)):
            found = difference(answers.mean(axis=0), 0.01, factor)
            held[k] += found.low is not None and found.high is not None and found.low <= 0 <= found.high
    return float(held[0] / designs), float(held[1] / designs)


def published(designs: int, seed: int, cells: int = 42) -> pd.DataFrame:
    """In how many exact reproductions of a table of independent cells any cell does not agree: with the published standard deviation, and without it."""
    rows = []
    for world in WORLDS:
        for subsets, seeds in ((5, 3), (10, 3), (3, 3)):
            rng, shape = np.random.default_rng(seed), (designs, cells, subsets, seeds)
            ours, theirs = (world.draw(rng, designs * cells, subsets, seeds).reshape(shape) for _ in "ab")
            apart = np.abs((ours - theirs).mean(axis=(-1, -2))) - 1e-12
            row = {"world": world.name, "design": f"{subsets}x{seeds}"}
            spread = theirs.std(axis=(-1, -2), ddof=1)
            for name, printed in (("printed spread", spread), ("no spread", None)):
                half = published_half_width(ours, printed, subsets, 1 - (1 - LEVEL) / cells)
                row[name] = 100 * float((apart > half).any(axis=-1).mean())
            rows.append(row)
    return table(rows)


def _noise(base: Floats, noise: Floats) -> float:
    """The variance that the mean over 20 draws of noise keeps."""
    return float((1 / (1 + np.exp(-(base + noise)))).var(axis=0, ddof=1).mean()) / len(noise)
