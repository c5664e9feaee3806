"""Hidden test sets: the papers' numbers, scores of GLUE's server read from a file and shown beside them, refusals."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.analysis.server_scores import read_scores
from harness.cli import main
from harness.errors import UserError
from harness.planning.table import Server, Table, load_table, table_names
from harness.report.document import FORMATS
from harness.report.server import rendered_scores

PAPERS = Path(__file__).resolve().parents[2].parent / "shared" / "papers"
TABLES = [name for name in table_names() if load_table(name).server]
FIVE = ("mnli", "mnli_mm", "qqp", "qnli", "sst2")
here = pytest.mark.skipif(not PAPERS.exists(), reason="the papers' texts are not here")


def server_of(name: str) -> tuple[Table, Server]:
    table = load_table(name)
    assert table.server
    return table, table.server


def printed(name: str, columns: tuple[str, ...]) -> dict[str, list[float]]:
    """The paper's rows and the quoted ones, in the order of the columns; all of them have all columns."""
    _, server = server_of(name)
    rows = server.paper | {row.name: row.values for row in server.quoted}
    assert all(row.keys() == {*columns} for row in rows.values())
    return {row: [cells[column][0] for column in columns] for row, cells in rows.items()}


@here
def test_the_numbers_of_taco_are_the_papers() -> None:
    lines = (PAPERS / "taco.txt").read_text().splitlines()
    one, four = (next(i for i, line in enumerate(lines) if line.startswith(f"Table {n}:")) for n in (1, 4))
    test = [line.split("\t")[1:] for line in lines[one - 3 : one] if "-250k" in line]
    assert lines[one - 3].startswith("Test Set")
    found = {name: [float(x) for x in re.findall(r"\d+\.\d", " ".join(cells))] for name, *cells in test}
    assert printed("taco_small", (*FIVE, "cola", "stsb", "mrpc", "rte", "avg")) == found
    rows = [line.split("\t") for line in lines[four - 5 : four] if "/" in line and "MNLI" not in line]
    found = {name: [float(x) for x in re.findall(r"\d+\.\d", " ".join(cells))] for name, *cells in rows}
    assert len(found) == 3
    assert printed("taco_base", (*FIVE, "avg")) == {
        {"TACO": "TACO-500k"}.get(name, name): v for name, v in found.items()
    }


@here
def test_the_numbers_of_coco_lm_are_the_papers() -> None:
    html = (PAPERS / "coco_lm.txt").read_text().partition("Table 2: GLUE test set results")[0]
    settings: list[dict[str, list[float]]] = []
    for row in re.findall(r"<tr>(.*?)</tr>", html[html.rindex("<table") :], flags=re.DOTALL)[1:]:
        cells = [re.sub("<[^>]*>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
        if len(cells) == 1:
            settings.append({})
        else:
            name = re.sub(r"(Base|Large)", r"-\1", cells[0])
            settings[-1][name] = [float(x) for cell in cells[2:] for x in cell.split("/")]
    columns = (*FIVE, "cola", "rte", "mrpc", "stsb", "avg")
    for table, size, found in zip(
        ("coco_lm_base_plus", "coco_lm_large_plus"), ("Base", "Large"), settings, strict=True
    ):
        ours = {"COCO-LM": f"COCO-LM-{size}++"}
        assert {ours.get(name, name): v for name, v in printed(table, columns).items()} == found


@pytest.mark.parametrize("name", TABLES)
def test_the_printed_averages_are_those_of_our_groups(name: str) -> None:
    _, server = server_of(name)
    for cells in (*server.paper.values(), *(row.values for row in server.quoted)):
        means = [sum(cells[column][0] for column in group) / len(group) for group in server.groups]
        assert abs(sum(means) / len(means) - cells["avg"][0]) < 0.1001
    assert name in ("taco_small", "taco_base", "coco_lm_base_plus", "coco_lm_large_plus")


def written(folder: Path, *lines: str, header: str = "row,column,score") -> Path:
    path = folder / "scores.csv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def whole(name: str, points: float) -> list[str]:
    """A score for each place that the paper prints."""
    _, server = server_of(name)
    return [f"{row},{column},{points + i}" for row in server.paper for i, column in enumerate(server.columns)]


def shown(folder: Path, name: str, lines: list[str], format: str) -> tuple[str, bool]:
    table, server = server_of(name)
    return rendered_scores(table, server, read_scores(written(folder, *lines), table, server), "scores.csv", format)


@pytest.mark.parametrize("name", TABLES)
def test_scores_stand_beside_the_papers_and_the_quoted(name: str, tmp_path: Path) -> None:
    _, server = server_of(name)
    text, complete = shown(tmp_path, name, whole(name, 50), "csv")
    assert complete
    cells = {(row["kind"], row["row"], row["column"]): row for row in csv.DictReader(io.StringIO(text))}
    for row in server.paper:
        for i, column in enumerate(server.columns):
            assert float(cells["server", row, column]["score"]) == pytest.approx((50 + i) / 100)
            assert float(cells["paper", row, column]["score"]) == pytest.approx(server.paper[row][column][0] / 100)
        ids = [*server.columns]
        naive = [sum(50 + ids.index(c) for c in group) / len(group) for group in server.groups]
        assert float(cells["server", row, "avg"]["score"]) == pytest.approx(sum(naive) / len(naive) / 100)
    for quoted in server.quoted:
        assert {cells["quoted", quoted.name, c]["source"] for c in quoted.values} == {quoted.source}
    for format in (*FORMATS, "html"):
        text, _ = shown(tmp_path, name, whole(name, 50), format)
        assert "COCO-LM" in text or "TACO" in text
    assert (text, True) == shown(tmp_path, name, whole(name, 50)[::-1], "html"), "the order of lines changes no byte"


def test_rows_with_a_part_of_the_scores_and_rows_that_the_paper_lacks(tmp_path: Path) -> None:
    """A dash for each missing score, no Avg, and not complete."""
    text, complete = shown(tmp_path, "taco_small", ["TACO-250k,mnli,78.25", " TACO-50k , cola , -3.1", ""], "text")
    assert not complete
    lines = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert lines["TACO-250k"][1:] == ["78.25", *["—"] * 9]
    assert lines["TACO-50k"][1:] == [*["—"] * 5, "-3.10", *["—"] * 4]
    assert lines["MLM-250k"][1:] == ["—"] * 10
    assert "TACO-50k (paper)" not in text
    assert json.loads(shown(tmp_path, "taco_small", ["TACO-250k,rte,0"], "json")[0])["complete"] is False


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["MLM-250,rte,60"], "line 2: unknown row 'MLM-250'. Did you mean 'MLM-250k'"),
        (["MLM-250k,ret,60"], "line 2: unknown column 'ret'. Did you mean 'rte'"),
        (["MLM-250k,avg,60"], "line 2: unknown column 'avg'"),
        (["MLM-250k,rte,60", "", "MLM-250k,rte,61"], "line 4: MLM-250k has a score of rte already"),
        (["MLM-250k,rte,100.1"], "the score is '100.1'; accuracy is a number of points from 0 to 100"),
        (["MLM-250k,rte,-1"], "from 0 to 100"),
        (["MLM-250k,cola,-101"], "mcc is a number of points from -100 to 100"),
        (["MLM-250k,rte,nan"], "the score is 'nan'"),
        (["MLM-250k,rte,inf"], "the score is 'inf'"),
        (["MLM-250k,rte,"], "the score is ''"),
        (["MLM-250k,rte"], "line 2: 2 fields under a header of 3"),
        (["MLM-250k,rte,60,1"], "line 2: 4 fields"),
        (["MLM-250k,rte,0.606", "MLM-250k,cola,-0.1"], "write them in points"),
        ([], "has no scores"),
    ],
)
def test_wrong_files_are_refused(lines: list[str], said: str, tmp_path: Path) -> None:
    table, server = server_of("taco_small")
    with pytest.raises(UserError) as raised:
        read_scores(written(tmp_path, *lines), table, server)
    assert said in str(raised.value)
    assert str(tmp_path / "scores.csv") in str(raised.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    table, server = server_of("taco_small")
    latin = tmp_path / "latin.csv"
    latin.write_bytes("row,column,score\nÄ,rte,60\n".encode("latin-1"))
    cases = {
        written(tmp_path, "MLM-250k,60", header="row,score"): "line 1: a file of scores has the header",
        latin: "is not UTF-8",
        tmp_path / "none.csv": "--scores: there is no file",
        tmp_path: "is a folder",
    }
    for path, said in cases.items():
        with pytest.raises(UserError, match=said):
            read_scores(path, table, server)


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_bytes(b"\xef\xbb\xbfrow,column,score\r\nMLM-250k,rte,60.5\r\n")
    assert read_scores(path, *server_of("taco_small")) == {("MLM-250k", "rte"): 0.605}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = written(tmp_path, *whole("taco_base", 60)), tmp_path / "t.html"
    line = ["report", "--table", "taco_base", "--scores", str(path)]
    assert main(line) == 0
    said = capsys.readouterr().out
    assert re.search(r"^TACO-500k +60\.00 +61\.00 +62\.00 +63\.00 +64\.00 +62\.00$", said, re.M)
    assert re.search(r"^INFOWORD \(quoted\) +83\.70 +82\.40 +71\.00 +91\.40 +92\.50 +84\.20$", said, re.M)
    assert "BERT-NCE and INFOWORD (Kong et al. 2020)" in said
    assert main([*line, "--out", str(out)]) == 0
    assert "INFOWORD (quoted)" in out.read_text()
    path.write_text("row,column,score\nTACO-500k,qqp,70\n")
    assert main(line) == 1, "as of a table without all its runs"
    capsys.readouterr()
    for more, wanted in {
        "--methods ft": "--methods cannot change",
        "--set optim.lr=1": "--set cannot change",
        "--figure cost --format csv": "--figure cannot change",
        "--format parquet --out x.parquet": "no parquet is made of scores",
    }.items():
        assert main([*line, *more.split()]) == 2
        assert wanted in capsys.readouterr().err
    assert main(["report", "--table", "few_shot", "--scores", str(path)]) == 2
    assert "table few_shot has no hidden test sets; coco_lm_base_plus" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"paper": {"TACO": {"rte": 1}}}, "unknown row 'TACO'"),
        ({"paper": {"TACO-250k": {"rtee": 1}}}, "unknown column 'rtee'. Did you mean 'rte'"),
        ({"average_over": ["rtee"]}, "unknown column 'rtee'"),
        ({"average_over": [[]]}, "at least 1 item"),
        (
            {"quoted": [{"name": "TACO-250k", "source": "x", "values": {"rte": 1}}]},
            "there is a row 'TACO-250k' already",
        ),
        (
            {"columns": {"rte": {"title": "RTE", "metric": "acuracy"}}},
            "unknown metric 'acuracy'. Did you mean 'accuracy'",
        ),
    ],
)
def test_wrong_tables_are_refused(changes: dict[str, Any], said: str) -> None:
    text = load_table("taco_small").model_dump(mode="json", exclude_none=True)
    with pytest.raises(ValidationError) as raised:
        Table.model_validate({**text, "server": {**text["server"], **changes}})
    assert said in str(raised.value)


def test_a_table_of_no_paper_has_no_hidden_test_sets() -> None:
    text = load_table("taco_small").model_dump(mode="json", exclude={"source"}, exclude_none=True)
    with pytest.raises(ValidationError, match="say which paper under source"):
        Table.model_validate(text)
