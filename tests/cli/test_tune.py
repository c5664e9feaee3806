"""`tune` refuses what is wrong before Ray starts, and says what it is about to do before it does it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cli.command import Terminal
from cli.conftest import Harness
from search.small import SPACE, ran

import harness as api
from harness.commands import study as study_commands
from harness.commands.recorded import tune_command
from harness.commands.study import open_study, prepare_study
from harness.machine import started_at
from harness.planning.request import Request, parse_override
from harness.search.request import TuneRequest
from harness.specs import Status
from harness.store import Owner, Store

Refused = Callable[..., str]


def own_space() -> None:
    Path("mine.yaml").write_text(f"{SPACE}sizes: [100]\nsubsets: 2\nseeds: [31]\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tune cmml", "tune: unknown method 'cmml'. Did you mean 'cmlm'? Known: cmlm, coco_lm,"),
        ("tune mlm", "tune mlm: no packaged space varies this method; write one and name it with --space"),
        ("tune taco_fine_tune", "is a space and no method; tune the method ft with --space taco_fine_tune"),
        ("tune cmlm --space scl", "--space scl: the space scl is for the method scl, and not for cmlm"),
        ("tune cmlm --sampler tpp", "--sampler: unknown sampler 'tpp'. Did you mean 'tpe'?"),
        ("tune cmlm --metric accurcy", "--metric accurcy: the task movies does not have it; it has accuracy"),
        ("tune cmlm --grid --search", "argument --search: not allowed with argument --grid"),
        ("tune cmlm --grid --trials 5", "--trials: a grid ends by itself; leave it out, or draw from the grid"),
        ("tune cmlm --set cmlm.alpha=0.2", "--set cmlm.alpha=0.2: the search of cmlm varies cmlm.alpha itself"),
        ("tune cmlm --set optim.lr=1e-4", "--set optim.lr=1e-4: the search of cmlm varies fine_tune.lr itself"),
        ("tune ft --set fine_tune.steps=40", "varies fine_tune.epochs itself; leave one of them out"),
        ("tune cmlm --out file/below", "file is not writable; name another place with its flag"),
        ("tune ft --format parquet", "--format: unknown format 'parquet'"),
    ],
)
def test_what_a_user_wrote_wrong(refused: Refused, workdir: Path, line: str, said: str) -> None:
    (workdir / "file").touch()
    assert said in (found := refused(line)), found


def test_the_command_of_a_study() -> None:
    overrides = (parse_override("optim.lr=1e-5", "--set"),)
    base = Request(tasks=("sst2",), sizes=(100,), store="postgresql://me:secret@host/x", overrides=overrides)
    said = tune_command(TuneRequest("scl", base, space="my space.yaml", mode="grid", trials=4, metric="f1", seed=3))
    words = (
        "--grid --space 'my space.yaml' --trials 4 --metric f1 --seed 3 --tasks sst2 --sizes 100 --set optim.lr=1e-5"
    )
    assert said.startswith(f"harness tune scl {words} --store ")
    assert "secret" not in said


# ---------------------------------------------------------------------------------------------------------- the plan


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
        "search over alpha 0.01 to 2 (log); p_c 0.1 to 0.9 in steps of 0.1; num_views 1 to 3; contrast simsiam, simclr; "
        "temperature 0.02 to 0.5 (log) where contrast is simclr" in shown
    )
    assert "100,000 points, sampler tpe, racing paired, seed 0; first the default point, alpha=0.5" in shown
    assert "2 subsets x 1 seed = 2 replicates a point" in shown
    assert "To do: 400,001 of 400,001 stages" in shown
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert "Nothing was trained." in harness("tune cmlm --space mine.yaml --trials 100000").err
    assert [path.name for path in workdir.iterdir()] == ["mine.yaml"]


@pytest.mark.usefixtures("packaged")
def test_the_plan_of_a_grid_is_exact(harness: Harness, workdir: Path) -> None:
    """4 points x 2 subsets: a post-training and a fine-tuning each, and one MLM head."""
    own_space()
    said = harness("tune cmlm --space mine.yaml --grid --plan").out
    assert "4 points, sampler grid, racing none" in said
    assert "To do: 17 of 17 stages" in said
    narrower = harness("tune cmlm --space mine.yaml --grid --subsets 1 --plan").out
    assert "1 subset x 1 seed = 1 replicate" in narrower
    assert "To do: 9 of 9 stages" in narrower
    assert [path.name for path in workdir.iterdir()] == ["mine.yaml"]


STUDY = "tune ft --tasks movies --sizes 20 --subsets 0 --seeds 31 --racing none --trials 2 --yes"


@pytest.fixture
def study(workdir: Path, packaged: object) -> str:
    """A study with its first trial, as a command that was interrupted leaves it; its name."""
    base = Request(tasks=("movies",), sizes=(20,), subsets=(0,), seeds=(31,))
    with open_study(prepare_study(TuneRequest("ft", base, racing="none"))) as opened:
        ran(opened, opened.points.space.defaults, 0.75)
    return opened.name


def test_the_studies_of_a_store_are_listed(study: str, harness: Harness) -> None:
    listed = harness("list studies")
    assert listed.status == 0, listed.err
    (line,) = [line for line in listed.out.splitlines() if line.startswith(study)]
    assert line.split()[1:9] == ["few_shot", "FT", "1", "0", "0", "0", "75.00", "accuracy"]
    frame = api.studies()
    assert frame.loc[0, ["study", "complete", "failed", "best"]].tolist() == [study, 1, 0, 0.75]


def test_a_study_is_run_by_one_command_at_a_time(study: str, harness: Harness) -> None:
    parent, store = psutil.Process(os.getppid()), Store("sqlite:///.harness/harness.db")
    other = Owner("another", Owner.current().host, parent.pid, started_at(parent))
    assert store.lease(f"study {study}", other) == "granted"
    last = harness(STUDY).err.strip().splitlines()[-1]
    assert last == f"harness: The study {study} is run by another command now; wait for it, or take another --seed."


@pytest.mark.parametrize(("last", "status"), [("diverged", 0), ("failed", 1)])
@pytest.mark.usefixtures("packaged", "workdir")
def test_failed_replicates_are_said_in_the_exit_status(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, last: Status, status: int
) -> None:
    own_space()
    request = TuneRequest("cmlm", Request(tasks=("movies",)), space="mine.yaml", mode="grid", racing="none")
    with open_study(prepare_study(request)) as opened:
        statuses: tuple[Status, ...] = ("done", "done", "done", last)
        for point, second in zip(opened.points.space.first_points, statuses, strict=True):
            ran(opened, point, 0.5, 0.5, status=second)
    assert prepare_study(request).plan().ended == 4 - status, "a failed one is tried again"
    monkeypatch.setattr(study_commands, "run_trials", lambda *_: None)  # the replicate fails once more
    said = harness("tune cmlm --space mine.yaml --grid --racing none --tasks movies --yes")
    assert said.status == status, said.err
    assert ("Replicates of 1 point failed; the same command tries them again." in said.err) == bool(status)


def test_points_left_are_said_in_the_exit_status(study: str, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_commands, "run_trials", lambda opened, *_: setattr(opened, "stopped", "time is over"))
    said = harness(STUDY)
    assert f"Study {study}:" in said.err
    assert f"Study {study}: FT (ft)" in said.out
    assert "75.00*" in said.out
    best = Path(".harness/studies").absolute() / study / "best.yaml"
    assert f"Next: harness bench --with {best}\n" in said.err
    assert "Ended because time is over: 1 point left at most; the same command goes on." in said.err
    assert said.status == 1
