"""`plan` says what would run and what it costs; it trains nothing, writes nothing and uses no network."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.command import MOVIES, SST2, Said, data_folder

Harness = Callable[..., Said]


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a plan used the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.mark.usefixtures("_no_network")
def test_the_papers_plan_without_data_or_network(harness: Harness, workdir: Path) -> None:
    said = harness("plan --table few_shot --preset paper")
    assert (said.status, said.err) == (0, "")
    assert "Runs: 1,575, one for each" in said.out
    assert "Stages: 2,520" in said.out
    assert "to train: 2,520" in said.out
    assert "Unresolved (not at hand; keys are provisional): encoder roberta-base, data " in said.out
    assert "FLOPs, about" in said.out
    assert list(workdir.iterdir()) == []


def test_the_papers_plan_on_real_data(harness: Harness, workdir: Path, glue_dir: Path) -> None:
    """Resolved keys: the number of distinct stages is still the same."""
    said = harness("plan", "--table", "few_shot", "--preset", "paper", "--data", str(glue_dir))
    assert said.status == 0
    assert "Stages: 2,520" in said.out
    assert "Overlap:" in said.out
    assert "39,200 rows (row sets: 105) are back-translated by opus-mt:de,zh" in said.out
    assert "Unresolved (not at hand; keys are provisional): encoder roberta-base." in said.out
    assert list(workdir.iterdir()) == []


@pytest.mark.usefixtures("_no_network", "packaged")
def test_a_plan_of_what_is_at_hand(harness: Harness, workdir: Path) -> None:
    said = harness(f"plan {MOVIES.replace('ft', 'ft,tapt,cmlm')} --seeds 31,42 --set cmlm.alpha=0")
    assert said.status == 0
    assert said.out.startswith("To do: 7 stages")
    assert "\nPreset quick: bert-tiny on packaged movie snippets" in said.out
    assert re.search(r"\. Others: paper \(The paper's setting.*laptop \(", said.out)
    # FT 2 runs; TAPT and CMLM with alpha 0 are one computation: 2 post-trainings, 2 fine-tunings; 1 MLM head
    assert (
        "Runs: 6, one for each row, task, size, subset and seed (4 distinct: equal ones are trained once)" in said.out
    )
    assert "Stages: 7, the training phases of these runs (5 of them used by several runs, trained once)." in said.out
    assert "Stages done: 0, failed: 0, diverged: 0, to train: 7." in said.out
    assert "Unresolved" not in said.out
    assert list(workdir.iterdir()) == []
    # a shared stage is counted in the first row that has it: the column adds up to the plan's number
    header, _, *rows = said.out.rpartition("\n\n")[2].splitlines()
    ends = [header.index(name) + len(name) for name in ("Runs", "Stages", "To train")]
    columns = {row.split()[0]: [int(row[:end].split()[-1]) for end in ends] for row in rows}
    assert columns == {"FT": [2, 2, 2], "TAPT": [2, 5, 5], "CMLM": [2, 5, 0]}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process has no affinity here")
@pytest.mark.usefixtures("_no_network", "packaged", "workdir")
def test_a_process_uses_the_cores_of_its_affinity(harness: Harness) -> None:
    """And a packaged table is found as a checkout has it, from any folder."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        said = harness(f"plan {MOVIES} --table benchmarks/few_shot.yaml")
    finally:
        os.sched_setaffinity(0, allowed)
    assert " on 1 slot of this machine" in said.out


@pytest.mark.usefixtures("_no_network", "workdir")
def test_a_row_with_a_grid_is_one_line(harness: Harness) -> None:
    """With the values of all its configurations; its runs add up to the plan's."""
    said = harness("plan --table taco_base --preset paper --tasks rte,mrpc --set fine_tune.clip=0.5")
    assert said.status == 0
    header, _, *rows = said.out.rpartition("\n\n")[2].splitlines()
    ends = [header.index(name) + len(name) for name in ("Runs", "Stages", "To train")]
    columns = [[int(row[:end].split()[-1]) for end in ends] for row in rows]
    assert [row.split()[0] for row in rows] == [
        f"{name}-{step}00k".replace("200k", "250k") for name in ("MLM", "TACO") for step in (1, 2, 5)
    ]
    assert columns == [[12, 13, 13], [12, 13, 12], [12, 13, 12]] * 2
    assert f"Runs: {sum(runs for runs, *_ in columns)}, " in said.out
    assert f"to train: {sum(left for *_, left in columns)}." in said.out
    assert all("fine_tune.epochs=" in row and "4.0" in row for row in rows)
    assert not any("warmup_steps" in row for row in rows), "that is MNLI's grid"


@pytest.mark.parametrize("words", ["plan", "report"])
def test_wrong_data_are_said_by_a_plan_too(harness: Harness, tmp_path: Path, words: str) -> None:
    data_folder(tmp_path / "data")
    (tmp_path / "data" / "sst2" / "train.csv").write_text("sentence,label\nplain,5\n")
    said = harness(f"{words} {SST2} --data data")
    assert said.status == 2
    assert "train.csv, line 2: label '5' is unknown" in said.err


def test_these_commands_import_neither_torch_nor_ray(workdir: Path) -> None:
    """One after another in one process, so that the first that imports one of them is named."""
    lines = ["list methods", "list tables", "show abc", "plan --table nothing", f"plan {MOVIES}", f"report {MOVIES}"]
    code = (
        "import sys; from harness.cli import main\n"
        f"for line in {lines!r}:\n"
        "    main(line.split())\n"
        "    heavy = {'torch', 'ray', 'transformers', 'optuna'} & set(sys.modules)\n"
        "    if heavy: sys.exit(f'{line} imported {heavy}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=workdir, check=False)
    assert done.returncode == 0, done.stderr
