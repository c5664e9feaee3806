"""What a study shows: the best point, its budget, all points in every format, the margins of a grid, best.yaml."""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.planning.aggregation import mean
from harness.report.document import FORMATS
from harness.report.margins import marginal_tables, marginals
from harness.report.study import points_table, rule
from harness.report.study import test_lines as final_test_lines
from harness.search.results import Study, best_point, best_yaml, budget, chosen, final_test, ranked
from harness.search.trials import ReplicateOutcome, Trial
from harness.yaml_files import Strict, load_yaml

REPLICATES = tuple((subset, seed) for seed in (31, 42) for subset in (0, 1, 2))
GRID = {"alpha": (0.1, 0.5), "p_c": (0.1, 0.15, 0.2)}
POINTS = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]


def trial(number: int, scores: list[float], point: dict[str, Any] | None = None, **others: Any) -> Trial:
    state = others.pop("state", "complete" if len(scores) == len(REPLICATES) else "running")
    outcomes = tuple(ReplicateOutcome((score,), flops=1e9, seconds=36.0, trained=1, stages=3) for score in scores)
    return Trial(number, POINTS[number] if point is None else point, outcomes, state, **others)


def test_points_that_cost_too_much_are_counted_apart_and_never_the_best() -> None:
    dear = [
        Trial(number, POINTS[number], (), "excluded", "costs more than 2e+12 FLOPs a replicate") for number in (1, 2)
    ]
    whole = study(trial(0, [0.6] * 6), *dear, trial(3, [0.7] * 6), most_flops=2e12)
    best, spent = best_point(whole), budget(whole)
    assert best is not None
    assert best.number == 3
    assert (spent.trials, spent.complete, spent.excluded, spent.failed, spent.replicates, spent.full) == (
        4,
        2,
        2,
        0,
        12,
        12,
    )
    text = points_table(whole, "text")
    assert "Points of at most 2.00e+12 FLOPs a replicate, as planned; those that cost more are not run" in text
    assert "4 points (2 complete, 2 excluded); 12 of 12 replicates ended" in text
    assert "a: not run (costs more than 2e+12 FLOPs a replicate): #1, #2." in text
    assert [t.number for t in ranked(whole)] == [3, 0, 1, 2]
    body = chosen_of(whole)
    assert (body["excluded"], body["max_flops"]) == (2, 2e12)
    assert body["rule"].endswith(", at most 2.00e+12 FLOPs a replicate")
    assert "excluded" in marginal_tables(whole, "csv") or "excluded" in marginal_tables(whole, "text")
    assert "max_flops" not in chosen_of(replace(whole, most_flops=None))


def chosen_of(ended: Study) -> dict[str, Any]:
    return chosen(ended, rule(ended))


def study(*trials: Trial, **others: Any) -> Study:
    made: dict[str, Any] = {
        "name": "cmlm-quick",
        "method": "CMLM",
        "row": "CMLM",
        "paths": tuple(GRID),
        "metrics": ("accuracy",),
        "directions": ("maximize",),
        "replicates": REPLICATES,
        "trials": trials,
        "grid": GRID,
        "default": POINTS[0],
        "mode": "grid",
        "sampler": "grid",
        "racing": "paired",
        "seed": 3,
        "notes": ("bert-tiny on SST-2, 100 examples.",),
    }
    return Study(**{**made, **others})


def noisy(number: int, center: float, count: int = 6, **others: Any) -> Trial:
    draw = random.Random(number)
    return trial(number, [center + draw.gauss(0, 0.02) for _ in range(count)], **others)


def broken(found: Trial, index: int, reason: str = "loss is NaN at update 31") -> Trial:
    outcomes = list(found.outcomes)
    outcomes[index] = replace(outcomes[index], values=(0.0,), status="diverged", reason=reason)
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


def test_the_best_is_never_partly_replicated_or_unsound() -> None:
    found = mixed()
    best = best_point(found)
    assert best is not None
    assert best.number == 1
    assert [t.number for t in ranked(found)] == [1, 0, 2, 3, 4, 5]
    cut = replace(found, trials=(found.trials[0], noisy(1, 0.9, 5, state="complete")))
    assert [t.number for t in cut.front] == [0], "a trial that lacks a replicate whatever its state says"


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from("cdbf")), min_size=1, max_size=6))
def test_the_best_has_the_highest_mean_of_all_sound_trials(points: list[tuple[float, str]]) -> None:
    made = []
    for n, (score, kind) in enumerate(points):
        scores = [score] * (3 if kind == "d" else 6)
        found = trial(n, scores, state={"d": "dropped", "f": "failed"}.get(kind, "complete"))
        made.append(broken(found, 2) if kind == "b" else found)
    best = best_point(study(*made))
    eligible = [mean([score] * 6) for score, kind in points if kind == "c"]
    assert (best.mean() if best else None) == max(eligible, default=None)


def test_minimised_metrics() -> None:
    found = study(noisy(0, 0.6), noisy(1, 0.5), noisy(2, 0.7), metrics=("f1",), directions=("minimize",))
    assert [t.number for t in ranked(found)] == [1, 0, 2]
    assert found.front[0].number == 1
    assert chosen_of(found)["rule"].startswith("the lowest mean dev f1 among the 3 points")
    text = points_table(found, "text")
    assert "Lower is better." in text
    assert text.splitlines()[2].startswith("1 ")
    assert next(m for m in marginals(found) if not m.at).best == 1


def several() -> Study:
    outcomes = [((0.6, 1e12), (0.7, 1e12)), ((0.8, 5e12), (0.7, 5e12)), ((0.5, 2e12), (0.6, 2e12))]
    trials = [Trial(n, POINTS[n], tuple(map(ReplicateOutcome, pair)), "complete") for n, pair in enumerate(outcomes)]
    others = {"metrics": ("accuracy", "flops"), "directions": ("maximize", "minimize"), "replicates": REPLICATES[:2]}
    return study(*trials, **others)


def test_several_metrics_give_a_front() -> None:
    found = several()
    assert [t.number for t in found.front] == [1, 0]
    body = chosen_of(found)
    assert (body["trial"], body["metric"]) == (1, "accuracy")
    assert body["rule"].endswith("; the first of the Pareto front of accuracy and flops")
    assert [each["set"] for each in body["front"]] == [POINTS[1], POINTS[0]]
    assert body["front"][1]["values"] == {"accuracy": pytest.approx(0.65), "flops": 1e12}
    text = points_table(found, "text")
    assert re.search(r"^0 .* 65\.00 ± 7\.07\* +1\.00e\+12\* +2/2  front, default$", text, re.M)
    assert "high accuracy and low flops" in text
    assert marginal_tables(found, "text").count("alpha down, p_c across") == 2


def test_an_incomplete_study_is_shown_and_has_no_best() -> None:
    for trials in ((), (noisy(0, 0.5, 2),), (trial(0, [], state="failed", reason="x"),)):
        found = study(*trials)
        assert best_point(found) is None
        with pytest.raises(ValueError, match="cmlm-quick"):
            chosen_of(found)
        for format in FORMATS:
            assert points_table(found, format).endswith("\n")
            assert marginal_tables(found, format).endswith("\n")


def test_what_cannot_be_a_study_is_refused() -> None:
    with pytest.raises(ValueError, match="one number"):
        study(noisy(0, 0.5), noisy(0, 0.6))
    with pytest.raises(ValueError, match="more outcomes"):
        study(noisy(0, 0.5, 7))
    with pytest.raises(ValueError, match="one value for each"):
        study(noisy(0, 0.5), metrics=("accuracy", "flops"), directions=("maximize", "minimize"))
    with pytest.raises(ValueError, match="a direction a metric"):
        study(directions=())


# -------------------------------------------------------------------------------------------------------- chosen, budget


def test_the_budget_counts_every_replicate() -> None:
    spent = budget(mixed())
    assert (spent.trials, spent.complete, spent.dropped, spent.failed) == (6, 3, 1, 1)
    assert (spent.replicates, spent.full) == (23, 36)
    assert (spent.trained_stages, spent.reused_stages) == (23, 46)
    assert spent.flops == 23e9
    assert spent.hours == pytest.approx(0.23)


def test_the_difference_from_the_papers_point_is_paired() -> None:
    found = study(trial(0, [0.1, 0.5, 0.9, 0.2, 0.6, 1.0]), trial(1, [0.2, 0.6, 1.0, 0.3, 0.7, 1.1]))
    body = chosen_of(found)
    assert body["dev"] == {"mean": pytest.approx(0.65), "spread": pytest.approx(0.4), "replicates": 6}
    assert body["default"]["mean"] == pytest.approx(0.55)
    assert body["default"]["difference"]["mean"] == pytest.approx(0.1)
    assert body["default"]["difference"]["spread"] == pytest.approx(0, abs=1e-12)
    whole = trial(1, [0.2, 0.7, 1.0, 0.3, 0.7, 1.1])
    for state in ("dropped", "running", "complete"):
        outcomes = trial(0, [0.1, 0.5], state=state)
        assert "default" not in chosen_of(study(outcomes, whole)), "two replicates of six are no score"
    diverged = replace(whole.outcomes[0], values=(0.0,), status="diverged")
    broken = replace(trial(0, [0.1] * 6), outcomes=(diverged, *trial(0, [0.1] * 6).outcomes[1:]))
    assert "default" not in chosen_of(study(broken, whole))
    assert "above the default" not in points_table(study(broken, whole), "text")
    assert "default" not in chosen_of(study(noisy(1, 0.5)))
    itself = chosen_of(study(noisy(0, 0.5)))["default"]["difference"]
    assert itself == {"mean": 0.0, "spread": 0.0}


def test_the_caption_says_how_far_the_best_lies_above_the_default() -> None:
    """Paired: subset 0 gains 2 points, 1 gains 4, 2 gains 6, whatever the subsets themselves are worth."""
    worth = [0.5, 0.6, 0.7, 0.5, 0.6, 0.7]
    gains = [0.02, 0.04, 0.06] * 2
    found = study(trial(0, worth), trial(1, [a + b for a, b in zip(worth, gains, strict=True)]))
    assert "The best point is 4.00 ± 2.00 above the default one" in points_table(found, "text")
    assert "above the default" not in points_table(study(trial(0, worth), trial(1, [0.1] * 6)), "text")


# ---------------------------------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize("format", FORMATS)
def test_the_order_of_trials_changes_no_byte(format: str) -> None:
    found = mixed()
    for seed in range(3):
        shuffled = list(found.trials)
        random.Random(seed).shuffle(shuffled)
        other = replace(found, trials=tuple(shuffled))
        assert points_table(other, format) == points_table(found, format)
        assert marginal_tables(other, format) == marginal_tables(found, format)
        assert chosen_of(other) == chosen_of(found)


def test_every_reason_stands_in_the_table_and_running_means_are_marked() -> None:
    found = mixed()
    text = points_table(found, "text")
    rows = {line.split()[0]: line for line in text.splitlines()[2:8]}
    assert list(rows) == ["1", "0", "2", "3", "4", "5"]
    assert re.search(r"\d\*? +6/6  best$", rows["1"])
    assert rows["0"].endswith("6/6  default")
    assert rows["2"].endswith("6/6  [a]")
    shown = f"{100 * (found.trials[2].mean() or 0):.2f} ±"
    assert shown in rows["2"], "a failed replicate is in the mean with its value"
    assert re.search(r"\(\d\d\.\d\d ± +\d+\.\d\d\) +3/6  dropped \[b\]$", rows["3"])
    assert re.search(r"— +0/6  failed \[c\]$", rows["4"])
    assert re.search(r"\(9\d\.\d\d ± +\d+\.\d\d\) +2/6  running$", rows["5"])
    assert "a: 1 replicate diverged (loss is NaN at update 31): #2 subset1 seed31." in text
    assert "b: dropped after 3 of 6 (p = 0.003 against #1): #3." in text
    assert "c: cannot be run (needs a_translator & 5% {luck}): #4." in text
    for part in (
        "In parentheses",
        "worst value",
        "Test sets have no part in them",
        "(ddof 1) over 3 subsets x 2 seeds",
    ):
        assert part in text
    assert "6 points (3 complete, 1 dropped, 1 failed, 1 not finished); 23 of 36 replicates ended" in text
    assert "alpha = 0.1, p_c = 0.1" in text
    whole = points_table(study(noisy(0, 0.5), noisy(1, 0.6)), "text")
    assert "In parentheses" not in whole
    assert "worst value" not in whole


def test_one_subset_and_one_replicate_say_what_their_spread_is() -> None:
    one = study(noisy(0, 0.5, 2, state="complete"), replicates=((0, 31), (0, 42)))
    assert "over 2 replicates of one subset" in points_table(one, "text")
    single = study(noisy(0, 0.5, 1, state="complete"), replicates=((0, 31),))
    assert "one replicate, so no spread" in points_table(single, "text")
    assert "±" not in "".join(points_table(single, "text").splitlines()[:3])


def test_values_of_all_kinds() -> None:
    point: dict[str, Any] = {"fine_tune.lr": 1e-5, "k": 3, "mlm": False, "contrast": "sim|clr"}
    other = {**point, "fine_tune.lr": 0.000123456789, "tau": -0.25}
    paths = (*point, "tau")
    found = study(noisy(0, 0.5, point=point), noisy(1, 0.6, point=other), paths=paths, grid=None)
    text = points_table(found, "text")
    assert re.search(r"^0 +1e-5 +3 +false +sim\|clr +— ", text, re.M)
    assert re.search(r"^1 +0\.0001235 +3 +false +sim\|clr +-0\.25 ", text, re.M)
    lines = [line for line in points_table(found, "md").splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(paths) + 5}
    assert marginal_tables(found, "text") == ""


@pytest.mark.parametrize("table", [points_table, marginal_tables])
def test_latex_escapes(table: Any) -> None:
    text = table(mixed(notes=("50% of_it & more",)), "latex")
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    body = re.sub(r"^%.*$|\\label\{.*", "", text, flags=re.M)
    assert "p\\_c" in body
    assert not re.search(r"(?<!\\)[%#_^~]", body)
    rows = [line for line in body.splitlines() if re.match(r"(\d|\\#|alpha|mean).*\\\\$", line)]
    assert len({len(re.findall(r"(?<!\\)&", line)) for line in rows}) == 1


def test_markdown_rows_have_one_cell_a_column() -> None:
    for table in (points_table, marginal_tables):
        lines = [line for line in table(mixed(), "md").splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
        assert len({len(line) for line in lines}) == 1


def test_an_unknown_format() -> None:
    for table in (points_table, marginal_tables):
        with pytest.raises(UserError, match="Did you mean 'latex'"):
            table(mixed(), "latx")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.floats(-1e9, 1e9), min_size=6, max_size=6), min_size=1, max_size=4))
def test_csv_and_json_hold_every_replicate_exactly(scores: list[list[float]]) -> None:
    found = study(*(trial(n, each) for n, each in enumerate(scores)))
    found = replace(found, trials=(broken(found.trials[0], 2, "a\nreason, with 'all'"), *found.trials[1:]))
    table = list(csv.DictReader(io.StringIO(points_table(found, "csv"))))
    body = json.loads(points_table(found, "json"))
    assert len(table) == 7 * len(scores)
    expected = {
        (t.number, *place): outcome for t in found.trials for place, outcome in zip(REPLICATES, t.outcomes, strict=True)
    }
    rows = [row for row in table if row["kind"] == "replicate"]
    for row in rows:
        outcome = expected[int(row["number"]), int(row["subset"]), int(row["seed"])]
        assert float(row["value.accuracy"]) == outcome.values[0]
        assert (row["status"], row["reason"]) == (outcome.status, outcome.reason)
        assert (float(row["flops"]), float(row["seconds"])) == (outcome.flops, outcome.seconds)
        assert float(row["set.p_c"]) == POINTS[int(row["number"])]["p_c"]
    seen = {
        (t["number"], r["subset"], r["seed"]): {k: v for k, v in r.items() if k not in ("subset", "seed")}
        for t in body["trials"]
        for r in t["replicates"]
    }
    assert seen == {k: {**asdict(o), "values": {"accuracy": o.values[0]}} for k, o in expected.items()}
    means = {int(row["number"]): float(row["value.accuracy"]) for row in table if row["kind"] == "trial"}
    assert means == {t.number: t.mean() for t in found.trials}
    assert body["budget"] == asdict(budget(found))


def test_csv_keeps_the_metric_flops_apart_from_the_flops_of_a_replicate() -> None:
    rows = list(csv.DictReader(io.StringIO(points_table(several(), "csv"))))
    assert [row["flops"] for row in rows if row["kind"] == "replicate"] == ["0.0"] * 6
    assert {row["value.flops"] for row in rows if row["number"] == "1"} == {"5000000000000.0"}


# --------------------------------------------------------------------------------------------------------------- margins


def full(**others: Any) -> Study:
    return study(*(trial(n, [0.5 + n / 100 + k / 1000 for k in range(6)]) for n in range(6)), **others)


def test_margins_against_a_naive_loop() -> None:
    found = full()
    by_place = {tuple(m.at.items()): m for m in marginals(found)}
    assert len(by_place) == 6 + 2 + 3 + 1
    for at, margin in by_place.items():
        here = [t for t in found.trials if all(t.point[path] == value for path, value in at)]
        assert margin.mean == pytest.approx(mean([t.mean() or 0 for t in here]), abs=1e-12)
        assert (margin.complete, margin.points) == (len(here), len(here))
        assert margin.best == here[-1].number
    assert marginals(full(grid=None)) == ()


def test_the_margin_of_an_incomplete_row_is_not_shown() -> None:
    text = marginal_tables(full(), "text")
    assert re.search(r"^alpha \\ p_c +0\.1 +0\.15 +0\.2 +mean$", text, re.M)
    assert re.search(r"^0\.1 .* 51\.25$", text, re.M)
    assert re.search(r"^0\.5 .*55\.25 ± 0\.10\* +54\.25$", text, re.M)
    assert re.search(r"^mean +51\.75 +52\.75 +53\.75 +52\.75$", text, re.M)
    partly = full()
    partly = replace(partly, trials=(*partly.trials[:4], noisy(4, 0.9, 3, state="dropped"), partly.trials[5]))
    text = marginal_tables(partly, "text")
    assert re.search(r"^0\.5 .* 3/6 .*\* +—$", text, re.M)
    assert re.search(r"^mean +51\.75 +— +53\.75 +—$", text, re.M)
    none = study(noisy(0, 0.5), noisy(4, 0.9, 3, state="dropped"))
    text = marginal_tables(none, "text")
    assert re.search(r"^alpha \\ p_c +0\.1 +0\.15 +0\.2$", text, re.M), "no row of means where none is complete"
    assert not re.search("^mean", text, re.M)
    assert re.search(r"^0\.5 +— +3/6 +—$", text, re.M)


def test_a_point_with_a_failed_replicate_counts_in_a_margin_and_is_not_best() -> None:
    found = full()
    found = replace(found, trials=(*found.trials[:5], broken(found.trials[5], 0)))
    text = marginal_tables(found, "text")
    assert "[x]" in text
    assert "x: A failed or diverged replicate" in text
    margin = next(m for m in marginals(found) if m.at == {"alpha": 0.5})
    assert (margin.complete, margin.best) == (3, 4)
    assert margin.mean == pytest.approx(mean([t.mean() or 0 for t in found.trials[3:]]))


def test_points_outside_the_grid_count_nowhere_and_a_point_tried_twice_counts_once() -> None:
    found = full()
    outside = noisy(9, 0.99, point={"alpha": 0.77, "p_c": 0.1})
    short = noisy(10, 0.99, point={"alpha": 0.5})
    again = noisy(11, 0.1, 2, point=POINTS[5])
    assert marginals(replace(found, trials=(*found.trials, outside, short, again))) == marginals(found)


@pytest.mark.parametrize("missing", [False, True])
def test_one_table_a_path_where_another_number_than_two_varies(missing: bool) -> None:
    grid = {**GRID, "k": ("x", "y"), "only": (1,)}
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    trials = [trial(n, [n / 20] * 6, point=point) for n, point in enumerate(points)]
    found = study(*trials[missing:], grid=grid, paths=tuple(grid))
    text = marginal_tables(found, "text")
    assert text.count("dev acc by") == 3
    assert "dev acc by only" not in text
    if missing:
        assert re.search(r"^x +\(30\.00\) +5/6 +#10 +50\.00 ± 0\.00$", text, re.M)
        assert not re.search(r"^y .*\*", text, re.M)
    else:
        assert re.search(r"^y +30\.00\* +6/6 +#11 +55\.00 ± 0\.00$", text, re.M)
    one = study(*trials[:2], grid={"k": ("x", "y")}, paths=("k",))
    assert marginal_tables(one, "md").count("###") == 1
    rows = list(csv.DictReader(io.StringIO(marginal_tables(found, "csv"))))
    assert [row["set.p_c"] for row in rows] == ["", "", "0.1", "0.15", "0.2", "", "", ""]
    assert [m["mean"] for m in json.loads(marginal_tables(found, "json"))] == [m.mean for m in marginals(found)]
    assert marginal_tables(study(grid={"k": ("x",)}, paths=("k",)), "text") == ""


# ------------------------------------------------------------------------------------------------------------- best.yaml


class Anything(Strict):
    method: str
    set: dict[str, Any] = {}  # noqa: RUF012
    chosen: dict[str, Any] = {}  # noqa: RUF012


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12),
    st.sampled_from(
        ["1e-5", "true", "null", "~", "", " x ", "0x1f", "a: b", "- a", "#", "no", "12:30", "'", '"', "a\nb"]
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["fine_tune.lr", "alpha", "k", "no"]), SCALARS), st.lists(SCALARS, max_size=3))
def test_best_yaml_reads_back_exactly(tmp_path: Path, values: dict[str, Any], items: list[Any]) -> None:
    found = {"method": "cmlm", "set": values, "chosen": {"deep": {"er": values}, "list": items, "none": None}}
    path = tmp_path / "best.yaml"
    path.write_text(best_yaml(found), encoding="utf-8")
    back = load_yaml(path, Anything).model_dump()
    assert back == found
    pairs = zip([*values.values(), *items], [*back["set"].values(), *back["chosen"]["list"]], strict=True)
    assert all(type(a) is type(b) and repr(a) == repr(b) for a, b in pairs)


def test_best_yaml_is_block_style_without_anchors(tmp_path: Path) -> None:
    found = several()
    point = dict(found.front[0].point)
    text = best_yaml(
        {"method": "cmlm", "set": point, "target": {"set": point, "sizes": (20,)}, "chosen": chosen_of(found)}
    )
    assert text.startswith("# harness bench --with THIS FILE\nmethod: cmlm\nset:\n  alpha: 0.1\n")
    assert not re.search(r"[&*{}\[\]!]", text)
    assert "\n  rule: the highest mean dev accuracy among the 3 points of 3 whose 2 replicates are done" in text
    assert text == best_yaml(
        {"method": "cmlm", "set": point, "target": {"set": point, "sizes": [20]}, "chosen": chosen_of(found)}
    )


# ------------------------------------------------------------------------------------------------------------ final test


def test_the_final_test_is_held_against_dev_replicate_by_replicate() -> None:
    dev = [0.7, 0.6, 0.8, 0.72, 0.62, 0.82]
    test = {"SST-2 (acc)": [0.6, 0.5, 0.7, 0.62, 0.52, 0.72], "MRPC (F1)": [0.7, 0.6, 0.8, 0.72, 0.62, 0.82]}
    found = final_test(dev, test, REPLICATES)
    lines = [*final_test_lines(found, REPLICATES, "accuracy", ())]
    assert found.dev.mean == pytest.approx(0.71)
    assert found.columns["SST-2 (acc)"].mean == pytest.approx(0.61)
    assert found.difference is not None
    assert found.difference.mean == pytest.approx(0.05)
    assert found.difference.spread == pytest.approx(0, abs=1e-12)
    assert lines[0] == "Test: SST-2 (acc) 61.00 ± 10.00, MRPC (F1) 71.00 ± 10.00, mean of the columns 66.00 ± 10.00."
    assert lines[1] == "Dev: 71.00 ± 10.00, 5.00 ± 0.00 above test."
    assert lines[-1] == "The test set was scored once, for this point, after the choice on dev."
    assert json.loads(json.dumps(asdict(found)))["difference"]["mean"] == found.difference.mean
    below = final_test([0.5], {"SST-2": [0.6]}, [(0, 31)])
    assert [*final_test_lines(below, [(0, 31)], "accuracy", ())][:2] == [
        "Test: SST-2 60.00.",
        "Dev: 50.00, 10.00 below test.",
    ]
    assert below.default is None
    beside = final_test([0.5, 0.5], {"SST-2": [0.6, 0.7]}, [(0, 31), (1, 31)], {"SST-2": [0.65, 0.71]})
    lines = [*final_test_lines(beside, [(0, 31), (1, 31)], "accuracy", ())]
    assert lines[2] == "Test of the default point: 68.00 ± 4.24; the best point is 3.00 ± 2.83 below it."
    assert "for this point and the default one" in lines[-1]
    other = final_test(dev, test, REPLICATES, compares=False)
    assert other.difference is None
    assert [*final_test_lines(other, REPLICATES, "mcc", ())][1] == (
        "Dev mcc: 71.00 ± 10.00, not a mean of the same scores as that of test."
    )
    assert not [line for line in final_test_lines(other, REPLICATES, "flops", ()) if line.startswith("Dev")]
    again = [*final_test_lines(found, REPLICATES, "accuracy", [3, 5])]
    assert again[-1].endswith("before for trial 3, 5 of this study: this score is one of 3.")
    assert not any("once" in line for line in again)
    for wrong in ((dev[:5], test), (dev, {}), (dev, {"SST-2": [0.5]})):
        with pytest.raises(ValueError, match="for each replicate"):
            final_test(*wrong, REPLICATES)


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, harness.report.margins; print({'torch', 'ray', 'optuna', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
