"""The tasks, where text comes from, split protocols, subsets, corpora and metrics. No torch, no ray."""

from harness.errors import NotAtHand, NotFetched
from harness.tasks.corpora import CORPORA, Corpus, load_corpus, open_corpus, part_name
from harness.tasks.metrics import METRICS, Metric, score
from harness.tasks.overlap import count_overlap, normalised
from harness.tasks.protocol import EvaluationSets, Protocol
from harness.tasks.protocols import PROTOCOLS, protocol_named
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource, open_source
from harness.tasks.task import TASKS, Task, task_named
from harness.tasks.translation import (
    BackTranslated,
    Translator,
    back_translated,
    cached_augmentation,
    cached_back_translation,
    open_translator,
)

__all__ = [
    "CORPORA",
    "METRICS",
    "PROTOCOLS",
    "TASKS",
    "BackTranslated",
    "Corpus",
    "EvaluationSets",
    "Metric",
    "NotAtHand",
    "NotFetched",
    "Protocol",
    "Rows",
    "Task",
    "TextSource",
    "Translator",
    "back_translated",
    "cached_augmentation",
    "cached_back_translation",
    "count_overlap",
    "load_corpus",
    "normalised",
    "open_corpus",
    "open_source",
    "open_translator",
    "part_name",
    "protocol_named",
    "score",
    "task_named",
]
