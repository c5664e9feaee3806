"""What a study shows: all points in every format, the margins of a grid, Optuna's pictures, the page and best.yaml."""

from __future__ import annotations

import itertools
import json
import random
import re
import statistics
import struct
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from harness.planning.aggregation import mean
from harness.planning.point import PointFile
from harness.scores import hardware
from harness.search.points import ReplicateOutcome, Trial
from harness.specs import Record
from harness.views.study import NO_BEST, SCREEN, Study, best_yaml, margins, pictures, screen, study_page, study_view
from harness.views.view import FORMATS, View, best
from harness.yaml_files import load_yaml

REPLICATES = tuple((subset, seed) for seed in (31, 42) for subset in (0, 1, 2))
GRID: dict[str, tuple[Any, ...]] = {"alpha": (0.1, 0.5), "p_c": (0.1, 0.15, 0.2)}


def points_of(grid: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


POINTS = points_of(GRID)


def trial(number: int, scores: list[float], point: dict[str, Any] | None = None, **others: Any) -> Trial:
    state = others.pop("state", "complete" if len(scores) == len(REPLICATES) else "running")
    outcomes = tuple(
        ReplicateOutcome(score, flops=1e9, seconds=36.0, stages=3, keys=f"{number}{index}" * 16)
        for index, score in enumerate(scores)
    )
    return Trial(number, POINTS[number] if point is None else point, outcomes, state, **others)


def study(*trials: Trial, grid: dict[str, tuple[Any, ...]] = GRID, mode: str = "grid", **others: Any) -> Study:
    parameters = {path: SimpleNamespace(choice=values) for path, values in grid.items()}
    about = {"mode": mode, "sampler": "grid", "racing": "paired", "defaults": points_of(grid)[0]}
    space = SimpleNamespace(method="CMLM", parameters=parameters, **about)
    base = SimpleNamespace(rows=[SimpleNamespace(name="CMLM")])
    points: Any = SimpleNamespace(space=space, base=base, metric="accuracy", replicates=REPLICATES)
    return Study("cmlm-quick", points, 3, trials=trials, **others)


def noisy(number: int, center: float, count: int = 6, **others: Any) -> Trial:
    draw = random.Random(number)
    return trial(number, [center + draw.gauss(0, 0.02) for _ in range(count)], **others)


def broken(found: Trial, index: int, reason: str = "loss is NaN at update 31") -> Trial:
    outcomes = list(found.outcomes)
    outcomes[index] = replace(outcomes[index], value=0.0, status="diverged", reason=reason)
    return replace(found, outcomes=tuple(outcomes))


def mixed() -> Study:
    """Complete, ineligible, dropped, failed and running trials, with the highest means on those that cannot win."""
    return study(
        noisy(0, 0.60),
        noisy(1, 0.65),
        broken(noisy(2, 0.99), 1),
        noisy(3, 0.90, 3, state="dropped", reason="p = 0.003 against #1"),
        trial(4, [], state="failed", reason="needs a_translator & 5% {luck}"),
        noisy(5, 0.95, 2),
    )


def written(found: Study, format: str = "text") -> str:
    return str(study_view(found).written(format))


# -------------------------------------------------------------------------------------------------------------- points


def test_an_incomplete_study_is_shown_and_has_no_best() -> None:
    for trials in ((), (noisy(0, 0.5, 2),), (trial(0, [], state="failed", reason="x"),)):
        found = study(*trials)
        assert found.best is None
        assert NO_BEST in str(screen(found))
        for format in FORMATS[:5]:
            assert written(found, format).endswith("\n")


def test_what_a_study_cost_counts_every_replicate() -> None:
    spent = mixed().spent()
    assert [spent[name] for name in ("trials", "complete", "dropped", "failed")] == [6, 3, 1, 1]
    assert (spent["replicates"], spent["full"], spent["stages"]) == (23, 36, 69)
    assert (spent["flops"], spent["seconds"]) == (23e9, pytest.approx(23 * 36.0))


def test_the_spread_is_that_of_the_subsets_means() -> None:
    found = study().measured([0.1, 0.2, 0.6, 0.3, 0.4, 0.8])
    assert found == {"mean": pytest.approx(0.4), "spread": pytest.approx(statistics.stdev([0.2, 0.3, 0.7]))}
    partly = study().measured([0.1, 0.2, 0.6, 0.3])
    assert partly["spread"] == pytest.approx(statistics.stdev([0.2, 0.2, 0.6]))
    assert study().measured([0.1])["spread"] is None


def test_the_difference_from_the_papers_point_is_paired() -> None:
    """Subset 0 gains 2 points, 1 gains 4, 2 gains 6, whatever the subsets themselves are worth."""
    worth = [0.5, 0.6, 0.7, 0.5, 0.6, 0.7]
    first = trial(0, worth)
    whole = trial(1, [a + b for a, b in zip(worth, [0.02, 0.04, 0.06] * 2, strict=True)])
    assert study(first, whole).above_default() == {"mean": pytest.approx(0.04), "spread": pytest.approx(0.02)}
    assert "trial 1, 4.00 ± 2.00 above the default one" in written(study(first, whole))
    for unsound in (trial(0, worth[:2]), broken(first, 0)):
        assert "above the default" not in written(study(unsound, whole))


@pytest.mark.parametrize("format", FORMATS[:5])
def test_the_order_of_trials_changes_no_byte(format: str) -> None:
    found = mixed()
    other = replace(found, trials=tuple(random.Random(1).sample(found.trials, len(found.trials))))
    assert written(other, format) == written(found, format)


def test_every_reason_stands_in_the_table_and_running_means_are_marked() -> None:
    found = mixed()
    text = written(found)
    rows = {line.split()[0]: line for line in text.splitlines()[2:8]}
    assert list(rows) == ["1", "0", "2", "3", "4", "5"]
    assert re.search(r"\d\*? +6/6  best$", rows["1"])
    assert rows["0"].endswith("6/6  default")
    assert rows["2"].endswith("6/6  1 diverged")
    assert f"{100 * found.trials[2].mean():.2f} ±" in rows["2"], "a failed replicate is in the mean"
    assert re.search(r"\(\d\d\.\d\d ± +\d+\.\d\d\) +3/6  dropped$", rows["3"])
    assert re.search(r"— +0/6  failed$", rows["4"])
    assert re.search(r"\(9\d\.\d\d ± +\d+\.\d\d\) +2/6  running$", rows["5"])
    for reason in ("#2: loss is NaN at update 31.", "#3: p = 0.003 against #1.", "#4: needs a_translator & 5% {luck}."):
        assert reason in text


def test_a_screen_shows_the_best_points() -> None:
    grid = {"fine_tune.lr": tuple(range(1, 31))}
    trials = [trial(n, [n / 100] * 6, point=point) for n, point in enumerate(points_of(grid))]
    text = str(screen(study(*trials, grid=grid, mode="search")))
    rows = [int(line.split()[0]) for line in text.split("\n\n")[0].splitlines()[2:]]
    assert rows == [*range(29, 29 - SCREEN, -1)]
    assert f"And {30 - SCREEN} points more, in the table of points" in text


def test_the_frame_has_every_replicate() -> None:
    found = study(noisy(1, 0.6, 2), broken(noisy(0, 0.5), 2, "a\nreason, with 'all'"))
    expected = [
        {"trial": t.number, "p_c": t.point["p_c"], "subset": subset, "seed": seed, **asdict(outcome)}
        for t in found.trials[::-1]
        for (subset, seed), outcome in zip(REPLICATES, t.outcomes, strict=False)
    ]
    assert found.frame[[*expected[0]]].to_dict("records") == expected
    assert (
        len(written(found, "csv").strip().splitlines())
        >= 1 + len(expected)
        == 1 + len(json.loads(written(found, "json"))["trials"])
    )


# ------------------------------------------------------------------------------------------------------------- margins


def full(**others: Any) -> Study:
    return study(*(trial(n, [0.5 + n / 100 + k / 1000 for k in range(6)]) for n in range(6)), **others)


def test_margins_against_a_naive_loop() -> None:
    """A point with a failed replicate counts and is not the best; a row or column with an unfinished point has no mean."""
    found = full()
    found = replace(found, trials=(*found.trials[:5], broken(found.trials[5], 0)))
    (table,) = margins(found)
    for path, cells in (("alpha", [row[-1] for row in table.rows]), ("p_c", table.rows[-1][1:])):
        for value, cell in zip((*GRID[path], None), cells, strict=True):
            here = [t.mean() for t in found.trials if value in (None, t.point[path])]
            assert cell == f"{100 * mean(here):.2f}"
    starred = [cell for row in table.rows for cell in row if best("")[0] in cell]
    assert [cell[1:6] for cell in starred] == [f"{100 * found.trials[4].mean():.2f}"], "of trial 4"
    outside = noisy(9, 0.1, point={"alpha": 0.77, "p_c": 0.1})
    assert [*margins(replace(found, trials=(*found.trials, outside)))] == [table]
    partly = replace(found, trials=(*found.trials[:4], noisy(4, 0.9, 3, state="dropped"), found.trials[5]))
    text = written(partly)
    assert re.search(r"^0\.5 .* \(\d\d\.\d\d ± +\d+\.\d\d\) .* —$", text, re.M)
    assert re.search(r"^mean +51\.75 +— +\d\d\.\d\d +—$", text, re.M)
    assert not [*margins(full(mode="search"))]
    assert not [*margins(full(grid={**GRID, "k": ("x", "y")}))], "two paths alone make a table"


# ------------------------------------------------------------------------------------------------------------ pictures

SEARCH: dict[str, Any] = {
    "post_train.lr": FloatDistribution(1e-6, 1e-3, log=True),
    "k": IntDistribution(1, 50),
    "contrast": CategoricalDistribution(["simclr", "cmlm"]),
    "tau": FloatDistribution(0.1, 1),
}


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(level)


def searched(count: int, constant: bool = False, paths: tuple[str, ...] = (*SEARCH,)) -> tuple[Study, optuna.Study]:
    """Points of a log float, an integer, a choice and a parameter that stands under one choice only, as Optuna was told them."""
    draw, trials, told = random.Random(1), [], optuna.create_study(direction="maximize")
    for number in range(count):
        point: dict[str, Any] = {"post_train.lr": 10 ** draw.uniform(-6, -3), "k": draw.randint(1, 50)}
        point |= {"contrast": "simclr", "tau": draw.uniform(0.1, 1)} if number % 3 else {"contrast": "cmlm"}
        value = 0.5 if constant else 0.5 + point["k"] / 100
        trials.append(trial(number, [value] * 6, point=point))
        distributions = {path: SEARCH[path] for path in point}
        told.add_trial(optuna.trial.create_trial(params=point, distributions=distributions, value=value))
    return study(*trials, grid=dict.fromkeys(paths, (1,)), mode="search"), told


@pytest.mark.filterwarnings("ignore:.*is experimental")
def test_both_pictures_are_drawn_alike_each_time() -> None:
    made, notes = pictures(*searched(19))
    assert [view.name for view in made] == ["importances", "parallel_coordinate"]
    assert notes == ["Importances rest on 19 points: with fewer than 20 they are mostly chance."]
    for view in made:
        png = view.written("png")
        assert png == view.written("png")
        assert min(struct.unpack(">II", bytes(png[16:24]))) > 300
    lines = made[1].picture
    assert lines is not None
    assert len(lines().axes[0].collections[0].get_segments()) == 19


def test_a_sentence_says_why_there_is_no_picture() -> None:
    for made in (searched(0), searched(1), searched(5, constant=True), searched(5, paths=("other",))):
        drawn, (missing,) = pictures(*made)
        assert drawn == []
        assert missing.startswith("No plots: ")


# ------------------------------------------------------------------------------------------------------------ the page


def paged(found: Study, shown: tuple[View, ...] = (), text: str = "method: scl\n", place: str = "") -> str:
    machines = hardware([Record("", "done", provenance={"device": "a CPU", "torch": "2.13.0"})])
    commands = ["harness tune scl", f"harness bench --with {place}/best.yaml --store sqlite:///{place}/h.db"]
    return study_page(found, text, shown, ["No x.", f"{place}/p.svg cannot be drawn."], machines, commands)


def test_the_page_has_everything_the_study_found() -> None:
    made, _ = pictures(*searched(8))
    text = paged(mixed(), tuple(made))
    assert text == paged(mixed(), tuple(made))
    assert re.search(r"Trial 1: alpha = 0.1, p_c = 0.15; dev acc 6\d\.\d\d ± \d\.\d\d\.", text)
    parts = ["method: scl", "dev acc, alpha down, p_c across", "harness tune scl"]
    parts += ["a CPU, 1 thread a run, torch 2.13.0.", "loss is NaN at update 31", "a_translator &amp; 5%"]
    assert not [part for part in parts if part not in text]
    shown = re.sub(r"<style>.*?</style>|<script>.*?</script>|base64,[^\"]*", "", text, flags=re.DOTALL)
    assert not re.search(r"\b(nan|None)\b", shown)
    assert text.count("<img ") == 2
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert {*re.findall(r'(?:href="|url\()([^")]+)', text)} <= {f"#{each}" for each in ids}
    without = paged(study(noisy(0, 0.5, 2)), text="")
    assert f'class="lead">{NO_BEST}' in without
    assert "method: scl" not in without


def test_the_page_names_files_without_their_folders() -> None:
    """The path of best.yaml names a person and a machine; a mailed page has neither."""
    point = "method: scl\ntarget: {tasks: [/home/some.one/intents.csv]}\n"
    text = paged(full(), text=point, place="/home/some.one/x-1")
    assert "some.one" not in text
    assert "harness bench --with best.yaml --store sqlite:///h.db" in text
    assert "tasks: [intents.csv]" in text


# ------------------------------------------------------------------------------------------- best.yaml


SCALARS = st.one_of(
    *(st.booleans(), st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False)),
    st.sampled_from(["1e-5", "true", "null", "~", "", " x ", "0x1f", "a: b", "- a", "#", "no", "12:30", "'", '"']),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.dictionaries(st.sampled_from(["fine_tune.lr", "alpha", "k", "no"]), SCALARS))
def test_best_yaml_reads_back_exactly(tmp_path: Path, values: dict[str, Any]) -> None:
    path = tmp_path / "best.yaml"
    path.write_text(best_yaml({"method": "cmlm", "set": values, "chosen": {"deep": values}}), encoding="utf-8")
    back = load_yaml(path, PointFile)
    for read in (back.set, back.chosen["deep"]):
        assert {name: (type(value), repr(value)) for name, value in read.items()} == {
            name: (type(value), repr(value)) for name, value in values.items()
        }
