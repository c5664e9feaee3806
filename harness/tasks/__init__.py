"""The task table, where text comes from, split protocols, subsets, corpora and metrics. No torch, no ray.

table       tasks: text columns, classes, metrics, splits; user_task: the same from a user's YAML
rows        rows of text and their identity by content
reading     one file into checked rows
packaged    text inside Python packages
sources     a folder, the packages or the Hugging Face hub
protocols   dev, test and training rows of a published protocol
corpora     unlabelled text
overlap     texts that stand in two sets
metrics     metrics by name
"""

from harness.tasks.corpora import CORPORA, load_corpus
from harness.tasks.metrics import METRICS, Metric, score
from harness.tasks.overlap import normalised, shared_texts
from harness.tasks.packaged import NotAtHand
from harness.tasks.protocols import PROTOCOLS, EvaluationSets, Protocol, protocol_named
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource, open_source
from harness.tasks.table import TASKS, Task, load_user_task, task_named

__all__ = [
    "CORPORA",
    "METRICS",
    "PROTOCOLS",
    "TASKS",
    "EvaluationSets",
    "Metric",
    "NotAtHand",
    "Protocol",
    "Rows",
    "Task",
    "TextSource",
    "load_corpus",
    "load_user_task",
    "normalised",
    "open_source",
    "protocol_named",
    "score",
    "shared_texts",
    "task_named",
]
