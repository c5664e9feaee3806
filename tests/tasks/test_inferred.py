"""A task from a file of labelled rows: what is inferred is right, and what is not clear is one sentence with its flag."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML
from tasks.task_files import inferred, write_coded, write_file

from harness.errors import UserError
from harness.tasks.inferred import task_yaml
from harness.tasks.sources import ALL_ROWS, open_source
from harness.tasks.task import FILES, Task, load_user_task


def text_file(folder: Path, text: str | bytes, name: str = "reviews.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def reviews(labels: list[Any], **more: Any) -> list[dict[str, Any]]:
    return [{"id": i, "review": f"Review number {i} of many.", "stars": label} | more for i, label in enumerate(labels)]


def loaded(task: Task) -> dict[str, Any]:
    """Label by text, by the names of classes where there are some."""
    rows = open_source(None).load(task, ALL_ROWS)
    gold = rows.gold.tolist() if (not task.classes) else [task.classes[code] for code in rows.gold]
    return dict(zip((text for (text,) in rows.texts), gold, strict=True))


# ------------------------------------------------------------------------------------------------------------- kinds


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["pos", "neg", "neither"], ("neg", "neither", "pos")),
        ([10, 2, 1], ("1", "2", "10")),
        ([2.0, 1.0, 3.0], ("1", "2", "3")),
        ([True, False], ("False", "True")),
        ([0.5, 2.25, 4.0, 1.0], ()),
        (["007", "7", "NA"], ("007", "7", "NA")),
        (["é", "\U0001f600", "a,b"], ("a,b", "é", "\U0001f600")),
    ],
)
def test_labels_of_every_type(labels: list[Any], classes: tuple[str, ...], tmp_path: Path) -> None:
    rows, kind = reviews(labels * 10), "classes" if "NA" in labels else ""
    for ending in ("csv", "jsonl", "parquet"):
        task = inferred(write_file(tmp_path / f"reviews.{ending}", rows), text=("review",), label="stars", kind=kind)
        named = ("1.0", "2.0", "3.0") if ending == "csv" and labels == [2.0, 1.0, 3.0] else classes
        assert (task.name, task.columns, task.label, task.classes) == ("reviews", ("review",), "stars", named)
        zero = "" if ending == "csv" else ".0"
        assert loaded(task) == {
            r["review"]: str(r["stars"]).removesuffix(zero) if classes else r["stars"] for r in rows
        }


def test_columns_are_inferred_where_they_are_clear(tmp_path: Path) -> None:
    rows = reviews(["x", "y"] * 9)
    assert inferred(write_file(tmp_path / "a.csv", rows), label="stars").columns == ("review",)
    for number, (text, label) in enumerate((("text", "label"), ("satz", "ton"))):
        two = [{text: row["review"], label: row["stars"]} for row in rows]
        task = inferred(write_file(tmp_path / f"{number}.jsonl", two))
        assert (task.columns, task.label) == ((text,), label)
    both = [{"a": f"One {i}.", "b": "Two.", "label": (0, 1, 2, 1)[i % 4]} for i in range(40)]
    path = write_coded(tmp_path / "pairs.parquet", both, "label", ["no", "maybe", "yes"])
    task = inferred(path, text=("a", "b"))
    assert (task.columns, task.classes) == (("a", "b"), ("no", "maybe", "yes"))
    assert np.bincount(open_source(None).load(task, ALL_ROWS).gold).tolist() == [10, 20, 10]
    assert inferred(path, text=("a", "b"), kind="regression").classes == ()


def named_codes(path: Path, labels: list[str], names: list[str]) -> Path:
    rows = [{"review": row["review"], "stars": row["stars"]} for row in reviews([*map(names.index, labels)])]
    return write_coded(path, rows, "stars", names)


def read_as(task: Task, split: str, source: Any) -> list[str]:
    """The classes of the rows of a split, in the order of the file."""
    found = source.load(task, split)
    numbered = {int(text.split()[2]): task.classes[code] for (text,), code in zip(found.texts, found.gold, strict=True)}
    return [numbered[row] for row in sorted(numbered)]


WORDS = ["no", "yes", "maybe", "yes"] * 10


@pytest.mark.parametrize("order", [("no", "maybe", "yes"), ("yes", "no", "maybe")])
def test_the_names_that_a_file_gives_its_codes_decide(order: tuple[str, ...], tmp_path: Path) -> None:
    """In whatever order the classes stand elsewhere: in a training file of words, in another file with names, in a YAML file."""
    test = named_codes(tmp_path / "test.parquet", WORDS, [*order])
    mains = [
        write_file(tmp_path / "words.csv", reviews(WORDS)),
        named_codes(tmp_path / "codes.parquet", WORDS, ["yes", "no", "maybe"]),
    ]
    tasks = [inferred(main, label="stars", test=str(test)) for main in mains]
    body = "name: task\ndata: test.parquet\ncolumns: [review]\nlabel: stars\nmetrics: [accuracy]\n"
    text_file(tmp_path, body + "classes: [yes, no, maybe]\n", "task.yaml")
    text_file(tmp_path, body + "classes: ['y', 'n']\nlabels: {yes: 'y', no: 'n', maybe: 'n'}\n", "mapped.yaml")
    for task in tasks:
        assert read_as(task, "test", open_source(None)) == WORDS
    assert read_as(load_user_task(tmp_path / "task.yaml"), ALL_ROWS, open_source(None)) == WORDS
    shorter = [{"yes": "y"}.get(word, "n") for word in WORDS]
    assert read_as(load_user_task(tmp_path / "mapped.yaml"), ALL_ROWS, open_source(None)) == shorter


def test_codes_of_a_mapping_are_what_it_says(tmp_path: Path) -> None:
    """A user who maps the codes themselves knows better than the file, and names that are no classes are not looked at."""
    named_codes(tmp_path / "codes.parquet", WORDS, ["no", "maybe", "yes"])
    body = "name: task\ndata: codes.parquet\ncolumns: [review]\nlabel: stars\nmetrics: [accuracy]\n"
    text_file(tmp_path, body + "classes: [no, yes]\nlabels: {0: yes, 1: no, 2: no}\n", "mapped.yaml")
    text_file(tmp_path, body + "classes: [a, b, c]\n", "others.yaml")
    mapped, others = (load_user_task(tmp_path / f"{name}.yaml") for name in ("mapped", "others"))
    assert read_as(mapped, ALL_ROWS, open_source(None)) == ["yes" if word == "no" else "no" for word in WORDS]
    assert read_as(others, ALL_ROWS, open_source(None)) == [{"no": "a", "maybe": "b", "yes": "c"}[w] for w in WORDS]


def test_names_that_are_numbers_and_truth_values_are_the_words_for_them(tmp_path: Path) -> None:
    numbers = ["1", "2", "3", "4", "5"] * 8
    test = write_file(tmp_path / "numbers.csv", reviews(numbers))
    task = inferred(named_codes(tmp_path / "stars.parquet", numbers, ["1", "2", "3", "4", "5"]), test=str(test))
    assert read_as(task, "test", open_source(None)) == numbers
    truths = [i % 3 == 0 for i in range(30)]  # Parquet has a type for them, CSV writes them out
    test = write_file(tmp_path / "test.parquet", reviews(truths))
    task = inferred(write_file(tmp_path / "words.csv", reviews(truths)), label="stars", test=str(test))
    assert read_as(task, "test", open_source(None)) == [*map(str, truths)]


@pytest.mark.parametrize("kind", ["test", "dev"])
def test_numbers_beside_words_are_refused(kind: str, tmp_path: Path) -> None:
    """Which class a number means, no file says: the order of our own classes is none that the user gave."""
    other = write_file(tmp_path / "other.csv", reviews([index % 3 for index in range(30)]))
    task = inferred(write_file(tmp_path / "words.csv", reviews(WORDS)), label="stars", **{kind: str(other)})
    (split,) = task.files
    with pytest.raises(UserError, match="are numbers and those of train are words; write words in both"):
        open_source(None).load(task, split)
    named = named_codes(tmp_path / "codes.parquet", WORDS, ["no", "maybe", "yes"])
    task = inferred(named, **{kind: str(other)})
    assert read_as(task, split, open_source(None)) == [["no", "maybe", "yes"][index % 3] for index in range(30)]


@pytest.mark.parametrize(
    ("body", "said", "words"),
    [
        ("id,a,b\n1,x y z,2\n2,u v w,3\n", {}, ["which column holds the labels", "--label", "id, a, b"]),
        ("a,b,label\nx y z,u v w,2\nk l m,o p q,3\n", {}, ["several columns hold text (a, b)", "--text COLUMN,COLUMN"]),
        ("a,b,label\n1,2,2\n3,4,3\n", {}, ["no column holds text", "--text"]),
        ("text,label\nx,1\n", {"text": ("txet",)}, ["unknown column 'txet'", "Did you mean 'text'", "--text"]),
        ("text,label\nx,1\n", {"text": ("text",), "label": "text"}, ["and none for the labels"]),
        ("text,label\nx y,1\nz w,1\n", {}, ["holds one value, '1'"]),
        (
            "text,label\na b,1\nc d,2\ne f,3\ng h,n/a\n",
            {},
            ["line 5", "'n/a' (1 of 4 rows) stands among numbers", "--kind"],
        ),
        (
            "text,label\na b,yes\nc d,no\ne f,Yes\n",
            {},
            ["line 4: label 'Yes' and 'yes'", "line 2", "one in two ways of writing", "--kind classes"],
        ),
        ("text,label\na b,caf\u00e9\nc d,bar\ne f,cafe\u0301\n", {}, ["line 4: label", "line 2", "one in two ways"]),
        ("text;score\na b;0,5\nc d;1,5\ne f;0,5\n", {}, ["line 2: label '0,5' has a decimal comma"]),
        ("text,label\na b,x\nc d,2\n", {"kind": "regression"}, ["line 2: label 'x' is no number"]),
        ("text,label\na b,x\n", {"kind": "class"}, ["--kind class: should be classes, regression or spans"]),
        ("text,label\n", {}, ["there are no rows"]),
        ("text,label\na b,1\nc d,0\ne f,1.0\n", {}, ["line 4: label '1.0' and '1' (", "line 2)", "one in two ways"]),
        (
            "text,label\n" + "".join(f"t {i},{i}\n" for i in range(30)),
            {},
            ["30 different whole numbers from 0 to 29", "--kind regression", "--kind classes"],
        ),
        (
            "text,label\n" + "".join(f"t {i},v{i}\n" for i in range(30)),
            {"text": ("text",)},
            ["30 different values in 30 rows"],
        ),
        ("text,label\na b,\nc d,\n", {"skip_bad_rows": True}, ["no row has a text and a label"]),
        ("text\nabc\n", {"skip_bad_rows": True}, ["has one column (text)"]),
        ("good film,pos\nbad film,neg\nfine film,pos\n", {"skip_bad_rows": True}, ["both the name and a value"]),
        (
            "text,label\nx y,é\n".encode("utf-16"),
            {"text": ("text",), "label": "label", "name": "a.csv"},
            ["is UTF-16", "save the file as UTF-8"],
        ),
        (
            "text,label\nx y,a\n".encode("utf-16-le"),
            {"text": ("text",), "label": "label", "name": "a.csv"},
            ["is UTF-16"],
        ),
    ],
)
def test_what_is_not_clear_or_cannot_be_read_is_one_sentence(
    body: str | bytes, said: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    path = text_file(tmp_path, body, said.get("name", "reviews.csv"))
    with pytest.raises(UserError) as caught:
        inferred(path, **{key: value for key, value in said.items() if key != "name"})
    assert [word for word in words if word not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


def test_a_flag_settles_what_is_ambiguous(tmp_path: Path) -> None:
    numbers = text_file(tmp_path, "text,label\n" + "".join(f"t {i % 90},{i % 30}\n" for i in range(90)))
    assert inferred(numbers, kind="regression").classes == ()
    assert inferred(numbers, kind="classes").classes == tuple(map(str, range(30)))
    with pytest.raises(UserError, match=r"row 1: label b'x' is neither text nor a number"):
        inferred(write_file(tmp_path / "bytes.parquet", reviews([b"x", b"y"] * 9)), label="stars", text=("review",))


# ------------------------------------------------------------------------------------------------------------- files


def test_the_separator_that_excel_states_is_no_row(tmp_path: Path) -> None:
    rows = "text;label\na, b;x\nc d;y\n"
    assert loaded(inferred(text_file(tmp_path, f"sep=;\n{rows}"))) == {"a, b": "x", "c d": "y"}
    assert loaded(inferred(text_file(tmp_path, rows.replace("\n", "\r")))) == {"a, b": "x", "c d": "y"}
    with pytest.raises(UserError, match=r"line 5"):
        loaded(inferred(text_file(tmp_path, f"sep=;\n{rows}short\n")))


def test_an_object_without_the_label_is_a_bad_row(tmp_path: Path) -> None:
    path = text_file(tmp_path, '{"text":"a b","label":"x"}\n{"text":"c d"}\n{"text":"e f","label":"y"}\n', "x.jsonl")
    with pytest.raises(UserError, match=r"line 2: there is no column 'label'"):
        loaded(inferred(path))
    assert loaded(inferred(path, skip_bad_rows=True)) == {"a b": "x", "e f": "y"}


def test_marks_separators_quotes_line_breaks_and_emojis(tmp_path: Path) -> None:
    rows = [
        ("plain text", "a"),
        ('with "quotes", commas; semicolons', "b"),
        ("two\nlines \U0001f600", "a"),
        ("NA", "b"),
    ]
    digests = set()
    for delimiter, name, encoding in (
        (",", "a.csv", "utf-8"),
        (";", "b.csv", "utf-8-sig"),
        ("\t", "c.tsv", "utf-8"),
        ("\t", "d.csv", "utf-8"),
    ):
        out = io.StringIO()
        csv.writer(out, delimiter=delimiter).writerows([("text", "label"), *rows])
        task = inferred(text_file(tmp_path, out.getvalue().encode(encoding), name), text=("text",))
        assert loaded(task) == dict(rows)
        digests.add(open_source(None).load(task, ALL_ROWS).digest)
    assert len(digests) == 1


# -------------------------------------------------------------------------------------------------------------- YAML


def resolved(task: Task) -> Task:
    files = {key: str(Path(text).resolve()) for key in FILES if (text := getattr(task, key))}
    return task.model_copy(update=files)


@pytest.mark.parametrize("labels", [["x", "no", "1"], [1.5, 2.5, 3.25], [True, False]])
def test_the_yaml_file_of_a_task_is_the_task(labels: list[Any], tmp_path: Path) -> None:
    data = write_file(tmp_path / "My Reviews.jsonl", reviews(labels * 9))
    files = {"dev": "dev.csv", "test": "test.csv", "unlabelled": "more.txt"}
    beside = {field: str(tmp_path / name) for field, name in files.items()}
    for name in beside.values():
        Path(name).touch()
    for said in ({}, beside | {"remove_overlap": True}):
        file = inferred(data, label="stars", text=("review",), kind="classes" if "x" in labels else "", **said)
        path = tmp_path / "folder/task.yaml"
        path.parent.mkdir(exist_ok=True)
        YAML().dump(task_yaml(file, path.parent), path)
        assert resolved(load_user_task(path)) == resolved(file)


def test_unlabelled_texts_from_every_kind_of_file(tmp_path: Path) -> None:
    data = write_file(tmp_path / "a.csv", reviews(["x", "y"] * 9))
    texts = ["One text.", "Another one."]
    (tmp_path / "u.txt").write_text("\n".join([*texts, "", ""]))
    write_file(tmp_path / "u.csv", [{"review": text, "other": 1} for text in texts] + [{"review": " ", "other": 2}])
    write_file(tmp_path / "u.jsonl", [{"text": text} for text in texts])
    write_file(tmp_path / "u.parquet", [{"review": text} for text in texts])
    with gzip.open(tmp_path / "u.csv.gz", "wb") as packed:
        packed.write((tmp_path / "u.csv").read_bytes())
    (tmp_path / "v.CSV").write_bytes((tmp_path / "u.csv").read_bytes())
    for folder, text in zip("mn", texts, strict=True):
        write_file(tmp_path / folder / "part.jsonl", [{"body": text}])
    write_file(tmp_path / "whole" / "u.jsonl", [{"text": text} for text in texts])
    for named in ("u.txt", "u.csv", "u.csv.gz", "v.CSV", "u.jsonl", "u.parquet", "whole", "[mn]/*.jsonl:body"):
        task = inferred(data, label="stars", unlabelled=str(tmp_path / named))
        rows = open_source(None).unlabelled(task)
        assert sorted(text for (text,) in rows.texts) == sorted(texts)
        assert rows.labels is None
    (tmp_path / "tables").mkdir()
    write_file(tmp_path / "tables" / "u.csv", [{"review": text} for text in texts])
    for flag, named, why in (
        ("unlabelled", "none.txt", "--unlabelled .*none.txt: there is no such file"),
        ("unlabelled", "tables", "tables: holds no .txt"),
        ("test", "none.csv", "--test: there is no file"),
    ):
        with pytest.raises(UserError, match=why):
            inferred(data, label="stars", **{flag: str(tmp_path / named)})
    with pytest.raises(UserError, match="--test: hub:me/moods: is none of"):
        inferred(data, label="stars", test="hub:me/moods")
    with pytest.raises(UserError, match="--tasks: there is no file"):
        inferred(tmp_path / "none.csv")
