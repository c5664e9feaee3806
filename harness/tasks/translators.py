"""Ways from English to a pivot language and back: a user's own file, the program apertium, and pairs of Hugging Face models.

A text's translation depends on that text alone and not on its neighbours, but for the last bits of a model's sums, which differ with
the size of a batch and can tip the balance between two beams. No torch before the first translation.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

from harness.devices import cores
from harness.errors import NotAtHand, NotFetched, UserError, quoted
from harness.hub import Repository, is_id
from harness.paths import named_path
from harness.specs import KEY_LENGTH, digest_of
from harness.streams import stream
from harness.tasks import reading
from harness.tasks.rows import hashes


class Way(Interface):
    """There and back through one pivot."""

    @property
    def digest(self) -> str:
        """Hex digest of whatever decides what comes out."""

    @property
    def chunk(self) -> int:
        """How many texts to give to `translate` at once."""

    @property
    def at_hand(self) -> bool:
        """Whether translations are only looked up, so that keeping them gains nothing."""

    def translate(self, texts: Sequence[str]) -> list[str]:
        """The back-translations of texts that are not blank, one for each and in their order; some may be empty."""


def one_line(text: str) -> str:
    """A text without line breaks, NULs, halves of characters, and spaces that are outer or double."""
    return " ".join(text.encode("utf-8", "replace").decode().replace("\0", " ").split())


# ---------------------------------------------------------------- a user's file


@dataclass(frozen=True)
class _FileWay:
    where: str
    path: Path
    column: str
    digest: str
    views: dict[str, str] = field(repr=False)
    chunk: int = 1 << 20
    at_hand: bool = True

    def translate(self, texts: Sequence[str]) -> list[str]:
        missing = [text for text in texts if text not in self.views]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UserError(f"{self.where}: there is no row for the text {quoted(missing[0])}{more}; add it.")
        return [self.views[text] for text in texts]


def file_ways(where: str, path: Path) -> tuple[Way, ...]:
    """A way for each column view_1, view_2, ... of a file. Raises UserError for whatever is wrong in the file."""
    reading.existing_file(path, where, reading.FORMATS)
    there = next(reading.whole_rows(path), (0, {}))[1]
    columns = ["view_1"]
    while f"view_{len(columns) + 1}" in there:
        columns.append(f"view_{len(columns) + 1}")
    views: dict[str, dict[str, str]] = {column: {} for column in columns}
    first: dict[str, str] = {}
    for part in reading.parts_of(path, ("text", *columns)):
        texts = reading.column_texts(part, "text")
        for column in columns:
            for index, (text, view) in enumerate(zip(texts, reading.column_texts(part, column), strict=True)):
                place = first.setdefault(text, part.place(index))
                if views[column].setdefault(text, view) != view:
                    raise UserError(
                        f"{part.place(index)}: {column} of {quoted(text)} is not that of {place.removeprefix(f'{path}, ')}, where the "
                        "same text stands; keep one of them."
                    )
    return tuple(_FileWay(where, path, column, digest_of(["file", texts]), texts) for column, texts in views.items())


# ---------------------------------------------------------------- apertium


_MARKED = re.compile(r"([\\\[\]{}^$/@<>])")
_END = ".[]"
"""Ends each text, as apertium's own reader of plain text does: a full stop that is not printed where a sentence ends."""


@dataclass(frozen=True)
class _ApertiumWay:
    """Apertium by the stages of its two modes, each run over many texts with a NUL between them.

    Its hidden Markov tagger runs once a text: it carries what it has seen of one text on to the next, also past a NUL, and
    one text in ten came out differently in another order. The perceptron tagger (-x) does not. Unknown words are kept as
    they are, without the marks *, @ and #. A text that crashes one of the programs comes back blank.
    """

    modes: tuple[Path, Path]
    version: str
    chunk: int = 200
    at_hand: bool = False

    @cached_property
    def digest(self) -> str:
        whole = hashlib.sha256()
        for mode in self.modes:
            # The mode as text, and the dictionaries and rules that it names.
            named = [Path(word) for stage in _stages(mode) for word in stage[1:] if word.startswith("/")]
            for path in (mode, *(path for path in named if path.is_file())):
                whole.update(hashlib.sha256(path.read_bytes()).digest())
        return digest_of(["apertium", 1, self.version, whole.hexdigest()])

    def translate(self, texts: Sequence[str]) -> list[str]:
        found = [one_line(text) for text in texts]
        for mode in self.modes:
            found = _through(mode, found)
        return found


def apertium_way(where: str, pivot: str, pivots: Sequence[str]) -> Way:
    """The way through `pivot`, one of the `pivots` of a translator, in apertium's three letters. Raises NotAtHand without the program or
    one of its modes, with the packages of all pivots."""
    package = f"apt-get install apertium {' '.join(f'apertium-eng-{each}' for each in pivots)}"
    program = shutil.which("apertium")
    if program is None:
        raise NotAtHand(f"{where}: the program apertium is not installed; on Debian or Ubuntu run `{package}`.")
    folder = Path(os.environ.get("APERTIUM_DATADIR", "/usr/share/apertium")) / "modes"
    modes = (folder / f"eng-{pivot}.mode", folder / f"{pivot}-eng.mode")
    for mode in modes:
        if not mode.is_file():
            names = {path.stem for path in folder.glob("*eng*.mode")}
            there = {name.removeprefix("eng-") for name in names if name.startswith("eng-")}
            known = ", ".join(sorted(each for each in there if f"{each}-eng" in names)) or "none"
            raise NotAtHand(
                f"{where}: apertium has no mode {mode.stem} (pivots installed: {known}); on Debian or Ubuntu run "
                f"`{package}`, or take another pivot."
            )
    version = _ran([program, "-V"], b"", where).decode("utf-8", "replace").strip()
    return _ApertiumWay(modes, version)


def _stages(mode: Path) -> list[list[str]]:
    """The commands of a mode's pipe, which a NUL flushes (-z) and which generate without marks ($1 is -n)."""
    lexer = shlex.shlex(mode.read_text(encoding="utf-8"), posix=True, punctuation_chars="|")
    lexer.whitespace_split, lexer.commenters = True, ""
    stages: list[list[str]] = [[]]
    for word in lexer:
        if word == "|":
            stages.append([])
        elif word != "$2":
            stages[-1].append("-n" if word == "$1" else word)
    return [[stage[0], "-z", *stage[1:]] for stage in stages if stage]


def _through(mode: Path, texts: Sequence[str]) -> list[str]:
    """Texts of one line each through a mode."""
    name = mode.stem
    parts = [_MARKED.sub(r"\\\1", text).encode("utf-8", "replace") + _END.encode() for text in texts]
    for stage in _stages(mode):
        alive = [i for i, part in enumerate(parts) if part]  # one that has crashed a stage is blank, and stays so
        given = [parts[i] for i in alive]
        if Path(stage[0]).name == "apertium-tagger" and not any(re.fullmatch("-[a-z]*x[a-z]*", word) for word in stage):
            tag = partial(_flushed, name, stage)
            with ThreadPoolExecutor(min(8, cores())) as pool:
                given = [tagged for [tagged] in pool.map(tag, [[part] for part in given])]
        elif given:
            given = _flushed(name, stage, given)
        parts = [b""] * len(parts)
        for i, part in zip(alive, given, strict=True):
            parts[i] = part
    if len(texts) > 1 and not any(parts):
        raise UserError(
            f"apertium {name}: it crashed on each of {len(texts)} texts; reinstall apertium and its language pair, or name "
            "another translator."
        )
    found = [re.sub(r"\.?\[\]\s*$", "", part.decode("utf-8", "replace")) for part in parts]
    return [one_line(re.sub(r"\\(.)", r"\1", text)) for text in found]


class _CrashedError(UserError):
    """A program was ended by a signal."""


def _flushed(mode: str, stage: list[str], parts: Sequence[bytes]) -> list[bytes]:
    """Parts through a stage. One that crashes the program comes back blank, unless all do: seen at one text in 200 of RTE."""
    try:
        out = _ran(stage, b"".join(part + b"\0" for part in parts), f"apertium {mode}").split(b"\0")
    except _CrashedError:
        if len(parts) == 1:
            return [b""]
        half = len(parts) // 2
        found = _flushed(mode, stage, parts[:half]) + _flushed(mode, stage, parts[half:])
        if not any(found):
            raise
        return found
    # Each program of a pipe may write a NUL more at its end.
    if len(out) < len(parts) + 1 or any(each.strip() for each in out[len(parts) :]):
        count = len(out) - 1 if len(out) < len(parts) + 1 else "more"
        raise UserError(
            f"apertium {mode}: {Path(stage[0]).name} gave {count} texts back for {len(parts)}; reinstall apertium and its "
            "language pair, or name another translator."
        )
    return out[: len(parts)]


def _ran(command: list[str], content: bytes, where: str) -> bytes:
    try:
        done = subprocess.run(
            command, input=content, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )
    except OSError as error:
        raise NotAtHand(f"{where}: {command[0]} cannot be run ({error.strerror}); reinstall apertium.") from None
    if done.returncode:
        said = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1][:160].rstrip(
            "."
        )
        kind = _CrashedError if done.returncode < 0 else UserError
        raise kind(
            f"{where}: {Path(command[0]).name} ended with status {done.returncode} ({said}); reinstall apertium and its "
            "language pair, or name another translator."
        )
    return done.stdout


# ---------------------------------------------------------------- Hugging Face models: Marian (opus-mt) and FSMT (wmt19)


_PACKAGES = {"marian": ("sentencepiece", "sacremoses"), "fsmt": ("sacremoses",)}
"""What the tokenizers import. Marian's does without sacremoses, but then leaves the punctuation as it is: other tokens."""
_VOCABULARY = {
    "marian": ("source.spm", "target.spm", "vocab.json"),
    "fsmt": ("vocab-src.json", "vocab-tgt.json", "merges.txt", "tokenizer_config.json"),
}
_SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
_TARGET_CODE = {"opus-mt-en-zh": ">>cmn_Hans<<"}
"""Models of several target languages, by the last part of their name: the token that their card asks for."""
_BEAMS = 5
"""Where a model's own generation settings name no beam search."""
_BATCH = 16
_WIDTH = 16
"""Lengths are rounded up to a multiple, so that the padding and the longest answer depend on the text alone."""
_LONGEST = 512
"""Tokens of a text, and of its translation; what is longer is cut."""


def model_way(where: str, there: str, back: str, *, family: str, temperature: float, view: int, download: bool) -> Way:
    """The way through two models, of one `family` ('marian', 'fsmt') or of either (''). Loads neither.

    Raises NotAtHand (NotFetched without `download`) for a model or a Python package that is missing, UserError for a folder
    that holds no such model.
    """
    if family:
        _need_packages(where, family)
    folders = (_model_folder(where, there, download), _model_folder(where, back, download))
    codes = tuple(_TARGET_CODE.get(Path(name).name, "") for name in (there, back))
    return _ModelWay(folders, codes, temperature, view)


@dataclass(frozen=True)
class _ModelWay:
    folders: tuple[Path, Path]
    codes: tuple[str, ...]
    temperature: float
    view: int
    chunk: int = 64
    at_hand: bool = False

    @cached_property
    def digest(self) -> str:
        models = [_folder_digest(folder, _stamp(folder)) for folder in self.folders]
        # Two views through one pair are the same text by beam search and two samples at a temperature.
        sampled = [self.temperature, self.view] if self.temperature else []
        return digest_of(["models", 1, models, self.codes, sampled])

    @cached_property
    def _models(self) -> tuple[_Model, ...]:
        return tuple(_Model(folder, code) for folder, code in zip(self.folders, self.codes, strict=True))

    def translate(self, texts: Sequence[str]) -> list[str]:
        seeds = [int(each) >> 1 for each in hashes(texts)]
        found = [one_line(text) for text in texts]
        for leg, model in enumerate(self._models):
            found = model.translate(found, self.temperature, [(seed, self.view, leg) for seed in seeds])
        return found


class _Model:
    """One loaded model and its tokenizer, on a GPU where there is one."""

    def __init__(self, folder: Path, code: str) -> None:
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        settings = {"local_files_only": True, "dtype": torch.float32, "output_loading_info": True}
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            model, loaded = AutoModelForSeq2SeqLM.from_pretrained(str(folder), **settings)
            # Positions and output biases may be initialised; a layer that the file lacks would be random.
            random = sorted(name for name in loaded["missing_keys"] if ".layers." in name)
            if random:
                raise ValueError(f"its weights lack {random[0]}")
        except Exception as error:  # of the library, of safetensors, of pickle: none of them ours to tell apart
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(".")
            raise UserError(f"{folder}: cannot be loaded as a translation model ({reason}); fetch it again.") from None
        self.model = model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
        self.beams = max(int(self.model.generation_config.num_beams or 1), 1)
        self.model.generation_config.max_length = None  # ours is counted in new tokens
        self.limit = min(_LONGEST, int(self.model.config.max_position_embeddings), int(self.tokenizer.model_max_length))
        self.code = f"{code} " if code and code in self.tokenizer.get_vocab() else ""

    def translate(self, texts: Sequence[str], temperature: float, seeds: Sequence[tuple[int, int, int]]) -> list[str]:
        """Translations of n texts; each seed names the stream that its text is sampled from."""
        ids = [
            self.tokenizer(self.code + text, truncation=True, max_length=self.limit)["input_ids"] if text else []
            for text in texts
        ]
        found = [""] * len(texts)
        order = sorted((i for i in range(len(texts)) if ids[i]), key=lambda i: (self._width(len(ids[i])), i))
        while order:
            width = self._width(len(ids[order[0]]))
            batch = [i for i in order[:_BATCH] if self._width(len(ids[i])) == width]
            order = order[len(batch) :]
            answers = self._generate([ids[i] for i in batch], width, temperature, [seeds[i] for i in batch])
            for i, answer in zip(batch, answers, strict=True):
                found[i] = one_line(answer)
        return found

    def _width(self, length: int) -> int:
        return min(self.limit, -(-length // _WIDTH) * _WIDTH)

    def _generate(
        self, ids: list[list[int]], width: int, temperature: float, seeds: Sequence[tuple[int, int, int]]
    ) -> list[str]:
        import torch

        inputs = self.tokenizer.pad({"input_ids": ids}, padding="max_length", max_length=width, return_tensors="pt").to(
            self.model.device
        )
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": min(self.limit - 1, 2 * width + _WIDTH)}
        if temperature:
            settings |= {"num_beams": 1, "logits_processor": [_Sampled(temperature, seeds)]}
        else:
            settings |= {"num_beams": self.beams if self.beams > 1 else _BEAMS}
        with torch.inference_mode():
            out = self.model.generate(**inputs, **settings)
        answers: list[str] = self.tokenizer.batch_decode(out, skip_special_tokens=True)
        return answers


class _Sampled:
    """Makes greedy decoding a draw at a temperature: the largest of scores / T + Gumbel noise, from a stream for each text.

    scores: float [n, vocabulary]. The library samples from one generator for the whole batch, where a text's translation
    would depend on its neighbours.
    """

    def __init__(self, temperature: float, seeds: Sequence[tuple[int, int, int]]) -> None:
        self.temperature = temperature
        self.streams = [stream(seed, "back-translation", view, leg) for seed, view, leg in seeds]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        import numpy as np
        import torch

        noise = np.stack([each.gumbel(size=scores.shape[-1]) for each in self.streams])
        return scores / self.temperature + torch.as_tensor(noise, dtype=scores.dtype, device=scores.device)


def _need_packages(where: str, family: str) -> None:
    missing = [name for name in _PACKAGES[family] if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise NotAtHand(
            f"{where}: its tokenizer needs the Python package{'s' * (len(missing) > 1)} {names}; run "
            f"`pip install {' '.join(missing)}`."
        )


def _model_folder(where: str, name: str, download: bool) -> Path:
    """The folder of a model. Raises UserError where it holds none that can be used, NotAtHand without its tokenizer's packages."""
    folder = named_path(name, where)
    if not folder.is_dir():
        if name.startswith((".", "/", "~")):
            raise UserError(f"{where}: there is no folder {name}; correct the path.")
        folder = _hub_folder(where, name, download)
    family = _family(folder)
    if family not in _PACKAGES:
        raise UserError(
            f"{where}: {folder} holds a model of type '{family or 'unknown'}', not one of {', '.join(_PACKAGES)}; name a "
            "Marian (opus-mt) or FSMT (wmt19) model."
        )
    if missing := _missing(folder, family):
        raise UserError(f"{where}: {folder} lacks {missing}; fetch the model again.")
    _need_packages(where, family)
    return folder


def _family(folder: Path) -> str:
    try:
        return str(json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _missing(folder: Path, family: str) -> str:
    absent = [name for name in ("config.json", *_VOCABULARY.get(family, ())) if not (folder / name).is_file()]
    if absent:
        return absent[0]
    return "" if _weights(folder) else "model.safetensors"


def _weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def _hub_folder(where: str, name: str, download: bool) -> Path:
    if not is_id(name):
        raise UserError(f"{where}: '{name}' is neither a folder nor an id of the hub; correct it.")
    model = Repository("model", name, where, "give folders as THERE+BACK")
    files = [*_SETTINGS, *dict.fromkeys(file for names in _VOCABULARY.values() for file in names)]
    found = model.cached_snapshot(files)
    if found and not _missing(found, _family(found)):
        return found
    if not download:
        raise NotFetched(
            f"{where}: {model} is not in the hub cache; run the command that translates where the hub can be reached, or give "
            "folders as THERE+BACK."
        )
    found = model.snapshot([*files, "*.safetensors"])
    return found if _weights(found) else model.snapshot([*files, "pytorch_model*.bin"])


def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    names = [*_SETTINGS, *_VOCABULARY.get(_family(folder), ())]
    paths = [*(folder / name for name in names if (folder / name).is_file()), *_weights(folder)]
    return tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in dict.fromkeys(paths))


@lru_cache(maxsize=32)
def _folder_digest(folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> str:
    """Digest over the names and bytes of a model's files; `stamp` says whether they have changed since."""
    whole = hashlib.sha256()
    for path, _, _ in stamp:
        with open(path, "rb") as file:
            whole.update(Path(path).name.encode() + hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()[:KEY_LENGTH]
