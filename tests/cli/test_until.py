"""Benches within a budget. `--until`: each round is an ordinary bench of a larger grid; nothing that is recorded is trained again. `--hours`: it ends
in order."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import trained
from cli.conftest import BENCH, Harness
from cluster import in_process

from harness.commands.bench import rounds
from harness.commands.prepare import prepare
from harness.errors import UserError
from harness.planning.lifecycle import Lifecycle
from harness.planning.request import Request, overrides_of


def test_rounds_grow_by_a_subset_and_a_seed_and_keep_what_is_done(
    harness: Harness, workdir: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def counting(prepared: object, view: object, **_: object) -> object:
        counted.append(len(prepared.items))  # type: ignore[attr-defined]
        return trained.train_here(prepared, view)  # type: ignore[arg-type]

    monkeypatch.setattr("harness.commands.bench.train", counting)
    trained.sentiment_folder(workdir / "data")
    words = BENCH.format(encoder=bert, methods="ft").replace("steps=6", "steps=1")
    said = harness(f"{words} --until 100")
    assert said.status == 0, said.err
    assert counted == [15]
    assert "Looks at ±100 points: 4, the last at 8 subsets x 6 seeds; all of it would be 48 stages" in said.err
    assert "Look 1, 5 subsets x 3 seeds: the widest interval is ±" in said.err
    assert "(FT, SST-2, 20 examples); all 1 within ±100." in said.err
    assert "5 subsets x 3 seeds" in said.out
    said = harness(f"{words} --until 0.01 --max-replicates 24")
    assert said.status == 1
    assert counted == [15, 9], "the first round is recorded"
    assert "Look 2, 6 subsets x 4 seeds: " in said.err
    assert "1 of 1 wider than ±0.01" in said.err
    assert "The budget is used up; --max-replicates allows more." in said.err
    again = harness("report")
    assert again.out == said.out, "the last round is the last bench"
    assert counted == [15, 9]


def test_a_bench_without_time_trains_nothing_and_the_same_command_goes_on(
    harness: Harness, workdir: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process.patch(monkeypatch)
    trained.sentiment_folder(workdir / "data")
    words = BENCH.format(encoder=bert, methods="ft").replace("steps=6", "steps=1") + " --seeds 31,42"
    said = harness(f"{words} --hours 0")
    assert said.status == 1
    assert re.search(r"^FT +0/2$", said.out, re.MULTILINE)
    assert "Ended because the time of this command is over: 2 stages left; the same command goes on." in said.err
    assert harness(f"{words} --hours 0 --until 1").status == 1
    said = harness(f"{words} --hours 1")
    assert said.status == 0, said.err
    assert "Ended" not in said.err


def test_stages_start_in_the_order_of_growing_grids(workdir: Path, bert: Path) -> None:
    trained.sentiment_folder(workdir / "data")
    request = Request(
        "few_shot",
        tasks=("sst2",),
        data="data",
        encoder=str(bert),
        methods=("ft", "tapt"),
        sizes=(20,),
        subsets=(3, 1, 0),
        seeds=(7, 5),
    )
    prepared = prepare(replace(request, overrides=overrides_of({"max_length": 64})), train=False)
    turns = {item.stage.key: item.turn for item in prepared.items}
    place = {pair: max(pair) for pair in product(range(3), range(2))}
    for run in prepared.plan.runs:
        assert turns[run.stage.key] == place[(3, 1, 0).index(run.subset), (7, 5).index(run.seed)]
        assert all(turns[parent.key] <= turns[run.stage.key] for parent in run.stage.chain)
    life, order = Lifecycle(prepared.items), []
    while item := life.next_item():
        life.started(item)
        life.finished(item, "done")
        order.append(item.turn)
    assert order == sorted(order), "parents of a later turn wait for children of an earlier one"
    assert len(order) == len(prepared.items)


def test_subsets_and_seeds_continue_those_of_the_bench() -> None:
    first, second, *_ = rounds(Request("few_shot", preset="quick", subsets=(2, 4), seeds=(31,)), 50)
    assert first.subsets == (2, 4, 0, 1, 3)
    assert first.seeds == (31, 42, 53), "the table's own"
    assert second.subsets == (2, 4, 0, 1, 3, 5)
    assert second.seeds == (31, 42, 53, 54)
    (only, *_) = rounds(Request("scl_full_size", preset="quick"), 50)
    assert only.subsets == (0,)
    with pytest.raises(
        UserError, match="--max-replicates 14: the first look is at 5 subsets x 3 seeds; allow 15 or more"
    ):
        list(rounds(Request("few_shot"), 14))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--until 0", "--until: '0' is not a number of points such as 1 or 0.5"),
        ("--max-replicates 20", "--max-replicates: is for --until POINTS"),
        (
            "--until 1 --max-replicates 3",
            "--max-replicates 3: the first look is at 5 subsets x 3 seeds; allow 15 or more.",
        ),
    ],
)
def test_wrong_words_are_refused(words: str, says: str, harness: Harness) -> None:
    said = harness(f"bench --table few_shot --tasks movies --methods ft {words}")
    assert said.status == 2
    assert says in said.err
