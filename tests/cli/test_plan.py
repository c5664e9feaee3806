"""`plan` says what would run and what it costs; it trains nothing, writes nothing and uses no network."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from cli.command import MOVIES
from cli.conftest import Harness


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a plan used the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


def rows_of(out: str) -> dict[str, list[int]]:
    """Runs, stages and stages to train by row, of the table below a plan."""
    header, _, *rows = out.rpartition("\n\n")[2].splitlines()
    ends = [header.index(name) + len(name) for name in ("Runs", "Stages", "To train")]
    return {row.split()[0]: [int(row[:end].split()[-1].replace(",", "")) for end in ends] for row in rows}


@pytest.mark.usefixtures("_no_network")
def test_the_papers_plan_without_data_or_network(harness: Harness, workdir: Path) -> None:
    said = harness("plan --table few_shot --preset paper")
    assert (said.status, said.err) == (0, "")
    for part in ("Runs: 1,575, one for each", "Stages: 2,520", "to train: 2,520", "FLOPs, about"):
        assert part in said.out
    assert "Unresolved (not at hand; keys are provisional): encoder roberta-base, data " in said.out
    assert list(workdir.iterdir()) == []


def test_the_papers_plan_on_real_data(harness: Harness, workdir: Path, glue_dir: Path) -> None:
    """Resolved keys: the number of distinct stages is still the same."""
    said = harness("plan", "--table", "few_shot", "--preset", "paper", "--data", str(glue_dir))
    assert said.status == 0
    assert "Stages: 2,520" in said.out
    assert "Overlap:" in said.out
    assert "39,200 rows (row sets: 105) are back-translated by opus-mt:de,zh" in said.out
    assert "Unresolved (not at hand; keys are provisional): encoder roberta-base." in said.out


@pytest.mark.usefixtures("_no_network", "packaged")
def test_a_plan_of_what_is_at_hand(harness: Harness, workdir: Path) -> None:
    said = harness(f"plan {MOVIES.replace('ft', 'ft,tapt,cmlm')} --seeds 31,42 --set cmlm.alpha=0")
    assert (said.status, list(workdir.iterdir())) == (0, [])
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
    # a shared stage is counted in the first row that has it: the column adds up to the plan's number
    assert rows_of(said.out) == {"FT": [2, 2, 2], "TAPT": [2, 5, 5], "CMLM": [2, 5, 0]}
    # the name that captions print for a preset's data is the preset's own
    assert harness(f"plan {MOVIES} --data packaged").out == harness(f"plan {MOVIES}").out


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
    columns = rows_of(said.out)
    steps = [f"{name}-{step}k" for name in ("MLM", "TACO") for step in (100, 250, 500)]
    assert list(columns) == steps
    assert [*columns.values()] == [[12, 13, 13], [12, 13, 12], [12, 13, 12]] * 2
    assert f"Runs: {sum(runs for runs, *_ in columns.values())}, " in said.out
    assert f"to train: {sum(left for *_, left in columns.values())}." in said.out
    rows = said.out.splitlines()[-6:]
    assert all("fine_tune.epochs=" in row and "4.0" in row for row in rows)
    assert not any("warmup_steps" in row for row in rows), "that is MNLI's grid"
