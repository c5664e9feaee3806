"""A classifier of every family as a file of ONNX, by ONNX Runtime against plain transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from family_encoders import SPECIFIC, encoder_folder, sentences

from harness.encoders.models.pretrained_folder import Head, write_model, write_tokenizer

for _package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(_package, reason="no ONNX (pip install 'glue-harness[onnx]')")

TEXTS = [text for text, _ in sentences(40)]
ROWS = [*((text,) for text in TEXTS), ("good",), ("a film",), (" ".join(TEXTS[:5]),)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPECIFIC)
def test_a_classifier_of_every_family(kind: str, tmp_path: Path) -> None:
    from harness.encoders.models.onnx_file import write_onnx

    source, out = encoder_folder(tmp_path, kind, TEXTS), tmp_path / "out"
    made = tiny.built(source, tiny.OBJECTIVES["cross_entropy"], num_labels=3).eval()
    with torch.no_grad():
        made.head.out.weight.mul_(10)
    tensors = {name.partition("/")[2]: tensor for name, tensor in made.parts().items()}
    form = write_model(made.encoder, out, Head(tensors, ("a", "b", "c")))
    write_tokenizer(source, made.encoder, out, 64)
    difference, greatest = write_onnx(out, form, ROWS)
    assert greatest > 1, "logits so small that any would agree"
    assert difference < 1e-5
