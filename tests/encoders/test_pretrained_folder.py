"""A written folder computes in plain transformers what the model computed here, in a process that knows no harness."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import questions
import tiny
import torch
from numpy.typing import NDArray
from transformers import AutoModel

from harness.answers import SpanReading
from harness.encoders.models.batch import Batch
from harness.encoders.models.pretrained_folder import (
    HEAD_FILE,
    Head,
    form_of,
    plain_logits,
    read_answering,
    read_head,
    write_model,
    write_tokenizer,
)
from harness.encoders.sources import locate
from harness.encoders.tokens import Tokeniser, Windows
from harness.errors import UserError
from harness.kinds import Spans
from harness.methods import objective
from harness.objectives import build

KINDS = (*tiny.KINDS, *tiny.MORE)
CLASSIFIER = {"bert", "roberta", "mpnet", "distilbert", "deberta-v2", "albert"}
"""Those for which transformers has a class with a head like ours; tiny's ELECTRA has narrow embeddings, so it is no BERT."""
ROWS, _ = tiny.texts(12, 5, pairs=True)
CPU = torch.device("cpu")

PLAIN = """
import json, sys
from pathlib import Path
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer
rows, found = json.loads(sys.stdin.read()), {}
for folder in map(Path, sys.argv[1:]):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = tokenizer(*map(list, zip(*rows)), padding=True, truncation=True, return_tensors="pt")
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    with torch.no_grad():
        if architecture.endswith("ForSequenceClassification"):
            model = AutoModelForSequenceClassification.from_pretrained(folder)
            out = model.eval()(**given).logits
        elif architecture.endswith("ForMaskedLM"):
            out = AutoModelForMaskedLM.from_pretrained(folder).eval()(**given).logits[:, 0]
        else:
            head = load_file(folder / "classifier.safetensors")
            first = AutoModel.from_pretrained(folder).eval()(**given).last_hidden_state[:, 0]
            linear = torch.nn.functional.linear
            pooled = torch.tanh(linear(first, head["dense.weight"], head["dense.bias"]))
            out = linear(pooled, head["out.weight"], head["out.bias"])
    found[folder.name] = out.double().tolist()
assert "harness" not in sys.modules
print(json.dumps(found))
"""


def plain(folders: list[Path]) -> dict[str, NDArray[np.float64]]:
    """What plain transformers computes of `ROWS`, by the folder's name."""
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, *map(str, folders)],
        input=json.dumps(ROWS),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: np.array(values) for name, values in json.loads(done.stdout).items()}


def classifier_of(folder: Path, num_labels: int = 3, **more: Any) -> tuple[Any, NDArray[Any]]:
    """A classifier with a head that is not small, and its logits."""
    made = tiny.built(folder, tiny.OBJECTIVES["cross_entropy"], num_labels=num_labels, **more).eval()
    with torch.no_grad():
        made.head.out.weight.mul_(10)
        made.head.out.bias.add_(torch.arange(num_labels) - 0.5)
        made.head.dense.bias.add_(0.3)
        logits = made.predict(Batch.of(tiny.tokens(folder, ROWS), CPU))
    return made, logits.numpy()


def head_of(made: Any, classes: tuple[str, ...]) -> Head:
    return Head({name.partition("/")[2]: tensor for name, tensor in made.parts().items()}, classes)


def written(made: Any, source: Path, folder: Path, classes: tuple[str, ...] | None) -> Path:
    write_model(made.encoder, folder, None if classes is None else head_of(made, classes))
    write_tokenizer(source, made.encoder, folder, 64)
    return folder


NAMES = ("bad", "so so", "good")


def wide_electra(folder: Path) -> Path:
    """An ELECTRA whose embeddings are as wide as its states."""
    from transformers import ElectraConfig, ElectraForMaskedLM

    config = ElectraConfig(**{**tiny.SHAPE, "vocab_size": 48, "embedding_size": 32, "max_position_embeddings": 64})
    ElectraForMaskedLM(config).save_pretrained(str(folder))
    tiny.tokenizer("electra").save_pretrained(str(folder))
    return folder


def test_plain_transformers_gives_the_same_logits(folders: dict[str, Path], tmp_path: Path) -> None:
    expected, made = {}, []
    for kind in KINDS:
        classifier, expected[kind] = classifier_of(folders[kind])
        made.append(written(classifier, folders[kind], tmp_path / kind, NAMES))
        config = json.loads((tmp_path / kind / "config.json").read_text())
        assert list(config["id2label"].values()) == list(NAMES)
        assert config["architectures"][0].endswith("ForSequenceClassification") == (kind in CLASSIFIER)
        assert (tmp_path / kind / HEAD_FILE).exists() == (kind not in CLASSIFIER)
    regression, expected["number"] = classifier_of(folders["bert"], 1)
    made.append(written(regression, folders["bert"], tmp_path / "number", ()))
    for name, kind in (("mlm", "bert"), ("mlm-electra", "electra"), ("mlm-modern", "modernbert")):
        encoder = tiny.encoder(folders[kind])
        batch = Batch.of(tiny.tokens(folders[kind], ROWS), CPU)
        with torch.no_grad():
            expected[name] = encoder.eval().mlm_logits(encoder(batch, batch.packing.first)).numpy()
        write_model(encoder, tmp_path / name)
        write_tokenizer(folders[kind], encoder, tmp_path / name, 64)
        made.append(tmp_path / name)
    wide, expected["wide"] = classifier_of(wide_electra(tmp_path / "tiny-electra"))
    assert form_of(wide.encoder, Head({}, ("a", "b"))) == "classifier", (
        "with embeddings as wide as its states it is a BERT"
    )
    made.append(written(wide, tmp_path / "tiny-electra", tmp_path / "wide", NAMES))
    found = plain(made)
    for name, logits in expected.items():
        # Rounding of logits near 2 in float32: ALBERT was 1.4e-6 apart on an AMD Milan.
        np.testing.assert_allclose(found[name], logits, atol=3e-6, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_is_an_encoder_with_its_head_again(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    made, expected = classifier_of(folders[kind])
    folder = written(made, folders[kind], tmp_path / kind, NAMES)
    encoder = tiny.encoder(folder)
    head = read_head(folder, encoder)
    assert head is not None
    assert head.classes == NAMES
    encoder.config.problem_type = "multi_label_classification"  # each class by itself, where ours is one of them
    with pytest.raises(UserError, match="gives each text several labels"):
        read_head(folder, encoder)
    again = tiny.built(folder, tiny.OBJECTIVES["cross_entropy"], num_labels=3).eval()
    again.load_parts({f"classifier/{name}": tensor for name, tensor in head.tensors.items()}, ("classifier",))
    with torch.no_grad():
        logits = again.predict(Batch.of(tiny.tokens(folder, ROWS), CPU)).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-6, rtol=1e-6)
    # An encoder of its own model type keeps every tensor as it was.
    if kind != "distilbert":
        ours = {n: t for n, t in made.encoder.parts().items() if n.startswith("encoder/")}
        theirs = {n: t for n, t in encoder.parts().items() if n.startswith("encoder/")}
        assert ours.keys() - theirs.keys() <= {n for n in ours if "pooler" in n}
        assert all(torch.equal(ours[name], theirs[name]) for name in ours.keys() & theirs.keys())


@pytest.mark.parametrize("supervised", [False, True])
@pytest.mark.parametrize("kind", ["bert", "roberta", "electra"])
def test_relative_positions_come_back_and_plain_transformers_refuses_them(
    kind: str, supervised: bool, folders: dict[str, Path], tmp_path: Path
) -> None:
    made, _ = classifier_of(folders[kind], relative=(8, 20))
    with torch.no_grad():
        made.encoder.relative_positions.table.normal_()
        expected = made.predict(Batch.of(tiny.tokens(folders[kind], ROWS), CPU)).numpy()
    folder = written(made, folders[kind], tmp_path / kind, NAMES if supervised else None)
    located = locate(str(folder))
    assert (located.encoder.relative_buckets, located.encoder.relative_distance) == (8, 20)
    again = tiny.encoder(folder)
    again.add_relative_positions(8, 20)  # as a stage does
    assert again.parts().keys() == made.encoder.parts().keys()
    assert all(torch.equal(tensor, again.parts()[name]) for name, tensor in made.encoder.parts().items())
    if supervised:
        head = read_head(folder, again)
        assert head is not None
        made.load_parts({f"classifier/{name}": tensor for name, tensor in head.tensors.items()}, ("classifier",))
        made.encoder = again.eval()
        with torch.no_grad():
            found = made.predict(Batch.of(tiny.tokens(folder, ROWS), CPU)).numpy()
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="harness-relative-positions"):
        AutoModel.from_pretrained(str(folder))
    with pytest.raises(UserError, match="its weights hold relative positions with 8 buckets and distance 20"):
        located.adapted({"relative_buckets": 16})
    assert located.adapted({}).encoder == located.encoder


@pytest.mark.parametrize("kind", [*tiny.KINDS, *tiny.MORE])
def test_plain_transformers_finds_the_same_answers(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Of every family: its class for question answering where it has one that computes the same, else its encoder and our two layers."""
    reading, rows = SpanReading(question=16), questions.questions(8, words=12)[0]
    made = build(
        objective("cross_entropy"), tiny.encoder(folders[kind]), tiny.vocabulary(folders[kind]), Spans(), 0.0, 1
    )
    made.eval()
    tensors = {name.partition("/")[2]: tensor for name, tensor in made.parts().items()}
    form = write_model(made.encoder, tmp_path, Head(tensors, (), per_token=True))
    write_tokenizer(folders[kind], made.encoder, tmp_path, 40)
    assert form == ("encoder" if kind == "modernbert" else "question_answering")
    examples = Windows(40, spans=reading).examples(rows, Tokeniser(tmp_path))
    assert len(examples.tokens) == len(rows)
    with torch.inference_mode():
        ours = made.predict(Batch.of(examples.tokens, CPU))
    theirs = plain_logits(tmp_path, form, rows)
    allowed = ~torch.isneginf(ours)
    torch.testing.assert_close(theirs[allowed], ours[allowed], rtol=1e-4, atol=1e-4)
    read = read_answering(tmp_path)
    assert read is not None
    assert read.tensors.keys() == tensors.keys()
    assert all(torch.equal(read.tensors[name], tensor) for name, tensor in tensors.items())
