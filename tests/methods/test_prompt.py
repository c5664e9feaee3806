"""Prompts from a task's YAML to an exported model, and what is refused before anything trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cluster import in_process
from family_encoders import encoder_folder, sentences, write_task
from methods.contexts import CONTEXT, chain
from transformers import AutoModelForMaskedLM, AutoTokenizer

import harness
from harness.cli import main
from harness.encoders.tokens import Tokeniser
from harness.errors import UserError
from harness.methods import METHODS
from harness.prompts import Prompt
from harness.store import Store
from harness.tasks.task import load_user_task

PROMPT = METHODS["prompt"]
VALUES = {"fine_tune.steps": 8, "fine_tune.batch_size": 4, "max_length": 64, "optim.lr": 1e-3}


def words_of(folder: Path, texts: list[str]) -> list[str]:
    """Two words that are one token each, as they stand in a text."""
    tokeniser = Tokeniser(folder)
    single = [word for word in sorted(set(" ".join(texts).split())) if len(tokeniser.placed([word])[0][0]) == 1]
    return [word for word in single if word.isalpha()][:2]


def prompted(root: Path, rows: list[tuple[str, str]], **prompt: Any) -> Path:
    """A task's YAML with a prompt."""
    write_task(root, rows)
    path = root / "reviews.yaml"
    body = yaml.safe_load(path.read_text())
    body["prompt"] = {"template": "{first} is [MASK] .", **prompt}
    path.write_text(yaml.safe_dump(body))
    return path


def test_from_a_tasks_file_to_an_exported_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_process.patch(monkeypatch)
    monkeypatch.chdir(tmp_path)
    rows = sentences(200)
    encoder = encoder_folder(tmp_path, "bert", [text for text, _ in rows])
    words = words_of(encoder, [text for text, _ in rows])
    write_task(tmp_path, rows)
    classes = load_user_task(tmp_path / "reviews.yaml").classes
    path = prompted(tmp_path, rows, words=dict(zip(classes, words, strict=True)), draws=3)
    store = f"sqlite:///{tmp_path}/prompts.db"
    fields: dict[str, Any] = {"tasks": str(path), "encoder": str(encoder), "store": store, "keep": "all"}
    fields |= {"sizes": 20, "subsets": 0, "seeds": 31, "methods": "prompt"}
    key: dict[str, str] = {}
    settings: dict[str, dict[str, Any]] = {
        "shown": {},
        "alone": {"prompt.demonstrations": False},
        "zero": {"prompt.demonstrations": False, "prompt.zero_shot": True},
    }
    for name, values in settings.items():
        done = harness.bench("own", set=VALUES | values, **fields)
        assert done.complete, done
        (key[name],) = set(done.results["key"])
    records = Store(store, create=False).records([*key.values()])
    zero = records[key["zero"]]
    assert (zero.selected_step, [entry["step"] for entry in zero.history]) == (0, [0])
    assert records[key["alone"]].flops < records[key["shown"]].flops, "demonstrations are read and paid for"
    assert records[key["zero"]].flops < records[key["alone"]].flops
    for name in ("alone", "zero"):
        assert main(["export", key[name], "--out", name, "--store", store]) == 0
        note = (tmp_path / name / "README.md").read_text()
        assert "MASK" in note
        assert words[0] in note
    assert main(["export", key["shown"], "--out", "shown", "--store", store]) == 0
    capsys.readouterr()
    texts = [text for text, _ in rows[:5]]
    (tmp_path / "new.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    # What plain transformers computes at the mask is what predict says.
    assert main(["predict", "alone", "--input", "new.jsonl", "--output", "alone.jsonl", "--text", "text"]) == 0
    made = [json.loads(line) for line in (tmp_path / "alone.jsonl").read_text().splitlines()]
    tokenizer, model = AutoTokenizer.from_pretrained("alone"), AutoModelForMaskedLM.from_pretrained("alone").eval()
    for text, row in zip(texts, made, strict=True):
        batch = tokenizer(f"{text} is {tokenizer.mask_token} .", return_tensors="pt")
        logits = model(**batch).logits[0][batch["input_ids"][0] == tokenizer.mask_token_id][0]
        two = logits[tokenizer.convert_tokens_to_ids(words)].detach().double().numpy()
        shares = np.exp(two) / np.exp(two).sum()
        assert [row[f"probability.{name}"] for name in classes] == pytest.approx(shares.tolist(), abs=1e-5)
    # One with demonstrations needs the training rows: the run's key has them, a folder does not.
    assert main(["predict", "shown", "--input", "new.jsonl", "--output", "no.jsonl", "--text", "text"]) == 2
    assert key["shown"][:12] in capsys.readouterr().err
    run = f"predict {key['shown']} --input new.jsonl --output shown.jsonl --text text --store {store}".split()
    assert main(run) == 0
    assert len((tmp_path / "shown.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"words": {"bad": "slow"}}, "there is no word for class"),
        ({"words": {"bda": "slow", "good": "new"}}, "Did you mean 'bad'"),
        ({"words": {"bad": "new", "good": "new"}}, "the same label word"),
        ({"template": "{first} is."}, "no [MASK]"),
        ({"template": "{second} is [MASK]."}, "{first}"),
        ({"draws": 0}, "draws"),
        ({"tempalte": "x"}, "Did you mean 'template'"),
    ],
)
def test_what_is_wrong_in_a_tasks_file_is_one_sentence(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    path = prompted(tmp_path, sentences(10), **{"words": {"bad": "slow", "good": "new"}, **changes})
    body = yaml.safe_load(path.read_text())
    body["classes"], body["labels"] = ["bad", "good"], {}
    path.write_text(yaml.safe_dump(body))
    with pytest.raises(UserError) as caught:
        load_user_task(path)
    assert str(caught.value).startswith(str(path))
    assert problem in str(caught.value)


def test_what_does_not_fit_the_encoder_or_the_rows_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process.patch(monkeypatch)
    rows = sentences(60)
    encoder = encoder_folder(tmp_path, "bert", [text for text, _ in rows])
    write_task(tmp_path, rows)
    classes = load_user_task(tmp_path / "reviews.yaml").classes
    fields: dict[str, Any] = {"encoder": str(encoder), "store": f"sqlite:///{tmp_path}/refused.db", "methods": "prompt"}
    fields |= {"sizes": 20, "subsets": 0, "seeds": 31}
    long = prompted(tmp_path, rows, words=dict(zip(classes, ("extraordinarily", "new"), strict=True)))
    with pytest.raises(UserError, match="label word 'extraordinarily'"):
        harness.bench("own", set=VALUES, tasks=str(long), **fields)
    first, second = words_of(encoder, [text for text, _ in rows])
    path = prompted(tmp_path, rows, words={classes[0]: first, classes[1]: second})
    with pytest.raises(UserError, match="leaves no room"):
        harness.bench("own", set=VALUES | {"max_length": 12}, tasks=str(path), **fields)
    with pytest.raises(UserError, match="shows another example of each class"):
        harness.bench("own", set=VALUES, tasks=str(path), **fields | {"sizes": 2})


def test_settings_without_effect_are_in_no_key() -> None:
    leaf = chain(PROMPT, zero_shot=True)[-1]
    assert (leaf.optim.steps, leaf.data.prompt) == (0, CONTEXT.prompt)
    assert chain(PROMPT, demonstrations=False)[-1].data.prompt == Prompt(
        "{first} It was [MASK].", ("terrible", "great"), demonstrations=False, draws=0
    )
