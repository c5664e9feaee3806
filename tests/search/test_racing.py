"""The paired racing test: its error rate, what it may not depend on, and what the sampler is told of a dropped trial."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student
from scipy.stats import ttest_rel

from harness.report.study import points_table
from harness.search.racing import (
    ERROR_RATE,
    Decision,
    crossed,
    failed_replicate,
    looks,
    paired,
    projected,
    statistic,
)
from harness.search.results import Study
from harness.search.trials import ReplicateOutcome, Trial


def replicates_of(subsets: int, seeds: int) -> list[tuple[int, int]]:
    return [(subset, seed) for seed in range(31, 31 + seeds) for subset in range(subsets)]


designs = st.tuples(st.integers(1, 6), st.integers(1, 4)).map(lambda pair: replicates_of(*pair))
looked_at = designs.filter(looks)


@st.composite
def looked(draw: st.DrawFn) -> tuple[list[float], list[float], list[tuple[int, int]]]:
    """(candidate up to a look, incumbent, replicates); scores are correct answers of 256: they tie, and are exact in binary."""
    replicates = draw(looked_at)
    done = draw(st.sampled_from(looks(replicates)))
    scores = st.integers(110, 220).map(lambda correct: correct / 256)
    size = len(replicates)
    return (
        draw(st.lists(scores, min_size=done, max_size=done)),
        draw(st.lists(scores, min_size=size, max_size=size)),
        replicates,
    )


class TestLooks:
    @pytest.mark.parametrize(
        ("subsets", "seeds", "expected"),
        [
            (5, 3, (3, 4, 5, 10)),
            (5, 1, (3, 4)),
            (3, 2, (3,)),
            (3, 3, (3, 6)),
            (2, 3, (2, 4)),
            (2, 2, (2,)),
            (1, 5, (3, 4)),
            (3, 1, ()),
            (1, 3, ()),
            (2, 1, ()),
            (1, 1, ()),
        ],
    )
    def test_are_where_clusters_are_alike(self, subsets: int, seeds: int, expected: tuple[int, ...]) -> None:
        assert looks(replicates_of(subsets, seeds)) == expected

    @given(designs)
    def test_never_at_the_end_and_only_there_is_anything_tested(self, replicates: list[tuple[int, int]]) -> None:
        found = looks(replicates)
        assert list(found) == sorted(set(found))
        assert all(2 <= done < len(replicates) for done in found)
        for done in range(1, len(replicates) + 1):
            verdict = paired([0.0] * done, [1.0] * len(replicates), replicates, sign=1)
            assert bool(verdict.reason) == (done in found)
            assert not verdict.drop or done in found

    def test_no_replicate_no_look(self) -> None:
        assert looks([]) == ()


class TestPaired:
    def test_says_the_numbers(self) -> None:
        verdict = paired([0.70, 0.72, 0.71], [0.80, 0.81, 0.82] * 2, replicates_of(3, 2), sign=1, name="trial 4")
        assert verdict == Decision(
            True, "paired t -17.3 over 3 subsets against trial 4 (limit -2.9): 10.0 points worse"
        )
        verdict = paired([0.82, 0.79, 0.83], [0.80, 0.81, 0.81, 0, 0], replicates_of(1, 5), sign=1)
        assert verdict == Decision(
            False, "paired t 0.5 over 3 seeds against the incumbent (limit -4.3): 0.7 points better"
        )

    @given(looked())
    def test_is_the_paired_t_test_of_one_seed_or_one_subset(self, case: Any) -> None:
        candidate, incumbent, replicates = case
        done = len(candidate)
        if len({s for s, _ in replicates}) > 1 and len({r for _, r in replicates[:done]}) > 1:
            return
        ours, theirs = candidate, incumbent[:done]
        if np.std(np.subtract(ours, theirs)) < 1e-9:
            return
        share = ERROR_RATE / len(looks(replicates))
        expected = ttest_rel(ours, theirs, alternative="less")
        assert paired(candidate, incumbent, replicates, sign=1).drop == (expected.pvalue < share)
        t, limit = statistic(crossed(np.subtract(candidate, incumbent[:done]), replicates), share)
        assert float(t) == pytest.approx(expected.statistic)
        assert float(limit) == pytest.approx(student.ppf(share, done - 1))

    @given(looked())
    def test_counts_subsets_and_seeds_as_crossed(self, case: Any) -> None:
        """Against the mean squares as loops."""
        candidate, incumbent, replicates = case
        done = len(candidate)
        subsets, seeds = sorted({s for s, _ in replicates}), sorted({r for _, r in replicates[:done]})
        if len(subsets) == 1 or len(seeds) == 1:
            return
        d = {place: c - i for place, c, i in zip(replicates, candidate, incumbent, strict=False)}
        mean = sum(d.values()) / done
        by_subset = [np.mean([d[s, r] for r in seeds]) for s in subsets]
        by_seed = [np.mean([d[s, r] for s in subsets]) for r in seeds]
        of_subset = len(seeds) * sum((each - mean) ** 2 for each in by_subset) / (len(subsets) - 1)
        of_seed = len(subsets) * sum((each - mean) ** 2 for each in by_seed) / (len(seeds) - 1)
        if of_subset + of_seed < 1e-9:
            return
        t, limit = statistic(crossed(np.subtract(candidate, incumbent[:done]), replicates), 0.01)
        assert float(t) == pytest.approx(mean / math.sqrt((of_subset + of_seed) / done))
        squares = ((of_subset, len(subsets) - 1), (of_seed, len(seeds) - 1))
        weighted = sum(square * student.ppf(0.01, degrees) ** 2 for square, degrees in squares)
        assert float(limit) == pytest.approx(-math.sqrt(weighted / (of_subset + of_seed)))

    @given(looked(), st.integers(0, 256).map(lambda answers: answers / 256))
    def test_worse_by_a_constant_never_undrops(self, case: Any, constant: float) -> None:
        candidate, incumbent, replicates = case
        before = paired(candidate, incumbent, replicates, sign=1)
        after = paired([value - constant for value in candidate], incumbent, replicates, sign=1)
        assert after.drop or not before.drop

    @given(looked(), st.data())
    def test_what_a_replicate_does_to_all_points_cancels(self, case: Any, data: st.DataObject) -> None:
        candidate, incumbent, replicates = case
        common = [data.draw(st.integers(-4, 4)) / 8 for _ in replicates]
        shifted = [[a + b for a, b in zip(values, common, strict=False)] for values in (candidate, incumbent)]
        assert paired(*shifted, replicates, sign=1) == paired(candidate, incumbent, replicates, sign=1)

    @given(looked())
    def test_less_is_better_mirrors_more_is_better(self, case: Any) -> None:
        candidate, incumbent, replicates = case
        mirrored = [[-value for value in values] for values in (candidate, incumbent)]
        assert paired(*mirrored, replicates, sign=-1) == paired(candidate, incumbent, replicates, sign=1)

    @given(st.integers(2, 5), st.integers(2, 4), st.data())
    def test_subsets_and_seeds_are_exchangeable_at_whole_rounds(
        self, subsets: int, seeds: int, data: st.DataObject
    ) -> None:
        replicates = replicates_of(subsets, seeds)
        draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        candidate = draw.integers(150, 200, (seeds - 1, subsets)) / 256
        incumbent = draw.integers(160, 210, (seeds, subsets)) / 256
        rounds, order = draw.permutation(seeds - 1), draw.permutation(subsets)
        moved = np.vstack([incumbent[:-1][rounds], incumbent[-1:]])[:, order]
        verdicts = [
            paired(c.ravel(), i.ravel(), replicates, sign=1)
            for c, i in ((candidate, incumbent), (candidate[rounds][:, order], moved))
        ]
        assert verdicts[0] == verdicts[1]

    @given(looked())
    def test_never_drops_what_is_not_worse(self, case: Any) -> None:
        candidate, incumbent, replicates = case
        low = [min(pair) for pair in zip(incumbent, candidate, strict=False)] + incumbent[len(candidate) :]
        assert not paired(candidate, low, replicates, sign=1).drop
        assert not paired(candidate, candidate + incumbent[len(candidate) :], replicates, sign=1).drop

    @pytest.mark.parametrize(("subsets", "seeds", "drop"), [(3, 2, True), (1, 5, True), (2, 2, False)])
    def test_ties(self, subsets: int, seeds: int, drop: bool) -> None:
        """0.1 + 0.2 - 0.3 and the like are not a spread; two equal differences are no evidence."""
        replicates = replicates_of(subsets, seeds)
        incumbent = [0.1 + 0.2, 0.7, 0.9, 0.8, 0.6, 0.5][: len(replicates)]
        done = looks(replicates)[0]
        for difference, expected in ((-0.1, drop), (0.0, False), (0.1, False), (-1e-12, False)):
            candidate = [value + difference for value in incumbent[:done]]
            assert paired(candidate, incumbent, replicates, sign=1).drop == expected

    def test_a_single_worst_value_hides_from_the_test_and_not_from_its_own_rule(self) -> None:
        replicates = replicates_of(3, 2)
        assert not paired([0.80, 0.0, 0.81], [0.85, 0.84, 0.86] * 2, replicates, sign=1).drop
        outcomes = [ReplicateOutcome((0.80,)), ReplicateOutcome((0.0,), status="diverged", reason="NaN in the loss")]
        assert failed_replicate(outcomes, replicates) == Decision(
            True, "subset 1, seed 31 diverged: such a point cannot be the best"
        )
        assert failed_replicate(outcomes[:1], replicates) == failed_replicate([], replicates) == Decision(False)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_values_are_finite(self, value: float) -> None:
        with pytest.raises(AssertionError, match="worst value"):
            paired([0.8, value, 0.8], [0.8] * 6, replicates_of(3, 2), sign=1)


class TestProjected:
    @given(designs, st.integers(0, 2**32), st.data())
    def test_is_exact_where_effects_add_up(
        self, replicates: list[tuple[int, int]], seed: int, data: st.DataObject
    ) -> None:
        draw = np.random.default_rng(seed)
        effects, own = draw.normal(size=len(replicates)), draw.normal(size=4)
        values = (own[:, None] + effects).tolist()
        done = data.draw(st.integers(1, len(replicates)))
        assert projected(values[0][:done], values[1:]) == pytest.approx(float(np.mean(values[0])))

    def test_easy_subsets_first_do_not_flatter(self) -> None:
        assert projected([0.9, 0.8], [[0.9, 0.8, 0.4]]) == pytest.approx(0.7)

    def test_without_a_complete_trial_the_running_mean(self) -> None:
        assert projected([0.5, 0.7], []) == pytest.approx(0.6)

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.data())
    def test_of_all_replicates_is_their_mean(self, values: list[float], data: st.DataObject) -> None:
        others = st.lists(st.floats(0, 1), min_size=len(values), max_size=len(values))
        complete = data.draw(st.lists(others, max_size=3))
        assert projected(values, complete) == pytest.approx(float(np.mean(values)))


def study_of(trials: Sequence[Trial]) -> Study:
    return Study(
        name="tried",
        method="CMLM",
        row="CMLM",
        paths=("alpha",),
        metrics=("accuracy",),
        directions=("maximize",),
        replicates=tuple(replicates_of(3, 2)),
        trials=tuple(trials),
        grid=None,
        default={"alpha": 0.8},
        mode="grid",
        sampler="grid",
        racing="none",
        seed=0,
    )


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return importlib.import_module("benchmarks.racing")


class TestMeasured:
    @pytest.mark.parametrize(("subsets", "seeds"), [(3, 2), (5, 3), (2, 3)])
    def test_error_rate_holds_and_needs_the_clusters(self, script: ModuleType, subsets: int, seeds: int) -> None:
        design = script.Design(subsets, seeds)
        for noise in (1.0, 3.0):
            rate = script.false_drops(script.paired, design, 2000, 0, noise=noise)
            assert rate.mean - 3 * rate.error < ERROR_RATE
        naive = script.false_drops(script.unclustered_once, design, 2000, 0)
        assert naive.mean - 3 * naive.error > ERROR_RATE

    def test_a_small_effect_of_seeds_keeps_the_error_rate(self, script: ModuleType) -> None:
        """Of point x seed, half as large as that of a run: which the looks after one seed do not see."""
        rate = script.false_drops(script.paired, script.Design(5, 3, seed_sd=0.5), 2000, 0)
        assert rate.mean - 3 * rate.error < ERROR_RATE

    def test_error_rate_on_a_small_dev_set(self, script: ModuleType) -> None:
        """Scores rounded to a dev set of 50 and 100: ties are no licence to drop."""
        for (subsets, seeds), step in itertools.product([(3, 2), (2, 3)], [1.0, 2.0]):
            design = script.Design(subsets, seeds)
            scores = np.round(design.scores(np.random.default_rng(0), np.zeros((2000, 11))) / step) * step
            rate = script.share(
                script.race(script.paired, scores, design.replicates, fixed=True)[:, 1:] < subsets * seeds
            )
            assert rate.mean - 3 * rate.error < ERROR_RATE

    def test_is_the_rule_itself(self, script: ModuleType) -> None:
        """The vectorised race against a loop over `paired`."""
        design = script.Design(3, 2)
        scores = design.scores(np.random.default_rng(1), np.random.default_rng(2).normal(0, 4, (20, 8)))
        used = script.race(script.paired, scores, design.replicates)
        for r in range(len(scores)):
            complete: list[Sequence[float]] = []
            for t, values in enumerate(scores[r].tolist()):
                best = max(complete, key=np.mean) if complete else None
                dropped = [
                    done
                    for done in looks(design.replicates)
                    if best and paired(values[:done], best, design.replicates, sign=1).drop
                ]
                assert used[r, t] == min([*dropped, 6])
                if not dropped:
                    complete.append(values)

    def test_a_race_saves_runs_and_keeps_the_choice(self, script: ModuleType) -> None:
        found = script.search(script.paired, script.Design(5, 3), 200, 0, script.NUM_BAD)
        assert found.used < 0.6
        assert found.chosen > 0.98
        assert abs(found.regret.mean) < 0.1

    def test_asha_and_median_by_hand(self, script: ModuleType) -> None:
        scores = np.array([[[3.0] * 5, [1.0] * 5, [2.5] * 5, [4.0] * 5, [2.6] * 5]])
        replicates = replicates_of(5, 1)
        assert script.race(script.asha, scores, replicates).tolist() == [[5, 2, 4, 5, 2]]
        assert script.race(script.median, scores, replicates).tolist() == [[5, 5, 5, 5, 2]]

    def test_replays_a_study(self, script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """From the very JSON that `harness tune` writes; a trial with a diverged replicate ends there and is not the best."""
        draw = np.random.default_rng(0)
        means = [0.8, 0.75, 0.6, 0.9]
        trials = [
            Trial(
                k,
                {"alpha": m},
                tuple(ReplicateOutcome((m + float(draw.normal(0, 0.01)),)) for _ in range(6)),
                "complete",
            )
            for k, m in enumerate(means)
        ]
        diverged = (ReplicateOutcome((0.0,), status="diverged"), *trials[3].outcomes[1:])
        trials[3] = replace(trials[3], outcomes=diverged)
        trials.append(replace(trials[0], number=4, outcomes=trials[0].outcomes[:3], state="dropped"))
        path = tmp_path / "points.json"
        path.write_text(points_table(study_of(trials), "json"))
        grid = script.read_study(path)
        assert grid.numbers == (0, 1, 2, 3)
        assert grid.scores[0].tolist() == pytest.approx([100 * value for value in trials[0].values()])
        found = script.replayed(script.paired, grid, np.array([[0, 1, 2, 3]] * 2))
        assert found.used == pytest.approx((6 + 3 + 3 + 1) / 24)
        assert (found.chosen, found.regret.mean) == (1.0, 0.0)
        assert script.main(["--study", str(path)]) == 0
        assert "13 (46 %)" in capsys.readouterr().out
        path.write_text(points_table(study_of(trials[4:]), "json"))
        with pytest.raises(SystemExit, match="no trial has all 6 replicates"):
            script.read_study(path)
        path.write_text(points_table(study_of(trials[3:4]), "json"))
        with pytest.raises(SystemExit, match="none is the best"):
            script.main(["--study", str(path)])

    def test_less_is_better_is_read_with_its_sign(self, script: ModuleType, tmp_path: Path) -> None:
        trials = [
            Trial(k, {"alpha": k}, tuple(ReplicateOutcome((k + j / 8,)) for j in range(6)), "complete")
            for k in range(2)
        ]
        path = tmp_path / "points.json"
        path.write_text(points_table(replace(study_of(trials), directions=("minimize",)), "json"))
        assert script.read_study(path).scores[1].tolist() == [-100.0 * (1 + j / 8) for j in range(6)]

    def test_simulation_prints_its_tables(self, script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
        script.simulated(20, 0)
        out = capsys.readouterr().out
        assert "unclustered, once" in out
        assert out.count("median") == 2 * len(script.DESIGNS)
