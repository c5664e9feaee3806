"""Tiny random translation models in folders: what they say means nothing."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

SENTENCES = (
    "The film is a joy from beginning to end.",
    "A dull, lifeless and far too long piece of work.",
    "Nobody can doubt the actors; the plot, however, is thin.",
    "It turns out to be a cut above the norm, thanks to some clever writing and sprightly acting.",
    "If you haven't seen the film lately, you may be surprised at the variety of tones.",
)

WORDS = sorted({word for text in SENTENCES for word in text.split()})


def marian(folder: Path, seed: int, *codes: str) -> Path:
    """A tiny Marian model with a SentencePiece vocabulary of its own."""
    spm = pytest.importorskip("sentencepiece")
    pytest.importorskip("sacremoses")
    import torch
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

    folder.mkdir(parents=True)
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3), model_writer=model, vocab_size=80, minloglevel=2, hard_vocab_limit=False
    )
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(model.getvalue())
    pieces = spm.SentencePieceProcessor(model_proto=model.getvalue())
    names = ["</s>", "<unk>", *(pieces.IdToPiece(i) for i in range(3, len(pieces))), *codes, "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")]
    MarianTokenizer(*files, model_max_length=48).save_pretrained(folder)
    torch.manual_seed(seed)
    config = MarianConfig(
        vocab_size=len(names), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=48, init_std=0.5,
        pad_token_id=len(names) - 1, decoder_start_token_id=len(names) - 1, eos_token_id=0, forced_eos_token_id=0,
    )  # fmt: skip
    MarianMTModel(config).save_pretrained(folder)
    return folder


def fsmt(folder: Path, seed: int, *langs: str) -> Path:
    """A tiny FSMT model with a vocabulary of letters."""
    pytest.importorskip("sacremoses")
    import torch
    from transformers import FSMTConfig, FSMTForConditionalGeneration, FSMTTokenizer

    folder.mkdir(parents=True)
    letters = sorted({letter for word in WORDS for letter in word})
    names = ["<s>", "<pad>", "</s>", "<unk>", *letters, *(f"{letter}</w>" for letter in letters), "th"]
    for name in ("vocab-src.json", "vocab-tgt.json"):
        (folder / name).write_text(json.dumps({name: i for i, name in enumerate(names)}))
    (folder / "merges.txt").write_text("t h 1\n")
    files = [str(folder / name) for name in ("vocab-src.json", "vocab-tgt.json", "merges.txt")]
    FSMTTokenizer(list(langs), *files, model_max_length=48).save_pretrained(folder)
    torch.manual_seed(seed)
    config = FSMTConfig(
        langs=list(langs), src_vocab_size=len(names), tgt_vocab_size=len(names), d_model=16, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        max_position_embeddings=64, init_std=0.5, num_beams=3,
    )  # fmt: skip
    FSMTForConditionalGeneration(config).save_pretrained(folder)
    return folder
