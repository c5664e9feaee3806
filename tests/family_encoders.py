"""A tiny encoder of each family with random weights and a tokenizer trained on given texts, and a task whose label one word tells."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedTokenizerFast

from harness.encoders.families import FAMILIES

# ------------------------------------------------------------------------------------------------------- tiny encoders

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.1,
    "max_position_embeddings": 80,
}
DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
_MODERN = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
V3 = {**DEBERTA, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True}
SPECIFIC: dict[str, dict[str, Any]] = {
    "bert": {},
    "electra": {"embedding_size": 16},
    "roberta": {"type_vocab_size": 1, "pad_token_id": 0},
    "camembert": {"type_vocab_size": 1, "pad_token_id": 0},
    "xlm-roberta": {"type_vocab_size": 1, "pad_token_id": 0},
    "mpnet": {"pad_token_id": 0},
    "distilbert": {},
    "deberta": {**DEBERTA, "type_vocab_size": 0},
    "deberta-v2": V3,
    "albert": {"embedding_size": 16},
    "roberta-prelayernorm": {"type_vocab_size": 1, "pad_token_id": 0},
    "xlm-roberta-xl": {"type_vocab_size": 1, "pad_token_id": 0},
    "data2vec-text": {"type_vocab_size": 1, "pad_token_id": 0},
    "modernbert": {**_MODERN, "local_attention": 8, "global_attn_every_n_layers": 2},
    "eurobert": {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    "nomic_bert": {"pad_token_id": 0},
}
"""One of each family that has an entry in `FAMILIES`."""
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]


def wrapped(made: Tokenizer) -> PreTrainedTokenizerFast:
    first, last = made.token_to_id("[CLS]"), made.token_to_id("[SEP]")
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", first), ("[SEP]", last)],
    )
    names = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **{f"{name}_token": token for name, token in names.items()})


def word_pieces(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL))
    return wrapped(made)


def byte_pairs(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level, as RoBERTa's and ModernBERT's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet)
    made.train_from_iterator(texts, trainer)
    return wrapped(made)


def unigrams(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """SentencePiece's model and white space, as a tokenizer.json."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.train_from_iterator(texts, trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="[UNK]"))
    return wrapped(made)


TOKENIZERS: dict[str, Callable[[Iterable[str]], PreTrainedTokenizerFast]] = {
    "word pieces": word_pieces,
    "byte pairs": byte_pairs,
    "unigrams": unigrams,
}


def config_of(kind: str, **changes: Any) -> Any:
    """The tiny configuration of a model type; `changes`: to its numbers, also by BERT's names."""
    names = FAMILIES[kind].names if kind in FAMILIES else {}
    settings = {**SHAPE, **SPECIFIC.get(kind, {}), **changes}
    own = {name if name == "head_width" else names.get(name, name): value for name, value in settings.items()}
    return AutoConfig.for_model(kind, **own)


def model_of(config: Any, seed: int = 0) -> Any:
    """A random model of a configuration. Biases and norms are random too, so that one that is left out is noticed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForMaskedLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def encoder_folder(root: Path, kind: str, texts: Iterable[str], **changes: Any) -> Path:
    """A random encoder of a model type with a tokenizer of the texts, as save_pretrained writes them. `changes`: to its configuration."""
    made, folder = word_pieces(texts), root / kind
    config = config_of(kind, vocab_size=len(made), **{"pad_token_id": made.pad_token_id, **changes})
    for part in (model_of(config), made):
        part.save_pretrained(str(folder))
    return folder


# -------------------------------------------------------------------------------------------------------------- a task

SUBJECTS = ("film", "plot", "cast", "music", "ending", "scene")
WORDS = ("slow", "long", "loud", "old", "new", "short", "early", "late")


def sentences(count: int) -> list[tuple[str, str]]:
    """Different (text, label) pairs: one word tells the label."""
    draw, found = random.Random(0), dict[str, str]()
    while len(found) < count:
        label = draw.choice(("good", "bad"))
        first, second = draw.sample(SUBJECTS, 2)
        found[f"the {draw.choice(WORDS)} {first} is {label} , and the {second} is {draw.choice(WORDS)} ."] = label
    return list(found.items())


def write_task(folder: Path, rows: list[tuple[str, str]]) -> None:
    """reviews.yaml with its file, and translations: the words of each text in two other orders."""
    lines = ["text,label", *(f'"{text}",{label}' for text, label in rows)]
    (folder / "reviews.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    body = "name: reviews\ndata: reviews.csv\ncolumns: [text]\nclasses: [bad, good]\nmetrics: [accuracy]\n"
    (folder / "reviews.yaml").write_text(body, encoding="utf-8")
    draw = random.Random(1)

    def shuffled(text: str) -> str:
        words = text.split()
        return " ".join(draw.sample(words, len(words)))

    views = ({"text": text, "view_1": shuffled(text), "view_2": shuffled(text)} for text, _ in rows)
    (folder / "views.jsonl").write_text("".join(json.dumps(view) + "\n" for view in views), encoding="utf-8")
