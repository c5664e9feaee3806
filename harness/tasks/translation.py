"""Back-translation: two or more views of each text in other words, made once and cached text by text.

A translator is named by one string:

    opus-mt:de,zh        Hugging Face Marian pairs Helsinki-NLP/opus-mt-en-XX and opus-mt-XX-en, a view for each pivot language
    wmt19:de             Hugging Face FSMT pairs facebook/wmt19-en-XX and wmt19-XX-en
    THERE+BACK           one pair of models by hub id or folder; several pairs with commas between them, a view for each
    apertium:spa,cat     the Debian program apertium, for machines without a hub
    file:PATH            the user's own: .jsonl, .csv or .parquet with columns text, view_1, view_2, ...

A pair of models takes `@T=0.7` at the end to sample at that temperature both ways; without it, beam search. One pivot makes
two views all the same: view 0 is then the text itself.

Sources: views as in CERT (Fang and Xie 2020) and CMLM (Luo et al. 2021, eq. 13; its repository: en-de-en and en-zh-en);
sampling as in SCL (Gunel et al. 2021, table 5).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from typing import Protocol as Interface

import numpy as np

from harness.errors import UserError, hint
from harness.paths import named_path
from harness.specs import digest_of
from harness.tasks.rows import Rows
from harness.tasks.translators import Way, apertium_way, file_ways, model_way

KINDS = ("opus-mt", "wmt19", "apertium", "file")
FORMS = "opus-mt:de,zh, wmt19:de, THERE+BACK (two models), apertium:spa,cat or file:PATH"
MODELS = {"opus-mt": ("Helsinki-NLP/opus-mt-{}-{}", "marian"), "wmt19": ("facebook/wmt19-{}-{}", "fsmt")}
"""The name of a model on the hub, and its family."""

Progress = Callable[[int, int], None]


class Cache(Interface):
    """A cache of translations; `harness.store.Store` is one."""

    def translations(self, keys: Sequence[str]) -> dict[str, str]:
        """The texts of those keys that have one."""

    def keep_translations(self, texts: Mapping[str, str]) -> None:
        """Keep texts by key; a key that has one keeps its own."""


@dataclass(frozen=True)
class Translator:
    """A named translator; `ways` to and from one pivot each, in the order of the views. Opened by `open_translator`."""

    name: str
    ways: tuple[Way, ...]

    @property
    def num_views(self) -> int:
        """Views of each text. With one pivot they are the text itself and its back-translation."""
        return max(2, len(self.ways))

    @cached_property
    def digest(self) -> str:
        """Hex digest of everything that decides the output: models, tables and programs by content, and settings."""
        return digest_of([way.digest for way in self.ways])


class BackTranslated(NamedTuple):
    """`rows` of views. `empty`: the number of blank translations, for which the view is the text itself."""

    rows: Rows
    empty: int


def open_translator(name: str, *, download: bool, copies: int | None = None) -> Translator:
    """The translator of that name. Only with `download` is anything fetched; loads no model.

    `copies`: how many different back-translations of a text are needed: as many samples of one pair of models at a temperature,
    else the first ways.

    Raises UserError for a name that means nothing, a model that is none, a broken file, fewer than `copies`; NotAtHand where a
    program, a Python package or a model is missing, with the way to get it.
    """
    where = f"translator '{name}'"
    ways = _ways(where, name, download, copies or 1)
    if copies and len(ways) < copies:
        raise UserError(
            f"{where}: gives {len(ways)} back-translation{'s' * (len(ways) > 1)} of a text, and {copies} are needed; name more pivots, "
            "or one pair of models at a temperature (@T=0.7)."
        )
    return Translator(name, ways[:copies])


def _ways(where: str, name: str, download: bool, samples: int) -> tuple[Way, ...]:
    """The ways of a translator; of a pair of models at a temperature as many as `samples`."""
    kind, colon, rest = name.partition(":")
    if colon and kind in ("file", "apertium"):
        what, mark = ("a file", "@T=") if kind == "file" else ("apertium", "@")
        if mark in rest:
            raise UserError(
                f"{where}: {what} cannot sample; drop '{rest[rest.index(mark) :]}', or, where a row sets the temperature, name models "
                "(wmt19:de)."
            )
        if kind == "apertium":
            pivots = _pivots(where, kind, rest)
            return tuple(apertium_way(where, pivot, pivots) for pivot in pivots)
        if not rest:
            raise UserError(f"{where}: names no file; write file:PATH.")
        return file_ways(where, named_path(rest, where))
    body, temperature = _temperature(where, name)
    kind, colon, rest = body.partition(":")
    family = ""
    if kind in MODELS and colon:
        model, family = MODELS[kind]
        pairs = [(model.format("en", pivot), model.format(pivot, "en")) for pivot in _pivots(where, kind, rest)]
    elif "+" in body:
        pairs = [_pair(where, text) for text in body.split(",")]
    elif kind in KINDS:
        raise UserError(f"{where}: has nothing after '{kind}:'; write {FORMS}.")
    else:
        raise UserError(f"{where}: there is no translator '{kind}'.{hint(kind, KINDS)} Write {FORMS}.")
    if temperature and len(pairs) == 1:
        pairs *= samples
    return tuple(
        model_way(where, *pair, family=family, temperature=temperature, view=view, download=download)
        for view, pair in enumerate(pairs)
    )


def cached_back_translation(rows: Rows, translator: Translator, cache: Cache) -> Rows | None:
    """The result of `back_translated` where all texts are translated already; else None. Translates nothing.

    Raises UserError when a file that is the translator lacks a text.
    """
    source = rows.unlabelled()
    views = _all_known(source, translator, cache)
    return None if views is None else _side_by_side(source, views, translator).rows


def cached_augmentation(rows: Rows, translator: Translator, cache: Cache) -> Rows | None:
    """Labelled rows and a copy of each by each way, with its label, in canonical order; None where a text is not translated yet.
    Translates nothing: `back_translated` does. A copy whose translation is blank has the text itself.

    Raises UserError when a file that is the translator lacks a text.
    """
    views = _all_known(rows, translator, cache)
    if views is None:
        return None
    copies = (tuple(_view(text, known) for text in row) for known in views for row in rows.texts)
    return Rows((*rows.texts, *copies), np.tile(rows.gold, 1 + len(views)), rows.name).sorted()


def back_translated(
    rows: Rows, translator: Translator, cache: Cache, progress: Progress = lambda done, total: None
) -> BackTranslated:
    """The views of each row of `rows` side by side, without labels, in canonical order: views x columns texts a row.

    Of a pair (a, b) and two views: (a1, b1, a2, b2). Each distinct text is translated once, whatever rows and subsets it
    stands in: `cache` is read first and gets the new ones a few at a time, so a killed run goes on where it was.
    `progress(done, total)` counts distinct texts times translated views. A translation that comes back blank leaves the
    text itself as that view, and is counted; a text that is blank itself is not translated.

    Raises UserError when a translator fails (what it has done is kept) or a file lacks a text.
    """
    source = rows.unlabelled()
    texts = _texts(source)
    views = [_known(way, texts, cache) for way in translator.ways]
    done, total = sum(map(len, views)), len(texts) * len(views)
    progress(done, total)
    for way, known in zip(translator.ways, views, strict=True):
        missing = [text for text in texts if text not in known]
        for start in range(0, len(missing), way.chunk):
            chunk = missing[start : start + way.chunk]
            keys = [_key(way, text) for text in chunk]
            cache.keep_translations(dict(zip(keys, way.translate(chunk), strict=True)))
            # Read back what is kept now: had another process been first, its text is the one that everyone uses.
            kept = cache.translations(keys)
            known.update((text, kept[key]) for text, key in zip(chunk, keys, strict=True))
            done += len(chunk)
            progress(done, total)
    return _side_by_side(source, views, translator)


def _texts(rows: Rows) -> list[str]:
    """The distinct texts that are not blank, in canonical order."""
    return list(dict.fromkeys(text for row in rows.texts for text in row if text.strip()))


def _key(way: Way, text: str) -> str:
    return digest_of([way.digest, text])


def _known(way: Way, texts: Sequence[str], cache: Cache) -> dict[str, str]:
    """Known translations by text."""
    if way.at_hand:
        return dict(zip(texts, way.translate(texts), strict=True))
    keys = {text: _key(way, text) for text in texts}
    kept = cache.translations(list(keys.values()))
    return {text: kept[key] for text, key in keys.items() if key in kept}


def _all_known(rows: Rows, translator: Translator, cache: Cache) -> list[dict[str, str]] | None:
    """Translations by text for each way; None where one is missing."""
    texts = _texts(rows)
    views = [_known(way, texts, cache) for way in translator.ways]
    return None if any(len(known) < len(texts) for known in views) else views


def _side_by_side(source: Rows, views: Sequence[Mapping[str, str]], translator: Translator) -> BackTranslated:
    empty = sum(not translated.strip() for known in views for translated in known.values())
    own: list[Mapping[str, str]] = [{}] * (translator.num_views - len(views))  # the view that is the text itself
    rows = tuple(tuple(_view(text, known) for known in (*own, *views) for text in row) for row in source.texts)
    return BackTranslated(Rows(rows, None, source.name).sorted(), empty)


def _view(text: str, known: Mapping[str, str]) -> str:
    """A text's translation; the text itself where that is blank or unknown."""
    translated = known.get(text, "")
    return translated if translated.strip() else text


def _pivots(where: str, kind: str, text: str) -> list[str]:
    pivots = [each.strip() for each in text.split(",")]
    form = {"apertium": "apertium:spa,cat", "wmt19": "wmt19:de"}.get(kind, "opus-mt:de,zh")
    for pivot in pivots:
        if not re.fullmatch(r"[A-Za-z]+(_[A-Za-z0-9]+)*", pivot):
            what = f"'{pivot}' is not a language" if pivot else "a pivot language is missing"
            raise UserError(f"{where}: {what}; write for example {form}.")
        if pivot.lower() in ("en", "eng"):
            raise UserError(f"{where}: English is what is translated, not a pivot; write for example {form}.")
        if pivots.count(pivot) > 1:
            raise UserError(f"{where}: pivot '{pivot}' is given twice, which makes two equal views; name another.")
    return pivots


def _pair(where: str, text: str) -> tuple[str, str]:
    there, plus, back = (part.strip() for part in text.partition("+"))
    if not (there and plus and back) or "+" in back:
        raise UserError(f"{where}: '{text}' is not a pair of models; write THERE+BACK, each a hub id or a folder.")
    return there, back


def _temperature(where: str, name: str) -> tuple[str, float]:
    """The name without its setting, and the temperature; 0 means beam search."""
    body, at, setting = name.rpartition("@")
    if not at or "/" in setting or "+" in setting:
        return name, 0.0
    number = re.fullmatch(r"T=([0-9]*\.?[0-9]+)", setting)
    if number is None or not 0 < float(number[1]) <= 10:
        raise UserError(f"{where}: '@{setting}' is not a setting; write @T=0.7, a temperature above 0 and at most 10.")
    return body, float(number[1])
