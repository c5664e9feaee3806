"""Where an encoder comes from (a hub id, a folder, a package, a size) and the digest that identifies it. No torch."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness.encoders.families import FAMILIES, base_config, family_of
from harness.encoders.packaged import HEAD_TRAINING, PACKAGED, SIZES, HeadTraining, encoder_folder
from harness.encoders.tokens import pretrained_tokenizer
from harness.errors import UserError, first_line, hint, unknown
from harness.hub import Repository, is_id
from harness.paths import named_path, remembered, user_cache
from harness.specs import KEY_LENGTH, UNRESOLVED, Encoder, digest_of

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
_VOCABULARY = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
_OLDER = ("spm.model", "spiece.model", "added_tokens.json")
"""Read where there is no tokenizer.json."""
_TOKENIZER = (*_VOCABULARY, *_OLDER, "tokenizer_config.json", "special_tokens_map.json")
_SETTINGS = {
    "do_lower_case": True,
    "strip_accents": None,
    "tokenize_chinese_chars": True,
    "add_prefix_space": False,
    "truncation_side": "right",
}
"""What a tokenizer_config.json may say of texts, with transformers' defaults."""
NEW = "new:"
NEW_TOKENIZER = "bert-tiny"
"""Uncased WordPiece with BERT's 30,522 entries."""
_INITIAL_WEIGHTS = b"new encoder, initial weights 1"
"""Part of a new encoder's identity: change it together with the way that `load_encoder` draws the weights."""
RELATIVE_DISTANCE = 128
"""Default maximal distance of relative positions: T5's and COCO-LM's (base) value."""
_COUNTS = {
    "hidden_size": None,
    "num_hidden_layers": None,
    "intermediate_size": None,
    "vocab_size": None,
    "num_attention_heads": 1,
    "max_position_embeddings": 1,
    "embedding_size": 1,
}
"""Numbers of a configuration that are 1 or more, and what stands for one that may be left out."""
_CONFIG_NOISE = (
    "_name_or_path",
    "transformers_version",
    "architectures",
    "torch_dtype",
    "dtype",
    "gradient_checkpointing",
)


@dataclass(frozen=True)
class Located:
    """An encoder by name: its identity, its folder (None while it is not at hand) and its configuration. `new`: the
    folder holds its tokenizer alone; its weights are drawn, by `load_encoder` with `config`. `head_training`: how it
    gets an MLM head, None where it has one. `lacks`, `unread`: see `with_weights` and `models.text_encoder.Loaded`."""

    encoder: Encoder
    folder: Path | None
    config: dict[str, Any]
    head_training: HeadTraining | None
    contaminated: tuple[str, ...] = ()
    new: bool = False
    lacks: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.encoder.name

    @property
    def new_config(self) -> dict[str, Any] | None:
        """The configuration that weights are drawn by; None where the folder holds them."""
        return self.config if self.new else None


def adapted(encoder: Encoder, settings: Mapping[str, int], config: Mapping[str, Any]) -> Encoder:
    """An encoder of this configuration with `relative_buckets` (0: none) and `relative_distance` (128 where neither says it);
    what `settings` leave out stays. Raises UserError for numbers that cannot be, and for a kind that takes none."""
    buckets = settings.get("relative_buckets", encoder.relative_buckets)
    distance = settings.get("relative_distance", encoder.relative_distance or RELATIVE_DISTANCE)
    own = (config.get("relative_buckets", 0), config.get("relative_distance", 0))
    if own[0] and own != (buckets, distance):
        raise UserError(
            f"{encoder.name}: its weights hold relative positions with {own[0]} buckets and distance {own[1]}; leave "
            "encoder.relative_buckets and encoder.relative_distance out."
        )
    if not buckets:
        return replace(encoder, relative_buckets=0, relative_distance=0)
    family = family_of(config)
    if family.own_positions or not family.packed:
        why = f"has {family.own_positions} of its own" if family.own_positions else "is not run packed"
        raise UserError(
            f"{encoder.name}: {family.title} {why}; set encoder.relative_buckets to 0, or take a BERT, RoBERTa or ELECTRA "
            "encoder."
        )
    if buckets < 4 or buckets % 2 or distance <= buckets // 4:
        raise UserError(
            f"{encoder.name}: encoder.relative_buckets {buckets} with encoder.relative_distance {distance} cannot be; set an even number of 4 or "
            "more, for two directions, and a distance above a quarter of it, since so many have a bucket each."
        )
    return replace(encoder, relative_buckets=buckets, relative_distance=distance)


def locate(name: str, *, download: bool = False, where: str = "--encoder") -> Located:
    """Find an encoder by packaged name, folder or hub id, or make one from a size: `new:SIZE` or `new:SIZE@TOKENIZER`,
    an encoder whose tokenizer is taken (bert-tiny's, where none is named) or a folder with a tokenizer alone.

    A hub id that is not in the local cache is fetched when `download`, else it is unresolved: a plan can still be made.
    `where`: how errors name who asked for it. Raises UserError for an unknown name, a folder without weights, a model
    type that cannot be trained, or a pickle."""
    if name.startswith(NEW):
        return _new(name, download, where)
    if name in PACKAGED:
        packaged = PACKAGED[name]
        folder = encoder_folder(packaged)
        encoder = Encoder(encoder_digest(folder), name)
        return Located(encoder, folder, _config(folder), packaged.head_training, packaged.contaminated)
    path = named_path(name)
    if path.is_dir():
        return _of_folder(path, path.name)
    if name.startswith((".", "/", "~")):
        raise UserError(f"{where} {name}: there is no such folder.")
    if name.count("/") > 1 or " " in name:
        raise unknown("encoder", name, PACKAGED, where)
    found = _hub_folder(name, False, where)
    if found is None and "/" not in name and hint(name, PACKAGED):
        raise unknown("encoder", name, PACKAGED, where)  # no model of the hub is called nearly like ours
    if found is None and download:
        found = _hub_folder(name, True, where)
    if found is None:
        return Located(Encoder(f"{UNRESOLVED}{name}", name), None, _HUB_SHAPES.get(name, {}), None)
    return _of_folder(found, name)


def _of_folder(folder: Path, name: str) -> Located:
    config = _config(folder)
    relative = (config.get("relative_buckets", 0), config.get("relative_distance", 0))
    located = Located(Encoder(encoder_digest(folder), name, *relative), folder, config, None)
    _check_tokenizer(folder, config)
    return located


def with_weights(located: Located) -> Located:
    """With what the weights of an encoder's own folder lack. They are read once for the same files and versions: that takes seconds. Raises UserError
    as `read_encoder` does."""
    if located.folder is None or located.new or located.name in PACKAGED:
        return located
    folder, identity = located.folder, digest_of([version("transformers"), located.encoder.digest])

    def read() -> dict[str, list[str]]:
        from harness.encoders.models.text_encoder import read_encoder  # imports torch

        found = read_encoder(folder)
        return {"lacks": found.lacks, "unread": found.unread}

    found = remembered(user_cache("tokenizers") / "encoders.json", identity, read)
    lacks, unread = tuple(found["lacks"]), tuple(found["unread"])
    return replace(located, head_training=HEAD_TRAINING if lacks else None, lacks=lacks, unread=unread)


def _backend(folder: Path) -> Any:
    """The tokenizer of a folder as the library `tokenizers` has it."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.exists():
        return pretrained_tokenizer(folder).backend_tokenizer
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # of the library's own kind
        raise UserError(f"The encoder folder {folder} has no usable tokenizer: {first_line(error)}") from None


def _check_tokenizer(folder: Path, config: dict[str, Any]) -> None:
    """Raises UserError where the folder has no tokenizer of its model type, or one that does not fit the embedding."""
    old, place = family_of(config).tokenizer, f"The encoder folder {folder}"
    whole = (folder / "tokenizer.json").exists()
    if not whole and not (old and all((folder / name).exists() for name in old)):
        files = " or ".join(["tokenizer.json", *filter(None, [" and ".join(old)])])
        # Without any of them transformers builds an empty tokenizer.
        raise UserError(f"{place} has no tokenizer; add the {files} that belongs to its weights.")
    if not whole and set(old) & set(_OLDER):
        return  # these take seconds to read, and may count more ids than they use
    backend = _backend(folder)
    # A file without a post-processor leaves special tokens to the class.
    framed = pretrained_tokenizer(folder) if backend.post_processor is None else backend
    if not framed.num_special_tokens_to_add(False):
        raise UserError(
            f"{place} has a tokenizer that puts no token before or after a text, such as [CLS], whose state stands for the whole; "
            "add the tokenizer.json that belongs to its weights."
        )
    check_vocabulary(1 + max(backend.get_vocab().values(), default=-1), config, place)


def check_vocabulary(size: int, config: dict[str, Any], place: str) -> None:
    """The ids of a tokenizer, `size` of them, must have a row each in the embedding, and use at least half of the rows:
    fewer are those of another encoder, or of none. `place` begins the sentence. Raises UserError."""
    rows = config.get("vocab_size")
    if rows is not None and not rows <= 2 * size <= 2 * rows:
        raise UserError(
            f"{place} has a tokenizer with {size:,} ids for an embedding of {rows:,} rows (vocab_size); "
            "add the tokenizer that belongs to its weights."
        )


def _new(name: str, download: bool, where: str) -> Located:
    """An encoder with random weights, drawn later: identified by its configuration and its tokenizer."""
    wanted, at, tokenizer = name.removeprefix(NEW).partition("@")
    if wanted not in SIZES:
        raise unknown("size of a new encoder", wanted, SIZES, where)
    if at and (not tokenizer or tokenizer.startswith(NEW)):
        raise UserError(f"{where} {name}: name after '@' an encoder that has a tokenizer, e.g. new:{wanted}@bert-tiny.")
    size = SIZES[wanted]
    folder = named_path(tokenizer or NEW_TOKENIZER)
    if folder.is_dir() and not (folder / "config.json").exists():
        _check_tokenizer(folder, {"model_type": "bert"})
        padding = {"pad_token_id": pretrained_tokenizer(folder).pad_token_id}
        source = Located(Encoder("", folder.name), folder, padding, None)
    else:
        source = locate(tokenizer or NEW_TOKENIZER, download=download, where=where)
    label = f"{NEW}{wanted}" if source.name == NEW_TOKENIZER else f"{NEW}{wanted}@{source.name}"
    pad_id = source.config.get("pad_token_id")
    if pad_id is None:
        pad_id = int(family_of({"model_type": "bert", **source.config}).after_padding)
    if source.folder is None:
        entries, digest = source.config.get("vocab_size", size.vocabulary), f"{UNRESOLVED}{label}"
        config = size.config(entries, pad_id)
    else:
        config = size.config(_backend(source.folder).get_vocab_size(), pad_id)
        whole = hashlib.sha256(_INITIAL_WEIGHTS + json.dumps(config, sort_keys=True).encode())
        _hash_tokenizer(whole, source.folder)
        digest = whole.hexdigest()[:KEY_LENGTH]
    return Located(Encoder(digest, label, *size.relative_positions), source.folder, config, None, new=True)


_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514}
_HUB_SHAPES: dict[str, dict[str, Any]] = {
    # Published configurations, so that a plan can be checked and costed before anything is downloaded.
    "roberta-base": {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072, **_ROBERTA},
    "bert-base-uncased": {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072, "vocab_size": 30522},
    "roberta-large": {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096, **_ROBERTA},
}


def _hub_folder(name: str, download: bool, where: str) -> Path | None:
    if not is_id(name):
        raise unknown("encoder", name, PACKAGED, where)
    model = Repository("model", name, where, f"name a folder, or one of {', '.join(PACKAGED)}")
    patterns = ["config.json", "*.safetensors", "*.safetensors.index.json", *_TOKENIZER]
    found = model.snapshot(patterns) if download else model.cached_snapshot(patterns)
    if found is None or any((found / weights).exists() for weights in _WEIGHTS):
        return found
    return model.snapshot([*patterns, "pytorch_model.bin"]) if download else None


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        raise UserError(f"The encoder folder {folder} has no config.json.")
    config = base_config(json_object(path))
    try:
        family = family_of({"model_type": "None", **config})
    except KeyError as error:
        raise UserError(
            f"{path}: model_type {error} cannot be trained here. Known: {', '.join(sorted(FAMILIES))}, and every other "
            "encoder of transformers with an MLM head."
        ) from None
    config = family.shape(config)
    pad = {} if config.get("pad_token_id", 0) is None and not family.after_padding else {"pad_token_id": 0}
    for least, numbers in ((1, _COUNTS), (0, pad)):
        for key, default in numbers.items():
            value = config.get(key, default)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                found = repr(value)[:60] if key in config else "missing"
                name = family.names.get(key, key)
                raise UserError(f"{path}: {name} is {found}, and it should be a whole number of {least} or more.")
    if family.packed and config.get("position_embedding_type", "absolute") != "absolute":
        named = repr(config["position_embedding_type"])[:60]
        raise UserError(f"{path}: position_embedding_type is {named}, which transformers no longer computes.")
    return config


def json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a model's folder. Raises UserError."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise UserError(f"{path} should hold a JSON object; fetch it again.")
    return body


def _hash_tokenizer(whole: Any, folder: Path) -> None:
    """Add the content of a tokenizer's files to a hash."""
    for path in (folder / name for name in _VOCABULARY if (folder / name).exists()):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        if path.suffix == ".json":
            content = json.dumps(json_object(path), sort_keys=True).encode()
        whole.update(path.name.encode() + content)
    for path in () if (folder / "tokenizer.json").exists() else map(folder.joinpath, _OLDER):
        if path.exists():
            whole.update(path.name.encode() + path.read_bytes())
    configured = folder / "tokenizer_config.json"
    written = json_object(configured) if configured.exists() else {}
    if unusual := {name: written[name] for name, usual in _SETTINGS.items() if written.get(name, usual) != usual}:
        whole.update(json.dumps(unusual, sort_keys=True).encode())


def files_of(folder: Path) -> list[Path]:
    """The files of an encoder: configuration, tokenizer and weights."""
    names = (*_WEIGHTS, *_TOKENIZER, "config.json")
    found = [p for p in sorted(folder.iterdir()) if p.name in names or p.suffix == ".safetensors"]
    safe = any(p.suffix == ".safetensors" for p in found)
    return [p for p in found if not (safe and p.name == "pytorch_model.bin")]


def encoder_digest(folder: Path) -> str:
    """The digest of the encoder in a folder. Raises UserError where files are missing or damaged."""
    stamp = tuple((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files_of(folder))
    return _digest_cached(os.fspath(folder.resolve()), stamp)


@lru_cache(maxsize=32)
def _digest_cached(folder: str, stamp: tuple[tuple[str, int, int], ...]) -> str:
    path = Path(folder)
    _config(path)
    config = json_object(path / "config.json")  # without what a family adds to it
    whole = hashlib.sha256()
    whole.update(json.dumps({k: v for k, v in config.items() if k not in _CONFIG_NOISE}, sort_keys=True).encode())
    _hash_tokenizer(whole, path)
    for name, part in sorted(_tensor_digests(path)):
        whole.update(f"{name}:{part}".encode())
    return whole.hexdigest()[:KEY_LENGTH]


def _tensor_digests(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, digest of dtype, shape and bytes) of every tensor, the same for one file and for shards."""
    from safetensors import SafetensorError, safe_open

    for shard in (shards := sorted(folder.glob("*.safetensors"))):
        try:
            with safe_open(shard, "numpy"):  # which checks the header
                pass
        except SafetensorError:
            raise UserError(f"{shard} is not a safetensors file, or not a whole one; fetch it again.") from None
        with shard.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            for name, entry in json.loads(file.read(size)).items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    file.seek(8 + size + begin)
                    part = hashlib.sha256(f"{entry['dtype']}{entry['shape']}".encode())
                    part.update(file.read(end - begin))
                    yield name, part.hexdigest()
    if not shards:
        pickle = folder / "pytorch_model.bin"
        if not pickle.exists():
            raise UserError(f"The encoder folder {folder} has no model.safetensors (and no pytorch_model.bin).")
        # A pickle is only ever read with weights_only; its identity is that of the file.
        yield pickle.name, hashlib.sha256(pickle.read_bytes()).hexdigest()
