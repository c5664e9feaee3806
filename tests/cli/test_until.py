"""`bench --until`: each round is an ordinary bench of a larger grid; nothing that is recorded is trained again."""

from __future__ import annotations

from pathlib import Path

import pytest
import trained
from cli.conftest import BENCH, Harness

from harness.commands.bench import rounds
from harness.errors import UserError
from harness.planning.request import Request


def test_rounds_grow_by_a_subset_and_a_seed_and_keep_what_is_done(
    harness: Harness, workdir: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def counting(prepared: object, view: object) -> object:
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
