"""A classifier's folder as one file of ONNX besides, written by torch's exporter and compared with plain transformers on texts."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from harness.encoders.models.pretrained_folder import Form, PlainModel
from harness.errors import UserError

ONNX_FILE = "model.onnx"
BATCHES = (1, 2, 7, 64)
"""Rows of a batch at which the file is compared with plain transformers."""


def check_onnx() -> None:
    """Raises UserError where a package that writes or runs ONNX is not installed."""
    missing = [package for package in ("onnx", "onnxruntime", "onnxscript") if find_spec(package) is None]
    if missing:
        raise UserError(
            f"--onnx: {' and '.join(missing)} not installed; run pip install 'glue-harness[onnx]', or leave --onnx out."
        )


def write_onnx(folder: Path, form: Form, texts: Sequence[tuple[str, ...]]) -> tuple[float, float]:
    """Write `ONNX_FILE` into a classifier's folder, with rows and tokens of any number. Returns the greatest difference of its
    logits from those of plain transformers over `texts` in batches of `BATCHES` rows, and the greatest logit. Raises UserError where the
    exporter fails."""
    import onnxruntime

    model, path = PlainModel(folder, form), folder / ONNX_FILE
    _export(model, model.tokens((*texts, *texts)[:2]), path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    difference = greatest = 0.0
    for size in BATCHES:
        for start in range(0, len(texts), size):
            given = model.tokens(texts[start : start + size])
            with torch.inference_mode():
                theirs = model(**given)
            (ours,) = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
            difference = max(difference, float((torch.from_numpy(ours) - theirs).abs().max()))
            greatest = max(greatest, float(theirs.abs().max()))
    return difference, greatest


def _export(model: PlainModel, given: dict[str, Tensor], path: Path) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of torchvision, which no encoder needs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model,
                (),
                str(path),
                kwargs=given,
                input_names=list(given),
                output_names=["logits"],
                dynamic_shapes={name: {0: "rows", 1: "tokens"} for name in given},
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # the exporter's own, of many kinds
        raise UserError(
            f"--onnx: torch cannot write this encoder as ONNX ({type(error).__name__}); leave --onnx out."
        ) from error
