"""Texts that a bench reads besides its task's rows: back-translations and corpora, and all of them as tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.encoders import Located
from harness.errors import NotAtHand, NotFetched
from harness.planning.recipe import Augment
from harness.planning.resolved import Part, ResolvedTable
from harness.planning.runs import Plan
from harness.planning.task_reader import NO_TRANSLATION, Translation
from harness.specs import Data, RowSet, digest_of
from harness.store import Store
from harness.tasks.corpora import Corpus, open_corpus
from harness.tasks.translation import Translator, augmented, back_translated, open_translator

if TYPE_CHECKING:
    from harness.encoders.tokens import Examples, Tokeniser


Translators = Mapping[Augment | None, Translator]
"""The translators of a table: of its rows' views (None), and of each augmentation."""


def translations_of(
    resolved: ResolvedTable, store: Store, download: bool
) -> tuple[Translators, dict[Augment | None, Translation]]:
    """The translators that a table's rows want, those that are at hand, and what the planner needs of each; without it, the reason."""
    translators: dict[Augment | None, Translator] = {}
    found: dict[Augment | None, Translation] = {None: NO_TRANSLATION}
    for augment in resolved.translations:
        if not resolved.translator:
            found[augment] = Translation(reason="no translator is named ('harness list translators' shows them)")
            continue
        name, copies = resolved.translator_of(augment), augment.copies if augment else None
        try:
            translators[augment] = made = open_translator(name, download=download, copies=copies)
        except NotFetched:  # of a plan only: the run that follows it will fetch
            found[augment] = Translation()
        except NotAtHand as error:
            found[augment] = Translation(reason=str(error).rstrip("."))
        else:
            find = augmented if augment else back_translated
            found[augment] = Translation(partial(find, translator=made, cache=store), made.num_views)
    return translators, found


def corpora_of(resolved: ResolvedTable, store: Store, download: bool, where: str) -> dict[Part, Corpus]:
    """The parts of a table's pre-training corpus, as `ResolvedTable.corpus_parts`; empty where no row is pre-trained, and in a plan
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
    return {(start, stop): whole.part(stop, start) for start, stop in resolved.corpus_parts}


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
