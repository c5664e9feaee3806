"""`report` and `show` without flags take them from the benches that the store remembers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.command import SST2, data_folder, record_all
from cli.conftest import Harness

from harness.cli.request import read_words
from harness.commands.prepare import Calibration, prepare
from harness.store import Store
from harness.yaml_files import packaged_files


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch, workdir: Path) -> None:
    """Benches end at once, and their times differ by a second."""
    now = iter(range(1_700_000_000, 1_800_000_000))
    monkeypatch.setattr(Store, "_now", lambda *_: float(next(now)))
    monkeypatch.setattr("harness.commands.train.train", record_all)
    monkeypatch.setattr("harness.commands.prepare.calibrate", lambda *_: Calibration(1e9, "a test"))
    data_folder(workdir / "data")


FIRST = f"{SST2} --data data --encoder bert-tiny --set fine_tune.steps=20"
SECOND = f"{SST2} --data data --encoder bert-tiny --set fine_tune.steps=30 --set optim.lr=2e-4 --seeds 31,42"

pytestmark = pytest.mark.usefixtures("packaged")


def test_a_finished_table_comes_back_without_its_flags(harness: Harness) -> None:
    first, second = harness(f"bench {FIRST}"), harness(f"bench {SECOND}")
    assert (first.status, second.status) == (0, 0), first.err
    assert first.out != second.out
    for words in ("report", "report --table few_shot"):
        said = harness(words)
        assert (said.status, said.out) == (0, second.out)
        assert "harness report --table few_shot --preset quick --methods ft --tasks sst2" in said.err
        assert "--set fine_tune.steps=30 --set optim.lr=2e-4" in said.err
    assert harness(f"bench {FIRST}").out == first.out  # nothing is trained, and it becomes the last bench
    assert harness("report").out == first.out


def test_flags_that_are_given_win_and_the_last_bench_gives_the_others(harness: Harness) -> None:
    first, second = harness(f"bench {FIRST}"), harness(f"bench {SECOND}")
    said = harness(f"report {FIRST}")
    assert (said.status, said.out) == (0, first.out)
    assert "As in the last bench" not in said.err
    # with --table and other flags nothing is taken from a bench
    said = harness(f"report {SST2} --data data --encoder bert-tiny")
    assert "0/1" in said.out
    assert "'harness list benches'" in said.err, "none of its runs is recorded"
    # without --table they change the last bench
    narrower = harness("report --seeds 31")
    assert narrower.status == 0
    assert narrower.out not in (first.out, second.out)
    assert harness("report --seeds 31 --set fine_tune.steps=40").status == 1  # none of it is trained
    # as with --last
    assert harness("report --last --table few_shot --methods ft").out == second.out
    assert harness(f"report --last {FIRST} --set optim.lr=6e-4 --seeds 31").status == 1  # no such bench
    said = harness("report --last --table ablation")
    assert (said.status, said.out) == (2, "")
    assert "report --last: the store sqlite:///.harness/harness.db holds no bench of ablation yet" in said.err


def commands(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if "harness bench" in line:
            yield shlex.split(line[line.index("harness bench") :])[1:]


def test_show_prints_the_command_that_makes_a_run_again(harness: Harness) -> None:
    """The printed command, run in a shell, finds the same stage and trains nothing; those of all benches are listed, the last one last."""
    assert "holds no such benches" in harness("list benches").err
    harness(f"bench {FIRST}")
    harness(f"bench {SECOND}")
    first, last = commands(harness("list benches").out)
    assert ["fine_tune.steps=20" in first, "fine_tune.steps=30" in last] == [True, True]
    assert "To do: nothing." in harness(*first).err
    store = Store("sqlite:///.harness/harness.db")
    keys = store.keys_like("")
    assert len(keys) >= 3
    for key in keys:
        (words,) = commands(harness(f"show {key}").out)
        plan = prepare(read_words(words), train=False).plan
        assert key in plan.stages
        assert [run.stage.key for run in plan.runs if run.stage.key == key] == [key] * bool(store.labels([key]))
        assert len(plan.runs) == 1 or not store.labels([key])
        assert "To do: nothing." in harness(*words).err


def test_show_prints_a_command_that_is_read_where_a_cell_needs_several_runs_and_names_hold_commas(
    harness: Harness,
) -> None:
    """A cell of SCL's is the mean of the three best runs of one of 24 points, whose names say lambda and tau."""
    bench = "bench --table scl_few_shot --preset grid --encoder bert-tiny --data data --tasks sst2 --sizes 20 --subsets 0,1,2 --set fine_tune.steps=2"
    done = harness(*bench.split(), "--methods", "CE + SCL (tuned)")
    assert done.status == 0, done.err
    store = Store("sqlite:///.harness/harness.db")
    key = next(key for key in store.keys_like("") for label in store.labels([key]) if "," in label["row"])
    (words,) = commands(harness(f"show {key}").out)
    assert '"' in words[words.index("--methods") + 1]
    again = harness(*words)
    assert again.status == 0, again.err
    assert "To do: nothing." in again.err
    plan = prepare(read_words(words), train=False).plan
    assert (key in plan.stages, len(plan.runs)) == (True, 3)


def test_a_users_own_files_and_a_points_file(harness: Harness, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's table is named by its file; the command holds the values of a --with file and needs that file no more. In
    another folder the paths are absolute."""
    Path("mine.yaml").write_text(packaged_files("benchmarks")["few_shot"].read_text(encoding="utf-8"), encoding="utf-8")
    Path("best.yaml").write_text("method: ft\nset: {fine_tune.steps: 20}\n", encoding="utf-8")
    words = FIRST.replace("few_shot", "mine.yaml").replace("--set fine_tune.steps=20", "--with best.yaml")
    said = harness(f"bench {words} --store sqlite:///{workdir}/x.db")
    assert said.status == 0, said.err
    Path("best.yaml").unlink()
    store = f"--store sqlite:///{workdir}/x.db"
    assert harness(f"report --table ./mine.yaml {store}").out == said.out
    assert harness(f"report --table few_shot --data data --tasks sst2 {store}").out != said.out
    (workdir / "elsewhere").mkdir()
    monkeypatch.chdir(workdir / "elsewhere")
    assert harness(f"report {store}").out.partition("\n\n")[0] == said.out.partition("\n\n")[0]
    (key, *_) = Store(f"sqlite:///{workdir}/x.db").keys_like("")
    (again,) = commands(harness(f"show {key} {store}").out)
    assert str(workdir / "mine.yaml") in again
    assert "To do: nothing." in harness(*again).err
