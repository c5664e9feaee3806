"""Simulated designs, of which the tests of tests/statistics measure how often intervals hold the truth and how often tests err.

Simulated paired differences, in points: subset effect (sd from 0 to 3, also heavy-tailed: t with 3 degrees of freedom), seed effect (sd from 0
to 3) and run (sd 1), for 2 to 20 subsets x 1 to 5 seeds; 'ties' are rounded to a test set of 100. 'One t' is the rule of earlier
versions: one t quantile at Satterthwaite's degrees of freedom. Every table has its shares in %. Monte-Carlo error: 0.3 points at 95 % of
4,000 designs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from harness.statistics.crossed import (
    MeanSquares,
    component_interval,
    effective_degrees,
    half_width,
    item_variance,
    mean_squares,
    p_value,
    t_inference,
    variance_interval,
)
from harness.statistics.difference import difference, improvement_interval, published_half_width
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
from harness.statistics.sign_flip import MOST_EXACT, sign_flip

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

Rule = Callable[[MeanSquares, float], Floats]
"""Half the width of the interval at a level."""


def crossed(squares: MeanSquares, level: float) -> Floats:
    return half_width(*t_inference(squares), level)


def one_t(squares: MeanSquares, level: float) -> Floats:
    """Satterthwaite's degrees of freedom, for comparison."""
    variances, degrees = t_inference(squares)
    found: Floats = stdtrit(effective_degrees(variances, degrees), (1 + level) / 2) * np.sqrt(variances.sum(axis=-1))
    return found


def subsets_alone(squares: MeanSquares, level: float) -> Floats:
    """The t interval over subset means, which leaves the seed's main effect out: for comparison."""
    variances, degrees = t_inference(squares)
    return half_width(variances[..., :1], degrees[:1], level)


def held(squares: MeanSquares, rule: Rule) -> float:
    """Share of the designs whose interval holds 0."""
    return float(np.mean(np.abs(squares.mean) <= rule(squares, LEVEL) + 1e-12))


SHIFTS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""True differences, and regions of equivalence, in standard deviations of one difference."""


def improved(d: Floats, world: World) -> float:
    """Share of the intervals of the probability of improvement that hold it: the smallest over the true differences; normal effects only."""
    shares = []
    for shift in (0.0, *SHIFTS[:-1]):
        low, high = improvement_interval(d + shift * world.sd, LEVEL)
        shares.append(np.mean((low <= ndtr(shift)) & (ndtr(shift) <= high)))
    return float(min(shares))


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


def measured(designs: int, seed: int, sampled_flips: int) -> pd.DataFrame:
    """Of each world and design: how often intervals hold the truth and tests err; 'width' is that of the crossed interval over that of one t,
    the median. `sampled_flips`: designs whose sign-flip test is measured where its flips are sampled, which is dear."""
    rows = []
    for world in WORLDS:
        for subsets, seeds in DESIGNS:
            if seeds == 1 and world.seed:  # one seed says nothing about others: the truth is that of this seed
                continue
            d = world.draw(np.random.default_rng(seed), designs, subsets, seeds)
            squares = mean_squares(d)
            flipped = d[: designs if subsets <= MOST_EXACT else sampled_flips].mean(axis=2)
            row = {
                "world": world.name,
                "design": f"{subsets}x{seeds}",
                "crossed t": 100 * held(squares, crossed),
                "one t": 100 * held(squares, one_t),
                "width": float(np.median(crossed(squares, LEVEL) / np.maximum(one_t(squares, LEVEL), 1e-12))),
                "subsets alone": 100 * held(squares, subsets_alone),
                "sign flip": 100 * float(np.mean(sign_flip(flipped) < 1 - LEVEL + 1e-12)),
                "flipped": len(flipped),
                "equivalence": 100 * equivalent(squares, world.sd),
            }
            if world.normal:
                row["P(better)"] = 100 * improved(d, world)
                shares = components(squares, world)
                row |= {
                    name: 100 * share for name, share in zip(("subset", "seed", "interaction"), shares, strict=False)
                }
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
                rng = np.random.default_rng(seed)
                wrong = np.zeros((2, designs), dtype=bool)
                for _ in range(columns):
                    first = world.draw(rng, designs, subsets, seeds)
                    for _ in range(rows):
                        squares = mean_squares(world.draw(rng, designs, subsets, seeds) - first)
                        for k, rule in enumerate((crossed, one_t)):
                            level = 1 - (1 - LEVEL) / (rows * columns)
                            wrong[k] |= np.abs(squares.mean) > rule(squares, level) + 1e-12
                names = (f"{rule}, {rows} rows x {columns}" for rule in ("crossed t", "one t"))
                row |= {name: 100 * share for name, share in zip(names, wrong.mean(axis=1), strict=True)}
            found.append(row)
    return table(found)


def sets_of_the_best(designs: int, seed: int, rows: int = 5) -> pd.DataFrame:
    """Of `rows` rows with one true mean, the hardest case, how often the first, which all are compared with, and how often the last is left out of those tied for best in one column, and how
    often any rank interval is wrong, in %; and how many are tied where the last is higher than the others by what the design detects at the level of one comparison."""
    level = 1 - (1 - LEVEL) / (rows - 1)
    found = []
    for world in WORLDS:
        for subsets, seeds in ((2, 3), (5, 2), (5, 3), (10, 2), (10, 3)):
            rng = np.random.default_rng(seed)
            scores = np.stack([world.draw(rng, designs, subsets, seeds) for _ in range(rows)])
            tied, any_rank = _tied(scores)
            parts = Components(*(2 * part for part in vars(world.components).values()))  # of the difference of two rows
            scores[-1] += detectable(precision(parts, subsets, seeds, 1 - level))
            row: dict[str, Any] = {"world": world.name, "design": f"{subsets}x{seeds}"}
            row |= {f"{which} left out": 100 * float((~tied[k]).mean()) for which, k in (("first", 0), ("last", -1))}
            row |= {"any rank wrong": 100 * float(any_rank.mean()), "tied": float(_tied(scores)[0].sum(axis=0).mean())}
            found.append(row)
    return table(found)


def _tied(scores: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(rows, designs, subsets, seeds) -> which rows no verdict against the highest leaves out, nor any against the first, by Holm over those with the same row; and
    whether any two rows have different ranks for sure."""
    rows, designs = len(scores), np.arange(scores.shape[1])
    p, above = np.ones((rows, rows, len(designs))), np.zeros((rows, rows, len(designs)), dtype=bool)
    for one, other in itertools.combinations(range(rows), 2):
        squares = mean_squares(scores[one] - scores[other])
        p[one, other] = p[other, one] = p_value(squares.mean, *t_inference(squares))
        above[one, other], above[other, one] = squares.mean > 0, squares.mean < 0
    apart = np.zeros_like(above)  # [row, other]: by Holm over the comparisons of all others with `row`
    for row in range(rows):
        others = [k for k in range(rows) if k != row]
        order = p[row, others].argsort(axis=0)
        ordered = np.take_along_axis(p[row, others], order, axis=0) * np.arange(rows - 1, 0, -1)[:, None]
        rejected = np.empty_like(ordered, dtype=bool)
        np.put_along_axis(rejected, order, np.maximum.accumulate(ordered) < 1 - LEVEL, axis=0)
        apart[row, others] = rejected
    top = scores.mean(axis=(2, 3)).argmax(axis=0)
    below = apart[top, :, designs].T & above[top, :, designs].T
    below[0] = apart[0, top, designs] & above[top, 0, designs]
    below |= apart[0] & above[0]  # lower than the first
    below[0] |= (apart[0] & above[:, 0]).any(axis=0)  # a row is higher than the first
    return ~below, (p * (rows * (rows - 1) / 2) < 1 - LEVEL).any(axis=(0, 1))


TASK_EFFECTS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Floats]] = {
    "none": lambda rng, shape: np.zeros(shape),
    "normal": lambda rng, shape: 3 * rng.normal(size=shape),
    "heavy": lambda rng, shape: 3 / np.sqrt(3) * rng.standard_t(3, shape),
    "skewed": lambda rng, shape: 3 * (rng.exponential(size=shape) - 1),
    "one task in five": lambda rng, shape: 3 * np.sqrt(5) * ((rng.random(shape) < 0.2) - 0.2),
}
"""What a task does to one row's scores beside the others', in points; of mean 0 over tasks."""


def sets_over_columns(designs: int, seed: int, rows: int = 5) -> pd.DataFrame:
    """Of `rows` rows with one true mean over tasks, how often the first is left out of the set of the best over columns of 5 subsets x 3 seeds, in %: by tasks crossed with seeds, by the columns as given (Avg), and by
    Nemenyi's critical difference of mean ranks (Demsar, Journal of Machine Learning Research 7, 2006, 1-30)."""
    from scipy.stats import studentized_range

    level, found = 1 - 2 * (1 - LEVEL) / (rows - 1), []
    spread = float(studentized_range.ppf(LEVEL, rows, np.inf)) / np.sqrt(2) * np.sqrt(rows * (rows + 1) / 6)
    for world in (world for world in WORLDS if world.name in ("runs alone", "large subsets", "large both")):
        for tasks in (3, 4, 8):
            for name, effect in TASK_EFFECTS.items():
                rng, own = np.random.default_rng(seed), replace(world, seed=world.seed / np.sqrt(2))
                drawn = [[own.draw(rng, designs, 5, 3) for _ in range(tasks)] for _ in range(rows)]
                y = np.swapaxes(np.array(drawn), 1, 2) + effect(rng, (rows, designs, tasks, 1, 1))
                y = y + own.seed * rng.normal(
                    size=(rows, designs, 1, 1, 3)
                )  # a seed's effect on a row that all tasks share
                row: dict[str, Any] = {"world": world.name, "tasks": tasks, "task effects": name}
                for rule, each in (("tasks x seeds", y.mean(axis=3)), ("as given", y.mean(axis=2))):
                    squares = mean_squares(each[1:] - each[0])
                    row[rule] = 100 * float((squares.mean > crossed(squares, level) + 1e-12).any(axis=0).mean())
                ranks = (1 + np.argsort(np.argsort(-y.mean(axis=(3, 4)), axis=0), axis=0)).mean(axis=2)
                row["mean ranks"] = 100 * float((ranks[0] - ranks.min(axis=0) > spread / np.sqrt(tasks)).mean())
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
    """Designs planned from a pilot for 80 % power at the difference that 8 subsets x 4 seeds detect: their mean power in %, and their mean number of
    replicates, at the upper limits of the components and at their estimates. Where no design that is proposed is enough, the largest counts."""
    rows = []
    for world in filter(lambda world: world.normal, WORLDS):
        wanted = detectable(precision(world.components, 8, 4))
        for subsets, seeds in designs:
            rng = np.random.default_rng(seed)
            row: dict[str, Any] = {"world": world.name, "design": f"{subsets}x{seeds}"}
            pilot = [mean_squares(world.draw(rng, 1, subsets, seeds)[0]) for _ in range(pilots)]
            for name, estimate in (("upper limits", upper_components), ("estimates", estimated_components)):
                found = [cheapest([estimate(each)], wanted, lambda a, b: a * b) for each in pilot]
                sizes = [(each.num_subsets, each.num_seeds) if each else (MOST_SUBSETS, MOST_SEEDS) for each in found]
                mean = np.mean([power(wanted, precision(world.components, *size)) for size in sizes])
                row |= {name: 100 * mean, f"replicates at {name}": np.mean([a * b for a, b in sizes])}
            rows.append(row)
    return table(rows)


def estimated_components(squares: MeanSquares) -> Components:
    """Without regard to their uncertainty, for comparison."""
    rest = float(squares.residual)
    return Components(
        max(0.0, (float(squares.subset) - rest) / squares.num_seeds),
        max(0.0, (float(squares.seed) - rest) / squares.num_subsets),
        rest,
    )


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


def leaning_held(
    designs: int, seed: int, subsets: int, seeds: int, lean: float, count: int = 372
) -> tuple[float, float]:
    """(share of designs whose variance by items is above 0, share of these whose interval holds the truth): latent margins of a right answer that
    vary by item and run (sd 1 each), and by the class to which a subset (sd `lean`) and a run (a third of it) lean."""
    rng = np.random.default_rng(seed)
    spread = np.sqrt(lean**2 * (1 + 1 / 9) + 1)
    truth = float(ndtr((0.5 + rng.normal(size=200_000)) / spread).var()) / count
    classes = np.where(np.arange(count) % 2, 1.0, -1.0)[:, None, None]
    shown = within = 0
    for _ in range(designs):
        bias = lean * (rng.normal(size=(subsets, 1)) + rng.normal(size=(subsets, seeds)) / 3)
        margins = 0.5 + rng.normal(size=(count, 1, 1)) + classes * bias + rng.normal(size=(count, subsets, seeds))
        found = item_variance((margins > 0).astype(float))
        low, high = found.interval(LEVEL)
        shown += found.variance > 0
        within += found.variance > 0 and low <= truth <= high
    return shown / designs, within / max(1, shown)


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
    """In how many exact reproductions of a table of independent cells any cell does not agree: with the published standard deviation, without it,
    and by one t quantile for each cell alone."""
    rows = []
    for world in WORLDS:
        for subsets, seeds in ((5, 3), (10, 3), (3, 3)):
            rng = np.random.default_rng(seed)
            ours, theirs = (
                world.draw(rng, designs * cells, subsets, seeds).reshape(designs, cells, subsets, seeds) for _ in "ab"
            )
            apart = np.abs((ours - theirs).mean(axis=(-1, -2))) - 1e-12
            spread, level = theirs.std(axis=(-1, -2), ddof=1), 1 - (1 - LEVEL) / cells
            variances, degrees = t_inference(mean_squares(ours))
            alone = stdtrit(effective_degrees(variances, degrees), (1 + LEVEL) / 2) * np.sqrt(
                2 * variances.sum(axis=-1)
            )
            halves = [published_half_width(ours, each, subsets, level) for each in (spread, None)]
            shares = [100 * float((apart > half).any(axis=-1).mean()) for half in (*halves, alone)]
            names = ("printed spread", "no spread", "each cell alone")
            row = {"world": world.name, "design": f"{subsets}x{seeds}"}
            rows.append(row | dict(zip(names, shares, strict=True)))
    return table(rows)


def _noise(base: Floats, noise: Floats) -> float:
    """The variance that the mean over 20 draws of noise keeps."""
    return float((1 / (1 + np.exp(-(base + noise)))).var(axis=0, ddof=1).mean()) / len(noise)
