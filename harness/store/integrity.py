"""Whether a row of `records` is as it was committed, by its checksum; a record as text, its predictions as bytes."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from harness.errors import UserError
from harness.kinds import Predictions
from harness.specs import Record, Stage

SHOWN = 5
"""How many damaged records of a store one process names on standard error."""

STORED_AS = {"weights_digest": "product"}
"""Fields of a record that have another name in the store."""


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
        if self.checksum != checksum(self.key, self.status, self.attempt, self.stage, self.record, self.digest):
            return "its checksum does not match"
        return ""

    def read(self, *, predictions: bool) -> Record:
        """The record of an intact row. Raises UserError for one that only a newer harness can read."""
        try:
            fields = json.loads(self.record)
            record = Record(**{field: fields.pop(name) for field, name in STORED_AS.items()}, **fields)
        except (KeyError, TypeError):
            raise self._newer() from None
        if predictions and self.predictions:
            record.predictions = unpacked(self.predictions)
        return record

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


# ---------------------------------------------------------------- a record as text, its predictions as bytes


def written(record: Record) -> str:
    """A record without its predictions, as JSON."""
    body = asdict(replace(record, predictions={}))
    return json.dumps({STORED_AS.get(name, name): value for name, value in body.items()})


def packed(predictions: Mapping[str, Predictions]) -> bytes:
    arrays = {}
    for digest, predicted in predictions.items():
        for name, array in {**predicted.arrays, "gold": predicted.gold}.items():
            arrays[f"{digest}/{name}"] = np.asarray(array)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **cast(Any, arrays))
    return buffer.getvalue()


def unpacked(blob: bytes) -> dict[str, Predictions]:
    by_digest: dict[str, dict[str, Any]] = {}
    with np.load(io.BytesIO(blob), allow_pickle=False) as arrays:
        for path in sorted(arrays.files):
            digest, name = path.rsplit("/", 1)
            by_digest.setdefault(digest, {})[name] = arrays[path]
    return {digest: Predictions(named, named.pop("gold")) for digest, named in by_digest.items()}


# ---------------------------------------------------------------- notices


_lock = threading.Lock()
_reported: dict[str, set[str]] = {}


def report_damage(shown: str, key: Any, why: str) -> None:
    """Report a damaged record of the store `shown` and the fix, once in a process; after SHOWN of them, that there are more."""
    with _lock:
        reported = _reported.setdefault(shown, set())
        new = str(key) not in reported
        reported.add(str(key))
        count = len(reported)
    sentence = f"The store {shown} has more damaged records: 'harness doctor --store {shown}' names them."
    if count <= SHOWN:
        sentence = (
            f"The store {shown} has a damaged record {str(key)[:10]!r} ({why}): it counts as not recorded, and the same command "
            f"trains it again; 'harness doctor --store {shown} --quarantine' moves it away."
        )
    if new and count <= SHOWN + 1:
        print(sentence, file=sys.stderr, flush=True)
