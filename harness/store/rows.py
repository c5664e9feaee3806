"""A record as the row of a table: as text, its predictions as bytes."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, cast

import numpy as np

from harness.errors import UserError
from harness.kinds import Predictions
from harness.paths import without_folders
from harness.specs import Record, Stage
from harness.store.published import unpacked

STORED_AS = {"weights_digest": "product"}
"""Fields of a record that have another name in the store."""
_ON_HOST = re.compile(r"(could not be (?:read|written)) on [^:]+(?=: )")
"""In a sentence of an older harness, with the name of a machine."""
UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, RecursionError)


def record_of(row: Mapping[Any, Any]) -> Record:
    """The record of a row, with predictions where the row has them. Raises UserError for one that is damaged, or that only a newer
    harness can read."""
    try:
        fields = json.loads(row["record"])
        record = Record(**{field: fields.pop(name) for field, name in STORED_AS.items()}, **fields)
        if blob := row.get("predictions"):
            record.predictions = unpacked(blob)
    except UNREADABLE:
        raise _unreadable(row) from None
    return record


def predicted_by(record: Record, digest: str) -> Predictions:
    """What a record predicts of a row set, with the labels. Raises UserError where its store has lost or damaged them, or was published without."""
    found = record.predictions.get(digest)
    try:
        wrong = found.problem if found else "are missing"
    except (LookupError, TypeError) as error:  # arrays of another form
        wrong = f"cannot be read ({type(error).__name__})"
    if found is None or wrong:
        raise UserError(
            f"The record {record.key[:12]} has no score: its predictions of the rows {digest[:10]} {wrong}; restore a copy of its store, or take it over "
            "with 'harness merge STORE --data DATA'."
        )
    return found


def stage_of(row: Mapping[Any, Any]) -> Stage:
    """The stage of a row. Raises UserError as `record_of`."""
    try:
        return Stage.from_json(json.loads(row["stage"]))
    except UNREADABLE:
        raise _unreadable(row) from None


def _unreadable(row: Mapping[Any, Any]) -> UserError:
    return UserError(
        f"The record {row['key'][:10]} has fields that this harness does not know, or is damaged; upgrade glue-harness, restore a copy "
        "of the store or name another one."
    )


def written(record: Record) -> str:
    """A record without its predictions, as JSON."""
    body = asdict(replace(record, predictions={}))
    return json.dumps({STORED_AS.get(name, name): value for name, value in body.items()})


def anonymous(row: Mapping[Any, Any]) -> dict[Any, Any]:
    """A row whose record names no machine, folder or user, as provenance and reasons may. Raises UserError as `record_of`."""
    try:
        body = json.loads(row["record"])
        origin = body.get("provenance", {})
        origin.pop("host", None)  # of an older harness
        for fields, name in ((body, "reason"), (origin, "checkpoint_failed")):
            if fields.get(name):
                fields[name] = _ON_HOST.sub(r"\1", without_folders(fields[name]))
        return {**row, "record": json.dumps(body)}
    except UNREADABLE:
        raise _unreadable(row) from None


def packed(predictions: Mapping[str, Predictions]) -> bytes:
    arrays = {}
    for digest, predicted in predictions.items():
        for name, array in {**predicted.arrays, "gold": predicted.gold}.items():
            arrays[f"{digest}/{name}"] = np.asarray(array)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **cast(Any, arrays))
    return buffer.getvalue()
