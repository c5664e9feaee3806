"""`harness predict`: a file of new rows in any format, with what the model predicts; the numbers are those of plain transformers."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from safetensors.torch import save_file

import harness
from harness.cli import main
from harness.commands.predict import writer
from harness.encoders.models.pretrained_folder import HEAD_FILE, Head, plain_logits, write_model, write_tokenizer
from harness.errors import UserError

CLASSES = ("bad", "so so", "good")
ROWS = [row[0] for row in tiny.texts(30, 7)[0]]
Run = Callable[..., tuple[int, str, str]]


def exported(source: Path, folder: Path, classes: tuple[str, ...] = CLASSES, settings: Any = None) -> Path:
    """A classifier with a head that is not small, as `harness export` leaves it."""
    made = tiny.built(source, tiny.OBJECTIVES["cross_entropy"], num_labels=len(classes) or 1).eval()
    with torch.no_grad():
        made.head.out.weight.mul_(20)
    head = Head({name.partition("/")[2]: tensor for name, tensor in made.parts().items()}, classes)
    write_model(made.encoder, folder, head)
    write_tokenizer(source, made.encoder, folder, 32)
    if settings is not None:
        (folder / "harness.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def predict(workdir: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        status = main(["predict", *words])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture(scope="module")
def model(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(
        bert, tmp_path_factory.mktemp("models") / "model", settings={"columns": ["review"], "max_length": 32}
    )


def shares(folder: Path, texts: list[str]) -> Any:
    return plain_logits(folder, "classifier", [(text,) for text in texts]).double().softmax(-1).numpy()


def test_every_format_keeps_its_rows_and_gets_the_same_numbers(predict: Run, model: Path) -> None:
    """With quotes, separators, line breaks, an emoji and a byte-order mark; order and other columns stay."""
    texts = ['w1 "good", w2', "w3;\nw4 bad", "w5 \U0001f600 w6\tw7", *ROWS]
    rows = [{"id": str(n), "review": text, "note": "007" if n % 2 else "NA"} for n, text in enumerate(texts)]
    expected = shares(model, texts)
    for name, coding, separator in (("a.csv", "utf-8-sig", ","), ("b.tsv", "utf-8", "\t")):
        with Path(name).open("w", encoding=coding, newline="") as file:
            made = csv.DictWriter(file, list(rows[0]), delimiter=separator)
            made.writeheader()
            made.writerows(rows)
    with gzip.open("c.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    pq.write_table(pa.Table.from_pylist(rows), "d.parquet")
    for name in ("a.csv", "b.tsv", "c.jsonl.gz", "d.parquet"):
        status, out, err = predict(str(model), "--input", name, "--output", f"scored-{name}")
        assert status == 0, err
        assert out == f"Wrote 33 rows to scored-{name}, each with its predicted class (bad, so so, good).\n"
        assert err.startswith("33 rows predicted in ")
        assert read(Path(f"scored-{name}"), rows) == pytest.approx(expected, abs=1e-6)


def read(path: Path, rows: list[dict[str, str]]) -> Any:
    """The probabilities of a scored file, whose other columns are `rows`."""
    if path.suffix == ".parquet":
        found = pq.read_table(path).to_pylist()
    elif path.suffix == ".gz":
        found = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    else:
        with path.open(encoding="utf-8", newline="") as file:
            found = list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    values = np.array([[float(row[f"probability.{name}"]) for name in CLASSES] for row in found])
    assert [row["predicted"] for row in found] == [CLASSES[code] for code in values.argmax(axis=1)]
    return values


def test_pairs_and_regressions(predict: Run, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = exported(folders["roberta"], tmp_path / "pairs", (), {"columns": ["a", "b"]})
    pairs = [(row[0], row[1]) for row in tiny.texts(5, 3, pairs=True)[0]]
    Path("a.csv").write_text("x;y\n" + "".join(f"{a};{b}\n" for a, b in pairs))
    assert predict(str(folder), "--input", "a.csv", "--output", "b.jsonl", "--text", "x,y")[0] == 0
    found = [json.loads(line)["predicted"] for line in Path("b.jsonl").read_text().splitlines()]
    assert found == pytest.approx(plain_logits(folder, "classifier", pairs)[:, 0].tolist(), abs=1e-6, rel=2e-6)


def test_one_row_standard_input_and_a_file_give_the_same_json_lines(
    predict: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the batch size; and standard output holds nothing else."""
    Path("a.jsonl").write_text("".join(json.dumps({"review": text, "id": n}) + "\n" for n, text in enumerate(ROWS[:5])))
    assert predict(str(model), "--input", "a.jsonl", "--output", "b.jsonl")[0] == 0
    expected = [json.loads(line) for line in Path("b.jsonl").read_text().splitlines()]
    for words in (["--input", "a.jsonl"], ["--input", "-"], ["--input", "-", "--batch-size", "2"]):
        for module in ("harness.commands.predict", "harness.cli.models"):
            monkeypatch.setattr(f"{module}.STANDARD_INPUT", Path("a.jsonl") if "-" in words else Path("/dev/stdin"))
        status, out, err = predict(str(model), *words)
        assert (status, err) == (0, "")
        for line, row in zip(out.splitlines(), expected, strict=True):
            assert json.loads(line) == pytest.approx(row, abs=1e-6)
    status, out, _ = predict(str(model), "--row", ROWS[0])
    assert status == 0
    assert json.loads(out) == pytest.approx(
        {name: value for name, value in expected[0].items() if name != "id"}, abs=1e-6
    )


def test_a_folder_from_elsewhere_is_taken_where_its_head_is_ours(
    predict: Run, folders: dict[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    for kind, taken in {"roberta": True, "distilbert": False}.items():
        folder = tmp_path / kind
        AutoModelForSequenceClassification.from_config(tiny.config(kind)).save_pretrained(str(folder))
        tiny.tokenizer(kind).save_pretrained(str(folder))
        status, _, err = predict(str(folder), "--row", "w1 good")
        assert (status == 0) == taken, err
        assert taken or "holds no classifier with a head like those that are trained here" in err


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        ("review\nw1\n", "--input none.csv --output b.csv", "--input none.csv: there is no such file."),
        ("review\nw1\n", "--input a.csv --output a.csv", "--output a.csv exists already"),
        ("reviews\nw1\n", "--input a.csv --output b.csv", "line 2: there is no column 'review'. Did you mean"),
        ("review,x\nw1,2\n ,3\n", "--input a.csv --output b.csv", "a.csv, line 3: review blank; fill the text in"),
        ("review,predicted\nw1,x\n", "--input a.csv --output b.csv", "has a column 'predicted' already"),
        ("review\nw1\n", "--row w1 w2", "--row: the model takes 1 text(s) (review), none blank"),
        ("review\nw1\n", "", "one of the arguments --input --row is required"),
    ],
)
def test_refusals(content: str, words: str, said: str, predict: Run, model: Path, workdir: Path) -> None:
    Path("a.csv").write_text(content)
    status, out, err = predict(str(model), *words.split())
    assert (status, out) == (2, "")
    assert said in err, err
    assert [path.name for path in workdir.iterdir()] == ["a.csv"], "something was written"


DAMAGE: list[tuple[str, dict[str, Any] | str, str]] = [
    ("config.json", {"classifier_dropout": "x"}, "classifier_dropout"),
    ("config.json", "null", "config.json should hold a JSON object"),
    ("tokenizer_config.json", {"model_max_length": "a,b"}, "its files make no model (TypeError: "),
    ("tokenizer_config.json", {"added_tokens_decoder": 3}, ""),
    ("harness.json", {"columns": 3}, "its files make no model (TypeError: "),
]


@pytest.mark.parametrize(("name", "change", "says"), DAMAGE)
def test_a_damaged_folder_gets_one_sentence(
    predict: Run, model: Path, tmp_path: Path, name: str, change: dict[str, Any] | str, says: str
) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "damaged"))
    path = folder / name
    path.write_text(change if isinstance(change, str) else json.dumps({**json.loads(path.read_text()), **change}))
    refused(predict, folder, says)


def refused(predict: Run, folder: Path | str, says: str) -> None:
    status, out, err = predict(str(folder), "--row", "w1 good")
    assert (status, out) == (2, "")
    assert err.startswith("harness: "), err
    assert says in err
    assert str(folder) in err or isinstance(folder, str)
    assert len(err.splitlines()) <= 4, "one sentence"
    assert "Traceback" not in err


def test_a_head_without_a_tensor_and_a_home_of_nobody(predict: Run, model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "damaged"))
    save_file({"dense.bias": torch.zeros(3), "out.weight": torch.zeros(3, 3)}, folder / HEAD_FILE)
    refused(predict, folder, f"{HEAD_FILE} lacks dense.weight")
    save_file(
        {name: torch.zeros(2) for name in ("dense.weight", "dense.bias", "out.weight", "out.bias")}, folder / HEAD_FILE
    )
    refused(predict, folder, "its files make no model")
    refused(predict, "~nobody_here/model", "~nobody_here/model: there is no such folder")
    refused(predict, "./none", "./none: there is no such folder")


def test_classes_of_a_folder_from_elsewhere_may_be_numbers(predict: Run, model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "numbered"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "id2label": {"0": 1, "1": 2.5, "2": "three"}}))
    status, out, err = predict(str(folder), "--row", "w1 good")
    assert status == 0, err
    assert {*json.loads(out)} == {"review", "predicted", "probability.1", "probability.2.5", "probability.three"}


def test_texts_from_python_are_a_list_of_what_the_model_takes(model: Path) -> None:
    with pytest.raises(UserError, match=r"texts: should be a list of texts; give one text as \[text\]"):
        harness.predict(model, "w1 w2")
    with pytest.raises(UserError, match=r"texts: a row has 2 texts, and the model takes 1 \(review\)"):
        harness.predict(model, ["w1", ("w1", "w2")])
    assert len(harness.predict(model, ["w1", ("w2",)])) == 2


# ------------------------------------------------------------------------------ rows that are written back

MIXED: list[dict[str, Any]] = [
    {"id": 1, "late": None, "text": 'a "b", c', "flag": True},
    {"id": 2.5, "late": None, "text": "two\nlines", "more": [1, 2]},
    {"id": 3, "late": "now", "text": "", "flag": False},
]
COLUMNS = ["id", "late", "text", "flag", "more"]


def written(path: Path, size: int) -> Path:
    with writer(path) as write:
        for start in range(0, len(MIXED), size):
            write(MIXED[start : start + size])
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    return path


@pytest.mark.parametrize(("name", "size"), [("a.parquet", 1), ("a.parquet", 2), ("a.csv", 3), ("a.jsonl", 2)])
def test_rows_come_back(name: str, size: int, tmp_path: Path) -> None:
    path = written(tmp_path / name, size)
    expected = [{column: row.get(column) for column in COLUMNS} for row in MIXED]
    if path.suffix == ".parquet":
        assert pq.read_table(path).to_pylist() == expected
    elif path.suffix == ".jsonl":
        assert [json.loads(line) for line in path.read_text().splitlines()] == MIXED
    else:
        with path.open(newline="") as file:
            found = list(csv.DictReader(file))
        assert found == [{n: "" if v is None else str(v) for n, v in row.items()} for row in expected]


@pytest.mark.parametrize(("name", "rows"), [("a.csv", MIXED), ("a.parquet", [{"id": 1}, {"id": "x"}])])
def test_other_columns_or_types_in_a_later_part_are_refused(name: str, rows: Any, tmp_path: Path) -> None:
    def write_all() -> None:
        with writer(tmp_path / name) as write:
            for row in rows:
                write([row])

    with pytest.raises(UserError, match=r"write \.jsonl, which keeps them"):
        write_all()
    assert [*tmp_path.iterdir()] == []
