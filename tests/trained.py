"""Training in this process instead of on Ray: the same stages, records and weights, in a second."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import tiny
from cli.command import write_csv

from harness.commands.prepare import Prepared, storage_of
from harness.commands.train import reader
from harness.encoders.tokens import Tokeniser
from harness.execution import WorkerSetup
from harness.planning.work import Event
from harness.running import run_stage
from harness.specs import SHARED_PHASES, Parent
from harness.storage import weights_of
from harness.store import Owner, Store
from harness.training.loop import Inputs


def train_here(
    prepared: Prepared, view: Any, *, deadline: float = math.inf, watch: Any = lambda event: None
) -> Prepared:
    """As `harness.commands.train.train`: parents first, also those whose weights are gone; their weights are deleted at the end."""
    located = prepared.plan.encoders[0]
    assert located.folder is not None
    prepared.store = Store(prepared.store.url)
    prepared.remember()
    storage = storage_of(prepared.request, prepared.store)
    tokeniser = Tokeniser(located.folder)
    encoders = {located.encoder.digest: (located.folder, located.new_config)}
    setup = WorkerSetup(encoders, storage, micro_batch=prepared.request.micro_batch or 0)
    read, owner = reader(prepared.plan, located, tokeniser, prepared.store), Owner.current()

    def trained(stage: Any, metrics: tuple[str, ...], keep: bool, save_at: tuple[int, ...], until: int = 0) -> Any:
        start = stage.init
        if isinstance(start, Parent) and not storage.exists(weights_of(start.stage.key, start.step)):
            trained(start.stage, (), True, start.save_at)
        train, labels = read(stage.data.train, stage.data)
        sets = [rows for rows in (stage.data.dev, *stage.data.tests) if rows]
        inputs = Inputs(train, labels, {rows.digest: read(rows, stage.data) for rows in sets})
        saves = {"keep_weights": keep, "save_at": save_at, "until": until}
        return run_stage(stage, inputs, tokeniser.vocabulary, metrics, setup, **saves)

    with view(prepared, lambda show: None) as show:
        for item in prepared.items:
            show(Event("started", item))
            record = trained(item.stage, item.metrics, item.keep_weights, item.save_at, item.until)
            if not item.remake:
                assert prepared.store.lease(item.stage.key, owner) == "granted"
                prepared.store.commit(item.stage, record, owner)
            show(ended := Event(record.status, item, record.reason))
            watch(ended)
    asked = {item.stage.key for item in prepared.items if item.remake}
    for stage in prepared.plan.stages.values():
        parent = stage.parent
        if parent and parent.phase not in SHARED_PHASES and parent.key not in asked and prepared.request.keep != "all":
            storage.delete(weights_of(parent.key))
    prepared.statuses = prepared.store.statuses(prepared.plan.stages)
    return prepared


WORDS = {"good": ("fine", "lovely", "bright", "warm"), "bad": ("dull", "poor", "grey", "cold")}


def films_folder(root: Path) -> Path:
    """600 labelled texts of sst2, 60 for dev and test, two translations of each text (views.jsonl) and a corpus (corpus.txt)."""
    rows = [(f"A {WORDS[('bad', 'good')[i % 2]][i // 2 % 4]} film, number {i}.", str(i % 2)) for i in range(660)]
    write_csv(root / "data" / "sst2" / "train.csv", rows[:600])
    write_csv(root / "data" / "sst2" / "validation.csv", rows[600:])
    views = [{"text": text, "view_1": text.upper(), "view_2": text.replace("film", "movie")} for text, _ in rows[:600]]
    (root / "views.jsonl").write_text("".join(json.dumps(row) + "\n" for row in views), encoding="utf-8")
    (root / "corpus.txt").write_text("\n".join(text for text, _ in rows[:100]), encoding="utf-8")
    return root


def sentiment_folder(root: Path) -> Path:
    """sst2 in the words of the tiny tokenizer."""
    for split, count, seed in (("train", 60, 1), ("validation", 50, 2)):
        rows, labels = tiny.texts(count, seed)
        write_csv(
            root / "sst2" / f"{split}.csv", [(row[0], str(label)) for row, label in zip(rows, labels, strict=True)]
        )
    return root
