"""Back-translation: two or more views of each text in other words, made once and cached text by text.

A translator is named by one string:

    opus-mt:de,zh        Hugging Face models Helsinki-NLP/opus-mt-en-XX and opus-mt-XX-en, a view for each pivot language
    wmt19:de             Hugging Face models facebook/wmt19-en-XX and wmt19-XX-en
    THERE+BACK           one pair of models by hub id or folder; several pairs with commas between them, a view for each
    file:PATH            the user's own: .jsonl, .csv or .parquet with columns text, view_1, view_2, ...

A pair of models takes `@T=0.7` at the end to sample at that temperature both ways; without it, beam search. One pivot makes
two views all the same: view 0 is then the text itself. No torch before the first translation.

Sources: views as in CERT (Fang and Xie 2020) and CMLM (Luo et al. 2021, eq. 13; its repository: en-de-en and en-zh-en);
sampling as in SCL (Gunel et al. 2021, table 5).
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import NotAtHand, UserError, hint, quoted
from harness.hub import Repository, is_id
from harness.paths import named_path
from harness.specs import KEY_LENGTH, digest_of
from harness.streams import stream
from harness.tasks import reading
from harness.tasks.rows import Rows, hashes

if TYPE_CHECKING:
    from harness.store import Store

MODELS = {"opus-mt": "Helsinki-NLP/opus-mt-{}-{}", "wmt19": "facebook/wmt19-{}-{}"}
FAMILIES = ("marian", "fsmt")
PACKAGES = ("sentencepiece", "sacremoses")
"""What their tokenizers import. Marian's does without sacremoses, but then leaves the punctuation as it is: other tokens."""
FILES, WEIGHTS = ("*.json", "*.spm", "*.txt"), ("*.safetensors", "pytorch_model*.bin")
TARGET_CODE = {"opus-mt-en-zh": ">>cmn_Hans<<"}
"""Models of several target languages, by the last part of their name: the token that their card asks for."""
BEAMS = 5
"""Where a model's own generation settings name no beam search."""
CHUNK, BATCH = 64, 16
WIDTH = 16
"""Lengths are rounded up to a multiple, so that the padding and the longest answer depend on the text alone."""
LONGEST = 512
"""Tokens of a text, and of its translation; what is longer is cut."""


@dataclass(frozen=True, eq=False)
class Translator:
    """A named translator; `ways` to other words and back, in the order of the views: none of one that is not fetched. For a plan `find`: the
    kept views of rows, or the rows with their copies, or None; and `reason`: why there can be none."""

    name: str = ""
    ways: tuple[FileViews | ModelPair, ...] = ()
    find: Callable[[Rows], Rows | None] = lambda rows: None
    reason: str = ""

    @property
    def num_views(self) -> int:
        """Views of each text. With one way they are the text itself and its back-translation."""
        return max(2, len(self.ways))


UNNAMED = Translator(reason="no translator is named ('harness list translators' shows them)")


# ---------------------------------------------------------------------------------------------------------- rows to views


def translate(
    row_sets: Sequence[Rows], translator: Translator, cache: Store, progress: Callable[[int], None] = lambda rows: None
) -> int:
    """Translate what `cache` lacks of the texts of rows, a few at a time, so a killed run goes on where it was. The number of blank translations,
    for which the view is the text itself; blank texts are not translated. `progress`: called with the number of rows that are done.

    Raises UserError when a translator fails (what it has done is kept) or a file lacks a text.
    """
    texts = _distinct(*(rows.unlabelled() for rows in row_sets))
    views = [way.known(texts, cache) for way in translator.ways]
    total, rows = max(1, len(texts) * len(views)), sum(map(len, row_sets))
    progress(rows * sum(map(len, views)) // total)
    for way, known in zip(translator.ways, views, strict=True):
        missing = [text for text in texts if text not in known]  # none of a file
        for start in range(0, len(missing), CHUNK):
            chunk = missing[start : start + CHUNK]
            way.translate(chunk, cache)
            # Read back what is kept now: had another process been first, its text is the one that everyone uses.
            known.update(way.known(chunk, cache))
            progress(rows * sum(map(len, views)) // total)
    return sum(not text.strip() for known in views for text in known.values())


def translated(rows: Rows, translator: Translator, cache: Store) -> Rows | None:
    """Of unlabelled rows their views side by side, in canonical order: views x columns texts a row; of a pair (a, b) and two views
    (a1, b1, a2, b2). Of labelled ones the rows and a copy of each by each way, with its label. Where a text or its translation is blank, the text
    itself stands. None where a text is not translated yet. Raises UserError where a file lacks a text."""
    texts, views = _distinct(rows), list[tuple[tuple[str, ...], ...]]()
    for way in translator.ways:
        if len(known := way.known(texts, cache)) < len(texts):
            return None
        known = {text: view for text, view in known.items() if view.strip()}
        views.append(tuple(tuple(known.get(text, text) for text in row) for row in rows.texts))
    if rows.labels is not None:
        return Rows([*itertools.chain(rows.texts, *views)], np.tile(rows.labels, 1 + len(views))).sorted()
    views = [rows.texts] * (translator.num_views - len(views)) + views  # one view is the text itself
    return Rows([tuple(itertools.chain(*row)) for row in zip(*views, strict=True)]).sorted()


def _distinct(*row_sets: Rows) -> list[str]:
    return list(dict.fromkeys(text for rows in row_sets for row in rows.texts for text in row if text.strip()))


# --------------------------------------------------------------------------------------------------------- names to ways


def open_translator(name: str, *, download: bool, copies: int | None = None) -> Translator:
    """The translator of that name; loads no model. `copies`: how many different back-translations of a text are needed: as many samples of
    one pair of models at a temperature, else the first ways.

    Raises UserError for a name that means nothing, a model that is none, a broken file, fewer than `copies`; NotAtHand (NotFetched
    without `download`) where a Python package or a model is missing, with the way to get it.
    """
    where = f"translator '{name}'"
    body, _, temperature = name.partition("@T=")
    if temperature and not (re.fullmatch(r"\d*\.?\d+", temperature) and 0 < float(temperature) <= 10):
        raise UserError(f"{where}: '@T={temperature}' is not a temperature above 0 and at most 10; write @T=0.7.")
    ways: Sequence[FileViews | ModelPair]
    if body.startswith("file:"):
        if temperature:
            raise UserError(f"{where}: a file cannot sample; where a row sets the temperature, name models (wmt19:de).")
        ways = _file_ways(where, named_path(body.removeprefix("file:")))
    else:
        pairs = _pairs(where, body)
        pairs *= copies or 1 if temperature and len(pairs) == 1 else 1
        models = {model: _Model.named(where, model, download) for pair in pairs for model in pair}
        degrees = float(temperature or 0)
        ways = [ModelPair(models[there], models[back], degrees, view) for view, (there, back) in enumerate(pairs)]
    if copies and len(ways) < copies:
        raise UserError(
            f"{where}: gives {len(ways)} back-translation{'s' * (len(ways) > 1)} of a text, and {copies} are needed; name more pivots, "
            "or one pair of models at a temperature (@T=0.7)."
        )
    return Translator(name, tuple(ways[:copies]))


def _pairs(where: str, body: str) -> list[tuple[str, str]]:
    """The models there and back of each way."""
    kind, colon, rest = body.partition(":")
    if kind in MODELS and colon:
        pivots = [each.strip() for each in rest.split(",")]
        if len({*pivots}) < len(pivots):
            raise UserError(f"{where}: '{rest}' names a language twice, whose views are one text; write {kind}:de,zh.")
        return [(MODELS[kind].format("en", pivot), MODELS[kind].format(pivot, "en")) for pivot in pivots]
    pairs = [(there.strip(), back.strip()) for there, _, back in (each.partition("+") for each in body.split(","))]
    if not all(there and back and "+" not in back for there, back in pairs):
        forms = "opus-mt:de,zh, wmt19:de, THERE+BACK (two models) or file:PATH"
        raise UserError(f"{where}: there is no such translator.{hint(kind, [*MODELS, 'file'])} Write {forms}.")
    return pairs


@dataclass(frozen=True)
class FileViews:
    """A column of the user's own file of translations, by text."""

    where: str
    views: Mapping[str, str] = field(repr=False)

    def known(self, texts: Sequence[str], cache: Store) -> dict[str, str]:
        """The translation of each text; keeps nothing in the cache. Raises UserError where one is missing."""
        if missing := [text for text in texts if text not in self.views]:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UserError(f"{self.where}: there is no row for the text {quoted(missing[0])}{more}; add it.")
        return {text: self.views[text] for text in texts}

    def translate(self, texts: Sequence[str], cache: Store) -> None:
        """There is nothing to do: all texts are `known`."""


def _file_ways(where: str, path: Path) -> tuple[FileViews, ...]:
    """A way for each column view_1, view_2, ... of a file. Raises UserError for whatever is wrong in the file."""
    reading.existing_file(path, where, reading.FORMATS)
    there = next(reading.rows_of(path), (0, {}))[1]
    names = [*itertools.takewhile(there.__contains__, map("view_{}".format, itertools.count(1)))] or ["view_1"]
    rows = dict[str, tuple[str, list[str]]]()
    for place, _, (text, *views) in reading.text_rows(path, ["text", *names], blank=True):
        before, first = rows.setdefault(text, (place, views))
        if views != first:
            raise UserError(f"{place}: the views of {quoted(text)} are not those of {before}; keep one row of them.")
    return tuple(FileViews(where, {text: views[n] for text, (_, views) in rows.items()}) for n in range(len(names)))


# ---------------------------------------------------------------------------------- models: Marian (opus-mt), FSMT (wmt19)


@dataclass(frozen=True)
class ModelPair:
    """A model there and one back. A translation depends on its text alone, but for the last bits of a model's sums, which differ with the
    size of a batch and can tip the balance between two beams. `view`: two views through one pair are the same text by beam search and two
    samples at a temperature."""

    there: _Model
    back: _Model
    temperature: float
    view: int

    @cached_property
    def digest(self) -> str:
        """Of whatever decides what comes out."""
        models = (self.there, self.back)
        sampled = [self.temperature, self.view] if self.temperature else []
        return digest_of(["models", 2, [each.digest for each in models], [each.code for each in models], sampled])

    def key(self, text: str) -> str:
        return digest_of([self.digest, text])

    def known(self, texts: Sequence[str], cache: Store) -> dict[str, str]:
        """The translations that the cache has, by text."""
        keys = {self.key(text): text for text in texts}
        return {keys[key]: view for key, view in cache.translations([*keys]).items()}

    def translate(self, texts: Sequence[str], cache: Store) -> None:
        """Keep one for each text, none of which is blank; some may be empty."""
        cache.keep_translations(dict(zip(map(self.key, texts), self.translations(texts), strict=True)))

    def translations(self, texts: Sequence[str]) -> list[str]:
        seeds = [int(each) >> 1 for each in hashes(texts)]
        found = [one_line(text) for text in texts]
        for leg, model in enumerate((self.there, self.back)):
            found = model.translate(found, self.temperature, [(seed, self.view, leg) for seed in seeds])
        return found


def one_line(text: str) -> str:
    """A text without line breaks, NULs, halves of characters, and spaces that are outer or double."""
    return " ".join(text.encode("utf-8", "replace").decode().replace("\0", " ").split())


@dataclass(frozen=True)
class _Model:
    """A folder with a model; `code`: the token of the target language that it asks for, or ''."""

    folder: Path
    code: str

    @classmethod
    def named(cls, where: str, name: str, download: bool) -> _Model:
        """Raises UserError where the folder holds none that can be used, NotAtHand without its tokenizer's packages."""
        folder = named_path(name)
        if not folder.is_dir():
            if name.startswith((".", "/", "~")) or not is_id(name):
                raise UserError(f"{where}: '{name}' is neither a folder nor an id of the hub; correct it.")
            folder = _hub_folder(where, name, download)
        try:
            family = str(json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"])
        except (OSError, ValueError, KeyError, TypeError):
            family = "unknown"
        if family not in FAMILIES or not _weights(folder):
            raise UserError(
                f"{where}: {folder} holds no Marian (opus-mt) or FSMT (wmt19) model with its weights, but one of type "
                f"'{family}'; name another, or fetch it again."
            )
        if missing := [package for package in PACKAGES if importlib.util.find_spec(package) is None]:
            raise NotAtHand(f"{where}: its tokenizer needs a Python package; run `pip install {' '.join(missing)}`.")
        return cls(folder, TARGET_CODE.get(Path(name).name, ""))

    @property
    def digest(self) -> str:
        """Of the contents of its files."""
        files = sorted(path for pattern in FILES for path in self.folder.glob(pattern)) + _weights(self.folder)
        return _digest(tuple((path, path.stat().st_mtime_ns) for path in files))

    @cached_property
    def loaded(self) -> tuple[Any, Any]:
        """Tokenizer and model."""
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        settings = {"local_files_only": True, "dtype": torch.float32, "output_loading_info": True}
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(self.folder), local_files_only=True)
            model, found = AutoModelForSeq2SeqLM.from_pretrained(str(self.folder), **settings)
            # Positions and output biases may be initialised; a layer that the file lacks would be random.
            if random := sorted(name for name in found["missing_keys"] if ".layers." in name):
                raise ValueError(f"its weights lack {random[0]}")
        except Exception as error:  # of the library, of safetensors, of pickle: none of them ours to tell apart
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(".")
            raise UserError(
                f"{self.folder}: cannot be loaded as a translation model ({reason}); fetch it again."
            ) from None
        model.generation_config.max_length = None  # ours is counted in new tokens
        return tokenizer, model.eval().to("cuda" if torch.cuda.is_available() else "cpu")

    def translate(self, texts: Sequence[str], temperature: float, seeds: Sequence[tuple[int, int, int]]) -> list[str]:
        """Translations of n texts; each seed names the stream that its text is sampled from."""
        import torch

        tokenizer, model = self.loaded
        limit = min(LONGEST, int(model.config.max_position_embeddings), int(tokenizer.model_max_length))
        code = f"{self.code} " if self.code and self.code in tokenizer.get_vocab() else ""
        beams = int(model.generation_config.num_beams or 1)
        ids = [tokenizer(code + text, truncation=True, max_length=limit)["input_ids"] if text else [] for text in texts]
        widths = [min(limit, -(-len(each) // WIDTH) * WIDTH) for each in ids]
        found = [""] * len(texts)
        order = sorted((i for i in range(len(texts)) if ids[i]), key=lambda i: (widths[i], i))
        for width, members in itertools.groupby(order, lambda i: widths[i]):
            while batch := [*itertools.islice(members, BATCH)]:
                given = {"input_ids": [ids[i] for i in batch]}
                padded = tokenizer.pad(given, padding="max_length", max_length=width, return_tensors="pt")
                settings: dict[str, Any] = {"num_beams": beams if beams > 1 else BEAMS}
                if temperature:
                    settings = {"num_beams": 1, "logits_processor": [_sampling(temperature, [seeds[i] for i in batch])]}
                settings |= {"do_sample": False, "max_new_tokens": min(limit - 1, 2 * width + WIDTH)}
                with torch.inference_mode():
                    out = model.generate(**padded.to(model.device), **settings)
                for i, answer in zip(batch, tokenizer.batch_decode(out, skip_special_tokens=True), strict=True):
                    found[i] = one_line(answer)
        return found


def _sampling(temperature: float, seeds: Sequence[tuple[int, int, int]]) -> Callable[[Any, Any], Any]:
    """Makes greedy decoding a draw at a temperature: the largest of scores / T + Gumbel noise, from a stream for each text. The library
    samples from one generator for the whole batch, where a text's translation would depend on its neighbours."""
    import torch

    streams = [stream(seed, "back-translation", view, leg) for seed, view, leg in seeds]

    def drawn(input_ids: Any, scores: Any) -> Any:
        """scores: float [n, vocabulary]."""
        noise = np.stack([each.gumbel(size=scores.shape[-1]) for each in streams])
        return scores / temperature + torch.as_tensor(noise, dtype=scores.dtype, device=scores.device)

    return drawn


def _weights(folder: Path) -> list[Path]:
    return next(filter(None, (sorted(folder.glob(pattern)) for pattern in WEIGHTS)), [])


def _hub_folder(where: str, name: str, download: bool) -> Path:
    model = Repository("model", name, where, "give folders as THERE+BACK")
    found = model.cached_snapshot([*FILES, *WEIGHTS])
    if found and _weights(found) and (found / "config.json").is_file():
        return found
    if not download:
        raise model.not_fetched()
    found = model.snapshot([*FILES, WEIGHTS[0]])
    return found if _weights(found) else model.snapshot([*FILES, WEIGHTS[1]])


@lru_cache(maxsize=32)
def _digest(files: tuple[tuple[Path, int], ...]) -> str:
    """`files`: paths, each with its time of change."""
    whole = hashlib.sha256()
    for path, _ in files:
        with path.open("rb") as file:
            whole.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()[:KEY_LENGTH]
