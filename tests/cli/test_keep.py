"""`--keep` decides which weights stay; the plan says how much space they take."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from cli.command import Said
from cli.conftest import BENCH, Benched

from harness.commands.train import BestWeights
from harness.encoders.flops import weights_bytes
from harness.planning.runs import best_run
from harness.storage import Storage, weights_of

Harness = Callable[..., Said]


def kept(order: list[str], cells: dict[str, list[str]], scores: dict[str, float], folder: Path) -> set[str]:
    """The runs whose weights are left when the runs end in this order; `cells`: the rows of each run, 'FT @ 1' one of the configurations of FT."""
    storage = Storage(str(folder))
    stages = {key: SimpleNamespace(key=key, selection=SimpleNamespace(metric="accuracy")) for key in cells}
    runs = [SimpleNamespace(row=row, task="t", size=20, stage=stages[key]) for key in cells for row in cells[key]]
    titles = {run.row: run.row.partition(" @ ")[0] for run in runs}
    plan: Any = SimpleNamespace(runs=runs, stages={}, resolved=SimpleNamespace(titles=titles))
    done: set[str] = set()
    records = {key: SimpleNamespace(status="done", dev_scores={"accuracy": score}) for key, score in scores.items()}
    store: Any = SimpleNamespace(
        statuses=lambda keys: {key: ("done", 1) for key in keys if key in done},
        records=lambda keys: {key: records[key] for key in keys},
    )
    best = BestWeights(plan, store, storage)
    exported = best_run(runs, store.records(order)).stage.key
    for number, key in enumerate(order):
        if number == 2:  # the command is run again
            best = BestWeights(plan, store, storage)
        storage.write(weights_of(key), b"weights")
        done.add(key)
        best.ended(key)
    left = {key for key in cells if storage.exists(weights_of(key))}
    assert exported in left  # `export --best` trains nothing again
    return left


def test_of_each_cell_the_best_stays_in_any_order(tmp_path: Path) -> None:
    """A run of two cells stays while it is the best of one; of equal ones the first of the plan does."""
    cells = {"a": ["FT @ 1"], "b": ["FT @ 2"], "c": ["FT @ 2", "SCL"], "d": ["SCL"]}
    for number, order in enumerate(permutations(cells)):
        for name, scores, wanted in (
            ("one", {"a": 0.7, "b": 0.8, "c": 0.5, "d": 0.4}, {"b", "c"}),
            ("two", {"a": 0.7, "b": 0.6, "c": 0.9, "d": 0.8}, {"c"}),
            ("equal", {"a": 0.9, "b": 0.9, "c": 0.9, "d": 0.9}, {"a", "c"}),
            ("none", {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.9}, {"c", "d"}),
        ):
            assert kept(list(order), cells, scores, tmp_path / f"{name}{number}") == wanted


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_the_estimated_space_is_near_that_of_the_file(kind: str, folders: dict[str, Path]) -> None:
    parts = tiny.encoder(folders[kind]).parts()
    size = sum(tensor.numel() * tensor.element_size() for tensor in parts.values() if torch.is_tensor(tensor))
    # tiny encoders are biases for the most part
    assert weights_bytes(tiny.shape_of(kind)) == pytest.approx(size, rel=0.3)


def test_the_plan_says_what_stays(
    harness: Harness, folders: dict[str, Path], benched: Benched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(benched.folder)
    words = BENCH.format(encoder=folders["bert"], methods="ft,scl,tapt").replace("bench", "plan", 1)
    assert "Weights: " not in harness(words).out
    said = harness(f"{words} --keep best")
    assert "Weights: those of the best run of each cell stay, 3 files, about " in said.out
    assert "Weights: those of all stages stay, 8 files, about " in harness(f"{words} --keep all").out
    assert "--keep: unknown choice 'bset'. Did you mean 'best'?" in harness(f"{words} --keep bset").err
