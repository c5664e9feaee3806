"""Search spaces: what they propose can be run and read back, and what is wrong in one is said with its place."""

from __future__ import annotations

import itertools
import pickle
import re
from pathlib import Path
from typing import Any

import optuna
import pytest
from search.small import explored, request

from harness.errors import UserError
from harness.methods import METHODS, hyperparameters
from harness.planning.recipe import group_of
from harness.planning.request import Request, parse_override
from harness.planning.resolve import resolve
from harness.planning.resolved import ResolvedTable
from harness.planning.table import load_table, table_names
from harness.search.space import ResolvedSpace, check_metric, check_varied, load_space, space_names, tunable_at
from harness.tasks.task import TASKS

SPACES = {name: load_space(name) for name in space_names()}
TABLES = {name: load_table(name) for name in table_names()}


def tabled(space: ResolvedSpace, point: dict[str, Any]) -> ResolvedTable:
    """The table as a bench resolves it for a point."""
    return resolve(TABLES[space.table], space.bench(Request(), point))


def runnable(space: ResolvedSpace, point: dict[str, Any]) -> None:
    """The methods take the point's values, and its recipe becomes an optimiser at every size."""
    table = tabled(space, point)
    (row,) = table.rows
    assert set(space.method.split("+")) <= {*row.parts, "ft"}
    for part in row.parts:
        read = hyperparameters(METHODS[part], group_of(row.on(), part), part)
        batch = table.optim("pre_train") if row.pre_train and part != "ft" else table.optim("post_train", 100, 100)
        assert getattr(read, "contrast_group", 0) <= batch.batch_size or METHODS[part].labelled
    for size in table.sizes:
        optim = table.optim("fine_tune", size, size or 2490)
        for path, value in point.items():
            if path.startswith("fine_tune.") and path.split(".")[1] in ("lr", "batch_size", "warmup", "dropout"):
                assert getattr(optim, path.split(".")[1]) == value


def within(space: ResolvedSpace, point: dict[str, Any]) -> bool:
    """Every active parameter has a value of its own, and no other path is there."""
    active = {
        path: p for path, p in space.parameters.items() if all(point.get(k) in values for k, values in p.when.items())
    }
    return set(point) == set(active) and all(p.holds(point[path]) for path, p in active.items())


def read_back(space: ResolvedSpace, point: dict[str, Any]) -> bool:
    found = {}
    for override in space.overrides(point):
        found[tunable_at(override.key, space.parts).path] = parse_override(override.text).value
    return found == point and all(type(found[path]) is type(value) for path, value in point.items())


# ----------------------------------------------------------------------------------------------------- every space


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", SPACES)
def test_all_that_a_space_proposes_under_any_preset_lies_in_it_and_runs(name: str) -> None:
    """A grid is its product with the default first; a search proposes the default first."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for preset in SPACES[name].presets:
        grid, search = (explored(SPACES[name], preset=preset, mode=mode) for mode in ("grid", "search"))
        points = [tuple(point.values()) for point in grid.first_points]
        product = list(itertools.product(*(p.choice for p in grid.parameters.values())))
        assert len(set(points)) == len(points) == grid.trials
        assert points == [tuple(grid.defaults.values()), *(point for point in product if point != points[0])]
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        study.enqueue_trial(search.defaults)
        drawn = [search.define(study.ask()) for _ in range(4)]
        assert drawn[0] == search.defaults
        assert all(within(search, point) for point in drawn)
        for space, proposed in ((grid, grid.first_points), (search, drawn)):
            assert space.row, "a packaged space names a row that its table has"
            assert pickle.loads(pickle.dumps(space)) == space
            for point in proposed:
                assert read_back(space, point)
            for point in {str(point): point for point in (*proposed[:3], proposed[-1])}.values():
                runnable(space, point)


# ----------------------------------------------------------------------------------------------------- mistakes

HEAD: dict[str, Any] = {"name": "own", "title": "t", "method": "cmlm", "table": "few_shot"}
KEYS = {
    "method": "cmlm",
    "defaults": "{alpha: 0.5}",
    "grid": "\n  alpha: [0.1, 0.5]",
    "search": "\n  alpha: {low: 0.01, high: 2, log: true}",
}
VIEWS = "\n  num_views: {low: 1, high: 3}\n  contrast: {choice: [simsiam, simclr]}\n  temperature: {low: 0.1, high: 1, when: %s}"
GIVEN = "{alpha: 0.5, num_views: 1, contrast: simsiam}"


@pytest.mark.parametrize(
    ("changes", "key", "parts"),
    [
        ({"method": "cmml"}, "method", ["unknown method 'cmml'", "Did you mean 'cmlm'?"]),
        ({"grid": "{alhpa: [1]}"}, "grid.alhpa", ["unknown parameter", "Did you mean 'alpha'?", "fine_tune.*"]),
        ({"method": "cmlm+scl"}, "grid.alpha", ["write cmlm.alpha instead of alpha"]),
        ({"grid": "{alpha: []}"}, "grid.alpha", ["the list is empty"]),
        ({"grid": "{alpha: {low: 0.1, high: 1}}"}, "grid.alpha", ["should be a list"]),
        ({"grid": "{alpha: [0.5, -1]}"}, "grid.alpha", ["greater than or equal to 0", "not -1"]),
        ({"grid": "\n  alpha: [0.5]\n  cmlm.alpha: [0.5]"}, "grid.cmlm.alpha", ["replaces alpha, which is there too"]),
        ({"grid": "{contrast: [simsam]}"}, "grid.contrast", ["'simsiam' or 'simclr'", "'simsam'"]),
        ({"search": "{contrast: {low: 1, high: 2}}"}, "search.contrast.low", ["'simsiam' or 'simclr'", "not 1"]),
        ({"search": "{alpha: {low: 2, high: 1}}"}, "search.alpha.low", ["low 2 should be less than high 1"]),
        ({"search": "{alpha: {low: 0.1, high: 1, step: 0.4}}"}, "search.alpha.high", ["set it to 0.9"]),
        ({"search": "{alpha: {choice: [0.5], low: 0}}"}, "search.alpha.low", ["unknown key"]),
        ({"grid": "\n  fine_tune.epochs: [1]\n  fine_tune.steps: [5]"}, "grid.fine_tune.steps", ["replaces fine_tune.epochs"]),
        ({"search": VIEWS % "{mlm: true}", "defaults": GIVEN}, "search.temperature.when", ["mlm is not in search"]),
        ({"search": VIEWS % "{contrast: simcl}", "defaults": GIVEN}, "search.temperature.when.contrast", ["'simcl'"]),
        ({"search": VIEWS % "{num_views: 4}", "defaults": GIVEN}, "search.temperature.when.num_views", ["num_views is 1 to 3"]),
        ({"search": VIEWS % "{temperature: 0.2}", "defaults": GIVEN}, "search.temperature.when", ["is not in search before temperature"]),
        ({"defaults": "{}"}, "grid.alpha", ["has no default; add alpha to defaults"]),
        ({"defaults": "{alpha: 5}", "grid": "{}"}, "defaults.alpha", ["5.0 is outside of the search: 0.01 to 2 (log)"]),
        ({"grid": "{}", "search": "{}", "defaults": "{}"}, "search", ["neither a grid nor a search"]),
        ({"defaults": "{alpha: 0.3}"}, "defaults.alpha", ["0.3 is outside of the grid: 0.1, 0.5"]),
        ({"presets": "{quick: {description: x, defaults: {alpha: 3}}}"}, "presets.quick.defaults.alpha", ["outside"]),
        ({"presets": "{quick: {description: x, grid: {p_m: [0.2]}}}"}, "presets.quick.grid.p_m", ["add p_m to defaults"]),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_sentence_with_its_place(
    tmp_path: Path, changes: dict[str, str], key: str, parts: list[str]
) -> None:
    path = written(tmp_path, changes)
    with pytest.raises(UserError) as caught:
        load_space(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line ")
    assert message.count("\n") == 0, "more than a sentence"
    assert re.search(r"[^.]\.$", message)
    for part in [f"key {key}", *parts]:
        assert part in message, message
    line = int(message.split(", line ")[1].split(",")[0])
    assert key.split(".")[-1] in path.read_text().splitlines()[line - 1] or key.rsplit(".", 1)[-1].isdigit()


def written(folder: Path, changes: dict[str, str]) -> Path:
    path = folder / "own.yaml"
    path.write_text("".join(f"{name}: {text}\n" for name, text in ({**HEAD, **KEYS} | changes).items()))
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"row": "SCL"}, "space own, search cmlm.alpha: the row SCL does not read it"),
        ({"table": "ablation", "grid": "{}", "search": "{contrast: {choice: [simclr]}}", "row": "w/ SimCLR",
          "defaults": "{contrast: simclr}"}, "the row w/ SimCLR sets it itself"),
        ({"sizes": "[50]"}, "key sizes: unknown size '50'"),
        ({"set": "{cmlm.alpha: 0.3}"}, "key set.cmlm.alpha: the search of own varies cmlm.alpha itself"),
        ({"set": "{fine_tune.weight_decy: 0.1}"}, "key set.fine_tune.weight_decy: unknown key"),
        ({"presets": "{quick: {description: x}, labtop: {description: x}}"}, "Did you mean 'laptop'?"),
        ({"table": "few_shoot"}, "Did you mean 'few_shot'?"),
    ],
)  # fmt: skip
def test_what_does_not_fit_its_table_is_told(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    own = load_space(written(tmp_path, changes))

    def check(preset: str | None) -> None:
        space = explored(own, preset=preset)
        check_varied(space, tabled(space, space.defaults).rows, space.given)

    with pytest.raises(UserError, match=re.escape(said)):
        check([*own.presets, None][-2 if own.presets else -1])


def test_a_default_of_what_is_not_varied_holds_for_all_points(tmp_path: Path) -> None:
    space = explored(load_space(written(tmp_path, {"defaults": "{alpha: 0.5, p_c: 0.3}"})))
    assert [override.text for override in space.bench(Request(), {"alpha": 1.0}).overrides] == [
        "cmlm.p_c=0.3",
        "cmlm.alpha=1.0",
    ]


def test_samplers_trials_and_racing() -> None:
    cmlm = SPACES["cmlm"]

    def found(**wishes: Any) -> tuple[str, str, int, str]:
        space = explored(cmlm, preset="quick", **wishes)
        return space.mode, space.sampler, space.trials, space.racing

    assert found() == ("search", "tpe", 8, "paired")
    assert found(trials=50, sampler="random", racing="none") == ("search", "random", 50, "none")
    assert found(mode="grid") == ("grid", "grid", 30, "none")
    assert found(mode="grid", racing="paired") == ("grid", "grid", 30, "paired")
    assert found(mode="grid", sampler="tpe", trials=12) == ("grid", "tpe", 12, "none")
    assert found(mode="grid", sampler="random", trials=40)[2] == 30  # there are no more points


def test_a_metric_that_a_task_does_not_have_is_refused() -> None:
    cmlm = SPACES["cmlm"]
    for asked, place in (("mcc", "--metric"), (None, "space cmlm, metric")):
        with pytest.raises(UserError, match=rf"^{place} mcc: the task sst2 does not have it; it has accuracy"):
            check_metric(explored(cmlm, metric="mcc"), {"sst2": TASKS["sst2"]}, request(cmlm, metric=asked))
