"""The tokenizer of an encoder folder. Importing this module imports neither transformers nor torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.errors import UserError, first_line

_CONFIGS = ("config.json", "tokenizer_config.json")
_BERT = {("bert", "BertTokenizer"), ("bert", "BertTokenizerFast")}
"""(model_type, tokenizer_class) for which `AutoTokenizer` loads `BertTokenizer`."""


def pretrained_tokenizer(folder: Path, **settings: Any) -> Any:
    """What tokenizer.json describes, as it stands, with the special tokens and limits of transformers' class; without that file the class's
    own tokenizer. `settings` are transformers'.

    transformers builds the tokenizers of many model types from the vocabulary in tokenizer.json alone, without its normalizer,
    pre-tokenizer and post-processor, so that a cased encoder may be lower-cased without a word. Raises UserError for files that cannot be used.
    """
    try:
        loaded = _class_of(folder).from_pretrained(str(folder), trust_remote_code=False, **settings)
        if not (folder / "tokenizer.json").exists():
            return loaded
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        file: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        file.no_truncation()
        file.no_padding()
        if file.post_processor is None:  # the file leaves special tokens to the class
            file.post_processor = loaded.backend_tokenizer.post_processor
        roles = {role: token for role, token in loaded.special_tokens_map.items() if isinstance(token, str)}
        kept = {name: getattr(loaded, name) for name in ("model_max_length", "model_input_names", "truncation_side")}
        return PreTrainedTokenizerFast(tokenizer_object=file, **roles, **kept)
    except Exception as error:  # whatever a damaged file leads the library to
        raise UserError(f"The encoder folder {folder} has no usable tokenizer: {first_line(error)}") from None


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
