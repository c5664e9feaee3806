"""Whether a row of `records` is as it was committed, by its checksum.

A record of an older harness has no checksum: its fields and the key of its stage are checked instead, and its predictions when
they are read.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import NoneType
from typing import Any, ClassVar, cast

import numpy as np

from harness.errors import UserError, first_line
from harness.specs import Predictions, Record, Stage

SHOWN = 5
"""How many damaged records of a store one process names on standard error."""

_KINDS: dict[str, tuple[type, ...]] = {
    "key": (str,),
    "status": (str,),
    "reason": (str,),
    "selected_step": (int, NoneType),
    "tied": (int,),
    "dev_scores": (dict,),
    "collapsed": (bool,),
    "histogram": (list,),
    "history": (list,),
    "flops": (int, float),
    "seconds": (int, float),
    "product": (str, NoneType),  # of the weights
    "provenance": (dict,),
    "predictions": (dict,),
}
_STORED_AS = {"weights_digest": "product"}
"""Fields of a record whose name in a store is an older one."""
_FIELDS = {_STORED_AS.get(field.name, field.name): field.name for field in fields(Record)}
"""The field of a record by its name in a store."""


@dataclass(frozen=True)
class Row:
    """A row as the database gives it, with any types if the file is damaged. `digest`: SHA-256 of the predictions, which are None
    unless they were requested."""

    key: Any
    status: Any
    attempt: Any
    stage: Any
    record: Any
    checksum: Any
    digest: Any
    predictions: Any = None

    def damage(self) -> str:
        """What is wrong with the row; '' if nothing is."""
        texts = (self.key, self.status, self.stage, self.record)
        if not all(isinstance(text, str) for text in texts) or not isinstance(self.attempt, int):
            return "a field has a wrong type"
        if self.checksum is None:
            return _damage(self)
        if self.checksum != checksum(self.key, self.status, self.attempt, self.stage, self.record, self.digest):
            return "its checksum does not match"
        return ""

    def read(self, *, predictions: bool) -> Record:
        """The record of an intact row. Raises UserError for one that only a newer harness can read."""
        try:
            found = Record(**{_FIELDS[name]: value for name, value in json.loads(self.record).items()})
        except (KeyError, TypeError):
            raise self._newer() from None
        if predictions and self.predictions:
            found.predictions = unpacked(self.predictions)
        return found

    def read_stage(self) -> Stage:
        """The stage of an intact row. Raises UserError for one that only a newer harness can read."""
        try:
            return Stage.from_json(json.loads(self.stage))
        except (TypeError, KeyError):
            raise self._newer() from None

    def _newer(self) -> UserError:
        return UserError(
            f"The record {self.key[:10]} was written by another version of harness, with fields that this one does not know; "
            "upgrade glue-harness or name another store."
        )


def sha256_of(blob: Any) -> bytes | None:
    """SHA-256 of bytes, as PostgreSQL's function sha256; None for any other type."""
    return hashlib.sha256(blob).digest() if isinstance(blob, bytes) else None


def checksum(key: str, status: str, attempt: int, stage: str, record: str, digest: bytes | None) -> str:
    """SHA-256 (hex) over a row as it is stored, with the digest of its predictions."""
    whole = hashlib.sha256()
    for text in (key, status, str(attempt), stage, record):
        part = text.encode()
        whole.update(b"%d:" % len(part))
        whole.update(part)
    whole.update(digest if isinstance(digest, bytes) else b"")
    return whole.hexdigest()


# ---------------------------------------------------------------- records without a checksum


def _damage(row: Row) -> str:
    """What is wrong with a record without a checksum, as far as it can be known."""
    try:
        body = json.loads(row.record)
        stage = Stage.from_json(json.loads(row.stage))
        key_fits = stage.fits(row.key)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        return f"it cannot be read ({type(error).__name__})"
    if not key_fits:
        return "its stage does not hash to its key"
    if wrong := _wrong(body):
        return wrong
    if body["key"] != row.key or body["status"] != row.status:
        return "its body has another key or status than its row"
    if body["status"] == "done" and list(stage.row_sets)[1:] and row.digest is None:
        return "its predictions are missing"
    if row.predictions is None:  # not requested
        return ""
    try:
        predictions = unpacked(row.predictions)
    except Exception as error:  # numpy, zipfile and zlib each have their own
        return f"its predictions cannot be read ({type(error).__name__}: {first_line(error)[:80]})"
    return _unfit(stage, predictions) if body["status"] == "done" else ""


def _wrong(body: Any) -> str:
    """What is wrong with a record's body."""
    if not isinstance(body, dict) or not {"key", "status"} <= body.keys() <= _FIELDS.keys():
        return "its body does not have the fields of a record"
    for name, value in body.items():
        if not isinstance(value, _KINDS[name]) or (isinstance(value, bool) and bool not in _KINDS[name]):
            return f"its field {name} has a wrong type"
    scores = [*body.get("dev_scores", {}).values(), body.get("flops", 0.0), body.get("seconds", 0.0)]
    if body["status"] not in ("done", "failed", "diverged"):
        return "its status is invalid"
    if not all(_number(score) and math.isfinite(score) for score in scores):
        return "a score is not a number"
    if not all(isinstance(entry, dict) and _entry(entry) for entry in body.get("history", [])):
        return "its history is invalid"
    return "" if all(type(count) is int for count in body.get("histogram", [])) else "its histogram is invalid"


def _entry(entry: Mapping[str, Any]) -> bool:
    plain = {name: value for name, value in entry.items() if name != "curve"}
    nested = [value.values() if isinstance(value, dict) else [value] for value in plain.values()]
    return "step" in entry and _curve(entry.get("curve", {})) and all(_number(v) for values in nested for v in values)


def _curve(curve: Any) -> bool:
    """Whether these are lists of points (step, value) by name."""
    return isinstance(curve, dict) and all(
        isinstance(points, list) and all(isinstance(p, list) and len(p) == 2 and all(map(_number, p)) for p in points)
        for points in curve.values()
    )


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unfit(stage: Stage, predictions: Mapping[str, Predictions]) -> str:
    """What is wrong with the predictions of a stage's dev and test sets."""
    _, *evaluated = stage.row_sets
    if {rows.digest for rows in evaluated} != predictions.keys():
        return "its predictions are for other rows"
    for each in predictions.values():
        if each.logits.ndim != 2 or each.logits.shape[:1] != each.gold.shape or not np.isfinite(each.logits).all():
            return "its predictions have a wrong shape or are not finite"
    return ""


# ---------------------------------------------------------------- a record as text, its predictions as bytes


def written(record: Record) -> str:
    """A record without its predictions, as JSON."""
    body = asdict(replace(record, predictions={}))
    return json.dumps({_STORED_AS.get(name, name): value for name, value in body.items()})


def packed(predictions: Mapping[str, Predictions]) -> bytes:
    arrays = {}
    for digest, each in predictions.items():
        arrays[f"{digest}/logits"] = np.asarray(each.logits, dtype=np.float32)
        arrays[f"{digest}/gold"] = np.asarray(each.gold)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **cast(Any, arrays))
    return buffer.getvalue()


def unpacked(blob: bytes) -> dict[str, Predictions]:
    with np.load(io.BytesIO(blob), allow_pickle=False) as arrays:
        digests = {name.rsplit("/", 1)[0] for name in arrays.files}
        return {d: Predictions(arrays[f"{d}/logits"], arrays[f"{d}/gold"]) for d in sorted(digests)}


# ---------------------------------------------------------------- notices


class Notices:
    """Reports a damaged record and the fix, once in a process; after SHOWN of a store it reports that there are more."""

    _lock = threading.Lock()
    _reported: ClassVar[dict[str, set[str]]] = {}

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def damaged(self, key: Any, why: str) -> None:
        with self._lock:
            reported = self._reported.setdefault(self._shown, set())
            new = str(key) not in reported
            reported.add(str(key))
            count = len(reported)
        fix = f"'harness doctor --store {self._shown} --quarantine' moves it away"
        if new and count <= SHOWN:
            sentence = (
                f"The store {self._shown} has a damaged record {str(key)[:10]!r} ({why}): it counts as not recorded, and the "
                f"same command trains it again; {fix}."
            )
        elif new and count == SHOWN + 1:
            sentence = (
                f"The store {self._shown} has more damaged records: 'harness doctor --store {self._shown}' names them."
            )
        else:
            return
        print(sentence, file=sys.stderr, flush=True)
