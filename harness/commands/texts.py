"""Texts that a bench reads besides its task's rows: back-translations and corpora, and all of them as tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.encoders import Located
from harness.errors import NotAtHand, NotFetched
from harness.planning.recipe import Augment
from harness.planning.resolved import ResolvedTable
from harness.planning.runs import Plan
from harness.planning.task_reader import Translation
from harness.specs import Data, RowSet, digest_of
from harness.store import Store
from harness.tasks.corpora import Corpus, open_corpus
from harness.tasks.translation import Translator, augmented, back_translated, open_translator

if TYPE_CHECKING:
    from harness.encoders.tokens import Examples, Tokeniser


def translator_of(resolved: ResolvedTable, augment: Augment | None, download: bool = True) -> Translator:
    """What makes the views of a table's rows (None), or the copies of an augmentation. Raises UserError as `open_translator` does."""
    name, copies = resolved.translator_of(augment), augment.copies if augment else None
    return open_translator(name, download=download, copies=copies)


def translation_of(resolved: ResolvedTable, store: Store, download: bool, augment: Augment | None) -> Translation:
    """What the planner needs of it; without it, the reason."""
    if not resolved.translator:
        return Translation(reason="no translator is named ('harness list translators' shows them)")
    try:
        made = translator_of(resolved, augment, download)
    except NotFetched:  # of a plan only: the run that follows it will fetch
        return Translation()
    except NotAtHand as error:
        return Translation(reason=str(error).rstrip("."))
    find = augmented if augment else back_translated
    return Translation(partial(find, translator=made, cache=store), made.num_views)


def corpora_of(resolved: ResolvedTable, store: Store, download: bool, where: str) -> dict[float, Corpus]:
    """The parts of a table's pre-training corpus, by fraction; empty where no row is pre-trained, and in a plan
    where it is not downloaded yet."""
    if resolved.pre_train is None:
        return {}
    memo = store.artifacts.parent / "corpora.json"
    kept = memo if download or memo.exists() else None  # a plan starts no file
    try:
        whole = open_corpus(resolved.pre_train.corpus, download=download, memo=kept, where=where)
    except NotAtHand:
        if download:
            raise
        return {}
    return {fraction: whole.part(fraction) for fraction in resolved.fractions}


def reader(
    plan: Plan, located: Located, tokeniser: Tokeniser, store: Store
) -> Callable[[RowSet, Data], tuple[Examples, Any]]:
    """How the pool gets a row set as a stage reads it: examples, and labels or None."""
    from harness.encoders.tokens import Examples, reading_of
    from harness.encoders.tokens.corpus_files import tokenise_corpus

    def read(row_set: RowSet, data: Data) -> tuple[Examples, Any]:
        reading, rows = reading_of(data), plan.library.get(row_set.digest)
        corpus = next((corpus for corpus in plan.corpora if corpus.digest == row_set.digest), None)
        if corpus and (rows is None or data.blocks == "packed"):  # tokenised once, to disk, and read from there
            identity = digest_of([corpus.digest, located.encoder.digest, data.max_length, data.blocks])
            folder = store.artifacts.parent / "blocks" / identity
            return Examples(tokenise_corpus(corpus.texts(), tokeniser, reading, folder, identity)), None
        rows = plan.library[row_set.digest]
        return reading.examples(rows.texts, tokeniser), rows.labels

    return read
