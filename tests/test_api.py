"""The Python API gives what the command line gives, and its documented examples run."""

from __future__ import annotations

import csv
import doctest
import io
import json
import logging
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import optuna
import pandas as pd
import pytest
import torch
from cluster import in_process
from pandas.testing import assert_frame_equal
from transformers.utils.logging import get_verbosity, is_progress_bar_enabled
from views.runs import commit

import harness
from harness import api
from harness.api.arguments import request_from, undisturbed
from harness.cli import main
from harness.cli.request import command, read_words
from harness.commands.prepare import prepare
from harness.commands.recorded import like_last
from harness.errors import UserError
from harness.planning.request import Override, Request, from_json, overrides_of, parse_override, to_json
from harness.scores import results_of
from harness.specs import RowSet, Stage
from harness.store import DEFAULT_URL, Store
from harness.tasks.rows import Rows

REPOSITORY = Path(__file__).resolve().parents[1]
MOVIES: dict[str, Any] = {"tasks": "movies", "methods": ("ft", "cmlm"), "sizes": 20, "subsets": [0, 1], "seeds": 31}
WORDS = "--tasks movies --methods ft,cmlm --sizes 20 --subsets 0,1 --seeds 31"
VALUES = {"fine_tune.lr": 2e-4, "cmlm.alpha": 0.3, "fine_tune.epochs": {20: 3}, "max_length": 64}

pytestmark = pytest.mark.usefixtures("workdir")


# ------------------------------------------------------------------------------------------------------- one request


@pytest.mark.usefixtures("packaged")
def test_python_the_command_line_and_a_file_are_one_request() -> None:
    ours = harness.plan("few_shot", set=VALUES, **MOVIES).stages["key"].tolist()
    words = ["plan", "--table", "few_shot", *WORDS.split()]
    for override in overrides_of(VALUES):
        words += ["--set", override.text]
    assert ours == list(prepare(read_words(words), train=False).plan.stages)
    Path("point.yaml").write_text("method: cmlm\nset: {alpha: 0.3}\n", encoding="utf-8")
    rest = {key: value for key, value in VALUES.items() if key != "cmlm.alpha"}
    assert ours == harness.plan("few_shot", set=rest, with_file="point.yaml", **MOVIES).stages["key"].tolist()


@pytest.mark.usefixtures("packaged")
def test_rows_of_a_plan_are_those_that_its_stages_name() -> None:
    """Each set is digested again from its texts and labels, as another system gets them."""
    plan = harness.plan("few_shot", **MOVIES)
    named = {
        (row_set.digest, row_set.rows) for stage in plan._prepared.plan.stages.values() for row_set in _labelled(stage)
    }
    seen = set()
    for (digest, split), rows in plan.rows.groupby(["digest", "split"]):
        labels = rows["label"].map({"negative": 0, "positive": 1}).to_numpy(np.int64)
        assert Rows([(text,) for text in rows["sentence"]], labels).digest == digest
        assert rows["size"].isna().all() == (split != "train")
        seen.add((digest, len(rows)))
    assert seen == named
    assert plan.detect(2)["detects"].notna().all()


def _labelled(stage: Stage) -> list[RowSet]:
    sets = [stage.data.train, stage.data.dev, *stage.data.tests] if stage.data.classes else []
    return [row_set for row_set in sets if row_set is not None]


def test_a_request_is_read_back_from_its_json_and_from_its_command() -> None:
    request = Request(
        table="few_shot", preset="quick", methods=("w/ SimCLR", "ft"), sizes=(20, 100), overrides=overrides_of(VALUES)
    )
    assert from_json(to_json(request)) == request
    assert read_words(shlex.split(command(request))[1:]) == request
    # whoever set a value, the requests are equal
    assert parse_override("fine_tune.lr=2e-4") == Override("fine_tune.lr", 0.0002, "best.yaml, key set,", True)
    # as commit b36b579 wrote it
    kept = {"table": "few_shot", "folder": str(Path.cwd()), "preset": "quick", "methods": ["ft"], "tasks": ["movies"]}
    kept |= {"sizes": [20], "subsets": [0], "seeds": [31], "set": ["fine_tune.steps=20", "optim.lr=2e-4"]}
    found = from_json(kept)
    assert found.overrides == (Override("fine_tune.steps", 20), Override("optim.lr", 2e-4))
    assert to_json(found) == kept
    assert from_json({**kept, "encoder": ""}) == found  # of "--encoder=", as an earlier state took it


def plan(**arguments: Any) -> Any:
    return harness.plan("few_shot", **{"tasks": "movies", **arguments})


def tune(method: str, **arguments: Any) -> Any:
    return harness.tune(method, tasks="movies", **arguments)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (harness.plan, "table: name a table, such as"),
        (partial(plan, preset="quik"), "preset of table few_shot: unknown preset 'quik'. Did you mean 'quick'?"),
        (partial(plan, set={"cmlm.alpha": -1}), "set cmlm.alpha=-1: should be greater"),
        (partial(plan, data="nowhere"), "nowhere: there is no such folder; data takes 'hub'"),
        (partial(plan, data="own"), "own: there is no such folder; data takes 'hub'"),
        (partial(plan, seeds=[]), "seeds: there is no value; leave it out for all."),
        (partial(plan, data=3), "data: should be a valid string, not 3."),
        (partial(plan, seeds="31\n42"), "seeds: '31\\n42' has several lines; write names between commas"),
        (partial(tune, "mlm"), "tune mlm: no packaged space varies this method; write one and name it with space."),
        (partial(tune, "cmlm", mode="gird"), "mode: unknown mode 'gird'. Did you mean 'grid'?"),
        (partial(tune, "cmlm", store="harness.db"), "store 'harness.db' is not a store's URL"),
        (harness.results, "table: the store holds no bench yet; name a table"),
        (partial(harness.report, "few_shot", view="note"), "view: unknown view 'note'. Did you mean 'notes'?"),
        (partial(harness.compare, "few_shot", region="x"), "region: should be a valid number"),
        (partial(harness.export, best=True), "best: the store"),
        (partial(harness.predict, "nowhere", "a"), "texts: should be a list of texts; give one text as [text]."),
        (lambda: plan(methods="ft,cmlm").seal(against="TAPT"), "against: unknown row"),
    ],
)
@pytest.mark.usefixtures("packaged")
def test_a_wrong_argument_is_named_and_no_flag(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        call()
    assert said in str(caught.value)
    assert "--" not in re.sub("'harness [^']*'", "", str(caught.value))
    assert not [path for path in Path.cwd().iterdir() if path.name != ".harness"]


@pytest.mark.usefixtures("packaged")
def test_a_value_of_the_last_bench_is_named_as_its_own() -> None:
    """A report that names nothing: the wrong value is in the store."""
    recorded = Request(
        table="few_shot", methods=("ft",), tasks=("movis",), overrides=overrides_of({"fine_tune.lrr": 1})
    )
    last = from_json(to_json(recorded))
    with pytest.raises(UserError, match=r"^recorded bench, tasks: unknown task 'movis'"):
        prepare(like_last(Request(), last), train=False)
    with pytest.raises(UserError, match=r"^--tasks: unknown task 'movvis'"):
        prepare(like_last(Request(tasks=("movvis",)), last), train=False)
    with pytest.raises(UserError, match=r"^recorded bench, set fine_tune\.lrr=1: unknown key"):
        prepare(like_last(Request(tasks=("movies",)), last), train=False)


def test_arguments_are_listed() -> None:
    given = {"table": "few_shot", "tasks": "movies", "sizes": 20, "set": {}, "keep": "best"}
    assert given.keys() <= signature(harness.plan).parameters.keys() == signature(harness.results).parameters.keys()
    assert {"space", "trials", "tasks", "set"} <= signature(harness.tune_plan).parameters.keys()
    for call, unknown in ((partial(harness.plan, "few_shot"), "methodz"), (partial(harness.tune, "cmlm"), "methods")):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
            call(**{unknown: "ft"})


@pytest.mark.usefixtures("packaged")
def test_numbers_of_numpy_and_paths_are_the_same_request() -> None:
    """A request is kept as JSON, which takes neither."""
    plain = harness.plan("few_shot", methods=["ft"], tasks=["movies"], sizes=20, subsets=[0, 1], seeds=31)
    given = {"sizes": np.int64(20), "subsets": np.arange(2), "seeds": np.array([31])}
    ours = harness.plan("few_shot", methods=("ft",), tasks=iter(["movies"]), **given)
    assert ours.stages["key"].tolist() == plain.stages["key"].tolist()
    request = request_from("few_shot", **given, data=Path("data"), encoder=None, gpus_per_run=1)
    assert json.loads(json.dumps(to_json(request))) == to_json(request)
    assert (request.data, request.encoder, request.gpus_per_run) == ("data", None, 1.0)


def test_the_package_is_light_until_it_is_used() -> None:
    """And a function may have the name of a package."""
    code = (
        "import sys, harness; print({'numpy', 'pandas', 'pydantic', 'ray', 'torch'} & set(sys.modules), dir(harness))\n"
        "import harness.planning.table\n"
        "for function in (harness.bench, harness.plan, harness.results):\n"
        "    try: function('nowhere')\n"
        "    except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *errors = done.stdout.splitlines()
    assert first.startswith("set() ")
    assert all(name in first for name in harness.__all__)
    assert [line[:39] for line in errors] == ["UserError table: unknown table 'nowhere'"[:39]] * 3


# -------------------------------------------------------------------------------------------------------- the examples


class _SameButForNumbers(doctest.OutputChecker):
    """Numbers of a real run depend on the kind of processor."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return self._masked(want) == self._masked(got)

    @staticmethod
    def _masked(text: str) -> list[str]:
        return re.sub(r"-?\b\d+(\.\d+)?(e-\d+)?\b", "#", text).split()


@pytest.mark.usefixtures("packaged", "workdir")
def test_the_session_on_results_runs_and_every_format_has_them(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session of docs/results.md, on made-up records of the same table."""
    prepared = prepare(Request(table="few_shot", methods=("ft", "scl", "tapt", "cmlm")), train=False)
    store = Store(DEFAULT_URL)
    for stage in prepared.plan.stages.values():
        commit(store, stage, selected_step=100, tied=1, seconds=1.5, provenance={"device": "CPU", "workers": 1})
    replace(prepared, store=store).remember()
    text = (REPOSITORY / "docs" / "results.md").read_text()
    session = doctest.DocTestParser().get_doctest(text, {}, "docs/results.md", None, 0)
    assert len(session.examples) > 8
    runner = doctest.DocTestRunner(checker=_SameButForNumbers())
    told: list[str] = []
    runner.run(session, out=told.append)
    assert runner.failures == 0, "".join(told)
    printed = {}
    for format in ("parquet", "csv", "json"):
        assert main(["report", "--format", format]) == 0
        printed[format] = io.BytesIO(capsysbinary.readouterr().out)
    ours, dtypes = harness.results(), harness.RESULT_DTYPES
    assert len(ours) == 24
    assert_same = partial(assert_frame_equal, check_exact=True)
    assert_same(pd.read_parquet("results.parquet"), ours)
    assert_same(pd.read_parquet(printed["parquet"]), ours)
    assert_same(pd.read_csv(printed["csv"], dtype=dtypes, keep_default_na=False, na_values=""), ours)
    assert_same(pd.DataFrame(json.load(printed["json"])["results"]).astype(dtypes), ours)
    read = Mock(wraps=results_of)
    monkeypatch.setattr("harness.commands.views.results_of", read)
    done = harness.bench("few_shot", methods=("ft", "scl", "tapt", "cmlm"))
    assert_same(done.results, ours)
    assert (f"{done}\n", done.complete) == (done.written("text"), True)
    assert "<table" in done._repr_html_()
    assert read.call_count == 1, "the records of a bench are read once"


@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize("on_ray", [False, pytest.param(True, marks=[pytest.mark.ray, pytest.mark.slow])])
def test_the_examples_run(on_ray: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of a notebook, in one folder: plan, bench, results, record, tune (on Ray alone), compare. After them, and after a model was taken
    away, the process is as it was."""
    if not on_ray:
        in_process.patch(monkeypatch)
        here = undisturbed("torch", "transformers.utils.logging")(in_process.PoolHere._train)
        monkeypatch.setattr(in_process.PoolHere, "_train", here)
    before = _process()
    finder, runner = (
        doctest.DocTestFinder(recurse=False),
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE),
    )
    told: list[str] = []
    for function in (api.plan, api.bench, api.results, api.record, *([api.tune] * on_ray), api.compare):
        (example,) = finder.find(function, function.__name__)
        assert example.examples, f"{function.__name__} has no example"
        runner.run(example, out=told.append)
    assert runner.failures == 0, "".join(told)
    key = harness.results()["key"][0]
    harness.export(key)
    harness.predict("model", ["A fine film."])
    harness.embeddings(key, ["A fine film."])
    assert _process() == before


def _process() -> dict[str, Any]:
    return {
        "environment": dict(os.environ),
        "generators": (random.getstate(), torch.get_rng_state().tolist()),
        "torch": (torch.get_num_threads(), torch.get_float32_matmul_precision()),
        "transformers": (get_verbosity(), is_progress_bar_enabled()),
        "optuna": optuna.logging.get_verbosity(),
        "csv": csv.field_size_limit(),
        "filters": [*warnings.filters],
        "logs": [logging.getLogger(name).level for name in ("ray.tune", "ray.train", "ray._private")],
        "hook": sys.excepthook,
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
    }
