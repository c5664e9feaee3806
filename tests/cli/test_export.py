"""`harness export`: classifiers and encoders leave the store as folders that plain transformers loads, and that give the recorded
predictions in a fresh process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from cli.command import Said, command
from cli.conftest import Benched
from cluster import in_process
from huggingface_hub import ModelCardData
from huggingface_hub.repocard import metadata_load
from requested import aggregated, resolve_table
from views.runs import filled, results

from harness.api import embeddings
from harness.cli.models import LOADED_BY
from harness.commands.export import Exported, _check_equal, _title, card, encoder_license, export, scores_of
from harness.commands.recorded import recorded
from harness.commands.train import unshown
from harness.encoders.models.batch import Batch
from harness.errors import UserError
from harness.planning.resolved import ResolvedTable
from harness.store import Store
from harness.tasks.task import TASKS
from harness.wording import in_points

Harness = Callable[..., Said]


@pytest.fixture(scope="module")
def exported(benched: Benched, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    """Runs of two rows with seed 31, and the encoders before four others ('before TAPT'); the store stays as it is."""
    root, before = tmp_path_factory.mktemp("exported"), sorted((benched.folder / ".harness").rglob("*"))
    keys = {row: benched.keys[row, 31] for row in ("FT", "CMLM")}
    keys |= {f"before {row}": parent(benched, row) for row in ("TAPT", "TACO", "ELECTRA", "COCO-LM")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(benched.folder)
        in_process.patch(patch)
        found = {name: export(recorded(None, key), root / name, unshown) for name, key in keys.items()}
    assert sorted((benched.folder / ".harness").rglob("*")) == before, "weights made for the export stay"
    return found


@pytest.fixture
def harness(benched: Benched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Harness:
    """The command in the folder of that bench."""
    monkeypatch.chdir(benched.folder)
    in_process.patch(monkeypatch)
    return lambda *words: command(capsys, *words)


def parent(benched: Benched, row: str) -> str:
    """The key of the stage before a run."""
    store, key = Store(f"sqlite:///{benched.folder}/.harness/harness.db", create=False), benched.keys[row, 31]
    stage = store.stages([key])[key]
    assert stage
    assert stage.parent
    return stage.parent.key


PLAIN = """
import json, sys
import torch, transformers
given, found = json.loads(sys.stdin.read()), {}
for folder, (loader, texts) in given.items():
    words = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="pt")
    model, info = getattr(transformers, loader).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        logits = model.eval()(**words).logits
    found[folder] = (logits[:, 0] if logits.ndim == 3 else logits).double().tolist()
assert "harness" not in sys.modules
print(json.dumps(found))
"""


def test_every_folder_gives_the_recorded_numbers_in_plain_transformers(
    harness: Harness, exported: dict[str, Exported]
) -> None:
    """Classifiers on dev, encoders at the first token, of a masked LM, in a fresh process."""
    asked, expected, others = {}, {}, [row[0] for row in tiny.texts(20, 8)[0]]
    for name, done in exported.items():
        found, folder = recorded(None, done.key), str(done.folder)
        assert done.form == ("masked_lm" if "before" in name else "classifier")
        if found.stage.data.dev:
            texts = [row[0] for row in found.prepare().plan.library[found.stage.data.dev.digest].texts]
            expected[folder] = found.record.predictions[found.stage.data.dev.digest].logits
            assert " predictions are those of the record, bit for bit." in done.sentences[0]
        else:
            texts, encoder = others, tiny.encoder(done.folder)
            batch = Batch.of(tiny.tokens(done.folder, [(text,) for text in texts]), torch.device("cpu"))
            with torch.inference_mode():
                expected[folder] = encoder.eval().mlm_logits(encoder(batch, batch.first)).double().numpy()
            assert "its weights are those of the record, bit for bit." in done.sentences[0]
        asked[folder] = LOADED_BY[done.form], texts
    assert len(asked) == 6
    words = [sys.executable, "-c", PLAIN]
    said = subprocess.run(words, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    for folder, logits in json.loads(said.stdout).items():
        np.testing.assert_allclose(logits, expected[folder], atol=1e-6, rtol=0, err_msg=folder)


def test_the_card_says_what_the_model_is(harness: Harness, exported: dict[str, Exported]) -> None:
    done = exported["CMLM"]
    text = (done.folder / "README.md").read_text()
    metadata = metadata_load(done.folder / "README.md")
    assert metadata["license"] == "other"
    data = ModelCardData(**metadata)
    assert data.model_name == "tiny-bert, CMLM on SST-2 (20 labelled examples)"
    results = data.eval_results
    assert [(r.metric_type, r.dataset_name) for r in results] == [("accuracy", "SST-2 (test)")]
    assert {(r.dataset_type, r.dataset_config) for r in results} == {("nyu-mll/glue", "sst2")}
    report = json.loads(harness("report --format json").out)
    cell = next(c for c in report["cells"] if c["row"] == "CMLM" and c["column"] == "sst2")
    assert isinstance(results[0].metric_value, float)
    assert f"| {in_points(cell['value'])} ± {in_points(cell['spread'])} (mean of 2 runs) |" in text, "the recipe's"
    told = ("Luo et al.", "--seeds 31", "**post-train**: objective `cmlm` (alpha", f"harness export {done.key[:12]}")
    assert [each for each in told if each not in text] == []
    assert not any(row[0] in text for row in tiny.texts(60, 1)[0] if len(row[0]) > 12), "a text of the data"
    config = json.loads((done.folder / "config.json").read_text())
    assert config["id2label"] == {"0": "negative", "1": "positive"}
    assert config["label2id"] == {"negative": 0, "positive": 1}
    assert ran(done.folder).startswith(("negative [", "positive ["))


def test_nothing_that_is_published_holds_a_local_path(
    harness: Harness, exported: dict[str, Exported], benched: Benched, folders: dict[str, Path], tmp_path: Path
) -> None:
    """The bench of this store names its data in its folder, and its encoder by an absolute path."""
    places = {str(benched.folder), str(folders["bert"].parent), str(tmp_path), str(exported["CMLM"].folder.parent)}
    published = [path for path in exported["CMLM"].folder.iterdir() if path.suffix in (".md", ".json")]
    for suffix in ("tex", "json", "html"):
        published.append(tmp_path / f"report.{suffix}")
        words = f"report --last --data {benched.folder}/data --encoder {folders['bert']} --out {published[-1]}"
        assert harness(*words.split()).status in (0, 1)
    assert [(path, place) for path in published for place in places if place in path.read_text()] == []


@pytest.mark.parametrize(
    ("card", "stated"), [("---\nlicense: mit\n---\n# An encoder\n", "mit"), ("---\n{[\n---\n", ""), (None, "")]
)
def test_the_licence_of_an_encoder_is_that_of_its_card(card: str | None, stated: str, tmp_path: Path) -> None:
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    assert encoder_license(tmp_path) == stated


def test_names_break_neither_the_code_nor_the_table_of_a_card(
    harness: Harness, benched: Benched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of an encoder with its head beside it, as of a family that transformers has no classifier like ours for."""
    monkeypatch.setattr("harness.encoders.models.pretrained_folder._with_head", lambda encoder, head: None)
    out, found = tmp_path / "my \"model\" 'x' \\n", recorded(None, benched.keys["FT", 31])
    export(found, out, unshown)
    assert json.dumps(out.name) in (out / "README.md").read_text()
    assert ran(out).startswith(("negative [", "positive [")), "the card names the folder by its last part"
    task = TASKS["sst2"].model_copy(update={"title": "A | B\n<b>`x`"})
    found.record.provenance["device"] = "<img onerror=x>\x1b[2J"
    objective = SimpleNamespace(has_classifier=True)
    kept = SimpleNamespace(prepared=found.prepare(), task=task, stage=found.stage, objective=objective)
    text = card(found, kept, "classifier", ["<b>"], "out", "", False)  # type: ignore[arg-type]
    assert text.replace("\n", "").isprintable()
    (row,) = (line for line in text.splitlines() if line.startswith("| A "))
    assert len(re.findall(r"(?<!\\)\|", row)) == 5
    body = re.sub(r"(?s)```.*?```", "", text.split("---\n", 2)[2])
    assert [line for line in body.splitlines() if re.search(r"(?<!\\)[<>]", line.replace("-->", ""))] == []


def code(folder: Path, number: int = 0) -> str:
    """A piece of code of a card."""
    return (folder / "README.md").read_text().split("```python\n")[number + 1].partition("```")[0]


def ran(folder: Path, number: int = 0) -> str:
    """What the code of a card prints, in the folder of its folder."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
        patch.chdir(folder.parent)
        exec(compile(code(folder, number), "card", "exec"), {})
    return said.getvalue()


def test_the_file_of_onnx_gives_the_recorded_logits(harness: Harness, benched: Benched, tmp_path: Path) -> None:
    """Rows alone and together, by the session that the card shows; tests/encoders/test_onnx_file.py has the other families."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="no ONNX (pip install 'glue-harness[onnx]')")
    done = export(recorded(None, benched.keys["FT", 31]), tmp_path / "out", unshown, onnx=True)
    assert "ONNX Runtime gives the logits of plain transformers from model.onnx within " in " ".join(done.sentences)
    assert ran(tmp_path / "out", 1).startswith("[[")


def test_a_folder_that_computes_something_else_is_refused(benched: Benched, harness: Harness) -> None:
    found = recorded(None, benched.keys["FT", 31])
    _check_equal(found, 1e-4, 0.5, "it computes other logits")
    for difference in (0.01, float("nan")):
        with pytest.raises(UserError, match=r"it computes other logits \(by up to (0.01|nan)\); nothing was written"):
            _check_equal(found, difference, 5.0, "it computes other logits")


def test_the_best_run_is_that_with_the_best_dev_score(harness: Harness, benched: Benched, tmp_path: Path) -> None:
    store = Store("sqlite:///.harness/harness.db", create=False)
    scores = {key: record.dev_scores["accuracy"] for key, record in store.records(benched.keys.values()).items()}
    said = harness("export", "--best", "--out", str(tmp_path / "all"))
    assert scores[json.loads((tmp_path / "all" / "harness.json").read_text())["key"]] == max(scores.values()), said
    assert "loaded by AutoModelForSequenceClassification" in said.out
    said = harness("export", "--best", "--methods", "scl", "--out", str(tmp_path / "scl"), "--license", "apache-2.0")
    metadata = metadata_load(tmp_path / "scl" / "README.md")
    assert (metadata["license"], "license_name" in metadata) == ("apache-2.0", False)
    mine = {key for (row, _), key in benched.keys.items() if row == "SCL"}
    assert json.loads((tmp_path / "scl" / "harness.json").read_text())["key"] in mine, said


def test_a_model_that_differs_from_its_record_is_refused(harness: Harness, benched: Benched, tmp_path: Path) -> None:
    """As on another kind of processor; of a stage without predictions by its weights."""
    run, before = (recorded(None, key) for key in (benched.keys["FT", 31], parent(benched, "TAPT")))
    for predicted in run.record.predictions.values():
        predicted.logits[0] += np.float32(1e-6)
    before.record.weights_digest = "0" * 32
    for number, (found, what) in enumerate(((run, r"its predictions \(logits by up to "), (before, "its weights"))):
        with pytest.raises(UserError, match=f"trained again, it differs from its record in {what}") as caught:
            export(found, tmp_path / "out", unshown)
        assert "take such a model with 'harness export --accept-difference'" in str(caught.value)
        assert not (tmp_path / "out").exists()
        done = export(found, tmp_path / f"{number}", unshown, accept_difference=True)
        assert done.sentences[0].startswith("It was trained again and DIFFERS from its record in its ")
        assert "DIFFERS" in (done.folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("export --out x", "export: name a key ('harness list runs'), or give --best"),
        ("export zzz --out x", "has no record whose key begins with 'zzz'"),
        ("export TAPT --out x --onnx", "is no classifier that transformers computes"),
        ("export FT --out x --onnx", "onnx and onnxruntime and onnxscript not installed; run pip install"),
        ("export MOVED --out x", "data"),
    ],
)
def test_refusals(words: str, said: str, harness: Harness, benched: Benched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.encoders.models.onnx_file.find_spec", lambda package: None)
    monkeypatch.setattr("harness.commands.trained.train", lambda *_, **__: pytest.fail("trained"))
    keys = {"TAPT": parent(benched, "TAPT"), "FT": benched.keys["FT", 31], "MOVED": benched.keys["FT", 31]}
    name = "elsewhere" if "MOVED" in words else "data"
    (benched.folder / "data").rename(benched.folder / name)
    try:
        found = harness(" ".join(keys.get(word, word) for word in words.split()))
    finally:
        (benched.folder / name).rename(benched.folder / "data")
    assert found.status == 2
    assert said in found.err, found.err
    assert found.err.count("\n") == 1
    assert not (benched.folder / "x").exists()


def test_embeddings_are_the_first_states_of_plain_transformers(
    harness: Harness, exported: dict[str, Exported], benched: Benched
) -> None:
    """Of a test set with its labels, and of the same texts by hand."""
    from transformers import AutoModel, AutoTokenizer

    key, folder = benched.keys["FT", 31], exported["FT"].folder
    found = recorded(None, key)
    (test,) = found.stage.data.tests
    texts = [row[0] for row in found.prepare().plan.library[test.digest].texts]
    given = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = AutoModel.from_pretrained(folder).eval()(**given).last_hidden_state[:, 0].numpy()
    vectors, labels = embeddings(key)
    assert labels is not None
    np.testing.assert_array_equal(labels, found.record.predictions[test.digest].gold)
    for each in (vectors, embeddings(key, texts).vectors):
        np.testing.assert_allclose(each, states, atol=1e-5)
    assert embeddings(parent(benched, "TAPT"), texts).labels is None
    with pytest.raises(UserError, match="has no test set; name texts"):
        embeddings(parent(benched, "TAPT"))


def shown(r: ResolvedTable) -> tuple[dict[str, Any], Any]:
    """The first row's scores on SST-2, and the cell of the table."""
    runs = [replace(run, dev=1 - (run.test or 0)) for run in results(r)]
    first, grid = next(run for run in runs if run.task == "sst2"), filled(r, runs)
    run: Any = SimpleNamespace(row=first.row, size=first.size, task="sst2")
    (found,) = scores_of(first.key, run, TASKS["sst2"], grid)
    assert found["own"] == first.test
    return found, grid.cells[first.size, r.titles[first.row], "sst2"]


@pytest.mark.parametrize(
    ("table", "rule", "of_cell", "place"),
    [
        ("few_shot", {}, "mean of 15 runs", "SST-2 (test)"),
        ("few_shot", {"center": "median", "spread": "none"}, "median of 15 runs", "SST-2 (test)"),
        ("few_shot", {"center": "top_k", "k": 3}, "mean of the 3 runs that are best on dev of 15 runs", "SST-2 (test)"),
        ("coco_lm_glue", {}, "median of 5 runs", "SST-2 (dev)"),  # of grids of up to 64 points; dev is scored
    ],
)
def test_the_recipe_is_the_cell_by_its_rule(table: str, rule: dict[str, Any], of_cell: str, place: str) -> None:
    r = resolve_table(table, "paper", tasks=("sst2",))
    found, cell = shown(aggregated(r, **rule) if rule else r)
    assert found["dataset"] == place
    assert found["cell"].startswith(in_points(cell.value))
    assert found["cell"].endswith(f" ({of_cell})")


def test_a_table_of_dev_scores_gives_no_number_beside_a_test_score() -> None:
    r = aggregated(resolve_table("few_shot", "paper", tasks=("sst2",)), scores="dev")
    found, _ = shown(r)
    assert found["cell"] == "the table shows scores on dev"


def test_sizes_of_k_shot_are_per_class() -> None:
    plan: Any = SimpleNamespace(resolved=resolve_table("k_shot", "paper", tasks=("sst2",)))
    run: Any = SimpleNamespace(row="FT", size=16)
    title = _title(plan, SimpleNamespace(), run, TASKS["sst2"])  # type: ignore[arg-type]
    assert title.endswith("FT on SST-2 (16 labelled examples per class)")
