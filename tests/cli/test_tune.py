"""`tune` refuses what is wrong before Ray starts, and says what it is about to do before it does it."""

from __future__ import annotations

import importlib.util
import io
import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from cli.command import Said, TrainingStartedError, data_folder

import harness as api
from harness.cli.parser import build_parser
from harness.commands import study as study_commands
from harness.commands.execution import check_machine
from harness.commands.study import _check_folder, _remember, open_study, prepare_study
from harness.errors import UserError
from harness.planning.request import Request
from harness.processes import started_at
from harness.search.request import TuneRequest
from harness.search.trials import ReplicateOutcome
from harness.specs import Status
from harness.store import Owner, Store

Refused = Callable[..., str]
Harness = Callable[..., Said]

SPACE = """name: mine
method: cmlm
table: few_shot
defaults: {alpha: 0.5, contrast: simclr, temperature: 0.07}
grid: {alpha: [0.1, 0.5]}
search:
  alpha: {low: 0.01, high: 2.0, log: true}
  contrast: {choice: [simsiam, simclr]}
  temperature: {low: 0.02, high: 0.5, log: true, when: {contrast: simclr}}
sizes: [100]
subsets: 2
seeds: [31]
"""


def own_space(old: str = "", new: str = "", text: str = SPACE) -> str:
    """A space of the user's with one place changed. Returns the line of the change."""
    assert old in text
    Path("mine.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
    return f"line {text[: text.index(old)].count(chr(10)) + 1}"


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("tune cmml", ["tune: unknown method 'cmml'. Did you mean 'cmlm'? Known: cmlm, coco_lm,"]),
        ("tune cmlm+sll", ["tune: unknown method 'sll'. Did you mean 'scl'?"]),
        ("tune scl+cmlm", ["'scl+cmlm' trains after fine-tuning; only the last method may use labels"]),
        ("tune mlm", ["tune mlm: no packaged space varies this method; write one and name it with --space"]),
        ("tune taco_fine_tune", ["is a space and no method; tune the method ft with --space taco_fine_tune"]),
        ("tune cmlm --space scl", ["--space scl: the space scl is for the method scl, and not for cmlm"]),
        ("tune cmlm --space clmm", ["--space: unknown space 'clmm'. Did you mean 'cmlm'?"]),
        ("tune cmlm --space nowhere.yaml", ["nowhere.yaml: there is no such file"]),
        ("tune cmlm --sampler tpp", ["--sampler: unknown sampler 'tpp'. Did you mean 'tpe'?"]),
        ("tune cmlm --racing pared", ["--racing: unknown racing 'pared'. Did you mean 'paired'?"]),
        ("tune cmlm --preset papper", ["--preset of space cmlm: unknown preset 'papper'. Did you mean 'paper'?"]),
        ("tune cmlm --metric accurcy", ["--metric: unknown metric 'accurcy'. Did you mean 'accuracy'?"]),
        ("tune cmlm --tasks movis", ["--tasks: unknown task 'movis'. Did you mean 'movies'?"]),
        ("tune cmlm --sizes 30", ["--sizes: unknown size '30'. Known: 20, 100, 1000."]),
        ("tune cmlm --subsets 1000", ["--subsets: 1000 is out of range; allowed are 0 to 999"]),
        ("tune cmlm --trails 3", ["tune: unknown flag '--trails'. Did you mean '--trials'?"]),
        ("tune cmlm --trials 0", ["--trials: '0' is not a whole number of 1 or more"]),
        ("tune cmlm --seed one", ["--seed: 'one' is not a whole number"]),
        ("tune cmlm --num-workers 0", ["--num-workers: '0' is not a whole number of 1 or more"]),
        ("tune cmlm --grid --search", ["argument --search: not allowed with argument --grid"]),
        ("tune cmlm --grid --trials 5", ["--trials: a grid ends by itself; leave it out, or draw from the grid"]),
        ("tune cmlm --search --sampler grid", ["--sampler grid: a grid over a continuous range", "take --grid"]),
        ("tune cmlm --racing asha --metric accuracy,flops", ["several metrics (accuracy, flops)", "--racing none"]),
        ("tune cmlm --sampler cmaes --metric accuracy,flops", ["--sampler cmaes: searches for one metric only"]),
        ("tune cmlm --set cmlm.alpha=0.2", ["--set cmlm.alpha=0.2: the search of cmlm varies cmlm.alpha itself"]),
        ("tune cmlm --grid --set cmlm.p_c=0.2", ["the grid of cmlm varies cmlm.p_c itself; leave one of them out"]),
        ("tune cmlm --set optim.lr=1e-4", ["--set optim.lr=1e-4: the search of cmlm varies optim.lr itself"]),
        (
            "tune ft --set fine_tune.steps=40",
            ["varies fine_tune.epochs, which replaces steps; leave fine_tune.steps out"],
        ),
        ("tune ft --set optim.steps=40", ["--set optim.steps=40: ", "varies fine_tune.epochs, which replaces steps"]),
        ("tune cmlm --set max_length", ["--set max_length: should be KEY=VALUE"]),
        ("tune", ["tune: the following arguments are required: method; see 'harness tune --help'"]),
    ],
)
def test_what_a_user_wrote_wrong(refused: Refused, line: str, parts: list[str]) -> None:
    said = refused(line)
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("alpha: {low: 0.01", "alhpa: {low: 0.01", ["key search.alhpa", "unknown parameter 'alhpa'", "'alpha'?"]),
        ("[simsiam, simclr]", "[]", ["key search.contrast.choice", "the list is empty"]),
        ("{low: 0.01, high: 2.0", "{low: 2.0, high: 0.01", ["key search.alpha.low", "low 2 should be less than"]),
        ("{low: 0.01", "{low: 0", ["key search.alpha.low", "low 0 has no logarithm"]),
        ("[0.1, 0.5]", "{low: 0.1, high: 0.5}", ["key grid.alpha", "a grid takes a list of values"]),
        ("when: {contrast:", "when: {masking:", ["key search.temperature.when.masking", "masking is not in search"]),
        ("sizes: [100]", "sizes: [30]", ["key sizes", "unknown size '30'"]),
        ("sizes:", "metric: f2\nsizes:", ["key metric", "unknown metric 'f2'"]),
        ("table: few_shot", "table: few_shto", ["key table", "unknown table 'few_shto'. Did you mean 'few_shot'?"]),
    ],
)
@pytest.mark.usefixtures("workdir")
def test_a_wrong_space_names_file_line_and_key(refused: Refused, old: str, new: str, parts: list[str]) -> None:
    line = own_space(old, new)
    said = refused("tune cmlm --space mine.yaml")
    assert f"mine.yaml, {line}, " in said
    assert all(part in said for part in parts), said


def test_a_plan_says_what_a_study_costs_and_trains_nothing(harness: Harness, workdir: Path, packaged: object) -> None:
    said = harness("tune ft --plan --trials 6 --sampler gp")
    assert said.status == 0, said.err
    assert "6 points, sampler gp, racing paired" in said.out
    assert "Ended in earlier commands: 0 of 6 points. To do: 36 of 36 stages" in said.out
    assert not list(workdir.iterdir()), "nothing is written"


@pytest.mark.usefixtures("workdir")
def test_a_packaged_space_by_its_file_in_the_repository(refused: Refused) -> None:
    said = refused("tune cmlm --space search_spaces/cmlm.yaml")
    assert said == "harness: --space: there is no file search_spaces/cmlm.yaml here; the packaged space is called cmlm."


@pytest.mark.usefixtures("workdir")
def test_a_space_for_another_method(refused: Refused) -> None:
    own_space()
    said = refused("tune tapt --space mine.yaml")
    assert "--space mine.yaml: the space mine is for the method cmlm, and not for tapt" in said


@pytest.mark.usefixtures("workdir", "packaged")
def test_a_metric_that_the_task_does_not_have(refused: Refused) -> None:
    assert "--metric f1: the task movies does not have it; it has accuracy, flops" in refused("tune cmlm --metric f1")
    own_space("sizes:", "metric: mcc\nsizes:")
    said = refused("tune cmlm --space mine.yaml")
    assert "space mine, metric mcc: the task movies does not have it" in said


def test_a_sampler_whose_package_is_missing(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "cmaes" else find(name, *rest))
    assert "needs the Python package 'cmaes'; run 'pip install cmaes'" in refused("tune cmlm --sampler cmaes")


def test_more_than_this_machine_has(refused: Refused) -> None:
    assert "--gpus-per-run 99: torch " in refused("tune cmlm --gpus-per-run 99")
    assert "--num-workers 9999: this machine has " in refused("tune cmlm --num-workers 9999")


def test_a_folder_that_cannot_be(refused: Refused, workdir: Path) -> None:
    (workdir / "file").touch()
    said = refused("tune cmlm --out file/below")
    assert "--out file/below: " in said
    assert "file is a file, not a folder; name another folder" in said


def test_another_clusters_size_is_its_own(workdir: Path) -> None:
    check_machine(Request(gpus_per_run=64, address="auto"))
    _check_folder("a/new/folder", "--out")
    with pytest.raises(UserError):
        check_machine(Request(gpus_per_run=99))
    assert list(workdir.iterdir()) == []


@pytest.mark.usefixtures("workdir")
def test_data_that_are_nowhere_or_wrong(refused: Refused, workdir: Path) -> None:
    assert "nowhere: there is no such folder" in refused("tune cmlm --data nowhere")
    folder = data_folder(workdir / "data") / "sst2"
    (folder / "validation.csv").unlink()
    said = refused("tune cmlm --tasks sst2 --sizes 20 --data data")
    assert "there is no validation.parquet" in said


# ---------------------------------------------------------------------------------------------------------- the plan


@pytest.mark.usefixtures("packaged")
def test_the_plan_is_said_before_anything_starts(harness: Harness, workdir: Path) -> None:
    with pytest.raises(TrainingStartedError):
        harness("tune cmlm --grid")
    assert (workdir / ".harness" / "harness.db").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("packaged")
def test_a_long_study_is_shown_and_agreed_to(harness: Harness, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal it wants --yes; nothing is written before that."""
    own_space()
    said = harness("tune cmlm --space mine.yaml --trials 100000")
    assert (said.status, said.out) == (2, "")
    *plan, last = said.err.strip().splitlines()
    assert last.startswith("harness: This plan takes about ")
    assert "add --yes to run it, or narrow it with --trials, --tasks" in last
    shown = "\n".join(plan)
    assert (
        "search over alpha 0.01 to 2 (log); contrast simsiam, simclr; temperature 0.02 to 0.5 (log) where contrast is"
        in shown
    )
    assert "100,000 points, sampler tpe, racing paired, seed 0; first the default point, alpha=0.5" in shown
    assert "2 subsets x 1 seed = 2 replicates a point" in shown
    assert "To do: 400,001 of 400,001 stages" in shown
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    said = harness("tune cmlm --space mine.yaml --trials 100000")
    assert (said.status, said.out) == (2, "")
    assert "Nothing was trained." in said.err
    assert [path.name for path in workdir.iterdir()] == ["mine.yaml"]


@pytest.mark.usefixtures("packaged")
def test_the_plan_of_a_grid_is_exact(harness: Harness, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 points x 2 subsets: a post-training and a fine-tuning each, and one MLM head."""
    own_space()
    monkeypatch.setattr("harness.cli.progress.ASK_ABOVE_HOURS", 0.0)
    said = harness("tune cmlm --space mine.yaml --grid")
    assert "2 points, sampler grid, racing none" in said.err
    assert "To do: 9 of 9 stages" in said.err
    narrower = harness("tune cmlm --space mine.yaml --grid --subsets 1")
    assert "1 subset x 1 seed = 1 replicate" in narrower.err
    assert "To do: 5 of 5 stages" in narrower.err
    assert [path.name for path in workdir.iterdir()] == ["mine.yaml"]


@pytest.mark.usefixtures("packaged")
def test_presets_are_described_when_none_is_asked_for(
    harness: Harness, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.cli.progress.ASK_ABOVE_HOURS", 0.0)
    first = harness("tune cmlm").err.splitlines()[0]
    assert first.startswith("Preset quick: bert-tiny on packaged movie snippets")
    assert ". Others: paper (The paper's setting" in first
    assert "laptop (MiniLM" in first
    assert harness("tune cmlm --preset quick").err.startswith("Study cmlm-search-quick-")
    assert list(workdir.iterdir()) == []


@pytest.mark.usefixtures("packaged")
def test_a_studys_name_in_the_plan_changes_with_what_it_is_judged_by(
    harness: Harness, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.cli.progress.ASK_ABOVE_HOURS", 0.0)
    own_space()

    def name(flags: str = "") -> str:
        (line,) = [
            line for line in harness(f"tune cmlm --space mine.yaml {flags}").err.splitlines() if "Study " in line
        ]
        return line.split()[1].rstrip(":")

    base = name()
    assert base.startswith("mine-search-quick-")
    assert name("--trials 5") == name("--slots 1") == base
    others = [name(flags) for flags in ("--seed 1", "--subsets 0", "--set optim.dropout=0.2", "--racing none")]
    assert len({base, *others}) == 5
    assert [path.name for path in workdir.iterdir()] == ["mine.yaml"]


@pytest.mark.usefixtures("packaged")
def test_a_study_that_another_command_runs(harness: Harness, workdir: Path) -> None:
    own_space()
    with pytest.raises(TrainingStartedError):
        harness("tune cmlm --space mine.yaml --grid")
    with sqlite3.connect(workdir / ".harness" / "harness.db") as connection:
        ((name,),) = connection.execute("SELECT study_name FROM studies")
    parent = psutil.Process(os.getppid())
    other = Owner("another", Owner.current().host, parent.pid, started_at(parent))
    assert Store("sqlite:///.harness/harness.db").lease(f"study {name}", other) == "granted"
    said = harness("tune cmlm --space mine.yaml --grid")
    assert said.status == 2
    last = said.err.strip().splitlines()[-1]
    assert last == f"harness: The study {name} is run by another command now; wait for it, or take another --seed."


@pytest.mark.usefixtures("packaged")
def test_a_damaged_list_of_final_tests_is_named_before_anything_is_trained(harness: Harness, workdir: Path) -> None:
    own_space()
    words = "tune cmlm --space mine.yaml --grid --out results"
    file = workdir / "results" / "final_test.json"
    file.parent.mkdir()
    for text in (b"", b'[{"trial": 1}', b'{"trial": 1}', b'[{"set": {}}]', b"\xff"):
        file.write_bytes(text)
        said = harness(f"{words} --final-test")
        assert said.status == 2
        last = said.err.strip().splitlines()[-1]
        assert last.startswith("harness: results/final_test.json: is damaged (")
        assert last.endswith("restore a copy, or delete it to begin a new list.")
        assert file.read_bytes() == text
    with pytest.raises(TrainingStartedError):
        harness(words)  # asks for no test score
    file.write_text('[{"trial": 3, "set": {}}]', encoding="utf-8")
    with pytest.raises(TrainingStartedError):
        harness(f"{words} --final-test")


# ---------------------------------------------------------------------------------------------------------- the help


def test_help_names_every_flag(harness: Harness) -> None:
    said = harness("tune --help")
    assert (said.status, said.err) == (0, "")
    flags = """--space --grid --search --preset --trials --sampler --racing --max-flops --metric --seed --tasks --sizes --subsets --seeds
    --encoder --data --corpus --translator --set --out --plan --final-test --format --store --slots --gpus-per-run --cpus-per-run
    --address --retry --storage --num-workers --micro-batch --checkpoint-minutes --hours --dev-points --text --label --kind --test --dev --unlabelled --remove-overlap --skip-bad-rows --protocol --track --yes"""
    assert [flag for flag in flags.split() if f"  {flag}" not in said.out] == []
    (tune,) = [action.choices["tune"] for action in build_parser()._actions if action.dest == "command"]
    known = {flag for action in tune._actions for flag in action.option_strings if flag.startswith("--")}
    assert known == {*flags.split(), "--help"}


@pytest.fixture
def study(workdir: Path, packaged: object) -> str:
    """A study with its first trial, as a command that was interrupted leaves it; its name."""
    base = Request(tasks=("movies",), sizes=(20,), subsets=(0,), seeds=(31,))
    with open_study(prepare_study(TuneRequest("ft", base, racing="none"))) as opened:
        history = opened.proposals.history
        number = history.propose(opened.points.space.defaults)
        _remember(opened, "started", history.entries[number].trial)
        history.add_outcome(number, 1, ReplicateOutcome((0.75,), flops=1e9, seconds=2.0, trained=1, stages=1))
        history.finish(number, "complete", "", (0.75,))
    return opened.name


def test_the_studies_of_a_store_are_listed_and_reported(study: str, harness: Harness) -> None:
    listed = harness("list studies")
    assert listed.status == 0, listed.err
    (line,) = [line for line in listed.out.splitlines() if line.startswith(study)]
    assert line.split()[1:10] == ["few_shot", "FT", "1", "0", "0", "0", "0", "75.00", "accuracy"]
    said = harness(f"report --study {study[:4]}")
    assert said.status == 0, said.err
    assert f"Study {study}: FT (ft)" in said.out
    assert "75.00*" in said.out
    assert said.err.endswith(f"Next: harness bench --with {Path('.harness/studies').absolute() / study}/best.yaml\n")
    assert harness(f"report --study {study} --format csv").out.count("\n") == 3, (
        "a line of names, the point and its replicate"
    )
    frame = api.studies()
    assert frame.loc[0, ["study", "complete", "failed", "best"]].tolist() == [study, 1, 0, 0.75]
    assert api.study(study).best is not None


def test_a_study_is_reported_whatever_its_sampler_would_propose_now(
    workdir: Path, packaged: object, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of Optuna draws otherwise, and the space's file is named from the folder of its command."""
    own_space()
    with open_study(prepare_study(TuneRequest("cmlm", Request(tasks=("movies",)), space="mine.yaml"))) as opened:
        history = opened.proposals.history
        for point in ({**opened.points.space.defaults}, {**opened.points.space.defaults, "alpha": 1.25}):
            number = history.propose(point)
            _remember(opened, "started", history.entries[number].trial)
            for done in (1, 2):
                history.add_outcome(number, done, ReplicateOutcome((0.5,), flops=1e9))
            history.finish(number, "complete", "", (0.5,))
    (workdir / "other").mkdir()
    monkeypatch.chdir(workdir / "other")
    said = harness(f"report --study mine --store sqlite:///{workdir}/.harness/harness.db")
    assert said.status == 0, said.err
    assert "1.25" in said.out
    monkeypatch.chdir(workdir)
    assert "was begun by other versions of Optuna" in harness("tune cmlm --space mine.yaml --tasks movies --yes").err


def test_the_default_point_of_a_grid_has_all_of_its_defaults(harness: Harness, packaged: object) -> None:
    """Also those of parameters that only the search varies."""
    text = "defaults: {alpha: 0.5, fine_tune.lr: 3.0e-4}\ngrid: {alpha: [0.1, 0.5]}\nsearch: {fine_tune.lr: {choice: [1.0e-4, 3.0e-4]}, alpha: {low: 0.1, high: 1}}\n"
    Path("d.yaml").write_text(f"name: d\nmethod: cmlm\ntable: few_shot\ntasks: [movies]\n{text}")
    for mode in ("grid", "search"):
        study = prepare_study(TuneRequest("cmlm", Request(), space="d.yaml", mode=mode))
        every = {run.stage.optim.lr for runs in study.points.runs(study.points.space.defaults) for run in runs}
        assert every == {3e-4}, mode
        assert {run.stage.optim.lr for run in study.prepared.plan.runs} == {3e-4}, mode


def test_what_a_space_sets_is_checked_as_set_is(harness: Harness, packaged: object) -> None:
    text = "defaults: {fine_tune.epochs: 3}\nset: {fine_tune.steps: 4}\nsearch: {fine_tune.epochs: {low: 1, high: 5}}\n"
    Path("e.yaml").write_text(f"name: e\nmethod: ft\ntable: few_shot\ntasks: [movies]\n{text}")
    said = harness("tune ft --space e.yaml --plan")
    assert said.status == 2
    assert "space e, key set" in said.err
    assert "varies fine_tune.epochs, which replaces steps" in said.err


def test_a_trial_that_will_be_run_again_has_not_ended(study: str) -> None:
    base = Request(tasks=("movies",), sizes=(20,), subsets=(0,), seeds=(31,))
    request = TuneRequest("ft", base, racing="none")
    prepared = prepare_study(request)
    with open_study(prepared) as opened:
        history = opened.proposals.history
        for status in ("failed", "diverged"):
            number = history.propose(opened.points.space.defaults | {"fine_tune.lr": 1e-5 * len(history.entries)})
            history.add_outcome(number, 1, ReplicateOutcome((0.0,), flops=1e9, trained=1, stages=1, status=status))
            history.finish(number, "complete", "", (0.0,))
    assert (prepared.name, prepared.plan().ended) == (study, 2), "the failed one is tried again"
    assert prepare_study(replace(request, base=replace(base, retry=True))).plan().ended == 1


@pytest.mark.parametrize(("last", "status"), [("done", 0), ("diverged", 0), ("failed", 1)])
@pytest.mark.usefixtures("packaged", "workdir")
def test_failed_replicates_are_said_in_the_exit_status(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, last: Status, status: int
) -> None:
    own_space()
    request = TuneRequest("cmlm", Request(tasks=("movies",)), space="mine.yaml", mode="grid", racing="none")
    with open_study(prepare_study(request)) as opened:
        history = opened.proposals.history
        for point, second in zip(opened.points.space.grid_points(), ("done", last), strict=True):
            number = history.propose(point)
            _remember(opened, "started", history.entries[number].trial)
            for done, ended in ((1, "done"), (2, second)):
                history.add_outcome(number, done, ReplicateOutcome((0.5,), flops=1e9, status=ended))
            history.finish(number, "complete", "", (0.5,))
    monkeypatch.setattr(study_commands, "run_trials", lambda *_: None)  # the replicate fails once more
    said = harness("tune cmlm --space mine.yaml --grid --racing none --tasks movies --yes")
    assert said.status == status, said.err
    assert ("Replicates of 1 point failed; the same command tries them again." in said.err) == bool(status)


def test_points_left_are_said_in_the_exit_status(study: str, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_commands, "run_trials", lambda opened, *_: setattr(opened, "over", "time is over"))
    said = harness("tune ft --tasks movies --sizes 20 --subsets 0 --seeds 31 --racing none --trials 2 --yes")
    assert f"Study {study}:" in said.err
    assert "Ended because time is over: 1 point left at most; the same command goes on." in said.err
    assert said.status == 1
    assert harness(f"report --study {study}").status == 0


def test_a_study_that_runs_is_reported(study: str, harness: Harness) -> None:
    parent = psutil.Process(os.getppid())
    other = Owner("another", Owner.current().host, parent.pid, started_at(parent))
    store = Store("sqlite:///.harness/harness.db")
    assert store.lease(f"study {study}", other) == "granted"
    before = harness(f"report --study {study} --format csv")
    assert f"The study {study} is running: these are the trials that it has so far." in before.err
    assert api.study(study).best is not None
    assert store.lease(f"study {study}", Owner.current()) == "held", "the other command has it still"
    store.release(other)
    after = harness(f"report --study {study} --format csv")
    assert (after.out, "is running" in after.err) == (before.out, False)


@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize(("limit", "left_out"), [("1x", 3), ("1000x", 0)])
def test_the_plan_says_how_many_points_of_a_grid_cost_too_much(limit: str, left_out: int, harness: Harness) -> None:
    steps = "defaults: {fine_tune.steps: 40}\ngrid: {fine_tune.steps: [20, 40, 200, 400, 800]}\n"
    Path("steps.yaml").write_text(
        f"name: steps\nmethod: ft\ntable: few_shot\n{steps}sizes: [20]\nsubsets: 2\nseeds: [31]\n"
    )
    words = "tune ft --space steps.yaml --grid --plan"
    free, said = harness(words), harness(f"{words} --max-flops {limit}")
    assert (free.status, said.status, "Not run" in free.out) == (0, 0, False), said.err
    assert f"Not run: {left_out} of 5 points, which cost more than " in " ".join(said.out.split())
    stages = f"{10 - 2 * left_out} of {10 - 2 * left_out} stages"
    assert stages in said.out
    assert said.out.split()[1] != free.out.split()[1], "another study"
    plan = api.tune_plan("ft", space="steps.yaml", mode="grid", max_flops=limit)
    assert (plan.points, plan.excluded, plan.stages, plan.to_train) == (5, left_out, *[10 - 2 * left_out] * 2)
    assert f"Study {plan.name}: " in said.out


@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--max-flops few",
            "--max-flops: 'few' should be a number of FLOPs such as 2e12, or a multiple of the default point's such as 1.5x.",
        ),
        ("--max-flops -1", "--max-flops: '-1' should be a number of FLOPs"),
        ("--max-flops 0.5x", "--max-flops 0.5x: a replicate of the default point, which is run first, costs "),
        ("--max-flops 10", "--max-flops 10: a replicate of the default point, which is run first, costs "),
        ("--max-flops 2x --sampler gp", "--sampler gp: learns nothing from points that max_flops leaves out"),
    ],
)
def test_a_limit_of_flops_that_cannot_be(words: str, sentence: str, refused: Refused) -> None:
    assert sentence in refused(f"tune ft --plan --search {words}")


def test_a_report_of_a_study_refuses(study: str, refused: Refused) -> None:
    assert "unknown study 'other'. Known: " in refused("report --study other")
    assert "which --tasks and --last cannot change" in refused(f"report --study {study} --tasks movies --last")
    assert "the study's page is written beside them" in refused(f"report --study {study} --format html")


def test_a_store_without_studies(refused: Refused) -> None:
    assert "There is no store" in refused("report --study other")
    assert "holds no study yet" in refused("list studies")
