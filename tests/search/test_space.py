"""Search spaces: what they propose can be run and read back, and what is wrong in one is said with its place."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search.small import explored, request

from harness.errors import UserError
from harness.methods import METHODS, hyperparameters
from harness.planning.recipe import PHASES, Phase
from harness.planning.request import Override, Request, parse_override
from harness.planning.resolve import resolve
from harness.planning.resolved import ResolvedTable
from harness.planning.table import load_table, table_names
from harness.search.parameters import Parameter, Tunable, tunable_at
from harness.search.space import (
    ResolvedSpace,
    check_metrics,
    check_sampler,
    load_space,
    requested_space,
    space_names,
)
from harness.search.space_file import Space
from harness.tasks import TASKS
from harness.yaml_files import parse_yaml

SPACES = {name: load_space(name) for name in space_names()}
EVERY = [
    (name, preset, mode) for name, space in SPACES.items() for preset in space.presets for mode in ("grid", "search")
]
every_space = pytest.mark.parametrize(("name", "preset", "mode"), EVERY, ids=lambda value: value)


TABLES = {name: load_table(name) for name in table_names()}


def tabled(space: ResolvedSpace, point: dict[str, Any]) -> ResolvedTable:
    """The table as a bench would resolve it for a point."""
    request = Request(
        preset=space.table_preset,
        methods=(space.row or space.method,),
        tasks=space.tasks,
        sizes=space.sizes,
        subsets=None if space.subsets is None else tuple(range(space.subsets)),
        seeds=space.seeds,
        overrides=(*space.set, *space.overrides(point)),
    )
    return resolve(TABLES[space.table], request)


def runnable(space: ResolvedSpace, point: dict[str, Any]) -> None:
    """The methods take the point's values, and its recipe becomes an optimiser at every size."""
    table = tabled(space, point)
    (row,) = table.rows
    assert set(space.method.split("+")) <= {*row.parts, "ft"}
    for part, values in table.settings_of(row).items():
        read = hyperparameters(METHODS[part], values, part)
        batch = table.optim("pre_train") if row.pre_train and part != "ft" else table.optim("post_train", 100, 100)
        assert getattr(read, "contrast_group", 0) <= batch.batch_size or METHODS[part].supervised
    for size in table.sizes:
        optim = table.optim("fine_tune", size, size or 2490)
        for path, value in point.items():
            if path.startswith("fine_tune.") and path.split(".")[1] in ("lr", "batch_size", "warmup", "dropout"):
                assert getattr(optim, path.split(".")[1]) == value


def within(space: ResolvedSpace, point: dict[str, Any]) -> bool:
    """Every active parameter has a value of its own, and no other path is there."""
    active = [p for p in space.parameters if all(point.get(k) in values for k, values in p.when.items())]
    return set(point) == {p.path for p in active} and all(p.holds(point[p.path]) for p in active)


def read_back(space: ResolvedSpace, point: dict[str, Any]) -> bool:
    found = {}
    for override in space.overrides(point):
        found[tunable_at(override.key, space.space.parts).path] = parse_override(override.text).value
    return found == point and all(type(found[path]) is type(value) for path, value in point.items())


# ----------------------------------------------------------------------------------------------------- every space


@every_space
def test_every_space_under_every_preset_has_a_point_that_runs(name: str, preset: str, mode: Any) -> None:
    space = explored(SPACES[name], preset=preset, mode=mode)
    assert space.sampler == ("grid" if mode == "grid" else "tpe")
    points = [space.defaults, *(space.grid_points() if mode == "grid" else ())]
    for point in points:
        assert mode == "grid" or within(space, point)
        assert read_back(space, point)
        runnable(space, point)
    assert space.row, "a packaged space names a row that its table has"
    assert pickle.loads(pickle.dumps(space)) == space
    assert json.loads(json.dumps(space.identity())) == space.identity()


@every_space
def test_a_grid_is_its_product_with_the_default_first(name: str, preset: str, mode: Any) -> None:
    if mode == "search":
        with pytest.raises(ValueError, match="no list"):
            explored(SPACES[name], preset=preset, mode=mode).grid_points()
        return
    space = explored(SPACES[name], preset=preset, mode=mode)
    points = [tuple(point.values()) for point in space.grid_points()]
    product = list(itertools.product(*(p.choices for p in space.parameters)))
    assert len(set(points)) == len(points) == space.trials
    assert points[0] == tuple(space.defaults.values())
    assert points[1:] == [point for point in product if point != points[0]]


@pytest.mark.parametrize(
    ("name", "preset", "points"),
    [
        ("cmlm", "quick", 30),
        ("cmlm", "paper", 30),
        ("scl", "paper", 24),
        ("taco", "paper", 8),
        ("taco_fine_tune", "paper", 24),
        ("taco_fine_tune", "paper_rte", 36),
        ("taco_fine_tune", "paper_qnli", 48),
        ("taco_fine_tune", "paper_mnli", 72),
        ("taco_fine_tune", "paper_qqp", 72),
        ("taco_fine_tune", "paper_mrpc", 24),
        ("coco_lm_fine_tune", "paper", 64),
        ("coco_lm_fine_tune", "paper_stsb", 64),
        ("coco_lm_fine_tune", "paper_qqp", 12),
    ],
)
def test_the_papers_grids_have_the_papers_size(name: str, preset: str, points: int) -> None:
    assert explored(SPACES[name], preset=preset, mode="grid").trials == points


def paper_presets(name: str) -> list[ResolvedSpace]:
    found = [explored(SPACES[name], preset=preset, mode="grid") for preset in SPACES[name].presets]
    return [space for space in found if space.table_preset == "paper"]


def test_coco_lms_table_7_is_what_its_presets_run() -> None:
    """Length 512, decay 0.01, no clipping, Adam (0.9, 0.98) with 1e-6, dropout 0.1, linear decay; a search a task."""
    spaces = paper_presets("coco_lm_fine_tune")
    assert sorted(space.tasks or () for space in spaces) == sorted(
        (task,) for task in ("cola", "rte", "mrpc", "stsb", "mnli", "qqp", "qnli", "sst2")
    )
    for space in spaces:
        for point in space.grid_points():
            table = tabled(space, point)
            optim = table.optim("fine_tune", 0, 1000)
            assert (table.max_length, optim.weight_decay, optim.clip, optim.dropout) == (512, 0.01, 0.0, 0.1)
            assert (optim.beta1, optim.beta2, optim.eps, optim.schedule) == (0.9, 0.98, 1e-6, "linear")
            assert optim.decay_biases_and_norms  # fairseq's


def test_tacos_metrics_are_what_its_presets_judge_by() -> None:
    """TACO 4.1: F1 for QQP and MRPC, Spearman for STS-B; Table 6: length 128, no decay, norm 1, Adam (0.9, 0.999), 1e-8."""
    judged = {}
    for space in paper_presets("taco_fine_tune"):
        (task,) = space.tasks or ()
        table = tabled(space, space.defaults)
        judged[task] = space.metrics or (table.selection_metric(task),)
        optim = table.optim("fine_tune", 0, 10_000)
        assert (table.max_length, optim.weight_decay, optim.clip) == (128, 0.0, 1.0)
        assert (optim.beta1, optim.beta2, optim.eps, optim.schedule) == (0.9, 0.999, 1e-8, "linear")
    assert judged == {
        **dict.fromkeys(("mnli", "qnli", "sst2", "rte"), ("accuracy",)),
        **dict.fromkeys(("qqp", "mrpc"), ("f1",)),
        "stsb": ("spearman",),
        "cola": ("mcc",),
    }


def test_each_method_that_the_issue_names_has_a_space() -> None:
    assert {"ft", "scl", "cssl", "tapt", "cmlm", "taco", "electra", "coco_lm"} <= set(SPACES)
    for name, space in SPACES.items():
        assert space.default_preset == "quick"
        assert {"quick", "laptop", "paper"} <= set(space.presets)
        quick = explored(space)
        assert (quick.preset, quick.mode, quick.trials, quick.sizes, quick.subsets) == (
            "quick",
            "search",
            8,
            (100,),
            3,
        ), name
        assert TABLES[quick.table].presets["quick"].data == "packaged"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", SPACES)
def test_what_a_search_proposes_lies_in_it_and_runs(name: str) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for preset in SPACES[name].presets:
        space = explored(SPACES[name], preset=preset, mode="search")
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        study.enqueue_trial(space.defaults)
        for number in range(12):
            trial = study.ask()
            point = space.define(trial)
            assert point == space.defaults or number
            assert within(space, point), point
            assert read_back(space, point), point
            runnable(space, point)
            study.tell(trial, 0.0)


# ----------------------------------------------------------------------------------------------------- any space


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, allow_infinity=False)


@st.composite
def any_search(draw: st.DrawFn) -> dict[str, Any]:
    """A space of CMLM with ranges of every kind, and its default point."""
    low, high = sorted((draw(numbers(1e-6, 1e3)), draw(numbers(1e-6, 1e3))))
    step = draw(st.sampled_from([0.01, 0.05, 0.1, 0.15]))
    count = draw(st.integers(1, 5))
    search: dict[str, Any] = {
        "temperature": {
            "low": 0.02,
            "high": 0.5,
            "log": True,
            "when": {"contrast": draw(st.sampled_from(["simclr", ["simclr"]]))},
        },
        "cmlm.p_c": {"low": 0.1, "high": round(0.1 + count * step, 6), "step": step},
        "contrast": {"choice": draw(st.permutations(["simsiam", "simclr"]))},
        "num_views": {
            "low": 1,
            "high": draw(st.integers(2, 9)),
            **draw(st.sampled_from([{}, {"log": True}, {"step": 1}])),
        },
        "mask_only": {"choice": [True, False], "when": {"cmlm.contrast": ["simsiam", "simclr"]}},
        "fine_tune.epochs": {"choice": draw(st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True))},
    }
    if low < high:
        search["alpha"] = {"low": low, "high": high, "log": draw(st.booleans())}
    keys = draw(st.permutations(list(search)))
    defaults = {
        "temperature": 0.07, "p_c": 0.1, "contrast": "simclr", "num_views": 1, "mask_only": True, "alpha": low,
        "fine_tune.epochs": search["fine_tune.epochs"]["choice"][0],
    }  # fmt: skip
    if low == high:
        del defaults["alpha"]
    return {**HEAD, "defaults": defaults, "search": {key: search[key] for key in keys}}


HEAD: dict[str, Any] = {"name": "own", "title": "t", "method": "cmlm", "table": "few_shot"}


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(any_search(), st.integers(0, 2**31))
def test_any_proposed_point_lies_in_the_space_and_is_read_back(written: dict[str, Any], seed: int) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = explored(parse_yaml(json.dumps(written), Space, "own.yaml"))
    paths = [p.path for p in space.parameters]
    assert all(paths.index(parent) < paths.index(p.path) for p in space.parameters for parent in p.when)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    study.enqueue_trial(space.defaults)
    for number in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            point = space.define(trial := study.ask())
        assert number or point == space.defaults
        assert within(space, point)
        assert read_back(space, point)
        study.tell(trial, 0.0)


def test_a_step_gives_the_number_that_one_would_write() -> None:
    """0.30000000000000004 would be another run than the grid's 0.3."""

    class Trial:
        def suggest_float(self, path: str, low: float, high: float, **_: Any) -> float:
            return low + 2 * 0.1

    assert 0.1 + 2 * 0.1 != 0.3
    assert Parameter("p_c", low=0.1, high=0.9, step=0.1).suggest(Trial()) == 0.3


def test_one_value_written_in_two_ways_is_one() -> None:
    one = own(grid="alpha: [1, 0.5]")
    two = own(grid="cmlm.alpha: [1.0, 5e-1]")
    assert explored(one).identity() == explored(two).identity()
    assert explored(one).overrides({"alpha": 1.0}) == (Override(("cmlm", "alpha"), 1.0),)


def test_a_space_on_own_data_takes_any_size(tmp_path: Path) -> None:
    """Table `own` has neither tasks nor sizes of its own."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\ntitle: Mine\nmethod: ft\ntable: own\nsizes: [37]\nsubsets: 2\nseeds: [1]\ntrials: 2\n"
        "set: {fine_tune.warmup: 0.2}\ndefaults: {fine_tune.lr: 5e-4}\nsearch:\n  fine_tune.lr: {low: 1e-4, high: 1e-3, log: true}\n"
        "presets:\n  quick: {description: bert-tiny.}\n"
    )
    space = load_space(path)
    assert (space.table, space.presets["quick"].description) == ("own", "bert-tiny.")
    path.write_text(path.read_text().replace("warmup", "warmpu"))
    with pytest.raises(UserError, match=r"Did you mean 'fine_tune\.warmup'"):
        load_space(path)


def test_parts_of_a_chain_are_named() -> None:
    space = explored(
        parse_yaml(
            "{name: own, title: t, method: cmlm+scl, table: objectives, defaults: {cmlm.alpha: 0.5, scl.lam: 0.9},"
            " search: {cmlm.alpha: {low: 0.1, high: 1}, scl.lam: {choice: [0.5, 0.9]}}}",
            Space,
            "own.yaml",
        )
    )
    assert space.row == "CMLM+SCL"
    assert space.overrides(space.defaults) == (Override(("cmlm", "alpha"), 0.5), Override(("scl", "lam"), 0.9))
    runnable(space, space.defaults)


def test_a_method_without_a_row_gets_one() -> None:
    space = explored(
        parse_yaml(
            "{name: own, title: t, method: taco, table: few_shot, grid: {window: [3, 5]}, defaults: {window: 5}}",
            Space,
            "own.yaml",
        )
    )
    assert space.row == ""
    assert [row.name for row in tabled(space, space.defaults).rows] == ["TACO"]


def test_a_space_without_presets_stands_on_those_of_its_table() -> None:
    space = own()
    assert {explored(space, preset=name).table_preset for name in ("quick", "paper")} == {"quick", "paper"}
    with pytest.raises(UserError, match="Did you mean 'laptop'"):
        explored(space, preset="labtop")


def test_a_default_that_a_parent_switches_off_may_be_left_out() -> None:
    search = "contrast: {choice: [simsiam, simclr]}\n  temperature: {low: 0.1, high: 1, when: {contrast: simclr}}"
    space = explored(own(defaults="contrast: simsiam", grid="", search=search))
    assert space.defaults == {"contrast": "simsiam"}
    stated = explored(own(defaults="contrast: simsiam, temperature: 0.3", grid="", search=search))
    assert stated.defaults == space.defaults


def test_finite_spaces_can_be_counted() -> None:
    def finite(search: str, defaults: str) -> bool:
        return explored(own(defaults=defaults, grid="", search=search)).num_points < math.inf

    assert finite(
        "num_views: {low: 1, high: 9, log: true}\n  p_c: {low: 0.1, high: 0.9, step: 0.1}", "num_views: 1, p_c: 0.7"
    )
    assert not finite("num_views: {low: 1, high: 9}\n  p_c: {low: 0.1, high: 0.9}", "num_views: 1, p_c: 0.7")


# ----------------------------------------------------------------------------------------------------- mistakes

FILE = """\
name: own
title: t
method: {method}
table: few_shot
defaults: {{{defaults}}}
grid:
  {grid}
search:
  {search}
{more}
"""


def text_of(
    *,
    method: str = "cmlm",
    defaults: str = "alpha: 0.5",
    grid: str = "alpha: [0.1, 0.5]",
    search: str = "alpha: {low: 0.01, high: 2, log: true}",
    more: str = "",
) -> str:
    text = FILE.format(method=method, defaults=defaults, grid=grid, search=search, more=more)
    empty = [f"{key}:\n  \n" for key, value in (("grid", grid), ("search", search)) if not value]
    for block in empty:
        text = text.replace(block, "")
    return text


def own(**changes: str) -> Space:
    return parse_yaml(text_of(**changes), Space, "own.yaml")


SEARCHED = "num_views: {low: 1, high: 3}\n  contrast: {choice: [simsiam, simclr]}\n  temperature: {low: 0.1, high: 1, when: %s}"
GIVEN = "num_views: 1, contrast: simsiam"


@pytest.mark.parametrize(
    ("changes", "key", "parts"),
    [
        ({"method": "cmml"}, "method", ["unknown method 'cmml'", "Did you mean 'cmlm'?"]),
        ({"grid": "alhpa: [1]"}, "grid.alhpa", ["unknown parameter", "Did you mean 'alpha'?", "fine_tune.*"]),
        ({"search": "fine_tune.lrr: {low: 1, high: 2}"}, "search.fine_tune.lrr", ["Did you mean 'fine_tune.lr'?"]),
        ({"search": "scl.lam: {low: 0.1, high: 0.2}"}, "search.scl.lam", ["unknown parameter 'scl.lam'"]),
        ({"method": "cmlm+scl", "grid": "alpha: [0.5]"}, "grid.alpha", ["write cmlm.alpha instead of alpha"]),
        ({"grid": "alpha: []"}, "grid.alpha", ["the list is empty"]),
        ({"grid": "alpha: 0.5"}, "grid.alpha", ["should be a list of values, not 0.5"]),
        ({"grid": "alpha: [0.5, [1]]"}, "grid.alpha.1", ["should be a number, a word, true or false, not [1]"]),
        ({"grid": "alpha: {low: 0.1, high: 1}"}, "grid.alpha", ["a grid takes a list of values", "move it to search"]),
        ({"grid": "alpha: [0.5, 0.50]"}, "grid.alpha.1", ["0.5 is given twice"]),
        ({"grid": "alpha: [0.5, -1]"}, "grid.alpha.1", ["greater than or equal to 0", "not -1"]),
        ({"grid": "alpha: [0.5, true]"}, "grid.alpha.1", ["should be a number, not true"]),
        ({"grid": "alpha: [0.5]\n  cmlm.alpha: [0.5]"}, "grid.cmlm.alpha", ["alpha is given twice"]),
        ({"search": "alpha: {choice: []}"}, "search.alpha.choice", ["the list is empty"]),
        ({"search": "contrast: {choice: [simsam]}"}, "search.contrast.choice.0", ["'simsiam' or 'simclr'", "'simsam'"]),
        ({"search": "contrast: {low: 1, high: 2}"}, "search.contrast", ["takes words, which have no range", "choice"]),
        ({"search": "mlm: {low: 0, high: 1}"}, "search.mlm", ["takes true and false, which have no range"]),
        ({"search": "alpha: {low: 2, high: 1}"}, "search.alpha.low", ["low 2 should be less than high 1"]),
        ({"search": "alpha: {low: 1, high: 1}"}, "search.alpha.low", ["low 1 should be less than high 1"]),
        ({"search": "alpha: {low: 0, high: 1, log: true}"}, "search.alpha.low", ["low 0 has no logarithm"]),
        ({"search": "alpha: {low: 1, high: 2, log: true, step: 1}"}, "search.alpha.step", ["log and step", "keep one"]),
        ({"search": "alpha: {low: 1, high: 2, step: 0}"}, "search.alpha.step", ["step 0 should be more than 0"]),
        ({"search": "alpha: {low: 1, high: 2, step: 1.5}"}, "search.alpha.step", ["at most high - low, 1"]),
        ({"search": "alpha: {low: 0.1, high: 1, step: 0.4}"}, "search.alpha.high", ["not on a step", "set it to 0.9"]),
        ({"search": "alpha: {low: 0.1}"}, "search.alpha", ["needs high"]),
        ({"search": "alpha: {}"}, "search.alpha", ["needs choice, or low and high"]),
        ({"search": "alpha: {low: 0.1, hihg: 2}"}, "search.alpha.hihg", ["Did you mean 'high'?"]),
        ({"search": "alpha: {low: .nan, high: 2}"}, "search.alpha.low", ["finite"]),
        ({"search": "alpha: {choice: [0.5], low: 0}"}, "search.alpha.low", ["choice and low are both given"]),
        ({"search": "alpha: {choice: [0.5], high: 1}"}, "search.alpha.high", ["choice and high are both given"]),
        ({"search": "p_c: {low: 0.1, high: 1.5}"}, "search.p_c.high", ["less than or equal to 1"]),
        ({"search": "num_views: {low: 1, high: 2.5}"}, "search.num_views.high", ["whole number, and 2.5 is not"]),
        ({"search": "num_views: {low: 1, high: 2, step: 0.5}"}, "search.num_views.step", ["whole number"]),
        ({"search": "fine_tune.batch_size: {low: 0, high: 8}"}, "search.fine_tune.batch_size.low", ["equal to 1"]),
        ({"search": "fine_tune.schedule: {choice: [cosine]}"}, "search.fine_tune.schedule.choice.0", ["'linear'"]),
        ({"search": "pre_train.lr: {low: 1e-5, high: 1e-4}"}, "search.pre_train.lr", ["CMLM has no pre_train"]),
        ({"method": "scl", "defaults": "", "grid": "post_train.lr: [1]"}, "grid.post_train.lr", ["no post_train"]),
        ({"grid": "fine_tune.epochs: [1]\n  fine_tune.steps: [5]"}, "grid.fine_tune.steps", ["replaces fine_tune.epochs"]),
        ({"grid": "fine_tune.warmup: [0]\n  fine_tune.warmup_steps: [5]"}, "grid.fine_tune.warmup_steps", ["replaces"]),
        ({"more": "table: nope"}, "", ["table", "is given twice"]),
        ({"search": SEARCHED % "{mlm: true}", "defaults": GIVEN}, "search.temperature.when.mlm", ["mlm is not in search"]),
        ({"search": SEARCHED % "{contrast: []}", "defaults": GIVEN}, "search.temperature.when.contrast", ["is empty"]),
        ({"search": SEARCHED % "{cont: 1}", "defaults": GIVEN}, "search.temperature.when.cont", ["Did you mean 'contrast'"]),
        ({"search": SEARCHED % "{num_views: 1}", "defaults": GIVEN}, "search.temperature.when.num_views", ["has no choice"]),
        ({"search": SEARCHED % "{contrast: simcl}", "defaults": GIVEN}, "search.temperature.when.contrast", ["'simcl'"]),
        ({"search": SEARCHED % "{temperature: 1}", "defaults": GIVEN}, "search.temperature.when.temperature", ["depends on itself"]),
        (
            {
                "search": "mlm: {choice: [true], when: {mask_only: true}}\n  mask_only: {choice: [true], when: {mlm: true}}",
                "defaults": "mlm: true, mask_only: true",
            },
            "search.mlm.when",
            ["mlm depends on itself through mask_only"],
        ),
        ({"search": "contrast: {choice: [simsiam]}\n  temperature: {low: 0.1, high: 1, when: {contrast: simclr}}",
          "defaults": "contrast: simsiam"}, "search.temperature.when.contrast", ["contrast is never 'simclr'", "simsiam"]),
        ({"defaults": ""}, "grid.alpha", ["has no default; add alpha to defaults"]),
        ({"defaults": "alpha: 5"}, "defaults.alpha", ["5.0 is outside of the search: 0.01 to 2 (log)"]),
        ({"defaults": "alpha: -5"}, "defaults.alpha", ["greater than or equal to 0"]),
        ({"defaults": "alpha: 0.5, p_c: 0.5"}, "defaults.p_c", ["neither grid nor search varies it"]),
        ({"defaults": "alpha: 0.5, pc: 0.5"}, "defaults.pc", ["Did you mean 'p_c'?"]),
        ({"defaults": "alpha: 0.5, cmlm.alpha: 0.5"}, "defaults.cmlm.alpha", ["is given twice"]),
        ({"grid": "", "search": "", "defaults": ""}, "", ["neither a grid nor a search"]),
        ({"grid": f"alpha: {list(range(101))}\n  num_views: {list(range(1, 101))}", "defaults": "alpha: 1, num_views: 1"},
         "grid", ["10,100 points", "10,000"]),
        ({"more": "sampler: tpa"}, "sampler", ["Did you mean 'tpe'?"]),
        ({"more": "sampler: grid"}, "sampler", ["unknown sampler 'grid'"]),
        ({"more": "racing: pared"}, "racing", ["Did you mean 'paired'?"]),
        ({"more": "trials: 0"}, "trials", ["greater than or equal to 1"]),
        ({"more": "row: CMLN"}, "row", ["Did you mean 'CMLM'?"]),
        ({"more": "row: SCL"}, "row", ["the row SCL trains scl, and not cmlm"]),
        ({"more": "metric: acuracy"}, "metric", ["Did you mean 'accuracy'?"]),
        ({"more": "metric: [f1, f1]"}, "metric", ["f1 is given twice"]),
        ({"more": "direction: up"}, "direction", ["'maximize' or 'minimize'"]),
        ({"more": "metric: [f1, flops]\ndirection: maximize"}, "direction", ["has 1 for 2 metrics"]),
        ({"more": "sizes: [50]"}, "sizes", ["unknown size '50'", "100"]),
        ({"more": "subsets: 9"}, "subsets", ["few_shot has 5 subsets"]),
        ({"more": "tasks: []"}, "tasks", ["at least 1 item"]),
        ({"more": "default_preset: quack"}, "default_preset", ["Did you mean 'quick'?"]),
        ({"more": "default_preset: a\npresets: {b: {description: x}}"}, "default_preset", ["unknown preset 'a'"]),
        ({"more": "presets: {quick: {description: x}, labtop: {description: x}}"}, "presets.labtop", ["Did you mean 'laptop'?"]),
        ({"more": "presets: {quick: {description: x, table_preset: q}}"}, "presets.quick.table_preset", ["unknown preset 'q'"]),
        ({"more": "presets: {quick: {description: x, table: few_shto}}"}, "presets.quick.table", ["Did you mean 'few_shot'?"]),
        ({"more": "presets: {quick: {description: x, racing: pared}}"}, "presets.quick.racing", ["Did you mean 'paired'?"]),
        ({"more": "presets: {quick: {description: x, defaults: {alpha: 3}}}"}, "presets.quick.defaults.alpha", ["outside of the search"]),
        ({"more": "presets: {quick: {description: x, defaults: {p_m: 0.2}}}"}, "presets.quick.defaults.p_m", ["varies it"]),
        ({"more": "presets: {quick: {description: x, search: {p_m: {low: 1, high: 2}}}}"}, "presets.quick.search.p_m.high", ["less than"]),
        ({"more": "presets: {quick: {description: x, grid: {p_m: [0.2]}}}"}, "presets.quick.grid.p_m", ["add p_m to defaults"]),
        ({"more": "presets: {quick: {}}"}, "presets.quick.description", ["missing"]),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_sentence_with_its_place(
    tmp_path: Path, changes: dict[str, str], key: str, parts: list[str]
) -> None:
    text = text_of(**changes)
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_space(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line ")
    assert message.count("\n") == 0, "more than a sentence"
    assert message.endswith(".")
    assert not message.endswith("..")
    for part in [f"key {key}: " if key else "", *parts]:
        assert part in message, message
    if key and "missing" not in parts:
        line = int(message.split(", line ")[1].split(",")[0])
        assert key.split(".")[-1] in text.splitlines()[line - 1] or key.rsplit(".", 1)[-1].isdigit()


def test_a_value_that_is_only_wrong_beside_others_is_taken() -> None:
    """cmlm.alpha 0 is refused with mlm false, and taco.window 1 with the default reading: the other may be varied too."""
    assert own(grid="alpha: [0, 0.5]\n  mlm: [true, false]", search="", defaults="alpha: 0.5, mlm: true")
    space = own(method="taco", defaults="window: 1", grid="window: [1, 3]", search="")
    assert explored(space).defaults == {"window": 1}


def test_what_the_row_sets_itself_is_not_varied() -> None:
    text = "{name: o, title: t, method: electra, table: objectives, grid: {auxiliary: [narrow, shallow]}, defaults: {auxiliary: narrow}}"
    with pytest.raises(UserError, match="row ELECTRA of table objectives sets auxiliary itself"):
        parse_yaml(text, Space, "own.yaml")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("{cmlm.alpha: 0.3}", "alpha.*the space varies it; leave one of them out"),
        ("{fine_tune.weight_decy: 0.1}", r"Did you mean 'fine_tune\.weight_decay'"),
        ("{max_length: 9000}", "should be less than or equal to 8192, not 9000"),
    ],
)
def test_what_all_points_share_is_checked_with_its_place(values: str, words: str) -> None:
    text = f"name: o\ntitle: t\nmethod: cmlm\ntable: few_shot\nset: {values}\ngrid: {{alpha: [0.1, 0.5]}}\ndefaults: {{alpha: 0.5}}\n"
    with pytest.raises(UserError, match=f"own.yaml, line 5.*{words}"):
        parse_yaml(text, Space, "own.yaml")


def test_unknown_spaces_and_presets() -> None:
    with pytest.raises(UserError, match="Did you mean 'cmlm'"):
        load_space("cmml")
    with pytest.raises(UserError, match="no such file"):
        load_space("no/such.yaml")
    with pytest.raises(UserError, match=r"--preset of space cmlm: .* Did you mean 'laptop'"):
        explored(SPACES["cmlm"], preset="labtop")


@pytest.mark.parametrize(
    ("wishes", "parts"),
    [
        ({"sampler": "tpee"}, ["--sampler", "Did you mean 'tpe'?"]),
        ({"racing": "ash"}, ["--racing", "Did you mean 'asha'?"]),
        ({"metrics": ("acc",)}, ["--metric", "unknown metric 'acc'"]),
        (
            {"mode": "search", "sampler": "grid"},
            ["a grid over a continuous range", "goes from", "(log)", "--grid"],
        ),
        ({"mode": "grid", "trials": 5}, ["a grid ends by itself"]),
        ({"metrics": ("accuracy", "flops"), "racing": "paired"}, ["--racing paired", "several metrics"]),
        ({"preset": "papper"}, ["--preset of space cmlm: unknown preset 'papper'"]),
    ],
)
def test_wishes_that_cannot_be(wishes: dict[str, Any], parts: list[str]) -> None:
    """A command is told its flags, a caller in Python the arguments."""
    with pytest.raises(UserError) as caught:
        explored(SPACES["cmlm"], **wishes)
    assert all(part in str(caught.value) for part in parts), caught.value
    with pytest.raises(UserError) as caught:
        explored(SPACES["cmlm"], flags=False, **wishes)
    said = str(caught.value)
    assert "--" not in said
    assert said.startswith(tuple(name.removesuffix("s") for name in wishes)), said


def test_a_sampler_whose_package_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(name: str, num_metrics: int = 1, **asked: Any) -> None:
        space = explored(SPACES["cmlm"], mode="search", sampler=name, metrics=("accuracy", "flops")[:num_metrics])
        check_sampler(space, request(SPACES["cmlm"], **asked))

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "cmaes" else find(name, *rest))
    for asked, place in (
        ({"sampler": "cmaes"}, "--sampler cmaes"),
        ({"sampler": "cmaes", "flags": False}, "sampler='cmaes'"),
        ({}, "space cmlm, sampler cmaes"),
    ):
        with pytest.raises(UserError, match=rf"^{place}: needs the Python package 'cmaes'; run 'pip install cmaes'"):
            check("cmaes", **asked)
    for name in ("tpe", "random", "nsga2"):
        check(name, 2)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: object())
    check("cmaes")
    with pytest.raises(UserError, match="one metric only"):
        check("cmaes", 2)


def test_wishes_for_what_the_space_lacks() -> None:
    only_grid, only_search = own(search=""), own(grid="")
    assert explored(only_grid).mode == "grid"
    assert explored(only_search).mode == "search"
    with pytest.raises(UserError, match=r"has no search under preset quick; take --grid"):
        explored(only_grid, mode="search")
    with pytest.raises(UserError, match=r"has no grid under preset quick; take --search"):
        explored(only_search, mode="grid")
    with pytest.raises(UserError, match="list values under grid"):
        explored(only_search, sampler="grid")


def test_samplers_trials_and_racing() -> None:
    cmlm = SPACES["cmlm"]

    def found(**wishes: Any) -> tuple[str, str, int, str]:
        space = explored(cmlm, preset="quick", **wishes)
        return space.mode, space.sampler, space.trials, space.racing

    assert found() == ("search", "tpe", 8, "paired")
    assert found(trials=50, sampler="nsga2", racing="none") == ("search", "nsga2", 50, "none")
    assert found(mode="grid") == found(sampler="grid") == ("grid", "grid", 30, "none")
    assert found(mode="grid", racing="asha") == ("grid", "grid", 30, "asha")
    assert found(mode="grid", sampler="tpe", trials=12) == ("grid", "tpe", 12, "none")
    assert found(metrics=("accuracy", "flops")) == ("search", "tpe", 8, "none")
    drawn = explored(cmlm, mode="grid", sampler="random")
    assert drawn.num_points == 30
    assert all(parameter.choices for parameter in drawn.parameters)


def test_a_default_outside_of_the_grid_is_one_point_more() -> None:
    space = explored(own(grid="alpha: [0.1, 0.3]", search=""))
    assert (space.trials, space.grid_points()[0]) == (3, {"alpha": 0.5})


def test_metrics_and_directions() -> None:
    cmlm = SPACES["cmlm"]
    assert (explored(cmlm).metrics, explored(cmlm).directions) == ((), ("maximize",))
    both = explored(cmlm, metrics=("accuracy", "flops"))
    assert (both.metrics, both.directions) == (("accuracy", "flops"), ("maximize", "minimize"))
    check_metrics(both, {"movies": TASKS["movies"], "sst2": TASKS["sst2"]}, request(cmlm))
    for asked, place in ((("mcc",), "--metric"), (None, "space cmlm, metric")):
        with pytest.raises(UserError, match=rf"^{place} mcc: the task sst2 does not have it; it has accuracy"):
            check_metrics(explored(cmlm, metrics=("mcc",)), {"sst2": TASKS["sst2"]}, request(cmlm, metrics=asked))
    written = own(more="metric: [flops]\ndirection: [minimize]\npresets: {quick: {description: x, metric: f1}}")
    assert explored(written).directions == ("maximize",)
    assert explored(written).metrics == ("f1",)


def test_a_space_of_another_method_is_refused() -> None:
    assert requested_space(replace(request(SPACES["cmlm"]), method="CMLM", space="cmlm")).method == "cmlm"
    with pytest.raises(UserError, match=r"^--space scl: the space scl is for the method scl, and not for cmlm"):
        requested_space(replace(request(SPACES["cmlm"]), space="scl"))


def test_identity_moves_with_what_shapes_the_proposals_and_with_nothing_else() -> None:
    def identity(changes: dict[str, str] | None = None, **wishes: Any) -> dict[str, Any]:
        return explored(own(**(changes or {})), **wishes).identity()

    base = identity()
    assert identity({"more": "notes: [a]\ntrials: 5\nsizes: [20]"}) == base
    for other in (
        identity(mode="grid"),
        identity(sampler="random"),
        identity(racing="none"),
        identity(metrics=("f1",)),
        identity({"defaults": "alpha: 0.4"}),
        identity({"search": "alpha: {low: 0.01, high: 2}"}),
        identity({"search": "alpha: {low: 0.01, high: 3, log: true}"}),
    ):
        assert other != base


def every_knob() -> Iterator[Tunable]:
    for method in METHODS.values():
        for name in method.Hyperparameters.model_fields:
            yield tunable_at(name, (method.name,))
    for phase, name in itertools.product(PHASES, Phase.model_fields):
        yield tunable_at(f"{phase}.{name}", ("ft",))


@pytest.mark.parametrize("tunable", list(every_knob()), ids=lambda tunable: f"{tunable.owner}.{tunable.name}")
def test_every_hyperparameter_and_recipe_field_can_be_varied(tunable: Tunable) -> None:
    value = tunable.model.model_fields[tunable.name].default
    if value is None:
        known: dict[type, Any] = {float: 0.5, int: 2, bool: True}
        value = known.get(tunable.kind, "linear" if tunable.name == "schedule" else "bf16")
    read = tunable.value(value)
    assert (read, type(read)) == (value, tunable.kind)
    assert not math.isnan(float(read)) if tunable.kind in (float, int) else True
    for wrong in ([True] if tunable.kind in (float, int) else []) + (["nonsense"]):
        with pytest.raises(ValueError, match="should be"):
            tunable.value(wrong)


def test_a_space_is_read_without_torch_ray_or_optuna() -> None:
    code = "import sys; from harness.search.space import load_space; load_space('taco'); print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "ray", "optuna", "transformers"} & set(said.split())
