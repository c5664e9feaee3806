"""Rows that a paper quotes from others: its own numbers, shown as quoted wherever the paper's rows are, never compared."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis.runs import filled, results, rows_of
from pydantic import ValidationError
from requested import resolve_table
from ruamel.yaml import YAML

from harness.analysis.comparison import compared
from harness.analysis.ranks import sets_of_the_best
from harness.planning.table import Table, load_table
from harness.report.caption import Caption
from harness.report.results_page import Results, results_page
from harness.report.table import render

PAPERS = Path(__file__).resolve().parents[2].parent / "shared" / "papers"
COLUMNS = ("mnli", "mnli_mm", "qqp", "qnli", "sst2", "cola", "rte", "mrpc", "stsb", "avg", "squad_em", "squad_f1")
SETTINGS = {
    "Base": ("coco_lm_glue", "coco_lm_squad"),
    "Base++": ("coco_lm_base_plus",),
    "Large++": ("coco_lm_large_plus",),
}
"""Of each setting of COCO-LM's Table 1 the tables that have it."""


def rows_of_table_1() -> dict[str, dict[str, dict[str, float]]]:
    """Of each setting the printed rows, by column."""
    html = (PAPERS / "coco_lm.txt").read_text().partition("Table 1: Results on GLUE and SQuAD")[0]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in re.findall(r"<tr>(.*?)</tr>", html[html.rindex("<table") :], flags=re.DOTALL):
        cells = [re.sub("<[^>]*>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
        if len(cells) == 1:
            rows = found.setdefault(cells[0].partition(" Setting")[0], {})
        elif cells:
            texts = [*cells[2].split("/"), *cells[3:13]]
            texts = texts if len(texts) == len(COLUMNS) else [texts[0], "", *texts[1:]]
            values = {column: text for column, text in zip(COLUMNS, texts, strict=True) if text not in ("", "-", "—")}
            rows[re.sub(r" \[\d+\]$|(?<=Megatron)", lambda found: "" if found[0] else " ", cells[0])] = {
                column: float(text) for column, text in values.items()
            }
    return found


@pytest.mark.skipif(not PAPERS.exists(), reason="the papers' texts are not here")
@pytest.mark.parametrize("setting", [*SETTINGS])
def test_the_rows_of_coco_lm_are_the_papers_its_own_and_those_that_it_quotes(setting: str) -> None:
    ours: dict[str, dict[str, float]] = {}
    for table in map(load_table, SETTINGS[setting]):
        rows = table.paper[0] | {row.name: row.values for row in table.quoted}
        for name, cells in rows.items():
            ours.setdefault(name, {}).update({c: pair[0] for c, pair in cells.items() if c in COLUMNS})
    assert ours == rows_of_table_1()[setting]


def shown(format: str, preset: str = "paper", **fields: Any) -> str:
    r = resolve_table("coco_lm_glue", preset, **fields)
    return render(filled(r, [], rows_of(r)), Caption(0), format)


def test_quoted_rows_stand_below_the_others_with_their_source() -> None:
    text = shown("text")
    rows = [line.split("  ")[0] for line in text.splitlines() if re.match(r"\S.*\(quoted\)  ", line)]
    assert rows == [f"{row.name} (quoted)" for row in load_table("coco_lm_glue").quoted]
    assert re.search(r"^BERT \(quoted\) +84\.50 +91\.30 .* 83\.10$", text, re.M)
    assert "ELECTRA (Clark et al. 2020, from Xu et al. 2020)" in " ".join(text.split())
    for format in ("md", "latex"):
        assert "BERT (quoted)" in shown(format)
        assert "never run or compared" in shown(format)
    body = json.loads(shown("json"))
    assert {"row": "DeBERTa", "source": "He et al. 2021", "column": "mnli_mm", "value": 0.862, "spread": None} in body[
        "quoted"
    ]
    assert "BERT" not in shown("csv"), "a file of results holds runs alone"


def test_they_are_shown_where_the_papers_own_rows_are() -> None:
    """On the paper's tasks under its preset: of fewer columns those that are there, and an Avg of all alone."""
    assert "(quoted)" not in shown("text", "laptop")
    assert "quoted" not in json.loads(shown("json", "laptop"))
    fewer = shown("text", tasks=("sst2",))
    assert re.search(r"^BERT \(quoted\) +93\.20$", fewer, re.M)
    assert "DeBERTa" not in fewer, "a row without a number here"
    assert "83.10" not in shown("text", tasks=("sst2", "rte"))


def test_a_printed_average_stands_where_all_of_its_columns_are() -> None:
    """Of a table with a column that the average leaves out, with or without that column."""
    text = YAML(typ="safe").load((Path(__file__).parents[2] / "benchmarks/coco_lm_glue.yaml").read_text())
    text["aggregate"]["average_over"] = [["mnli", "mnli_mm"], "qqp", "qnli", "sst2", "cola", "mrpc", "stsb"]
    table = Table.model_validate(text)
    for left_out, whole in ((), True), (("rte",), True), (("sst2",), False):
        r = resolve_table(table, "paper", tasks=tuple(task for task in table.tasks if task not in left_out))
        out = render(filled(r, [], rows_of(r)), Caption(0), "text")
        assert ("87.20" in out) == ("83.10" in out) == whole


def test_they_are_never_compared() -> None:
    r = resolve_table("coco_lm_glue", "paper", tasks=("rte",), seeds=(31, 42))
    grid = filled(r, [replace(each, dev=each.test) for each in results(r)], rows_of(r))
    quoted = {row.name for row in r.table.quoted}
    assert not quoted & {row for _, row, _ in grid.cells}
    assert not quoted & {row for _, row, _ in sets_of_the_best(grid)}
    assert not quoted & {c.row for c in compared(grid).comparisons}


def test_the_page_has_them() -> None:
    r = resolve_table("coco_lm_glue", "paper", tasks=("rte",))
    page = results_page(Results(filled(r, [], rows_of(r)), Caption(0), "none", [], [], {}, {}, []))
    assert "BERT (quoted)" in page
    assert "68.60" in page


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"name": "COCO-LM", "source": "x", "values": {"rte": 1}}], "there is a row 'COCO-LM' already"),
        ([{"name": "A", "source": "x", "values": {"rte": 1}}] * 2, "there is a row 'A' already"),
        ([{"name": "A", "source": "x", "values": {"rtee": 1}}], "unknown column 'rtee'. Did you mean 'rte'"),
        ([{"name": "A", "source": "x", "values": {}}], "at least 1 item"),
        ([{"name": "A", "values": {"rte": 1}}], "source"),
    ],
)
def test_wrong_quotes_are_refused(rows: list[Any], said: str) -> None:
    text = load_table("coco_lm_glue").model_dump(mode="json", exclude={"rows", "averages"}, exclude_none=True)
    row = {"name": "COCO-LM", "pre_train": "coco_lm", "method": "ft"}
    text |= {"rows": [row], "paper": {}, "origin": {}, "aggregate": {"center": "mean", "ddof": 1}}
    with pytest.raises(ValidationError) as raised:
        Table.model_validate({**text, "quoted": rows})
    assert said.lower() in str(raised.value).lower()
