"""Tokenizers trained on a corpus: byte-level BPE, cased or uncased, of a given size, made once and kept in the user's
cache. No torch. The texts in their order, the size, the case and the version of the library name the folder;
`tokenizer.json` is part of an encoder's identity."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import NotAtHand, UserError
from harness.paths import user_cache
from harness.specs import KEY_LENGTH, digest_of

if TYPE_CHECKING:
    from harness.tasks.corpora import Corpus

UNCASED, CASED = TRAINED = ("bpe:", "bpe-cased:")
"""How the name of such a tokenizer begins: bpe:SIZE:CORPUS or bpe-cased:SIZE:CORPUS."""
LEAST, MOST = 512, 200_000
"""Entries: the bytes and the special tokens are 261 of them."""
PAD, UNKNOWN, FIRST, SEPARATOR, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""With the ids 0 to 4."""
_FORMAT = 1
"""Part of the folder's name: raise it with any change of `_train`."""


def parsed(name: str, where: str) -> tuple[int, str, bool]:
    """(how many entries, the name of the corpus, whether letters keep their case and accents) of a name that begins as `TRAINED` says.
    Raises UserError for another form and for a size out of range."""
    prefix = next(prefix for prefix in TRAINED if name.startswith(prefix))
    size, _, corpus = name.removeprefix(prefix).partition(":")
    if not size.isascii() or not size.isdigit() or not corpus:
        raise UserError(
            f"{where} {name}: a tokenizer that is trained is named {prefix}SIZE:CORPUS, e.g. {prefix}4096:boolq_prose."
        )
    if not LEAST <= int(size) <= MOST:
        raise UserError(f"{where} {name}: {size} entries; take {LEAST} to {MOST}.")
    return int(size), corpus, prefix == CASED


def trained_tokenizer(name: str, *, download: bool, where: str) -> Path | None:
    """The folder of the tokenizer of this name, trained now where it is not in the cache; None where its corpus is not at hand and
    not to be fetched.

    Raises UserError for a wrong name, a corpus that cannot be read, and one with too few texts for the size.
    """
    import tokenizers

    from harness.tasks.corpora import open_corpus  # what a worker does without

    (size, named, cased), cache = parsed(name, where), cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        corpus = open_corpus(named, download=download, memo=cache / "corpora.json", where=where)
    except OSError as error:
        raise UserError(f"{cache}: cannot be made ({error.strerror}); set XDG_CACHE_HOME to another folder.") from None
    except NotAtHand:
        if download:
            raise
        return None
    identity = [_FORMAT, tokenizers.__version__, corpus.digest, size, *(["cased"] if cased else [])]
    folder = cache / digest_of(identity)[:KEY_LENGTH]
    if folder.is_dir():
        return folder
    tokenizer = _train(corpus, size, cased)
    if tokenizer.get_vocab_size() < size:
        raise UserError(
            f"{where} {name}: the texts give {tokenizer.get_vocab_size():,} entries; ask for at most as many, or name a larger corpus."
        )
    roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **dict(zip(roles, SPECIAL, strict=True))}
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        fresh = Path(temporary) / "tokenizer"
        fresh.mkdir()
        tokenizer.save(str(fresh / "tokenizer.json"))
        (fresh / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
        with suppress(OSError):  # another process was first, with the same files
            fresh.rename(folder)
    if not folder.is_dir():
        raise UserError(
            f"{where} {name}: cannot be kept in {cache}; set XDG_CACHE_HOME to a folder that can be written."
        )
    return folder


def cache_folder() -> Path:
    """Where this user's tokenizers, and what is known of others, are kept; it need not be there."""
    return user_cache("tokenizers")


def _train(corpus: Corpus, size: int, cased: bool) -> Any:
    """Merges of bytes, the most frequent pair first and of equal ones the one with the smaller ids, so that the order in which the
    library's threads count words changes nothing. No text has an unknown token."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer: Any = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.texts(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{FIRST} $A {SEPARATOR}",
        pair=f"{FIRST} $A {SEPARATOR} $B:1 {SEPARATOR}:1",
        special_tokens=[(token, SPECIAL.index(token)) for token in (FIRST, SEPARATOR)],
    )
    return tokenizer
