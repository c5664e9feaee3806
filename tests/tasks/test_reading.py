"""Files: the three formats give the same rows; whatever is wrong is one sentence with the file and the row."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tasks.task_files import read, single, write_file

from harness.errors import UserError
from harness.tasks.reading import rows_of
from harness.tasks.rows import Rows
from harness.tasks.sources import open_source
from harness.tasks.task import TASKS, Task

ENDINGS = ("parquet", "csv", "jsonl")
AWKWARD = ['commas, "quotes"', "line\nbreak", " spaces ", "Ünïcode 漢字 🎈", "tab\there", "NA", "null", "007"]
AWKWARD += ["long " * 40_000]


def load(folder: Path, task: Task = TASKS["sst2"], split: str = "train") -> Any:
    return open_source(folder).load(task, split)


def refused(folder: Path, *words: str, task: Task = TASKS["sst2"]) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, task)
    message = str(caught.value)
    for word in words:
        assert word in message
    assert "\n" not in message
    assert message.endswith(".")
    assert message.count(". ") - message.count("Did you mean") <= 1
    return message


def test_formats_and_orders_give_the_same_rows(tmp_path: Path) -> None:
    rows = [{"sentence": text, "label": i % 2} for i, text in enumerate(AWKWARD)] + single(30) + single(5)
    digests = set()
    for number, ending in enumerate(ENDINGS):
        for order in (1, -1):
            folder = tmp_path / f"{ending}{order}"
            write_file(folder / f"sst2/train.{ending}", rows[::order])
            loaded = load(folder)
            digests.add((loaded.digest, loaded.texts, tuple(loaded.gold)))
            assert (len(loaded), number >= 0) == (len(rows), True)
    assert len(digests) == 1


def test_labels_by_name_and_by_number_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rows, "texts", None)  # only questions are read twice
    names = [{**row, "label": TASKS["sst2"].classes[row["label"]]} for row in single(10)]
    numbers = [{**row, "label": float(row["label"])} for row in single(10)]
    texts = [{**row, "label": str(row["label"])} for row in single(10)]
    for name, rows in (("a", names), ("b", numbers), ("c", texts), ("d", single(10))):
        write_file(tmp_path / name / "sst2/train.jsonl", rows)
    assert len({load(tmp_path / name).digest for name in "abcd"}) == 1


def test_class_names_that_are_numbers_are_names(tmp_path: Path) -> None:
    task = Task(name="stars", columns=("sentence",), classes=("1", "2"), metrics=("accuracy",))
    rows = [{"sentence": "a", "label": 1}, {"sentence": "b", "label": 2}]
    write_file(tmp_path / "stars/train.parquet", rows)
    loaded = load(tmp_path, task)
    assert dict(zip(loaded.texts, loaded.gold.tolist(), strict=True)) == {("a",): 0, ("b",): 1}
    write_file(tmp_path / "stars/train.parquet", [*rows, {"sentence": "c", "label": 0}])
    refused(tmp_path, "row 3", "label 0", "one of 0 (1), 1 (2)", task=task)


CSV, JSONL = "sentence,label\na,0\n", '{"sentence": "a", "label": 0}\n\n'
BAD_LINES = [
    ("csv", CSV, "b\n", "line 3", "1 fields under a header of 2"),
    ("csv", CSV, '"b"c,0\n', "line 3", "is not CSV"),
    ("csv", CSV, "b,\n", "line 3", "the label is missing"),
    ("csv", CSV, "b,-1\n", "line 3", "hidden"),
    ("csv", CSV, " ,1\n", "line 3", "blank"),
    ("csv", "text,label\na,0\n", "", "no column 'sentence'", "text, label"),
    ("csv", "sentence,labels\na,0\n", "", "no column 'label'", "Did you mean 'labels'?"),
    ("csv", "sentence,label,label\na,0,1\n", "", "'label' appears twice"),
    ("csv", "", "", "is empty"),
    ("csv", "sentence,label\n", "", "no rows"),
    ("jsonl", JSONL, '{"sentence": "b", "label": 0\n', "line 3", "is not JSON"),
    ("jsonl", JSONL, "[1]\n", "line 3", "is not an object"),
    ("jsonl", JSONL, '{"sentense": "b", "label": 0}\n', "line 3", "Did you mean 'sentense'?"),
    ("jsonl", JSONL, '{"sentence": 5, "label": 0}\n', "line 3", "not text"),
    ("jsonl", JSONL, '{"sentence": "\\ud800", "label": 0}\n', "line 3", "surrogate"),
    ("jsonl", JSONL, '{"sentence": "b", "label": [0]}\n', "line 3", "label '[0]'"),
    ("jsonl", JSONL, '{"sentence": "b", "label": 0.5}\n', "line 3", "label 0.5"),
    ("jsonl", JSONL, '{"sentence": "b", "label": NaN}\n', "line 3", "label nan"),
    ("jsonl", "\n", "", "no rows"),
    ("csv", "sentence;label,x\na;0,1\n", "", "line 1", "commas and semicolons are in its header"),
    ("csv", "sentence;label\na;0\n", "b\n", "line 3", "1 fields under a header of 2", "semicolons"),
    ("csv", "sentence\tlabel\na\t0\n", '"b\t0\nc"\t1\n', "line 3", "is not CSV", "over several lines and holds tabs"),
    ("csv", 'sentence,label\n"a\na",0\n', "b\n", "line 4", "1 fields under a header of 2"),
    ("csv", CSV, '"' + "b,1\n" * 40_000, "line 3", "is not CSV", "quotes"),
    ("csv", CSV, "b,True\n", "line 3", "label 'True' is unknown"),
    ("jsonl", JSONL, '{"sentence": "b", "label": ' + "9" * 5000 + "}\n", "line 3", "is not JSON"),
]


@pytest.mark.parametrize("case", BAD_LINES, ids=lambda case: f"{case[0]}-{case[-1][:20]}")
def test_bad_text_files_are_refused_with_file_and_line(case: tuple[str, ...], tmp_path: Path) -> None:
    ending, good, bad, *words = case
    path = tmp_path / f"sst2/train.{ending}"
    path.parent.mkdir()
    path.write_text(good + bad, encoding="utf-8")
    refused(tmp_path, str(path), *words)


BAD_COLUMNS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"sentence": ["a", None], "label": [0, 1]}, ("row 2", "'sentence' is null")),
    ({"sentence": ["a", "b"], "label": [0, 2]}, ("row 2", "label 2 is unknown")),
    ({"sentence": ["a", "b"], "label": [[0], [1]]}, ("row 1", "label '[0]'")),
    ({"sentence": [], "label": []}, ("no rows",)),
    ({"sentence": ["a", "b"]}, ("no column 'label'", "Its columns are sentence")),
]


@pytest.mark.parametrize(("columns", "words"), BAD_COLUMNS, ids=lambda value: str(value)[:30])
def test_bad_parquet_is_refused_with_file_and_row(
    columns: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "sst2/train.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table(columns), path)
    refused(tmp_path, str(path), *words)


def test_equal_names_of_columns_and_blank_lines_before_the_header(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    twice = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="column 'text' appears twice"):
        list(rows_of(tmp_path / "a.parquet"))
    (tmp_path / "a.csv").write_text("\n\ntext,label\nx,1\n")
    assert [row for _, row in rows_of(tmp_path / "a.csv")] == [{"text": "x", "label": "1"}]


def test_broken_parquet_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = write_file(tmp_path / "sst2/train.parquet", single(500))
    raw = path.read_bytes()
    bad = pa.array([b"fine", b"\xff\xfe"], type=pa.binary()).view(pa.string())  # no UTF-8
    pq.write_table(pa.table({"sentence": bad, "label": [0, 1]}), path)
    for damaged in (path.read_bytes(), raw[:0], raw[:3], raw[:20], raw[:-10], raw[:8] + bytes(192) + raw[200:]):
        path.write_bytes(damaged)
        refused(tmp_path, str(path), "is not a whole Parquet file")


def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write_file(tmp_path / "sst2/train.csv", single(9))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = lines[4].replace(b"told", "caf\u00e9".encode("latin-1"))
    path.write_bytes(b"".join(lines))
    refused(tmp_path, str(path), "line 5", "0xe9 is not UTF-8")


def test_regression_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "label": value} for value in (1.0, 5.5)]
    path = write_file(tmp_path / "stsb/train.jsonl", rows)
    refused(tmp_path, str(path), "line 2", "5.5", "a number from 0 to 5", task=TASKS["stsb"])


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    write_file(tmp_path / "cola/train.csv", single(4))
    refused(tmp_path, "no folder 'sst2'", "cola")
    write_file(tmp_path / "sst2/validation.csv", single(4))
    refused(tmp_path, "no train.parquet", "validation.csv")
    for ending in ENDINGS[:2]:
        write_file(tmp_path / f"sst2/train.{ending}", single(4))
    refused(tmp_path, "train.csv and train.parquet", "keep one")


def test_what_cannot_be_read_is_refused_with_its_path(tmp_path: Path) -> None:
    for ending in ENDINGS:
        path = tmp_path / f"{ending}/sst2/train.{ending}"
        path.mkdir(parents=True)
        refused(tmp_path / ending, str(path), "is not read; write the split as")
        path.rmdir()
        path.symlink_to("/proc/self/mem")  # a file that nobody can read from its beginning, root included
        refused(tmp_path / ending, str(path))


@pytest.mark.parametrize("seed", range(3))
def test_damaged_files_of_any_format_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    """Bytes changed, cut out and doubled at random places: never anything but rows or one sentence."""
    rng = np.random.default_rng(seed)
    for ending in ENDINGS:
        path = write_file(tmp_path / f"sst2/train.{ending}", single(30))
        whole = path.read_bytes()
        for _ in range(60):
            raw = bytearray(whole)
            for _ in range(int(rng.integers(1, 4))):
                at = int(rng.integers(len(raw)))
                kind = int(rng.integers(3))
                if kind == 0:
                    raw[at] = int(rng.integers(256))
                elif kind == 1:
                    del raw[at : at + int(rng.integers(1, 40))]
                else:
                    raw[at:at] = raw[at : at + int(rng.integers(1, 40))]
            path.write_bytes(raw)
            said = ""
            try:
                load(tmp_path)
            except UserError as error:
                said = str(error)
            assert not said or (str(path) in said and "\n" not in said)
        path.unlink()


WRONG = (
    ("csv", " ,1", "sentence blank"),
    ("csv", "few", "1 fields under a header of 2"),
    ("csv", "missing,", "the label is missing"),
    ("csv", "unknown,7", "label '7' is unknown to task mine"),
    ("csv", "hidden,-1", "label -1 means that the label is hidden"),
    ("jsonl", '{"sentence": null, "label": 0}', "'sentence' is null"),
    ("jsonl", '{"sentence": "a",', "is not JSON"),
    ("jsonl", "[1]", "is not an object"),
    ("jsonl", '{"sentence": "a", "label": 0, "label": 1}', "is not JSON (the key 'label' appears twice)"),
    ("jsonl", '{"sentence": "b", "label": null}', "the label is missing"),
)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_all_bad_rows_are_named_and_a_file_without_them_is_the_same(ending: str, tmp_path: Path) -> None:
    """Beside any one of them alone, a bad row is named by its own sentence; skipped, the digest is that of the good rows."""
    good = [
        f"text {i},{i % 2}" if ending == "csv" else json.dumps({"sentence": f"text {i}", "label": i % 2})
        for i in range(9)
    ]
    head = ["sentence,label"] if ending == "csv" else []
    wrong = [(line, problem) for kind, line, problem in WRONG if kind == ending]
    task = TASKS["sst2"].model_copy(update={"name": "mine"})

    def written(*bad: str) -> Path:
        mixed = [line for pair in itertools.zip_longest(good, bad) for line in pair if line is not None]
        path = tmp_path / f"{len(bad)}.{ending}"
        path.write_text("\n".join([*head, *mixed]) + "\n")
        return path

    clean = read(written(), task)
    assert clean.skipped == 0
    path = written(*(line for line, _ in wrong))
    with pytest.raises(UserError) as raised:
        read(path, task)
    places = [f"line {2 + len(head) + 2 * number}: {problem}" for number, (_, problem) in enumerate(wrong)]
    assert [place for place in places if place not in str(raised.value)] == []
    assert f"{len(wrong)} of {len(good) + len(wrong)} rows cannot be read" in str(raised.value)
    left = read(path, task.model_copy(update={"skip_bad_rows": True}))
    assert (left.digest, left.skipped) == (clean.digest, len(wrong))
    nothing = tmp_path / f"nothing.{ending}"
    nothing.write_text("\n".join([*head, *(line for line, _ in wrong)]) + "\n")
    with pytest.raises(UserError, match=f"line {1 + len(head)}: {wrong[0][1]}"):
        read(nothing, task.model_copy(update={"skip_bad_rows": True}))


def test_a_long_list_of_bad_rows_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    path.write_text("sentence,label\n" + "good,1\n" + "bad,7\n" * 50)
    with pytest.raises(UserError, match=r"50 of 51 rows .* line 22: label '7' [^;]*; and 30 more; correct them\.$"):
        read(path, TASKS["sst2"])
