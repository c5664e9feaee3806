"""Small folders of data to train on."""

from __future__ import annotations

import json
from pathlib import Path

import tiny
from cli.command import write_csv

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
