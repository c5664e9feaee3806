"""A written folder computes in plain transformers what the model computed here. (tests/cli/test_export.py: in a process without harness.)"""

from __future__ import annotations

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
    Form,
    Head,
    plain_logits,
    read_head,
    write_model,
    write_tokenizer,
)
from harness.encoders.sources import adapted, locate
from harness.encoders.tokens import Tokeniser
from harness.encoders.tokens.reading import Windows
from harness.errors import UserError
from harness.kinds import Spans
from harness.methods import objective
from harness.objectives import build

KINDS = (*tiny.KINDS, *tiny.MORE)
CLASSIFIER = {"bert", "roberta", "mpnet", "deberta-v2", "albert"}
"""Those for which transformers has a class with a head like ours."""
ROWS, _ = tiny.texts(12, 5, pairs=True)
CPU = torch.device("cpu")


def classifier_of(folder: Path, num_labels: int = 3, **more: Any) -> tuple[Any, NDArray[Any]]:
    """A classifier with a head that is not small, and its logits."""
    made = tiny.built(folder, tiny.OBJECTIVES["cross_entropy"], num_labels=num_labels, **more).eval()
    with torch.no_grad():
        made.head.out.weight.mul_(10)
        made.head.out.bias.add_(torch.arange(num_labels) - 0.5)
        made.head.dense.bias.add_(0.3)
        logits = made.predict(Batch.of(tiny.tokens(folder, ROWS), CPU))
    return made, logits.numpy()


def written(made: Any, source: Path, folder: Path, classes: tuple[str, ...] | None, **more: Any) -> Form:
    tensors = {name.partition("/")[2]: tensor for name, tensor in made.parts().items()}
    form = write_model(made.encoder, folder, None if classes is None else Head(tensors, classes, **more))
    write_tokenizer(source, made.encoder, folder, 64)
    return form


NAMES = ("bad", "so so", "good")


@pytest.mark.parametrize("kind", KINDS)
def test_plain_transformers_gives_the_same_logits(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """And the folder is an encoder with its head again."""
    made, expected = classifier_of(folders[kind])
    form = written(made, folders[kind], tmp_path, NAMES)
    assert form == ("classifier" if kind in CLASSIFIER else "encoder")
    assert (tmp_path / HEAD_FILE).exists() == (form == "encoder")
    # Rounding of logits near 2 in float32: ALBERT was 1.4e-6 apart on an AMD Milan.
    np.testing.assert_allclose(plain_logits(tmp_path, form, ROWS), expected, atol=3e-6, rtol=1e-6)
    encoder = tiny.encoder(tmp_path)
    head = read_head(tmp_path, encoder)
    assert head is not None
    assert head.classes == NAMES
    again = tiny.built(tmp_path, tiny.OBJECTIVES["cross_entropy"], num_labels=3).eval()
    again.load_parts({f"classifier/{name}": tensor for name, tensor in head.tensors.items()}, ("classifier",))
    with torch.no_grad():
        logits = again.predict(Batch.of(tiny.tokens(tmp_path, ROWS), CPU)).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-6, rtol=1e-6)
    ours, theirs = made.encoder.parts(), encoder.parts()
    kept = [name for name in ours if name.startswith("encoder/") and "pooler" not in name]
    assert all(torch.equal(ours[name], theirs[name]) for name in kept)
    encoder.config.problem_type = "multi_label_classification"  # each class by itself, where ours is one of them
    with pytest.raises(UserError, match="gives each text several labels"):
        read_head(tmp_path, encoder)


def test_of_a_number_and_of_an_mlm_head(folders: dict[str, Path], tmp_path: Path) -> None:
    made, expected = classifier_of(folders["bert"], 1)
    form = written(made, folders["bert"], tmp_path / "number", ())
    np.testing.assert_allclose(plain_logits(tmp_path / "number", form, ROWS), expected, atol=3e-6, rtol=1e-6)
    for kind in ("bert", "electra", "modernbert"):
        made = tiny.built(folders[kind], tiny.OBJECTIVES["mlm"]).eval()
        batch = Batch.of(tiny.tokens(folders[kind], ROWS), CPU)
        with torch.no_grad():
            logits = made.encoder.mlm_logits(made.encoder(batch, batch.first))
        assert written(made, folders[kind], tmp_path / kind, None) == "masked_lm"
        found = plain_logits(tmp_path / kind, "masked_lm", ROWS)
        torch.testing.assert_close(found, logits, atol=3e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", ["roberta", "electra"])
def test_relative_positions_come_back_and_plain_transformers_refuses_them(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    made, _ = classifier_of(folders[kind], relative=(8, 20))
    with torch.no_grad():
        made.encoder.relative_positions.table.normal_()
        expected = made.predict(Batch.of(tiny.tokens(folders[kind], ROWS), CPU)).numpy()
    folder = tmp_path / kind
    assert written(made, folders[kind], folder, NAMES) == "relative"
    located = locate(str(folder))
    assert (located.encoder.relative_buckets, located.encoder.relative_distance) == (8, 20)
    again = tiny.encoder(folder)
    again.add_relative_positions(8, 20)  # as a stage does
    assert again.parts().keys() == made.encoder.parts().keys()
    assert all(torch.equal(tensor, again.parts()[name]) for name, tensor in made.encoder.parts().items())
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
        adapted(located.encoder, {"relative_buckets": 16}, located.config)
    assert adapted(located.encoder, {}, located.config) == located.encoder


@pytest.mark.parametrize("kind", KINDS)
def test_plain_transformers_finds_the_same_answers(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Of every family: its class for question answering where it has one that computes the same, else its encoder and our two layers."""
    reading, rows = SpanReading(question=16), questions.questions(8, words=12)[0]
    made = build(objective("cross_entropy"), tiny.encoder(folders[kind]), tiny.vocabulary(folders[kind]), Spans(), 1)
    made.eval()
    form = written(made, folders[kind], tmp_path, (), per_token=True)
    assert form == ("encoder" if kind == "modernbert" else "question_answering")
    examples = Windows(64, spans=reading).examples(rows, Tokeniser(tmp_path))
    assert len(examples.tokens) == len(rows)
    with torch.inference_mode():
        ours = made.predict(Batch.of(examples.tokens, CPU))
    theirs = plain_logits(tmp_path, form, rows)
    allowed = ~torch.isneginf(ours)
    torch.testing.assert_close(theirs[allowed], ours[allowed], rtol=1e-4, atol=1e-4)
    read = read_head(tmp_path, tiny.encoder(tmp_path))
    assert read is not None
    tensors = {name.partition("/")[2]: tensor for name, tensor in made.parts().items()}
    assert {name: tensor.tolist() for name, tensor in read.tensors.items()} == {
        n: t.tolist() for n, t in tensors.items()
    }
