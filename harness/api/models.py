"""Trained models in Python: export and predict, the recorded runs of a store, and what a run got wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.api.data_frames import StageRecord
from harness.commands.export import Exported
from harness.commands.export import export as write
from harness.commands.predict import classifier
from harness.commands.recorded import after_update, best_key, plan_of, recorded, recorded_runs
from harness.errors import UserError, unknown
from harness.store import DEFAULT_URL, Store
from harness.tables.request import Request

if TYPE_CHECKING:
    import pandas as pd


def runs(*, store: str = DEFAULT_URL) -> pd.DataFrame:
    """The recorded runs of a store, one row a run, the newest first.

    Columns: key, table, row, method, task, size (0: the full training set), subset, seed, status, reason, metric, dev (at the
    selected checkpoint, 1 for 100 %), step, seconds of the last stage, recorded_at.
    """
    import pandas as pd

    found = pd.DataFrame(recorded_runs(Store(store, create=False), Request()))
    if len(found):
        found["recorded_at"] = pd.to_datetime(found["recorded_at"], unit="s", utc=True)
    return found


def misclassified(key: str, *, split: str = "dev", store: str = DEFAULT_URL) -> pd.DataFrame:
    """The examples of one split that a run got wrong: texts (where they are at hand), gold and predicted class, confidence (the
    probability of the predicted class) and logits; the surest first. Of a regression all examples by `difference`.

    `attrs`: 'rows' of the split, 'wrong' of them, and whether it is a 'regression'. Raises UserError for a split without predictions.
    """
    found = recorded(store, key)
    record = StageRecord(
        found.stage, found.record, plan_of(found.store, found.stage) if found.record.predictions else None
    )
    every = record.predictions
    if not len(every):
        raise UserError(
            f"{found.key[:12]} ({found.stage.phase}) has no predictions; name a run that ends with fine-tuning."
        )
    if split not in set(every["split"]):
        raise unknown("split", split, dict.fromkeys(every["split"]), "--split")
    mine = every[every["split"] == split].reset_index(drop=True)
    regression = found.stage.data.num_labels == 1
    if regression:
        mine["difference"] = (mine["predicted"] - mine["gold"]).abs()
        wrong = mine.sort_values("difference", ascending=False, kind="stable", ignore_index=True)
    else:
        logits = mine[[name for name in mine if str(name).startswith("logit.")]].to_numpy(dtype=np.float64)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        mine["confidence"] = (shares / shares.sum(axis=1, keepdims=True)).max(axis=1)
        wrong = mine[mine["gold"] != mine["predicted"]]
        wrong = wrong.sort_values("confidence", ascending=False, kind="stable", ignore_index=True)
    wrong.attrs.update(rows=len(mine), wrong=len(wrong), regression=regression)
    return wrong


def export(
    key: str = "",
    out: str | PathLike[str] = "model",
    *,
    best: bool = False,
    task: str | None = None,
    update: int | None = None,
    store: str | None = None,
    storage: str | None = None,
    accept_difference: bool = False,
    license: str = "",
) -> Exported:
    """Write a recorded stage as a folder that plain transformers loads, with a model card; see docs/models.md.

    `key`: or its beginning; with `best` the run of the last bench with the best dev score (`task`: where it has several). Weights that
    are not stored are trained again and compared with the record. `update`: its weights after that update. `license`: what the card states, as the hub calls it ('apache-2.0').
    """

    @contextmanager
    def view(*_: Any) -> Iterator[Any]:
        yield lambda event: None

    if bool(key) == best:
        raise UserError("export: name a key, or give best=True for the best run of the last bench.")
    if best:
        key = best_key(Request(store=store, tasks=None if task is None else (task,)))
    found = recorded(store, key)
    if update is not None:
        found = after_update(found, update)
    return write(found, Path(fspath(out)), view, storage=storage, accept_difference=accept_difference, license=license)


def predict(
    model: str | PathLike[str], texts: Sequence[str | tuple[str, ...]], *, store: str | None = None
) -> pd.DataFrame:
    """What an exported folder, or a recorded run whose weights are stored, predicts of texts (or pairs of them), one row each: the
    predicted class and the probability of each class as 'probability.CLASS', or the predicted number."""
    import pandas as pd

    rows = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
    made = classifier(fspath(model), store=store)
    return pd.DataFrame(made.columns_of(rows))
