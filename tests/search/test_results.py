"""What a study shows: the best point, its budget, all points in every format, the margins of a grid, best.yaml."""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.planning.aggregation import mean
from harness.search.results import Study, best_yaml, budget, chosen, final_test, ranked
from harness.search.trials import ReplicateOutcome, Trial
from harness.views.document import FORMATS
from harness.views.margins import marginal_tables, marginals
from harness.views.study import points_table, rule
from harness.views.study import test_lines as final_test_lines
from harness.yaml_files import Strict, load_yaml

REPLICATES = tuple((subset, seed) for seed in (31, 42) for subset in (0, 1, 2))
GRID = {"alpha": (0.1, 0.5), "p_c": (0.1, 0.15, 0.2)}
POINTS = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]


def trial(number: int, scores: list[float], point: dict[str, Any] | None = None, **others: Any) -> Trial:
    state = others.pop("state", "complete" if len(scores) == len(REPLICATES) else "running")
    outcomes = tuple(ReplicateOutcome(score, flops=1e9, seconds=36.0, stages=3) for score in scores)
    return Trial(number, POINTS[number] if point is None else point, outcomes, state, **others)


def chosen_of(ended: Study) -> dict[str, Any]:
    return chosen(ended, rule(ended))


def study(*trials: Trial, **others: Any) -> Study:
    made: dict[str, Any] = {
        "name": "cmlm-quick",
        "method": "CMLM",
        "row": "CMLM",
        "paths": tuple(GRID),
        "metric": "accuracy",
        "replicates": REPLICATES,
        "trials": trials,
        "grid": GRID,
        "default": POINTS[0],
        "mode": "grid",
        "sampler": "grid",
        "racing": "paired",
        "seed": 3,
    }
    return Study(**{**made, **others})


def noisy(number: int, center: float, count: int = 6, **others: Any) -> Trial:
    draw = random.Random(number)
    return trial(number, [center + draw.gauss(0, 0.02) for _ in range(count)], **others)


def broken(found: Trial, index: int, reason: str = "loss is NaN at update 31") -> Trial:
    outcomes = list(found.outcomes)
    outcomes[index] = replace(outcomes[index], value=0.0, status="diverged", reason=reason)
    return replace(found, outcomes=tuple(outcomes))


def mixed(**others: Any) -> Study:
    """Complete, ineligible, dropped, failed and running trials, with the highest means on those that cannot win."""
    return study(
        noisy(0, 0.60),
        noisy(1, 0.65),
        broken(noisy(2, 0.99), 1),
        noisy(3, 0.90, 3, state="dropped", reason="p = 0.003 against #1"),
        trial(4, [], state="failed", reason="needs a_translator & 5% {luck}"),
        noisy(5, 0.95, 2),
        **others,
    )


# ------------------------------------------------------------------------------------------------------------ the best


def test_an_incomplete_study_is_shown_and_has_no_best() -> None:
    for trials in ((), (noisy(0, 0.5, 2),), (trial(0, [], state="failed", reason="x"),)):
        found = study(*trials)
        assert found.best is None
        with pytest.raises(ValueError, match="cmlm-quick"):
            chosen_of(found)
        for format in FORMATS:
            assert points_table(found, format).endswith("\n")
            assert marginal_tables(found, format).endswith("\n")


def test_the_budget_counts_every_replicate() -> None:
    spent = budget(mixed())
    assert [spent[name] for name in ("trials", "complete", "dropped", "failed")] == [6, 3, 1, 1]
    assert (spent["replicates"], spent["full"], spent["stages"]) == (23, 36, 69)
    assert (spent["flops"], spent["seconds"]) == (23e9, pytest.approx(23 * 36.0))


def test_the_difference_from_the_papers_point_is_paired() -> None:
    """Subset 0 gains 2 points, 1 gains 4, 2 gains 6, whatever the subsets themselves are worth."""
    worth = [0.5, 0.6, 0.7, 0.5, 0.6, 0.7]
    first = trial(0, worth)
    whole = trial(1, [a + b for a, b in zip(worth, [0.02, 0.04, 0.06] * 2, strict=True)])
    body = chosen_of(study(first, whole))
    assert body["default"]["difference"] == {"mean": pytest.approx(0.04), "spread": pytest.approx(0.02)}
    assert "The best point is 4.00 ± 2.00 above the default one" in points_table(study(first, whole), "text")
    for unsound in (trial(0, worth[:2]), broken(first, 0)):
        assert "default" not in chosen_of(study(unsound, whole))
        assert "above the default" not in points_table(study(unsound, whole), "text")
    assert chosen_of(study(first))["default"]["difference"] == {"mean": 0.0, "spread": 0.0}


# ---------------------------------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize("format", FORMATS)
def test_the_order_of_trials_changes_no_byte(format: str) -> None:
    found = mixed()
    other = replace(found, trials=tuple(random.Random(1).sample(found.trials, len(found.trials))))
    assert points_table(other, format) == points_table(found, format)
    assert marginal_tables(other, format) == marginal_tables(found, format)


def test_every_reason_stands_in_the_table_and_running_means_are_marked() -> None:
    found = mixed()
    assert [t.number for t in ranked(found)] == [1, 0, 2, 3, 4, 5]
    text = points_table(found, "text")
    rows = {line.split()[0]: line for line in text.splitlines()[2:8]}
    assert list(rows) == ["1", "0", "2", "3", "4", "5"]
    assert re.search(r"\d\*? +6/6  best$", rows["1"])
    assert rows["0"].endswith("6/6  default")
    assert rows["2"].endswith("6/6  [a]")
    assert f"{100 * (found.trials[2].mean() or 0):.2f} ±" in rows["2"], "a failed replicate is in the mean"
    assert re.search(r"\(\d\d\.\d\d ± +\d+\.\d\d\) +3/6  dropped \[b\]$", rows["3"])
    assert re.search(r"— +0/6  failed \[c\]$", rows["4"])
    assert re.search(r"\(9\d\.\d\d ± +\d+\.\d\d\) +2/6  running$", rows["5"])
    for reason in ("loss is NaN at update 31", "p = 0.003 against #1", "needs a_translator & 5% {luck}"):
        assert reason in text


@settings(max_examples=10, deadline=None)
@given(st.lists(st.lists(st.floats(-1e9, 1e9), min_size=6, max_size=6), min_size=1, max_size=4))
def test_csv_and_json_hold_every_replicate_exactly(scores: list[list[float]]) -> None:
    found = study(*(trial(n, each) for n, each in enumerate(scores)))
    found = replace(found, trials=(broken(found.trials[0], 2, "a\nreason, with 'all'"), *found.trials[1:]))
    table = list(csv.DictReader(io.StringIO(points_table(found, "csv"))))
    expected = {
        (t.number, *place): outcome for t in found.trials for place, outcome in zip(REPLICATES, t.outcomes, strict=True)
    }
    rows = [row for row in table if row["kind"] == "replicate"]
    assert len(rows) == len(expected)
    for row in rows:
        outcome = expected[int(row["number"]), int(row["subset"]), int(row["seed"])]
        assert float(row["value"]) == outcome.value
        assert (row["status"], row["reason"]) == (outcome.status, outcome.reason)
        assert (float(row["flops"]), float(row["seconds"])) == (outcome.flops, outcome.seconds)
        assert float(row["set.p_c"]) == POINTS[int(row["number"])]["p_c"]
    body = json.loads(points_table(found, "json"))
    seen = {
        (t["number"], r["subset"], r["seed"]): {k: v for k, v in r.items() if k not in ("subset", "seed")}
        for t in body["trials"]
        for r in t["replicates"]
    }
    assert seen == {place: asdict(outcome) for place, outcome in expected.items()}
    assert {int(r["number"]): float(r["value"]) for r in table if r["kind"] == "trial"} == {
        t.number: t.mean() for t in found.trials
    }


# --------------------------------------------------------------------------------------------------------------- margins


def full(**others: Any) -> Study:
    return study(*(trial(n, [0.5 + n / 100 + k / 1000 for k in range(6)]) for n in range(6)), **others)


def test_margins_against_a_naive_loop() -> None:
    """A point with a failed replicate counts and is not the best; points outside the grid count nowhere, one that was tried twice counts once."""
    found = full()
    found = replace(found, trials=(*found.trials[:5], broken(found.trials[5], 0)))
    by_place = {tuple(m.at.items()): m for m in marginals(found)}
    assert len(by_place) == 6 + 2 + 3 + 1
    for at, margin in by_place.items():
        here = [t for t in found.trials if all(t.point[path] == value for path, value in at)]
        assert margin.mean == pytest.approx(mean([t.mean() or 0 for t in here]), abs=1e-12)
        assert (margin.complete, margin.points) == (len(here), len(here))
        assert margin.best == max((t.number for t in here if t.number != 5), default=None)
    outside = noisy(9, 0.99, point={"alpha": 0.77, "p_c": 0.1})
    again = noisy(11, 0.1, 2, point=POINTS[5])
    assert marginals(replace(found, trials=(*found.trials, outside, again))) == marginals(found)
    assert marginals(full(grid=None)) == ()


def test_the_margin_of_an_incomplete_row_is_not_shown() -> None:
    text = marginal_tables(full(), "text")
    assert re.search(r"^0\.5 .*55\.25 ± 0\.10\* +54\.25$", text, re.M)
    assert re.search(r"^mean +51\.75 +52\.75 +53\.75 +52\.75$", text, re.M)
    partly = full()
    partly = replace(partly, trials=(*partly.trials[:4], noisy(4, 0.9, 3, state="dropped"), partly.trials[5]))
    text = marginal_tables(partly, "text")
    assert re.search(r"^0\.5 .* 3/6 .*\* +—$", text, re.M)
    assert re.search(r"^mean +51\.75 +— +53\.75 +—$", text, re.M)


@pytest.mark.parametrize("missing", [False, True])
def test_one_table_a_path_where_another_number_than_two_varies(missing: bool) -> None:
    grid = {**GRID, "k": ("x", "y"), "only": (1,)}
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    trials = [trial(n, [n / 20] * 6, point=point) for n, point in enumerate(points)]
    found = study(*trials[missing:], grid=grid, paths=tuple(grid))
    text = marginal_tables(found, "text")
    assert text.count("dev acc by") == 3
    if missing:
        assert re.search(r"^x +\(30\.00\) +5/6 +#10 +50\.00 ± 0\.00$", text, re.M)
    else:
        assert re.search(r"^y +30\.00\* +6/6 +#11 +55\.00 ± 0\.00$", text, re.M)
    rows = list(csv.DictReader(io.StringIO(marginal_tables(found, "csv"))))
    assert [row["set.p_c"] for row in rows] == ["", "", "0.1", "0.15", "0.2", "", "", ""]
    assert [m["mean"] for m in json.loads(marginal_tables(found, "json"))] == [m.mean for m in marginals(found)]


# ------------------------------------------------------------------------------------------- best.yaml and the final test


class Anything(Strict):
    method: str
    set: dict[str, Any] = {}  # noqa: RUF012
    chosen: dict[str, Any] = {}  # noqa: RUF012


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12),
    st.sampled_from(["1e-5", "true", "null", "~", "", " x ", "0x1f", "a: b", "- a", "#", "no", "12:30", "'", '"']),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.dictionaries(st.sampled_from(["fine_tune.lr", "alpha", "k", "no"]), SCALARS), st.lists(SCALARS, max_size=3))
def test_best_yaml_reads_back_exactly(tmp_path: Path, values: dict[str, Any], items: list[Any]) -> None:
    found = {"method": "cmlm", "set": values, "chosen": {"deep": {"er": values}, "list": items, "none": None}}
    path = tmp_path / "best.yaml"
    path.write_text(best_yaml(found), encoding="utf-8")
    back = load_yaml(path, Anything).model_dump()
    assert back == found
    pairs = zip([*values.values(), *items], [*back["set"].values(), *back["chosen"]["list"]], strict=True)
    assert all(type(a) is type(b) and repr(a) == repr(b) for a, b in pairs)


def test_the_final_test_is_held_against_dev_replicate_by_replicate() -> None:
    dev = [0.7, 0.6, 0.8, 0.72, 0.62, 0.82]
    test = {"SST-2 (acc)": [0.6, 0.5, 0.7, 0.62, 0.52, 0.72], "MRPC (F1)": [0.7, 0.6, 0.8, 0.72, 0.62, 0.82]}
    found = final_test(dev, test, REPLICATES)
    assert found["dev"]["mean"] == pytest.approx(0.71)
    assert found["columns"]["SST-2 (acc)"]["mean"] == pytest.approx(0.61)
    assert found["difference"] == {"mean": pytest.approx(0.05), "spread": pytest.approx(0, abs=1e-12)}
    beside = final_test([0.5, 0.5], {"SST-2": [0.6, 0.7]}, [(0, 31), (1, 31)], {"SST-2": [0.65, 0.71]})
    assert (beside["above_default"] or {})["mean"] == pytest.approx(-0.03)
    assert final_test(dev, test, REPLICATES, compares=False)["difference"] is None
    *_, again = final_test_lines(found, REPLICATES, "accuracy", [3, 5])
    assert again.endswith("this score is one of 3."), "earlier looks at the test set are counted"
    for wrong in ((dev[:5], test), (dev, {}), (dev, {"SST-2": [0.5]})):
        with pytest.raises(ValueError, match="for each replicate"):
            final_test(*wrong, REPLICATES)
