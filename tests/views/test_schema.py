"""The tidy schema: every format holds the same frame, and the documentation names its columns and dtypes."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal
from requested import resolve_table
from views.runs import filled, render, results

import harness
from harness.scores import PLACE, RESULT_DTYPES, Result, frame_of, placed, records
from harness.views.table import Caption
from harness.views.view import View

DOCUMENTED = Path(__file__).parents[2] / "docs" / "results.md"


def section(title: str) -> str:
    return DOCUMENTED.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]


def from_csv(text: str) -> pd.DataFrame:
    """As docs/results.md reads it."""
    return pd.read_csv(io.StringIO(text), dtype=harness.RESULT_DTYPES, keep_default_na=False, na_values="")


def from_json(rows: list[dict[str, object]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(harness.RESULT_DTYPES)).astype(harness.RESULT_DTYPES)


assert_same = partial(assert_frame_equal, check_exact=True)
NUMBERS = st.none() | st.floats(0, 1) | st.sampled_from([0.1 + 0.2, 1 / 3, 5e-324])
COUNTS = st.none() | st.integers(0, 10**12)
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1, max_size=8
)
NAMES = st.sampled_from(["NA", "nan", "None", "1e3", "007", 'a,"b"', "two\nlines", " é "]) | TEXTS
RESULTS = st.builds(
    Result,
    **dict.fromkeys(("row", "method", "task", "column", "evaluation", "metric", "key", "encoder"), NAMES),
    **{name: st.integers(0, 2**32) for name in ("size", "subset", "seed")},
    **dict.fromkeys(("dev", "test", "seconds", "flops"), NUMBERS),
    **dict.fromkeys(("selected_step", "tied", "workers"), COUNTS),
    collapsed=st.booleans(),
    status=st.sampled_from(["done", "failed", "diverged"]),
    reason=st.none() | NAMES,
    hardware=st.none() | NAMES,
)


@settings(max_examples=20)
@given(st.lists(RESULTS, max_size=5))
def test_csv_json_and_parquet_give_the_frame_back(rows: list[Result]) -> None:
    frame = frame_of(rows)
    assert frame.dtypes.astype(str).to_dict() == RESULT_DTYPES
    view = View("results", frame, [])
    assert_same(from_csv(str(view.written("csv"))), frame)
    assert_same(from_json(json.loads(view.written("json"))["results"]), frame)
    assert_same(pd.read_parquet(io.BytesIO(view.written("parquet"))), frame)  # type: ignore[arg-type]


def test_a_score_that_is_not_finite_is_missing() -> None:
    (row,) = results(resolve_table("few_shot", "quick", methods=("ft",), sizes=(100,), subsets=(0,)))
    frame = frame_of([replace(row, test=value, dev=0.5) for value in (float("inf"), -float("inf"), float("nan"), 0.25)])
    assert frame["test"].isna().tolist() == [True, True, True, False]
    assert frame["dev"].tolist() == [0.5] * 4
    assert "NaN" not in json.dumps(records(frame))


def test_rows_are_placed_in_the_order_of_the_places_and_of_their_metrics() -> None:
    r = resolve_table("few_shot", "paper", tasks=("sst2",), sizes=(20,), methods=("ft", "scl"))
    given = results(r)
    more = [replace(each, metric="f1_macro") for each in given]
    both = frame_of([each for pair in zip(given, more, strict=True) for each in pair])
    mixed = both.sample(frac=1, random_state=0, ignore_index=True).sort_values("metric", kind="stable")
    assert_same(placed(mixed, r.places), both)
    half = r.places[::2]
    assert list(placed(both, half)[PLACE].drop_duplicates().itertuples(index=False, name=None)) == half
    assert_same(placed(both[:0], r.places), both[:0])
    with pytest.raises(ValueError, match="two results for"):
        placed(pd.concat([both, both[:1]]), r.places)


def test_the_schema_is_the_documented_one() -> None:
    documented = re.findall(r"(?m)^\| `(\w+)` \| `?(\w+)`? \|", section("Columns"))
    assert dict(documented) == RESULT_DTYPES
    assert [name for name, _ in documented] == list(RESULT_DTYPES)
    keys = re.findall(r"(?m)^\| `(\w+)` \|", section("JSON").partition("\n### ")[0])
    several = "new:coco-lm-base,new:coco-lm-large++"
    tables = (resolve_table("few_shot"), resolve_table("coco_lm_glue", "paper", encoder=several, methods=("COCO-LM",)))
    printed = [json.loads(render(filled(table), Caption(1), "json")) for table in tables]
    assert set(keys) == {key for body in printed for key in body}
    cell = json.loads(render(filled(resolve_table("few_shot")), Caption(1), "json"))["cells"][0]
    assert set(re.findall(r"`(\w+)`", section("JSON").partition("\n### cells\n")[2])) >= set(cell)
