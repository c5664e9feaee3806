"""The tidy schema of results: one row a replicate, column and metric; the same in Python, CSV, JSON and Parquet.

`docs/results.md` documents it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from harness.planning.row import Place
from harness.specs import Status

if TYPE_CHECKING:
    import pandas as pd

PLACE = ["size", "row", "column", "subset", "seed"]


@dataclass(frozen=True)
class Result:
    """One metric of one run in one column. Scores are on the metric's own scale (1 for 100 %), `dev` at the selected checkpoint;
    `seconds`, `flops`, `workers` and `hardware` are those of the fine-tuning stage. None: missing."""

    row: str
    method: str
    task: str
    column: str
    evaluation: str
    size: int
    subset: int
    seed: int
    metric: str
    dev: float | None = None
    test: float | None = None
    selected_step: int | None = None
    tied: int | None = None
    collapsed: bool = False
    status: Status = "done"
    reason: str | None = None
    key: str = ""
    encoder: str = ""
    seconds: float | None = None
    flops: float | None = None
    workers: int | None = None
    hardware: str | None = None


_DTYPES = {"str": "str", "int": "int64", "int | None": "Int64", "float | None": "float64", "bool": "bool"}
RESULT_DTYPES = {each.name: _DTYPES.get(str(each.type), "str") for each in fields(Result)}
"""The pandas dtype of each column, in the order of the columns."""


def frame_of(results: Iterable[Result]) -> pd.DataFrame:
    """Results as a frame of the schema. A score that is not finite is missing."""
    import pandas as pd

    frame = pd.DataFrame([vars(each) for each in results], columns=list(RESULT_DTYPES)).astype(RESULT_DTYPES)
    infinite = frame[["dev", "test"]].abs() == float("inf")
    return frame.assign(dev=frame["dev"].mask(infinite["dev"]), test=frame["test"].mask(infinite["test"]))


def joined_frames(frame: pd.DataFrame, more: Iterable[Result]) -> pd.DataFrame:
    """A frame of the schema with further results."""
    import pandas as pd

    frames = [each for each in (frame, frame_of(more)) if len(each)]
    return pd.concat(frames, ignore_index=True) if frames else frame


def with_records(frame: pd.DataFrame) -> pd.DataFrame:
    """The results of runs that a store has records of; another system has none."""
    return frame[frame["key"] != ""]


def placed(frame: pd.DataFrame, places: Sequence[Place]) -> pd.DataFrame:
    """The rows at `places`, in their order; others are left out. Raises ValueError where a place has two rows of one metric."""
    import pandas as pd

    if (twice := frame.duplicated([*PLACE, "metric"])).any():
        raise ValueError(f"two results for {frame.loc[twice, [*PLACE, 'metric']].iloc[0].to_dict()}")
    design = pd.MultiIndex.from_tuples(places, names=PLACE)
    position = pd.Series(design.get_indexer(pd.MultiIndex.from_frame(frame[PLACE])), frame.index)
    kept = position[position >= 0].sort_values(kind="stable").index
    return frame.loc[kept].reset_index(drop=True)


def csv_text(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, lineterminator="\n")


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as JSON values, None where one is missing."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def parquet_bytes(frame: pd.DataFrame) -> bytes:
    return frame.to_parquet(index=False)
