"""Racing over replicates, measured: how often a rule drops a point that it should keep, and how many runs it saves.

    python benchmarks/racing.py [--races 2000] [--seed 0]      # simulated searches, under a minute
    python benchmarks/racing.py --study points.json            # the same rules over a real grid, trained in full

Simulated scores, in points: a point's true mean + subset (sd 2.5, common to all points) + point x subset (sd 1) + run (sd 1), and in one column
point x seed (sd 0.5 and 1). These sizes are chosen, in the order of what few-shot SST-2 shows; the dev set's rounding is not in them. Rules, each over trials one
after the other, against the best fully replicated trial where they need one:

paired        harness.search.racing: crossed t of the differences, error rate shared among the looks
unclustered   the same test taking all replicates for independent, after each of them or once before the last: for comparison
pooled        the paired test with the residual variance of all complete trials and the candidate (two-way layout)
asha          asynchronous successive halving over running means as in Ray: rungs 2, 4, 8, the lower half is dropped
median        Ray's median stopping over running means: after 2 replicates, at least 3 other trials
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit
from tabulate import tabulate

from harness.search.racing import ERROR_RATE, crossed, looks, projected, statistic

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

DESIGNS = ((3, 2), (5, 3), (10, 3), (5, 1), (1, 5), (2, 3))
"""Subsets x seeds."""
POINTS, SPREAD = 30, 2.0
"""Points in a race, and the sd of their true means."""
NUM_BAD, BAD = 10, -15.0
"""The realistic race: this many of the points are this much worse, as with a learning rate that is far off."""
SEED_SDS = (0.5, 1.0)
ORDERS = 200
"""Random orders of the trials of a study."""


@dataclass(frozen=True)
class Design:
    subsets: int
    seeds: int
    subset_sd: float = 2.5
    interaction_sd: float = 1.0
    run_sd: float = 1.0
    seed_sd: float = 0.0

    @property
    def replicates(self) -> tuple[tuple[int, int], ...]:
        return tuple((subset, seed) for seed in range(self.seeds) for subset in range(self.subsets))

    def scores(self, draw: np.random.Generator, means: Floats, noise: float = 1.0) -> Floats:
        """True means (races, trials) -> scores (races, trials, replicates). `noise` widens those of the last trial."""
        races, trials = means.shape
        common = draw.normal(0, self.subset_sd, (races, 1, 1, self.subsets))
        own = draw.normal(0, self.interaction_sd, (races, trials, 1, self.subsets))
        run = draw.normal(0, self.run_sd, (races, trials, self.seeds, self.subsets))
        if self.seed_sd:
            run += draw.normal(0, self.seed_sd, (races, trials, self.seeds, 1))
        width = np.where(np.arange(trials) == trials - 1, noise, 1.0)[None, :, None, None]
        return (means[:, :, None, None] + common + (own + run) * width).reshape(races, trials, -1)


@dataclass
class Race:
    """Many races at once. `scores`: (races, trials, replicates), more is better; `used`: replicates run of each trial."""

    scores: Floats
    replicates: Sequence[tuple[int, int]]
    used: NDArray[np.int64]
    incumbent: Floats
    has_incumbent: Bools

    @property
    def complete(self) -> Bools:
        done: Bools = self.used == len(self.replicates)
        return done

    @property
    def running(self) -> Floats:
        return np.cumsum(self.scores, axis=-1) / np.arange(1, len(self.replicates) + 1)


Rule = Callable[[Race, int, int], Bools | None]
"""(race, trial, replicates done) -> in which races the trial is dropped; None where the rule does not look."""


def paired(race: Race, trial: int, done: int) -> Bools | None:
    if done not in looks(race.replicates):
        return None
    differences = race.scores[:, trial, :done] - race.incumbent[:, :done]
    t, limit = statistic(crossed(differences, race.replicates), ERROR_RATE / len(looks(race.replicates)))
    drop: Bools = race.has_incumbent & (t < limit)
    return drop


def unclustered(race: Race, trial: int, done: int) -> Bools | None:
    """Treats every replicate as a cluster of its own: looks after 3, 4, 5, ... replicates, which share the error rate."""
    return paired(replace(race, replicates=[(0, k) for k in range(len(race.replicates))]), trial, done)


def unclustered_once(race: Race, trial: int, done: int) -> Bools | None:
    """The same with one look before the last replicate, which has the whole error rate, so that its assumption shows."""
    if done != len(race.replicates) - 1:
        return None
    differences = race.scores[:, trial, :done] - race.incumbent[:, :done]
    t, limit = statistic(differences[:, None, :], ERROR_RATE)
    drop: Bools = race.has_incumbent & (t < limit)
    return drop


def pooled(race: Race, trial: int, done: int) -> Bools | None:
    if done not in looks(race.replicates):
        return None
    means = _cluster_means(race.scores[:, : trial + 1, :done], race.replicates)
    present = race.complete[:, : trial + 1].copy()
    present[:, trial] = True
    count, k = present.sum(axis=1), means.shape[-1]
    rows = (means - means.mean(axis=-1, keepdims=True)) * present[..., None]
    residuals = (rows - (rows.sum(axis=1) / count[:, None])[:, None]) * present[..., None]
    degrees = np.maximum(count - 1, 1) * (k - 1)
    variance = (residuals**2).sum(axis=(1, 2)) / degrees
    reference = _cluster_means(race.incumbent[:, :done], race.replicates)
    t = (means[:, trial] - reference).mean(axis=-1) / np.sqrt(np.maximum(2 * variance / k, 1e-30))
    bound: Floats = stdtrit(degrees, ERROR_RATE / len(looks(race.replicates)))
    drop: Bools = race.has_incumbent & (t < bound)
    return drop


def _cluster_means(values: Floats, replicates: Sequence[tuple[int, int]]) -> Floats:
    """(..., done) -> (..., k): of each subset; of each seed where there is one subset."""
    grid = crossed(values, replicates)
    return grid[..., 0, :] if grid.shape[-2] == 1 else grid.mean(axis=-1)


def asha(race: Race, trial: int, done: int) -> Bools | None:
    if done < 2 or done & (done - 1):
        return None
    means = race.running[:, : trial + 1, done - 1]
    drop: Bools = means[:, trial] < _median(means[:, :trial], race.used[:, :trial] >= done, 1)
    return drop


def median(race: Race, trial: int, done: int) -> Bools | None:
    if done < 2:
        return None
    others = race.running[:, :trial, 1:done].mean(axis=-1)
    best = race.running[:, trial, :done].max(axis=-1)
    drop: Bools = best < _median(others, race.used[:, :trial] >= done, 3)
    return drop


RULES: dict[str, Rule] = {
    "paired": paired,
    "unclustered": unclustered,
    "pooled": pooled,
    "asha": asha,
    "median": median,
}


def _median(values: Floats, present: Bools, least: int) -> Floats:
    """Over the present values of each row; -inf where there are fewer than `least`."""
    count = present.sum(axis=1)
    if not values.shape[1]:
        return np.full(len(values), -np.inf)
    ordered = np.sort(np.where(present, values, np.inf), axis=1)
    rows, upper = np.arange(len(values)), np.minimum(count // 2, values.shape[1] - 1)
    middle = np.where(count > 0, (ordered[rows, np.maximum(count - 1, 0) // 2] + ordered[rows, upper]) / 2, 0.0)
    return np.where(count >= least, middle, -np.inf)


def race(
    rule: Rule,
    scores: Floats,
    replicates: Sequence[tuple[int, int]],
    *,
    broken: Bools | None = None,
    fixed: bool = False,
) -> NDArray[np.int64]:
    """Replicates used, (races, trials): each trial runs until the rule drops it or all are done.

    `broken`: the replicates that failed or diverged; a trial ends at its first one, under every rule, and is not the best.
    `fixed`: trial 0 is complete and stays the incumbent, whatever comes after it.
    """
    races, trials, total = scores.shape
    used, none = np.zeros((races, trials), np.int64), np.zeros(races, dtype=bool)
    now = Race(scores, replicates, used, np.zeros((races, total)), none)
    for trial in range(trials):
        alive = ~none
        for done in range(1, total + 1):
            used[alive, trial] = done
            drop = rule(now, trial, done) if done < total and not (fixed and trial == 0) else None
            alive = (
                alive & ~(none if drop is None else drop) & ~(none if broken is None else broken[:, trial, done - 1])
            )
        center = np.where(now.has_incumbent, now.incumbent.mean(axis=-1), -np.inf)
        better = alive & (scores[:, trial].mean(axis=-1) > center) & (trial == 0 or not fixed)
        now.incumbent[better] = scores[better, trial]
        now.has_incumbent = now.has_incumbent | better
    return used


@dataclass(frozen=True)
class Share:
    """The mean over many races and its Monte-Carlo standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ± {100 * self.error:.1f}"


def share(values: NDArray[Any]) -> Share:
    """(races, ...) -> over races."""
    each = values.reshape(len(values), -1).mean(axis=1)
    return Share(float(each.mean()), float(each.std(ddof=1) / math.sqrt(len(each))))


def false_drops(
    rule: Rule, design: Design, races: int, seed: int, *, noise: float = 1.0, rivals: int = 10, fixed: bool = True
) -> Share:
    """All points have one true mean: how many of the incumbent's rivals are ever dropped. `fixed`: trial 0 stays the incumbent;
    else it is the best so far. `noise`: factor on the sd of the last rival's scores, and only that rival is counted."""
    scores = design.scores(np.random.default_rng(seed), np.zeros((races, 1 + rivals)), noise)
    used = race(rule, scores, design.replicates, fixed=fixed)
    return share(used[:, 1 if noise == 1.0 else -1 :] < len(design.replicates))


@dataclass(frozen=True)
class Found:
    """`used`: replicates of those that full replication takes. `truly_best`, `chosen`: how often the best point in truth and the
    one that full replication chooses survive. `regret`: the true mean of the point that full replication chooses minus that
    of the point that the race chooses."""

    used: float
    truly_best: float
    chosen: float
    regret: Share


def search(rule: Rule, design: Design, races: int, seed: int, bad: int = 0) -> Found:
    """Points with true means spread around one, `bad` of them far below."""
    draw = np.random.default_rng(seed)
    means = draw.normal(0, SPREAD, (races, POINTS))
    means += np.where(draw.permuted(np.tile(np.arange(POINTS), (races, 1)), axis=1) < bad, BAD, 0.0)
    scores = design.scores(draw, means)
    return compare(race(rule, scores, design.replicates), scores.mean(axis=-1), means)


def compare(used: NDArray[np.int64], scored: Floats, means: Floats) -> Found:
    """`scored`: each trial's mean over all replicates, also of those that the race dropped; `means`: its true one."""
    rows, total = np.arange(len(used)), used.max()
    complete = used == total
    best, full = means.argmax(axis=1), scored.argmax(axis=1)
    picked = np.where(complete, scored, -np.inf).argmax(axis=1)
    return Found(
        used=float(used.mean() / total),
        truly_best=float(complete[rows, best].mean()),
        chosen=float(complete[rows, full].mean()),
        regret=share(means[rows, full] - means[rows, picked]),
    )


def told(design: Design, races: int, seed: int) -> tuple[float, float]:
    """How far the running mean, and what the sampler is told instead, lie from the mean over all replicates: root mean
    square over the trials that `paired` drops while a complete one is there."""
    draw = np.random.default_rng(seed)
    scores = design.scores(draw, draw.normal(0, SPREAD, (races, POINTS)))
    used, total = race(paired, scores, design.replicates), len(design.replicates)
    errors = [
        (values[:done].mean() - values.mean(), projected(values[:done], before) - values.mean())
        for r in range(races)
        for t, (values, done) in enumerate(zip(scores[r], used[r], strict=True))
        if done < total and len(before := scores[r, :t][used[r, :t] == total])
    ]
    running, corrected = np.sqrt((np.array(errors) ** 2).mean(axis=0))
    return float(running), float(corrected)


def simulated(races: int, seed: int) -> None:
    names = {f"{subsets}x{seeds}": Design(subsets, seeds) for subsets, seeds in DESIGNS}
    rows = []
    for name, design in names.items():
        # One subset says nothing about others: there, equal in truth is equal on that subset.
        equal = replace(design, interaction_sd=0.0) if design.subsets == 1 else design
        rates = [
            false_drops(paired, equal, races, seed),
            false_drops(paired, equal, races, seed, noise=2.0),
            false_drops(unclustered, equal, races, seed),
            false_drops(unclustered_once, equal, races, seed),
            false_drops(pooled, equal, races, seed),
            false_drops(pooled, equal, races, seed, noise=2.0),
            false_drops(paired, equal, races, seed, rivals=POINTS - 1, fixed=False),
            *(false_drops(paired, replace(equal, seed_sd=sd), races, seed) for sd in SEED_SDS),
        ]
        rows.append([name, ",".join(map(str, looks(design.replicates))), *rates])
    print(f"Dropped though equal in truth, %, {races} races (error rate set to {100 * ERROR_RATE:.0f} %)")
    heads = [
        "subsets x seeds",
        "looks after",
        "paired",
        "noisy",
        "unclustered",
        "unclustered, once",
        "pooled",
        "pooled, noisy",
    ]
    heads += [f"paired, best of {POINTS}", *(f"paired, seed sd {sd}" for sd in SEED_SDS)]
    print(tabulate(rows, heads, tablefmt="simple", disable_numparse=True))
    print(
        "noisy: scores vary twice as much as the incumbent's. best of: the incumbent is the best so far, so it is lucky."
    )
    print("seed sd: of point x seed, which a look after one seed cannot see.")
    wide = false_drops(paired, Design(1, 5), races, seed)
    print(f"1x5, equal over all subsets that could be drawn, not on this one: paired {wide}.")
    print(
        "\nDropped trials, points between the mean over all replicates and (rms) the running mean | what the sampler is told:"
    )
    distances = ((name, told(design, 200, seed)) for name, design in names.items())
    print(", ".join(f"{name} {running:.2f} | {corrected:.2f}" for name, (running, corrected) in distances))
    for title, bad in (
        (f"{POINTS} points, true means spread by {SPREAD:.0f}", 0),
        (f"{NUM_BAD} of them {-BAD:.0f} worse", NUM_BAD),
    ):
        rows = []
        for name, design in names.items():
            for rule in ("paired", "pooled", "asha", "median"):
                found = search(RULES[rule], design, races, seed, bad)
                shown = [f"{100 * value:.1f}" for value in (found.used, found.truly_best, found.chosen)]
                rows.append([name, rule, *shown, f"{found.regret.mean:.3f} ± {found.regret.error:.3f}"])
        print(f"\n{title}, {races} races")
        heads = [
            "subsets x seeds",
            "rule",
            "runs, % of all",
            "truly best survives, %",
            "choice of all runs survives, %",
        ]
        print(tabulate(rows, [*heads, "regret, points"], tablefmt="simple", disable_numparse=True))


@dataclass(frozen=True)
class Grid:
    """A study's trials with all replicates, in their order. `scores`: (trials, replicates), more is better, in points."""

    replicates: tuple[tuple[int, int], ...]
    numbers: tuple[int, ...]
    scores: Floats
    broken: Bools


def read_study(path: Path) -> Grid:
    """From `harness.report.study.points_table(study, 'json')`; trials that are not fully replicated are left out."""
    read: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    replicates = tuple((int(place["subset"]), int(place["seed"])) for place in read["replicates"])
    metric, sign = read["metrics"][0], 1 if read["directions"][0] == "maximize" else -1
    full = sorted((t for t in read["trials"] if len(t["replicates"]) == len(replicates)), key=lambda t: t["number"])
    if not full:
        raise SystemExit(f"{path}: no trial has all {len(replicates)} replicates: a rule is replayed over a whole grid")
    scores = [[100 * sign * found["values"][metric] for found in trial["replicates"]] for trial in full]
    broken = [[found["status"] != "done" for found in trial["replicates"]] for trial in full]
    return Grid(replicates, tuple(int(trial["number"]) for trial in full), np.array(scores), np.array(broken))


def replayed(rule: Rule, grid: Grid, orders: NDArray[np.int64]) -> Found:
    """The rule over the grid with its trials in these orders, (races, trials). What all replicates say stands for the truth."""
    scores, broken = grid.scores[orders], grid.broken[orders]
    scored = np.where(broken.any(axis=-1), -np.inf, scores.mean(axis=-1))
    return compare(race(rule, scores, grid.replicates, broken=broken), scored, scored)


def study(path: Path, seed: int) -> None:
    grid = read_study(path)
    trials, total = grid.scores.shape
    if grid.broken.any(axis=1).all():
        raise SystemExit(f"{path}: every trial has a failed or diverged replicate, so none is the best")
    draw = np.random.default_rng(seed)
    given = np.arange(trials)[None, :].repeat(2, axis=0)
    shuffled = np.stack([draw.permutation(trials) for _ in range(ORDERS)])
    rows = []
    for name in ("paired", "asha", "median"):
        once, often = (replayed(RULES[name], grid, orders) for orders in (given, shuffled))
        rows.append([name])
        for found in (once, often):
            runs = round(found.used * trials * total)
            rows[-1] += [
                f"{runs} ({100 * (1 - found.used):.0f} %)",
                f"{100 * found.chosen:.0f}",
                f"{found.regret.mean:.2f}",
            ]
    print(f"{path}: {trials} points x {total} replicates = {trials * total} runs; looks after {looks(grid.replicates)}")
    heads = ["rule", "runs (saved)", "best survives, %", "regret, points"]
    print(tabulate(rows, [*heads, *(f"{head}, {ORDERS} orders" for head in heads[1:])], disable_numparse=True))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--study", type=Path, help="the table of all points as JSON, of a grid that was trained in full"
    )
    given = parser.parse_args(arguments)
    if given.study:
        study(given.study, given.seed)
        return 0
    began = time.perf_counter()
    simulated(given.races, given.seed)
    print(f"\n{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
