"""Ways from English to a pivot language and back by pairs of Hugging Face models: Marian (opus-mt) and FSMT (wmt19).

A text's translation depends on that text alone and not on its neighbours, but for the last bits of a model's sums, which
differ with the size of a batch and can tip the balance between two beams. It is one line without outer or double spaces.
No torch before the first translation.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from harness.errors import NotAtHand, NotFetched, UserError
from harness.hub import Repository, is_id
from harness.paths import named_path
from harness.specs import KEY_LENGTH, digest_of
from harness.streams import stream
from harness.tasks.rows import hashes
from harness.tasks.translators import Way, one_line

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
    path = named_path(name, where)
    if path.is_dir():
        _check(where, path)
        return path
    if name.startswith((".", "/", "~")):
        raise UserError(f"{where}: there is no folder {name}; correct the path.")
    folder = _hub_folder(where, name, download)
    _check(where, folder)
    return folder


def _check(where: str, folder: Path) -> None:
    """Raises UserError unless the folder holds a model that can be used, NotAtHand without its tokenizer's packages."""
    family = _family(folder)
    if family not in _PACKAGES:
        raise UserError(
            f"{where}: {folder} holds a model of type '{family or 'unknown'}', not one of {', '.join(_PACKAGES)}; name a "
            "Marian (opus-mt) or FSMT (wmt19) model."
        )
    missing = _missing(folder, family)
    if missing:
        raise UserError(f"{where}: {folder} lacks {missing}; fetch the model again.")
    _need_packages(where, family)


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
