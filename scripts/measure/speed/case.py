"""What is timed: few-shot fine-tuning (FT, 20 labelled examples, CMLM's protocol) of one encoder on one task, as the harness
plans it. Every variant gets the same rows, updates, evaluations and selection."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.cli.request import read_words
from harness.commands.prepare import Prepared, prepare
from harness.commands.train import read_rows
from harness.encoders.models.text_encoder import load_encoder
from harness.encoders.tokens import Tokeniser
from harness.objectives import build
from harness.objectives.base import TrainingObjective
from harness.specs import Data, Record, RowSet, Stage
from harness.tasks.metrics import score
from harness.training.loop import Inputs
from harness.training.result import TrainingResult

MAX_LENGTH, EVERY = 128, 100
"""Tokens of a text, and updates between two looks at dev."""


def ended(stage: Stage, found: Record | TrainingResult) -> dict[str, Any]:
    """What a run of ours ended with, to be told from the others' by name."""
    tested = found.predictions[stage.data.tests[0].digest]
    return {
        "steps": stage.optim.steps,
        "evaluations": len(found.history),
        "selected": found.selected_step,
        "dev": found.dev_scores["accuracy"],
        "test": score("accuracy", tested),
    }


@dataclass(frozen=True)
class Case:
    """`steps`: updates of a run; dev is looked at every EVERY of them (the protocol's own) and at the end. `data`: a folder
    of GLUE where the task is not packaged. `bench_runs`: runs a core that `harness bench` makes in one go, of which the
    first of each worker is not counted."""

    encoder: str
    task: str
    steps: int
    lr: float
    data: str = ""
    precision: str = "fp32"
    method: str = "ft"
    size: int = 20
    bench_runs: int = 3

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: str) -> Case:
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    @property
    def name(self) -> str:
        return f"{self.encoder}, {self.task}" + ("" if self.precision == "fp32" else f", {self.precision}")

    def command(self, store: Path, seeds: int) -> list[str]:
        """The harness's command line for so many runs of this case."""
        words = f"bench --table few_shot --preset quick --encoder {self.encoder} --tasks {self.task} --subsets 0"
        words += f" --methods {self.method} --sizes {self.size} --seeds {','.join(map(str, range(1, seeds + 1)))}"
        settings = {"mlm_head.steps": 0, "optim.precision": self.precision, "optim.lr": self.lr}
        settings |= {f"{phase}.steps": self.steps for phase in ("fine_tune", "post_train")}
        words += "".join(f" --set {name}={value}" for name, value in settings.items())
        words += f" --store sqlite:///{store} --yes --format json" + (f" --data {self.data}" if self.data else "")
        return words.split()


class Opened:
    """A case with its plan, texts and tokens at hand."""

    def __init__(self, case: Case, folder: Path, seeds: int = 1) -> None:
        self.case = case
        self.prepared: Prepared = prepare(read_words(case.command(folder / "plan.db", seeds)), train=True)
        self.plan = self.prepared.plan
        assert self.plan.encoders[0].folder is not None
        self.folder: Path = self.plan.encoders[0].folder
        self.runs = [run.stage for run in self.plan.runs]

    @cached_property
    def tokeniser(self) -> Tokeniser:
        return Tokeniser(self.folder)

    def sets(self, stage: Stage) -> dict[str, RowSet]:
        data = stage.data
        named = {"train": data.train, **({"dev": data.dev} if data.dev else {})}
        return named | ({"test": data.tests[0]} if data.tests else {})

    def tokens(self, row_set: RowSet, data: Data) -> Any:
        return read_rows(self.plan, self.plan.encoders[0], self.tokeniser, self.prepared.store, row_set, data)

    def inputs(self, stage: Stage) -> Inputs:
        found = {name: self.tokens(rows, stage.data) for name, rows in self.sets(stage).items()}
        train, labels = found.pop("train")
        digests = {name: rows.digest for name, rows in self.sets(stage).items()}
        return Inputs(train, labels, {digests[name]: each for name, each in found.items()})

    def objective(self, stage: Stage) -> TrainingObjective:
        encoder = load_encoder(self.folder, stage.encoder.digest, seed=stage.seed)
        vocabulary = self.tokeniser.vocabulary
        return build(stage.objective, encoder, vocabulary, stage.data.kind, stage.seed)

    def texts(self, path: Path) -> Path:
        """The rows of train, dev and test as JSON columns, for who tokenises them himself."""
        columns: dict[str, dict[str, Any]] = {}
        for name, row_set in self.sets(self.runs[0]).items():
            rows = self.plan.library[row_set.digest]
            assert rows.labels is not None
            columns[name] = {"text": [row[0] for row in rows.texts], "label": [int(label) for label in rows.labels]}
            if rows.columns > 1:
                columns[name]["text_pair"] = [row[1] for row in rows.texts]
        path.write_text(json.dumps(columns), encoding="utf-8")
        return path

    @property
    def mean_tokens(self) -> dict[str, float]:
        stage = self.runs[0]
        return {n: float(self.tokens(r, stage.data)[0].tokens.lengths.mean()) for n, r in self.sets(stage).items()}
