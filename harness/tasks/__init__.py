"""The tasks, where text comes from, split protocols, subsets, corpora and metrics. No torch, no ray.

task        tasks: text columns, classes, metrics, splits; user_task: the same from a user's YAML
rows        rows of text and their identity by content; text_buffer: their texts and hashes
reading     one file into checked columns; labelled: into rows with their labels
hub_data    data sets of the Hugging Face hub
packaged    text inside Python packages
sources     what a task names, a folder, the packages or the Hugging Face hub
protocol    what a protocol is; protocols: dev, test and training rows by published ones; own_protocol: of a user's data
separated   CSV and TSV; unlabelled: further texts of a task
corpora     unlabelled text
translation back-translations of texts; translators and translation_models make them
overlap     texts that stand in two sets
metrics     metrics by name
"""

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
