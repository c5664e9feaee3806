"""`bench --hours` ends in order, and stages start so that a full grid is done early."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
import trained
from cli.conftest import BENCH, Harness
from cluster import in_process

from harness.cli.request import read_words
from harness.cluster.stages import Stages
from harness.commands.prepare import prepare
from harness.planning.work import Ended
from harness.storage import Storage


def test_a_bench_without_time_trains_nothing_and_the_same_command_goes_on(
    harness: Harness, workdir: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process.patch(monkeypatch)
    trained.sentiment_folder(workdir / "data")
    words = BENCH.format(encoder=bert, methods="ft").replace("steps=6", "steps=1")
    said = harness(f"{words} --hours 0")
    assert said.status == 1
    assert re.search(r"^FT +0/2$", said.out, re.MULTILINE)
    assert "Ended because the time of this command is over: 2 stages left; the same command goes on." in said.err
    said = harness(f"{words} --hours 1")
    assert said.status == 0, said.err
    assert "Ended" not in said.err


def test_stages_start_in_the_order_of_growing_grids(workdir: Path, bert: Path) -> None:
    """No stage waits for one of a later turn."""
    trained.sentiment_folder(workdir / "data")
    words = BENCH.format(encoder=bert, methods="ft,tapt").replace(
        "--subsets 0 --seeds 31,42", "--subsets 3,1,0 --seeds 7,5"
    )
    prepared = prepare(read_words(words.split()), train=False)
    turns = {item.stage.key: item.turn for item in prepared.items}
    place = {pair: max(pair) for pair in product(range(3), range(2))}
    for run in prepared.plan.runs:
        assert turns[run.stage.key] == place[(3, 1, 0).index(run.subset), (7, 5).index(run.seed)]
        assert all(turns[parent.key] <= turns[run.stage.key] for parent in run.stage.chain)
    storage, order = Storage(str(workdir / "weights")), []
    stages = Stages(prepared.items, lambda *asked: "granted" if asked[0] == "lease" else None, storage, False)
    while item := stages.next():
        for name in item.stored:
            storage.write(name, b"weights")
        stages.ended(item, Ended("done"))
        order.append(item.turn)
    assert order == sorted(order), "parents of a later turn wait for children of an earlier one"
    assert len(order) == len(prepared.items)
