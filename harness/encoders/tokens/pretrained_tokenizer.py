"""The tokenizer of an encoder folder: transformers', or that of its tokenizer.json where the two tokenise differently.

transformers builds the tokenizers of many model types (BERT, RoBERTa, ...) from the vocabulary and the merges in tokenizer.json alone and
leaves out its normalizer, pre-tokenizer and post-processor, so that a cased encoder may be lower-cased without a word. Importing this
module imports neither transformers nor torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from harness.errors import UserError, first_line
from harness.specs import digest_of

PROBES = (
    "The quick brown Fox JUMPS over a lazy dog, doesn't it?",
    "Café naïve Ångström ÜBER cafe\u0301 İstanbul straße ﬁne Ⅷ ½",
    "2024 3.14 1,000,000 -7% 12:30 50km/h B2B",
    "電影很好看 映画 東京タワー 영화 ไทย Привет שלום",
    "  two  spaces,\ttab\nline\u00a0no-break\u200bzero\u3000wide\r\n ",
    "well-known -- \"so\" 'it' (really?!)... a@b.c #tag http://x.y/z_1 $5 <br />",
    f"antidisestablishmentarianism {'x' * 120}",
    "[CLS] [SEP] [PAD][UNK] [MASK], <s> </s> <pad><unk> <mask>.",
    "\U0001f600\U0001f44d\U0001f3fd \x00\x07\ufffd",
    "",
)
"""Texts on which tokenizers are compared. Part of the identity of an encoder whose tokenizer.json is taken: never change them."""
WORDS = 64
"""So many entries of the vocabulary are probed too, in several cases: a small vocabulary may hold no word of `PROBES`."""
SETTINGS = {
    "do_lower_case": True,
    "strip_accents": None,
    "tokenize_chinese_chars": True,
    "add_prefix_space": False,
    "truncation_side": "right",
}
"""Settings that transformers reads from tokenizer_config.json in preference to tokenizer.json, with its defaults."""
_CONFIGS = ("config.json", "tokenizer_config.json")
_BERT = {("bert", "BertTokenizer"), ("bert", "BertTokenizerFast")}
"""(model_type, tokenizer_class) for which `AutoTokenizer` loads `BertTokenizer`."""


def pretrained_tokenizer(folder: Path, **settings: Any) -> tuple[Any, str]:
    """The tokenizer of a folder, with `settings` of transformers, and '' where it is transformers' own; where that one tokenises
    otherwise than tokenizer.json, the file's, and a digest of what it makes of the probes.

    Raises UserError for files that cannot be used, and where tokenizer_config.json asks for something else than tokenizer.json does.
    """
    try:
        return _loaded(folder, settings)
    except UserError:
        raise
    except Exception as error:  # whatever a damaged file leads the library to
        raise UserError(f"The encoder folder {folder} has no usable tokenizer: {first_line(error)}") from None


def _loaded(folder: Path, settings: Mapping[str, Any]) -> tuple[Any, str]:
    loaded = _class_of(folder).from_pretrained(str(folder), trust_remote_code=False, **settings)
    if not (folder / "tokenizer.json").exists():
        return loaded, ""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    file: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    file.no_truncation()
    file.no_padding()
    if file.post_processor is None:  # the file leaves special tokens to the class
        file.post_processor = loaded.backend_tokenizer.post_processor
    roles = {role: token for role, token in loaded.special_tokens_map.items() if isinstance(token, str)}
    kept = {name: getattr(loaded, name) for name in ("model_max_length", "model_input_names", "truncation_side")}
    taken = PreTrainedTokenizerFast(tokenizer_object=file, **roles, **kept)
    texts = [*PROBES, *_words(file)]
    ids = probed(taken, texts)
    if ids == probed(deepcopy(loaded), texts):  # a call leaves its truncation and padding behind
        return loaded, ""
    configured = folder / "tokenizer_config.json"
    written = json.loads(configured.read_text(encoding="utf-8")) if configured.exists() else {}
    if asked := unusual_settings(written).keys() - {"truncation_side"}:
        raise UserError(
            f"{configured}: with its {', '.join(sorted(asked))} texts get other tokens than tokenizer.json gives "
            'them; change one of the two, or write "tokenizer_class": "PreTrainedTokenizerFast" to take tokenizer.json as it is.'
        )
    return taken, digest_of(ids)


def unusual_settings(written: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `SETTINGS` in a tokenizer_config.json that differ from transformers' defaults."""
    return {name: written[name] for name, usual in SETTINGS.items() if written.get(name, usual) != usual}


def probed(tokenizer: Any, texts: Sequence[str] = PROBES) -> list[Any]:
    """Ids, token types and special tokens of each text, and of the first two as a pair."""
    asked = {"return_token_type_ids": True, "return_special_tokens_mask": True, "verbose": False}
    single, pair = tokenizer(list(texts), **asked), tokenizer(*texts[:2], **asked)
    return [
        list(each[name]) for each in (single, pair) for name in ("input_ids", "token_type_ids", "special_tokens_mask")
    ]


def _words(file: Any) -> list[str]:
    words = sorted({token.strip("#\u0120\u2581") for token in file.get_vocab(with_added_tokens=False)} - {""})
    some = words[:: -(-len(words) // WORDS)] if words else []
    return [f"{word} {word.upper()} {word.lower()} {word.title()} {word}\u0301 {word}.{word}_{word}1" for word in some]


def _class_of(folder: Path) -> Any:
    """The class that `AutoTokenizer` would load. BERT's is imported by name: `AutoTokenizer` imports torch, a second and a half of a
    command's start that nothing else in the driver needs."""
    try:
        configs = [json.loads((folder / name).read_text(encoding="utf-8")) for name in _CONFIGS]
        named = (configs[0].get("model_type"), configs[1].get("tokenizer_class"))
        plain = named in _BERT and "auto_map" not in configs[1]
    except (OSError, ValueError, AttributeError):
        plain = False  # AutoTokenizer says what is wrong
    if plain:
        from transformers import BertTokenizer

        return BertTokenizer
    from transformers import AutoTokenizer

    return AutoTokenizer
