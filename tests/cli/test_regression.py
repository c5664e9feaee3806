"""Scores of the user's own, in whatever unit: a head learns them as well, and all that is shown and exported is in that unit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from cli.command import Said, write_csv
from cluster import in_process
from requested import resolve_table
from tiny import WORDS

from harness.commands.prepare import prepare
from harness.encoders import locate
from harness.planning.request import from_json
from harness.planning.runs import make_plan
from harness.store import Store
from harness.tasks.sources import open_source

Harness = Callable[..., Said]
BENCH = (
    "--tasks prices.csv --kind regression --methods ft,frozen_head --sizes 0 --seeds 31 --set max_length=16 "
    "--set fine_tune.min_steps=20 --set fine_tune.epochs=1 --set fine_tune.lr=3e-3"
)
MEAN, SPREAD = 5000.0, 250.0
SCORES = np.random.default_rng(5).normal(size=80)


def write_prices(workdir: Path, scores: Iterable[str]) -> None:
    rows = [(f"house {i} {WORDS[i % 9]} {WORDS[i // 9]}", score) for i, score in enumerate(scores)]
    write_csv(workdir / "prices.csv", rows, ("text", "label"))


@pytest.fixture
def benched(harness: Harness, workdir: Path, bert: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    write_prices(workdir, (f"{score:.2f}" for score in SCORES * SPREAD + MEAN))
    in_process.patch(monkeypatch)
    return harness(*f"bench {BENCH} --encoder {bert}".split())


@pytest.mark.parametrize(("center", "unit"), [(1e15, 1e3), (0.0, 1e-30)])
def test_ranks_survive_a_unit_of_which_float32_loses_them(
    center: float, unit: float, harness: Harness, workdir: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prices(workdir, map(repr, (center + unit * SCORES).tolist()))
    in_process.patch(monkeypatch)
    assert harness(*f"bench {BENCH} --reference --keep all --encoder {bert}".split()).status == 0
    store = Store("sqlite:///.harness/harness.db", create=False)
    plan = prepare(from_json(store.requests()[0].values), train=False).plan
    records = store.records([run.stage.key for run in plan.runs], predictions=True)
    for run in plan.runs:
        for predicted in records[run.stage.key].predictions.values():
            gold = (predicted.gold - center) / unit
            assert np.abs(np.sort(gold)[:, None] - SCORES).min(axis=1).max() < 1e-3
            assert run.row == "Majority" or 2 * len(np.unique(predicted.decoded)) > len(gold)
            assert np.abs(predicted.decoded - center).max() < 5 * unit
    key = next(run.stage.key for run in plan.runs if run.row == "FT")
    assert harness("predict", key, "--input", "prices.csv", "--output", "scored.jsonl").status == 0
    scored = [json.loads(line)["predicted"] for line in (workdir / "scored.jsonl").read_text().splitlines()]
    assert 2 * len({*scored}) > len(SCORES)
    refused = harness("export", key, "--out", "out")
    assert refused.status == 2
    assert "less their mean" in refused.err


def test_a_head_is_trained_in_units_of_the_training_scores(benched: Said, harness: Harness, workdir: Path) -> None:
    assert benched.status == 0, benched.err
    store = Store("sqlite:///.harness/harness.db", create=False)
    (stored,) = store.requests()
    prepared = prepare(from_json(stored.values), train=False)
    records = store.records([run.stage.key for run in prepared.plan.runs], predictions=True)
    for run in prepared.plan.runs:
        mean, spread = run.stage.data.standardised
        assert (mean, spread) == (pytest.approx(MEAN, abs=SPREAD), pytest.approx(SPREAD, rel=0.3))
        for predicted in records[run.stage.key].predictions.values():
            assert np.abs(predicted.decoded - MEAN).max() < 5 * SPREAD, "a raw head is thousands away after 20 updates"
    key = next(run.stage.key for run in prepared.plan.runs if run.row == "FT")
    exported = harness("export", key, "--out", "out")
    assert exported.status == 0, exported.err
    assert "Plain transformers gives the same logits within" in exported.out + exported.err
    card = (workdir / "out" / "README.md").read_text()
    assert "objective `mean_squared_error` (of scores less 4" in card
    assert harness("predict", "out", "--input", "prices.csv", "--output", "scored.jsonl").status == 0
    scored = [json.loads(line)["predicted"] for line in (workdir / "scored.jsonl").read_text().splitlines()]
    recorded = np.concatenate([found.decoded for found in records[key].predictions.values()])
    nearest = np.abs(np.array(scored)[:, None] - recorded[None]).min(axis=0)
    assert nearest.max() < 1e-5 * MEAN


def test_published_tasks_are_trained_on_the_scores_themselves(workdir: Path) -> None:
    """As the papers' scripts do."""
    rows = [(f"Sentence number {i}.", f"Another number {i}.", str(i % 6)) for i in range(60)]
    for split in ("train", "validation"):
        pairs = [(f"{split}: {first}", second, label) for first, second, label in rows]
        write_csv(workdir / "glue" / "stsb" / f"{split}.csv", pairs, ("sentence1", "sentence2", "label"))
    resolved = resolve_table("few_shot", "quick", tasks=("stsb",), sizes=(20,), methods=("ft",))
    plan = make_plan(resolved, open_source(workdir / "glue"), locate("bert-tiny"))
    data = [run.stage.data for run in plan.runs]
    assert data
    assert all(each.train.resolved and not each.standardised for each in data)
