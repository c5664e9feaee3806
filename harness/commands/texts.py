"""Texts that a bench reads besides its task's rows: back-translations and corpora, and all of them as tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from harness.specs import Data, RowSet, digest_of
from harness.store import Store
from harness.tables.plan import NO_TRANSLATION, Plan, Translation
from harness.tables.resolve import ResolvedTable
from harness.tasks import (
    Corpus,
    NotAtHand,
    NotFetched,
    Rows,
    Translator,
    back_translated,
    cached_back_translation,
    open_corpus,
    open_translator,
)

if TYPE_CHECKING:
    from harness.encoders.tokens import Tokeniser, Tokens


def translation_of(resolved: ResolvedTable, store: Store, download: bool) -> tuple[Translator | None, Translation]:
    """The translator of a table with rows that want one, and what the planner needs of it; without it, the reason."""
    if not resolved.translates:
        return None, NO_TRANSLATION
    if not resolved.translator:
        return None, Translation(reason="no translator is named ('harness list translators' shows them)")
    try:
        translator = open_translator(resolved.translator, download=download)
    except NotFetched:  # of a plan only: the run that follows it will fetch
        return None, Translation()
    except NotAtHand as error:
        return None, Translation(reason=str(error).rstrip("."))
    return translator, Translation(lambda rows: cached_back_translation(rows, translator, store), translator.num_views)


def corpus_of(resolved: ResolvedTable, store: Store, download: bool, where: str) -> Corpus | None:
    """The pre-training corpus of a table; None where no row is pre-trained, and in a plan where it is not downloaded yet."""
    if resolved.pre_train is None:
        return None
    memo = store.artifacts.parent / "corpora.json"
    kept = memo if download or memo.exists() else None  # a plan starts no file
    try:
        return open_corpus(resolved.pre_train.corpus, download=download, memo=kept, where=where)
    except NotAtHand:
        if download:
            raise
        return None


def translate(
    every: Iterable[Rows], translator: Translator, store: Store, progress: Callable[[int], Callable[[int, int], None]]
) -> int:
    """Back-translate rows, text by text into the store; an interrupted call continues where it stopped. `progress(n)`: called for each
    part of n rows, gives what is called with the number done and all. The number of empty translations."""
    return sum(back_translated(rows, translator, store, progress(len(rows))).empty for rows in every)


def reader(plan: Plan, tokeniser: Tokeniser, store: Store) -> Callable[[RowSet, Data], tuple[Tokens, Any]]:
    """How the pool gets a row set as a stage reads it: tokens, views one after another, and labels."""
    from harness.encoders.tokens import joined
    from harness.encoders.tokens.corpus_files import tokenise_corpus

    def blocks(corpus: Corpus, data: Data) -> Tokens:
        """A corpus is tokenised once, to disk, and read from there."""
        identity = digest_of([corpus.digest, plan.located.encoder.digest, data.max_length, data.blocks])
        folder = store.artifacts.parent / "blocks" / identity
        return tokenise_corpus(corpus.texts(), tokeniser, data.max_length, data.blocks, folder, identity=identity)

    def read(row_set: RowSet, data: Data) -> tuple[Tokens, Any]:
        corpus = plan.corpus
        if (
            corpus
            and row_set.digest == corpus.digest
            and (data.blocks == "packed" or row_set.digest not in plan.library)
        ):
            return blocks(corpus, data), None
        rows = plan.library[row_set.digest]
        width = rows.columns // data.views
        views = [tuple(texts[k * width : (k + 1) * width] for texts in rows.texts) for k in range(data.views)]
        return joined(*(tokeniser(view, data.max_length) for view in views)), rows.labels

    return read
