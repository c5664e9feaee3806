"""`harness export`: every method that trains a classifier leaves the store as a folder that plain transformers loads, and that
gives the recorded predictions in a fresh process."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import trained
from cli.command import Said, command
from cli.conftest import Benched
from huggingface_hub import ModelCardData
from huggingface_hub.repocard import metadata_load
from safetensors.torch import load_file

from harness.api import embeddings
from harness.commands.model_card import card, encoder_license
from harness.commands.recorded import recorded
from harness.encoders.models.batch import Batch
from harness.encoders.models.weights import checked_weights
from harness.errors import UserError
from harness.storage import Storage, weights_of
from harness.store import Store
from harness.tasks.task import TASKS

Harness = Callable[..., Said]


@pytest.fixture(autouse=True)
def _trained_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("harness.commands.bench", "harness.commands.trained"):
        monkeypatch.setattr(f"{module}.train", trained.train_here)


@pytest.fixture
def harness(benched: Benched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Harness:
    """The command in the folder of that bench."""
    monkeypatch.chdir(benched.folder)
    return lambda *words: command(capsys, *words)


PLAIN = """
import json, sys
import torch, transformers
texts, found = json.loads(sys.stdin.read()), {}
for folder in sys.argv[2:]:
    given = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="pt")
    model, info = getattr(transformers, sys.argv[1]).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        logits = model.eval()(**given).logits
    found[folder] = (logits[:, 0] if logits.ndim == 3 else logits).double().tolist()
assert "harness" not in sys.modules
print(json.dumps(found))
"""


def plain_logits(loaded_by: str, folders: Iterable[str], texts: list[str]) -> dict[str, Any]:
    """Of each folder, by plain transformers in a fresh process; of a masked LM at the first token."""
    program = [sys.executable, "-c", PLAIN, loaded_by, *folders]
    done = subprocess.run(program, input=json.dumps(texts), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def predictions(key: str) -> tuple[list[str], Any]:
    """The dev texts of a run and its recorded logits."""
    found = recorded(None, key)
    dev = found.stage.data.dev
    assert dev is not None
    texts = [row[0] for row in found.prepare().plan.library[dev.digest].texts]
    return texts, found.record.predictions[dev.digest].logits


def test_every_method_leaves_the_store_as_a_folder_that_gives_the_recorded_predictions(
    harness: Harness, benched: Benched, tmp_path: Path
) -> None:
    rows = sorted({row for row, _ in benched.keys})
    assert len(rows) == 7
    before = sorted((benched.folder / ".harness").rglob("*"))
    for number, row in enumerate(rows):
        said = harness("export", benched.keys[row, 31][:12], "--out", str(tmp_path / str(number)))
        assert said.status == 0, said
        assert "are those of the record, bit for bit" in said.out
        assert "loaded by AutoModelForSequenceClassification" in said.out
    assert sorted((benched.folder / ".harness").rglob("*")) == before, "weights made for the export stay"
    texts, _ = predictions(benched.keys[rows[0], 31])
    folders = [str(tmp_path / str(number)) for number in range(len(rows))]
    found = plain_logits("AutoModelForSequenceClassification", folders, texts)
    for number, row in enumerate(rows):
        _, logits = predictions(benched.keys[row, 31])
        np.testing.assert_allclose(found[str(tmp_path / str(number))], logits, atol=1e-6, rtol=0, err_msg=row)


def test_the_card_says_what_the_model_is(harness: Harness, benched: Benched, tmp_path: Path) -> None:
    said = harness("export", benched.keys["CMLM", 42], "--out", str(tmp_path / "out"))
    assert said.status == 0, said
    text = (tmp_path / "out" / "README.md").read_text()
    assert metadata_load(tmp_path / "out" / "README.md")["license"] == "other"
    data = ModelCardData(**metadata_load(tmp_path / "out" / "README.md"))
    assert data.model_name == "tiny-bert, CMLM on SST-2 (20 labelled examples)"
    results = data.eval_results
    assert [(r.metric_type, r.dataset_name) for r in results] == [("accuracy", "SST-2 (test)")] * 2
    assert {(r.dataset_type, r.dataset_config) for r in results} == {("nyu-mll/glue", "sst2")}
    report = json.loads(harness("report --format json").out)
    cell = next(c for c in report["cells"] if c["row"] == "CMLM" and c["column"] == "sst2")
    values = [r.metric_value for r in results]
    assert values[1] == round(100 * cell["value"], 2), "the mean of the recipe's runs"
    assert all(isinstance(value, float) for value in values)
    assert "mean of 2 runs" in results[1].metric_name
    for told in (
        "Luo et al.",
        "--seeds 42",
        "**post-train**: objective `cmlm` (alpha",
        f"harness export {benched.keys['CMLM', 42][:12]}",
    ):
        assert told in text, told
    assert not any(row[0] in text for row in tiny.texts(60, 1)[0] if len(row[0]) > 12), "a text of the data"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["id2label"] == {"0": "negative", "1": "positive"}
    assert config["label2id"] == {"negative": 0, "positive": 1}
    assert ran(tmp_path, 0).startswith(("negative [", "positive ["))


def test_nothing_that_is_published_holds_a_local_path(
    harness: Harness, benched: Benched, folders: dict[str, Path], tmp_path: Path
) -> None:
    """The bench of this store names its data in its folder, and its encoder by an absolute path."""
    places = {str(benched.folder), str(folders["bert"].parent), str(tmp_path)}
    assert harness("export", benched.keys["CMLM", 42], "--out", str(tmp_path / "out")).status == 0
    published = {
        path.name: path.read_text() for path in (tmp_path / "out").iterdir() if path.suffix in (".md", ".json")
    }
    absolute = f"--data {benched.folder}/data --encoder {folders['bert']}"
    for suffix in ("txt", "md", "tex", "csv", "json", "html"):
        for number, words in enumerate(("--last", f"--last {absolute}")):
            file = tmp_path / f"{number}.{suffix}"
            assert harness(*f"report {words} --out {file}".split()).status in (0, 1)
            published[file.name] = file.read_text()
    assert "README.md" in published
    for name, text in published.items():
        assert not [place for place in places if place in text], name


@pytest.mark.parametrize(
    ("card", "stated"),
    [("---\nlicense: mit\n---\n# An encoder\n", "mit"), ("# An encoder\n", ""), ("---\n{[\n---\n", ""), (None, "")],
)
def test_the_licence_of_an_encoder_is_that_of_its_card(card: str | None, stated: str, tmp_path: Path) -> None:
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    assert encoder_license(tmp_path) == stated


def test_the_card_of_an_encoder_with_its_head_beside_it_has_code_that_runs(
    harness: Harness, benched: Benched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a family that transformers has no classifier like ours for; in the folder, since the card names it by its last part."""
    monkeypatch.setattr("harness.encoders.models.pretrained_folder.form_of", lambda encoder, head: "encoder")
    assert harness("export", benched.keys["FT", 31], "--out", str(tmp_path / "out")).status == 0
    assert ran(tmp_path, 0).startswith(("negative [", "positive ["))


def test_names_break_neither_the_code_nor_the_table_of_a_card(
    harness: Harness, benched: Benched, tmp_path: Path
) -> None:
    out = tmp_path / "my \"model\" 'x' \\n"
    assert harness("export", benched.keys["FT", 31], "--out", str(out)).status == 0
    out.rename(tmp_path / "out")
    assert json.dumps(out.name) in (tmp_path / "out" / "README.md").read_text()
    code = (tmp_path / "out" / "README.md").read_text().split("```python\n")[1].partition("```")[0]
    names = [node.args[0] for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and node.args]
    assert out.name in [node.value for node in names if isinstance(node, ast.Constant)]
    found = recorded(None, benched.keys["FT", 31])
    task = replace(TASKS["sst2"], title="A | B\n<b>`x`")
    found.record.provenance["device"] = "<img onerror=x>\x1b[2J"
    kept = SimpleNamespace(
        prepared=found.prepare(), task=task, stage=found.stage, objective=SimpleNamespace(has_classifier=True)
    )
    text = card(found, kept, "classifier", ["<b>"], "out")  # type: ignore[arg-type]
    assert text.replace("\n", "").isprintable()
    (row,) = (line for line in text.splitlines() if line.startswith("| A "))
    assert len(re.findall(r"(?<!\\)\|", row)) == 5
    body = re.sub(r"(?s)```.*?```", "", text.split("---\n", 2)[2])
    assert [line for line in body.splitlines() if re.search(r"(?<!\\)[<>]", line.replace("-->", ""))] == []


def ran(folder: Path, number: int) -> str:
    """What a piece of code of the card in `folder`/out prints."""
    code = (folder / "out" / "README.md").read_text().split("```python\n")[number + 1].partition("```")[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_file_of_onnx_gives_the_recorded_logits(harness: Harness, benched: Benched, tmp_path: Path) -> None:
    """Rows alone and together, by the session that the card shows; tests/encoders/test_onnx_file.py has the other families."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="no ONNX (pip install 'glue-harness[onnx]')")
    said = harness("export", benched.keys["FT", 31], "--out", str(tmp_path / "out"), "--onnx")
    assert said.status == 0, said
    assert "ONNX Runtime gives the logits of plain transformers from model.onnx within " in said.out
    assert ran(tmp_path, 1).startswith("[[")


def test_a_file_of_onnx_that_computes_something_else_is_refused(
    harness: Harness, benched: Benched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.encoders.models.onnx_file.check_onnx", lambda: None)
    monkeypatch.setattr("harness.encoders.models.onnx_file.write_onnx", lambda folder, form, texts: (0.01, 5.0))
    said = harness("export", benched.keys["FT", 31], "--out", str(tmp_path / "out"), "--onnx")
    assert said.status == 2
    assert "ONNX Runtime computes other logits from model.onnx (by up to 0.01); nothing was written." in said.err
    assert not list(tmp_path.iterdir())


def test_the_best_run_is_that_with_the_best_dev_score(harness: Harness, benched: Benched, tmp_path: Path) -> None:
    store = Store("sqlite:///" + str(benched.folder / ".harness" / "harness.db"), create=False)
    scores = {key: record.dev_scores["accuracy"] for key, record in store.records(benched.keys.values()).items()}
    said = harness("export", "--best", "--out", str(tmp_path / "all"))
    assert scores[json.loads((tmp_path / "all" / "harness.json").read_text())["key"]] == max(scores.values()), said
    said = harness("export", "--best", "--methods", "scl", "--out", str(tmp_path / "scl"), "--license", "apache-2.0")
    metadata = metadata_load(tmp_path / "scl" / "README.md")
    assert metadata["license"] == "apache-2.0"
    assert "license_name" not in metadata
    mine = {key for (row, _), key in benched.keys.items() if row == "SCL"}
    assert json.loads((tmp_path / "scl" / "harness.json").read_text())["key"] in mine, said


def test_a_model_that_differs_from_its_record_is_refused(
    harness: Harness, benched: Benched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another kind of processor."""

    def changed(*given: Any) -> Any:
        found = recorded(*given)
        for predicted in found.record.predictions.values():
            predicted.logits[0] += np.float32(1e-6)
        return found

    monkeypatch.setattr("harness.cli.models.recorded", changed)
    said = harness("export", benched.keys["FT", 31], "--out", str(tmp_path / "out"))
    assert said.status == 2
    assert "trained again, its predictions (by up to " in said.err
    assert "take such a model with 'harness export --accept-difference'" in said.err
    assert not list(tmp_path.iterdir())
    said = harness("export", benched.keys["FT", 31], "--out", str(tmp_path / "out"), "--accept-difference")
    assert said.status == 0
    assert "its predictions DIFFER from the record's by up to " in said.out
    assert "DIFFER" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("export --out x", "export: name a key ('harness list runs'), or give --best"),
        ("export zzz --out x", "has no record whose key begins with 'zzz'"),
        ("export FT --out x --push me/model", "--push: the hub cannot be reached (HF_HUB_OFFLINE is set); connect, or"),
        ("export TAPT --out x --onnx", "is no classifier that transformers computes"),
        ("export FT --out x --onnx", "onnx and onnxruntime and onnxscript not installed; run pip install"),
        (
            "export FT --out x --update 1",
            "(fine-tune) keeps its best checkpoint alone; name a stage of pre-training or",
        ),
        ("export TAPT --out x --update 3", "has 2 updates (weights saved after 2); name one"),
    ],
)
def test_refusals(words: str, said: str, harness: Harness, benched: Benched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.encoders.models.onnx_file.find_spec", lambda package: None)
    monkeypatch.setattr("harness.commands.export.trained_model", lambda *_, **__: pytest.fail("trained"))
    words = words.replace(" TAPT ", f" {post_training(benched, 'TAPT').key} ")
    found = harness(words.replace(" FT ", f" {benched.keys['FT', 31]} "))
    assert found.status == 2
    assert said in found.err, found.err
    assert found.err.count("\n") == 1
    assert not (benched.folder / "x").exists()


def test_a_stage_whose_data_are_gone_is_refused(harness: Harness, benched: Benched, tmp_path: Path) -> None:
    moved = benched.folder / "elsewhere"
    (benched.folder / "data").rename(moved)
    try:
        said = harness("export", benched.keys["FT", 31], "--out", str(tmp_path / "out"))
    finally:
        moved.rename(benched.folder / "data")
    assert said.status == 2
    assert "data" in said.err
    assert not list(tmp_path.iterdir())


def post_training(benched: Benched, row: str) -> Any:
    store = Store("sqlite:///" + str(benched.folder / ".harness" / "harness.db"), create=False)
    stage = store.stage(benched.keys[row, 31])
    assert stage is not None
    return stage.parent


def test_every_pre_trained_encoder_gives_the_same_logits_in_plain_transformers(
    harness: Harness, benched: Benched, tmp_path: Path
) -> None:
    """After its last update, and after one before: exported, and read by transformers in a fresh process."""
    texts = [row[0] for row in tiny.texts(20, 8)[0]]
    expected = {}
    for row, words in (("TAPT", "--update 1 --accept-difference"), ("TACO", ""), ("ELECTRA", ""), ("COCO-LM", "")):
        key, out = post_training(benched, row).key, tmp_path / row
        said = harness(f"export {key} --out {out} {words}")
        assert said.status == 0, said.err
        assert "loaded by AutoModelForMaskedLM" in said.out
        assert ("its weights are those of the record, bit for bit" in said.out) == (not words)
        encoder = tiny.encoder(out)
        batch = Batch.of(tiny.tokens(out, [(text,) for text in texts]), torch.device("cpu"))
        with torch.inference_mode():
            expected[str(out)] = encoder.eval().mlm_logits(encoder(batch, batch.packing.first)).double().numpy()
    for folder, logits in plain_logits("AutoModelForMaskedLM", expected, texts).items():
        np.testing.assert_allclose(logits, expected[folder], atol=1e-6, rtol=0, err_msg=folder)


def test_weights_after_an_update_are_held_against_the_record(
    harness: Harness, benched: Benched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = post_training(benched, "TAPT").key
    before = sorted((benched.folder / ".harness").rglob("*"))
    said = harness(f"export {key} --update 1 --out {tmp_path / 'a'}")
    assert said.status == 2
    assert "its weights after update 1 of 2 are not stored, and the record has no digest" in said.err
    assert "name update 2, or take them with 'harness export --accept-difference'" in said.err
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "delete", lambda *_: None)
        said = harness(f"export {key} --update 1 --out {tmp_path / 'b'} --accept-difference")
    assert "after update 1 of 2 could not be compared" in said.out
    assert "after update 1 of 2" in (tmp_path / "b" / "README.md").read_text()
    storage = Storage(str(benched.folder / ".harness" / "products"))
    tensors, digest = checked_weights(storage, key, 1)
    written = load_file(tmp_path / "b" / "model.safetensors")
    assert all(torch.equal(tensors[f"encoder/{name}"], written[name]) for name in written if "encoder." in name)
    for told, words, status in (
        (digest, "were kept since it was trained", 0),
        (digest, "are those of the record, bit for bit", 0),
        ("0" * 32, "differ from", 2),
    ):

        def known(*given: Any, told: str = told) -> Any:
            found = recorded(*given)
            found.record.provenance["saved_digests"] = {"1": told}
            return found

        monkeypatch.setattr("harness.cli.models.recorded", known)
        said = harness(f"export {key} --update 1 --out {tmp_path / words[:4]}")
        assert said.status == status, said
        assert words in said.out + said.err
        storage.delete(weights_of(key, 1))
    assert sorted((benched.folder / ".harness").rglob("*")) == before, "weights made for the export stay"


def test_embeddings_are_the_first_states_of_plain_transformers(
    harness: Harness, benched: Benched, tmp_path: Path
) -> None:
    """Of a test set with its labels, and of the same texts by hand."""
    from transformers import AutoModel, AutoTokenizer

    key = benched.keys["FT", 31]
    found = recorded(None, key)
    (test,) = found.stage.data.tests
    texts = [row[0] for row in found.prepare().plan.library[test.digest].texts]
    assert harness("export", key, "--out", str(tmp_path / "out")).status == 0
    given = AutoTokenizer.from_pretrained(tmp_path / "out")(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = AutoModel.from_pretrained(tmp_path / "out").eval()(**given).last_hidden_state[:, 0].numpy()
    vectors, labels = embeddings(key)
    assert labels is not None
    np.testing.assert_array_equal(labels, found.record.predictions[test.digest].gold)
    for each in (vectors, embeddings(key, texts).vectors):
        np.testing.assert_allclose(each, states, atol=1e-5)
    parent = post_training(benched, "TAPT").key
    assert embeddings(parent, texts).labels is None
    with pytest.raises(UserError, match="has no test set; name texts"):
        embeddings(parent)
