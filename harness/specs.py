"""The frozen types of the harness and the identity of what is trained.

A `Stage` is what is trained; its `key` hashes the canonical form of everything that can change one of its numbers and
nothing else. A `Run` is a leaf stage with labels that are not hashed, so two methods that are the same computation share
it. How a run is executed is another type (`harness.storage.WorkerSetup`), which never reaches a key. No torch, no ray, no clock in here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from harness.answers import SpanReading
from harness.kinds import Kind, Predictions, Scores, Spans, kind_of_outputs
from harness.prompts import Prompt

LOOP_VERSION = 2
"""Bumped by hand when the training loop changes a number; part of every key."""

KEY_LENGTH = 32
UNRESOLVED = "unresolved:"


def neutral(value: Any) -> Any:
    """Declare a field added after the first release: where it equals `value`, keys stay as they were without the field."""
    return field(default=value, metadata={"neutral": value})


def _label(default: Any = "") -> Any:
    return field(default=default, metadata={"label": True}, compare=False)


@cache
def _fields_of(kind: type[Any]) -> tuple[tuple[str, str, Any, str], ...]:
    """Of each hashed field, by name: the name as JSON begins its value, the value that is left out, and the type."""
    hashed = sorted((each.name, each) for each in fields(kind) if not each.metadata.get("label"))
    return tuple((name, f'"{name}":', each.metadata.get("neutral", MISSING), str(each.type)) for name, each in hashed)


_encoded = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode
_quoted = lru_cache(4096)(_encoded)


def _members(value: Any, *left_out: str) -> list[str]:
    """The hashed fields of a dataclass as members of an object of JSON, in order, without labels and neutral values; `1` in a float field is 1.0,
    and so on."""
    found = []
    for name, begun, neutral_value, declared in _fields_of(value.__class__):
        each = getattr(value, name)
        if name in left_out or (neutral_value is not MISSING and each == neutral_value):
            continue
        if declared == "float" and isinstance(each, (int, np.integer)):
            each = float(each)
        elif declared == "int" and isinstance(each, (float, np.floating)) and float(each).is_integer():
            each = int(each)
        found.append(begun + _text(each))
    return found


def _text(value: Any) -> str:
    """JSON that is equal for equal computations: floats to 12 significant digits, mappings sorted, no NaN. A frozen dataclass keeps its own,
    since thousands of stages share it. Raises ValueError for a value that has no canonical form (NaN, an unknown type)."""
    if isinstance(value, str):
        return _quoted(value)
    kept = getattr(value, "__dict__", {})
    if "_text" in kept:
        return str(kept["_text"])
    if isinstance(value, Stage):
        return f'"{value.key}"'
    if value is None or isinstance(value, bool):
        return _encoded(value)
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)) and math.isfinite(value):
        return _encoded(float(f"{float(value):.12g}") or 0.0)  # one zero
    if isinstance(value, (dict, Mapping)):
        values = {str(name): each for name, each in value.items()}
        return "{" + ",".join([f"{_quoted(name)}:{_text(values[name])}" for name in sorted(values)]) + "}"
    if isinstance(value, (tuple, list)):
        return f"[{','.join(map(_text, value))}]"
    if is_dataclass(value) and not isinstance(value, type):
        kept["_text"] = text = "{" + ",".join(_members(value)) + "}"
        return text
    raise ValueError(f"{value!r:.60} has no canonical form")


def digest_of(value: Any) -> str:
    """Hex digest of a canonical value."""
    return _hash(_text(value))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


@dataclass(frozen=True)
class Objective:
    """A training loss by name: its version (bumped by hand when its numbers change) and the parameters that have an effect.

    `source`: the digest of the file that defines it, where that is none of this package; `code`: that file's text, which travels to
    worker processes with the stage and is kept in no store: nothing that a store holds is run.
    """

    name: str
    version: int
    params: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    source: str = neutral("")
    code: str = field(default="", compare=False, repr=False, metadata={"label": True})


@dataclass(frozen=True)
class RowSet:
    """A set of rows by content: `digest` over its rows, not over files or their order. `name` and `rows` are labels."""

    digest: str
    name: str = _label()
    rows: int = _label(0)
    mean_chars: float = _label(0.0)

    @property
    def resolved(self) -> bool:
        return not self.digest.startswith(UNRESOLVED)


@dataclass(frozen=True)
class Data:
    """The data of a stage. `num_labels`: 0 without labels, 1 for regression, else the number of classes.

    `views`: back-translations of one text that a row holds side by side. `blocks`: 'text' makes a sequence of each text, 'packed' cuts the
    texts end to end into blocks of `max_length` tokens, 'whole' leaves them without tokens. `spans`: answers are looked for in contexts, 2
    outputs a token. `prompt`: rows are read as clozes. `standardised`: mean and standard deviation of the training scores, by which a head is
    trained. Labels: `classes` by name, in the order of their codes.
    """

    train: RowSet
    num_labels: int = 0
    max_length: int = 128
    dev: RowSet | None = None
    tests: tuple[RowSet, ...] = ()
    views: int = neutral(1)
    blocks: Literal["text", "packed", "whole"] = neutral("text")
    spans: SpanReading | None = neutral(None)  # noqa: RUF009 - a field, as the others
    prompt: Prompt | None = neutral(None)  # noqa: RUF009
    standardised: tuple[float, ...] = neutral(())
    classes: tuple[str, ...] = _label(())

    @property
    def kind(self) -> Kind | None:
        """What is predicted of a row; None without labels."""
        if self.spans:
            return Spans(reading=self.spans)
        bounds = self.prompt.bounds if self.prompt else ()
        if self.standardised:
            return Scores(target_scale=(self.standardised[0], self.standardised[1]))
        return kind_of_outputs(self.num_labels, self.classes, bounds) if self.num_labels else None


@dataclass(frozen=True)
class Optim:
    """One phase's recipe. `batch_size` is the global one; `warmup` a fraction of `steps`; `clip` 0 means no clipping;
    `decay_biases_and_norms`: weight decay moves them too, as in fairseq, not the matrices alone, as in Hugging Face's scripts."""

    lr: float
    batch_size: int
    steps: int
    warmup: float = 0.0
    schedule: Literal["linear", "constant"] = "linear"
    weight_decay: float = 0.0
    clip: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    dropout: float = 0.1
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    decay_biases_and_norms: bool = neutral(False)


@dataclass(frozen=True)
class Selection:
    """The best checkpoint by dev: highest `metric` among evaluations every `every` updates and at the end; ties: the first."""

    metric: str
    every: int = 100


@dataclass(frozen=True)
class Encoder:
    """A pre-trained encoder by content: digest over canonical tensors, tokenizer and config. `name` is a label.

    `relative_buckets`, `relative_distance`: T5's relative positions added to its own, zero at first; 0: none.
    """

    digest: str
    name: str = _label()
    relative_buckets: int = neutral(0)
    relative_distance: int = neutral(0)

    @property
    def resolved(self) -> bool:
        return not self.digest.startswith(UNRESOLVED)


NO_ENCODER = Encoder("none", "none")
"""What a stage starts from that reads no encoder: it is the same under any."""


@dataclass(frozen=True)
class Parent:
    """Weights of an earlier stage: which stage, after which update, and which parts are loaded.

    A `step` that is a number needs a stage without selection, whose weights are saved after that update; the last one is
    'last'. Raises ValueError for an update that the stage does not have.
    """

    stage: Stage
    step: Literal["last", "selected"] | int = "last"
    parts: tuple[str, ...] = ("encoder",)

    def __post_init__(self) -> None:
        if isinstance(self.step, str):
            return
        steps = self.stage.optim.steps
        if self.stage.selection or not 1 <= self.step <= steps:
            raise ValueError(f"a stage of {steps} updates has no weights of its own after update {self.step}")
        if self.step == steps:
            object.__setattr__(self, "step", "last")

    @property
    def save_at(self) -> tuple[int, ...]:
        """The update after which the stage has to save these weights; none where they are its final ones."""
        return () if isinstance(self.step, str) else (self.step,)


SHARED_PHASES = ("mlm-head", "pre-train")
"""Phases whose stages are parents of many runs and tables: their weights are kept."""


@dataclass(frozen=True)
class Stage:
    """One training phase of a run. `phase` ('mlm-head', 'post-train', 'fine-tune', ...) is a label."""

    objective: Objective
    data: Data
    optim: Optim
    seed: int
    init: Encoder | Parent
    selection: Selection | None = None
    phase: str = _label()

    @cached_property
    def key(self) -> str:
        return self._key_without()

    def _key_without(self, *names: str) -> str:
        members = sorted([f'"loop":{LOOP_VERSION}', *_members(self, *names)])
        return _hash("{" + ",".join(members) + "}")

    @property
    def parent(self) -> Stage | None:
        return self.init.stage if isinstance(self.init, Parent) else None

    @property
    def encoder(self) -> Encoder:
        return self.init if isinstance(self.init, Encoder) else self.init.stage.encoder

    @property
    def chain(self) -> tuple[Stage, ...]:
        return (*(self.parent.chain if self.parent else ()), self)

    @property
    def settings(self) -> tuple[str, ...]:
        """Digests of the stages of the chain without data and starts, this one's first: a seal has them of runs whose keys were not known."""
        return tuple(stage._key_without("data", "init") for stage in self.chain[::-1])

    @property
    def evaluations(self) -> int:
        """How often it is evaluated on dev: every so many updates and at the end, once where there is no update."""
        return max(1, -(-self.optim.steps // self.selection.every)) if self.selection else 0

    @property
    def row_sets(self) -> tuple[RowSet, ...]:
        return tuple(filter(None, (self.data.train, self.data.dev, *self.data.tests)))

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Encoders and data that the chain needs and that are not at hand."""
        missing = [] if self.encoder.resolved else [f"encoder {self.encoder.name}"]
        for stage in self.chain:
            missing += [f"data {rows.name}" for rows in stage.row_sets if not rows.resolved]
        return tuple(dict.fromkeys(missing))

    def to_json(self) -> dict[str, Any]:
        """The whole chain, labels included and an objective's code left out, readable back by `from_json`."""
        return asdict(self, dict_factory=lambda pairs: {name: each for name, each in pairs if name != "code"})

    @classmethod
    def from_json(cls, body: Any) -> Stage:
        """Raises ValueError for what is no stage, also for a key that is no field and for an objective's code."""
        stage = body
        while isinstance(stage, dict):  # an earlier version said it, in no key
            if isinstance(data := stage.get("data"), dict):
                data.pop("held_out", None)
            stage = init.get("stage") if isinstance(init := stage.get("init"), dict) else None
        found: Stage = _adapter().validate_python((body,))[0]
        if any(stage.objective.code for stage in found.chain):
            raise ValueError("an objective's code is in no store, and none from there is run")
        return found


@cache
def _adapter() -> Any:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(tuple[Stage], config=ConfigDict(extra="forbid"))  # a dataclass alone takes no config


@dataclass(frozen=True)
class Run:
    """A leaf stage with the labels of the cell and replicate that it fills. `size` 0 means the full training set."""

    stage: Stage
    row: str
    method: str
    task: str
    size: int
    subset: int
    seed: int

    @property
    def name(self) -> str:
        size = f"n{self.size}" if self.size else "full"
        return f"{self.row}/{self.task}/{size}/subset{self.subset}/seed{self.seed}"


Status = Literal["done", "failed", "diverged"]


def trained_again(retry: bool) -> tuple[Status, ...]:
    """How a recorded stage ended that the next command trains again; `retry`: the user asks for diverged ones too."""
    return ("failed", "diverged") if retry else ("failed",)


@dataclass
class Record:
    """The outcome of a stage. Test predictions are kept, test scores are not: they come after selection.

    `weights_digest`: of the weights a later stage starts from (None for a leaf); `tied` the number of evaluations
    that share the best dev score; `collapsed`: one class only is predicted on dev; `flops` as multiplied-and-added x 2. `seconds`: of an
    interrupted stage all that it took up to the checkpoint that it resumed from, and since then.
    """

    key: str
    status: Status
    reason: str = ""
    selected_step: int | None = None
    tied: int = 0
    dev_scores: dict[str, float] = field(default_factory=dict)
    collapsed: bool = False
    histogram: list[int] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    flops: float = 0.0
    seconds: float = 0.0
    weights_digest: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    predictions: dict[str, Predictions] = field(default_factory=dict)
    """By digest of the row set: dev and each test set."""


def starts_elsewhere(stage: Stage, records: Mapping[str, Record]) -> bool:
    """Whether a stage started from other weights than the stage before it recorded, which was trained again for them and came out otherwise."""
    if not isinstance(stage.init, Parent) or not {stage.key, stage.init.stage.key} <= records.keys():
        return False
    before, step = records[stage.init.stage.key], stage.init.step
    recorded = (
        before.weights_digest if isinstance(step, str) else before.provenance.get("saved_digests", {}).get(str(step))
    )
    return bool(recorded) and records[stage.key].provenance.get("parent_product") not in (None, recorded)
