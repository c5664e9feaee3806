"""Questions whose answer a tiny encoder can find: the words after a cue, in contexts of several windows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from numpy.typing import NDArray

from harness.answers import SpanReading, as_label
from harness.encoders.sources import locate
from harness.encoders.tokens import Examples, Tokeniser
from harness.encoders.tokens.reading import Windows
from harness.methods import objective
from harness.specs import Data, Encoder, RowSet, Selection, Stage
from harness.training.loop import Inputs

READING = SpanReading(stride=6, question=8, answer=4)
LENGTH = 24


def questions(count: int, seed: int = 0, words: int = 30) -> tuple[list[tuple[str, str]], NDArray[np.bytes_]]:
    """(question, context) rows and their labels. The answer is one or two words after 'good'; a context without 'good' has none."""
    generator = np.random.default_rng(seed)
    rows, labels = [], []
    for number in range(count):
        context = [f"w{i}" for i in generator.integers(0, 30, generator.integers(4, words))]
        answers = []
        if number % 3:
            at = int(generator.integers(0, len(context) - 2))
            context[at] = "good"
            text = " ".join(context[at + 1 : at + 2 + number % 2])
            answers = [(text, len(" ".join(context[: at + 1])) + 1)]
        rows.append((f"w{generator.integers(30, 40)} bad", " ".join(context)))
        labels.append(as_label(answers))
    return rows, np.array(labels)


def windows(
    folder: Path, count: int, seed: int = 0, reading: SpanReading = READING
) -> tuple[Examples, NDArray[np.bytes_]]:
    rows, labels = questions(count, seed)
    return Windows(LENGTH, spans=reading).examples(rows, Tokeniser(folder)), labels


def fine_tuning(folder: Path, *, every: int, **changes: Any) -> tuple[Stage, Inputs]:
    """A stage on 30 questions, with a dev set of 20 and a test set of 10, and what it reads."""
    read = {
        name: windows(folder, count, seed)
        for seed, (name, count) in enumerate({"train": 30, "dev": 20, "test": 10}.items())
    }
    data = Data(RowSet("train", "train"), 2, LENGTH, RowSet("dev", "dev"), (RowSet("test", "test"),), spans=READING)
    start = Encoder(locate(str(folder)).encoder.digest, folder.name)
    optim = tiny.optim(**changes)
    stage = Stage(objective("cross_entropy"), data, optim, 1, start, Selection("answer_f1", every), "fine-tune")
    return stage, Inputs(*read["train"], {"dev": read["dev"], "test": read["test"]})


def write_questions(path: Path, count: int, seed: int = 0, asked: int = 1) -> Path:
    """A JSONL file as the hub's SQuAD has its rows, each context with so many questions."""
    rows, labels = questions(count, seed)
    with path.open("w", encoding="utf-8") as file:
        for (question, context), label in zip(rows, labels.tolist(), strict=True):
            answers = json.loads(label)
            found = {"text": [text for text, _ in answers], "answer_start": [start for _, start in answers]}
            for again in range(asked):
                row = {"question": question + " w1" * again, "context": context, "answers": found}
                file.write(json.dumps(row) + "\n")
    return path
