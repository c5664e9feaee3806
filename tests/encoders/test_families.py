"""Every family against the library's own padded forward, with real kinds of tokenizers; and what a family cannot do is said."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiny
import torch
from family_encoders import SPECIFIC, encoder_folder
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForMaskedLM

from harness.encoders.families import FAMILIES
from harness.encoders.flops import forward_flops
from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import TextEncoder, set_dropout
from harness.encoders.sources import locate
from harness.encoders.tokens import Tokeniser
from harness.errors import UserError
from harness.methods import DEFINITIONS, definition_of
from harness.training.forward_backward import autocast
from harness.training.loop import train
from harness.training.result import Scoring

CPU = torch.device("cpu")
OTHERS: dict[str, dict[str, Any]] = {
    "ernie": {},
    "convbert": {"embedding_size": 32, "conv_kernel_size": 3},
    "megatron-bert": {},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 24},
    "roformer": {},
}
"""Families without one."""
EVERY = {**SPECIFIC, **OTHERS}
TEXTS = [
    ("A striking film, funny and sad.", "It moves you!"),
    ("No.", "Where did she go?"),
    (
        "The plot of the second half is dull; the actors are not, and the music (by a debutant) is a surprise to all.",
        "Why",
    ),
    ("Été à Besançon 2024", "naïve"),
]


def folder_of(root: Path, kind: str, **changes: Any) -> Path:
    words = [text for row in TEXTS for text in row]
    return encoder_folder(root, kind, words, **{**OTHERS.get(kind, {}), **changes})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An encoder of each kind with word pieces."""
    root = tmp_path_factory.mktemp("families")
    return {kind: folder_of(root, kind) for kind in EVERY}


def library(folder: Path, encoder: TextEncoder, tokens: Any) -> tuple[Any, torch.Tensor, dict[str, torch.Tensor]]:
    """(its own model, which tokens are real [B, L], the padded batch)."""
    plain = AutoModelForMaskedLM.from_pretrained(str(folder), attn_implementation="eager", dtype=torch.float32).eval()
    batch = tiny.padded(tokens, pad=plain.config.pad_token_id)
    if getattr(plain.config, "type_vocab_size", 0) < 2 or "token_type_ids" not in encoder.inputs:
        del batch["token_type_ids"]
    return plain, batch["attention_mask"].bool(), batch


def assert_agrees(folder: Path, texts: Sequence[tuple[str, ...]] = TEXTS, max_length: int = 72) -> None:
    encoder = tiny.encoder(folder).eval()
    tokens = Tokeniser(folder)(texts, max_length)
    plain, real, batch = library(folder, encoder, tokens)
    with torch.inference_mode():
        found = encoder(Batch.of(tokens, CPU))
        torch.testing.assert_close(found, plain.base_model(**batch)[0][real], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(encoder.mlm_logits(found), plain(**batch).logits[real], atol=1e-5, rtol=1e-5)
        first = Batch.of(tokens, CPU)
        torch.testing.assert_close(encoder(first, first.first), found[first.first], atol=1e-5, rtol=1e-5)
        if encoder.family.packed:
            embedded = plain.base_model(**batch, output_hidden_states=True).hidden_states[0]  # docs/papers.md T3
            torch.testing.assert_close(encoder.forward_with_embeddings(first)[1], embedded[real], atol=1e-6, rtol=1e-6)
            block = Batch.of(tokens, CPU, block=True)
            torch.testing.assert_close(encoder(block)[block.real_tokens], found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", EVERY)
def test_is_the_librarys_padded_forward(kind: str, made: dict[str, Path]) -> None:
    """Of mixed and of equal lengths."""
    for texts in (TEXTS, TEXTS[1:2] * 3):
        assert_agrees(made[kind], texts)


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_texts_longer_than_512_tokens(kind: str, tmp_path: Path) -> None:
    """Absolute and rotary positions, beside a short text."""
    folder = folder_of(tmp_path, kind, max_position_embeddings=620)
    long = " ".join(text for row in TEXTS for text in row)
    texts = [(" ".join([long] * 30), "Why"), TEXTS[1]]
    assert max(Tokeniser(folder)(texts, 600).lengths) == 600
    assert_agrees(folder, texts, 600)


def test_every_entry_is_tested() -> None:
    assert SPECIFIC.keys() == FAMILIES.keys()


@pytest.mark.parametrize("kind", EVERY)
def test_dropout_follows_the_setting(kind: str, made: dict[str, Path]) -> None:
    encoder = tiny.encoder(made[kind]).eval()
    batch = Batch.of(Tokeniser(made[kind])(TEXTS, 80), CPU)
    still = encoder(batch)
    set_dropout(encoder.train(), 0.0)
    torch.testing.assert_close(encoder(batch), still, rtol=0, atol=1e-5)
    set_dropout(encoder, 0.3)
    assert not torch.allclose(encoder(batch), still, atol=1e-3)


@pytest.mark.parametrize("kind", EVERY)
def test_fp16(kind: str, made: dict[str, Path]) -> None:
    """States near float32's, in training and evaluation, and gradients that are finite: no constant that hides padding is too large for
    fp16. DeBERTa's code in transformers runs under no autocast: it hides padding by float32's least number in scores of half precision."""
    encoder = tiny.encoder(made[kind])
    set_dropout(encoder, 0.0)
    batch = Batch.of(Tokeniser(made[kind])(TEXTS, 72), CPU)
    exact = encoder(batch).detach()
    if kind == "deberta":
        for precision in ("bf16", "fp16"):
            with autocast(CPU, precision), pytest.raises(RuntimeError, match="without overflow"):
                encoder(batch)
        return
    with autocast(CPU, "fp16"):
        found = encoder.train()(batch)
        with torch.inference_mode():
            evaluated = encoder.eval()(batch)
    found.float().square().mean().backward()
    for states in (found.detach(), evaluated):
        assert (states.float() - exact).abs().max() < 4e-3 * exact.abs().max()
    assert all(p.grad.isfinite().all() for p in encoder.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind not in (*tiny.KINDS, *tiny.MORE)])
def test_trains_and_says_what_it_cannot(kind: str, made: dict[str, Path]) -> None:
    """An update of each objective that uses an encoder in another way, and an evaluation; one that the family cannot train is named with a
    way out."""
    located = locate(str(made[kind]))
    for name in ("cross_entropy", "cmlm-simsiam", "cssl-simclr", "taco", "electra-narrow", "coco_lm"):
        spec = tiny.OBJECTIVES[name]
        if reason := definition_of(spec).refused(located.config):
            assert name in ("electra-narrow", "coco_lm")
            assert "use a BERT" in reason or "set coco_lm.lm" in reason
            continue
        supervised = DEFINITIONS[spec.name].labelled
        stage, inputs = (tiny.fine_tuning if supervised else tiny.post_training)(made[kind], spec, steps=1, lr=1e-4)
        scoring = Scoring.of(stage, tiny.METRICS) if supervised else None
        result = train(tiny.built(made[kind], spec, dropout=0.1), inputs, stage.optim, 1, scoring=scoring)
        assert result.flops > 0


@pytest.mark.parametrize("kind", ["bart", "gpt2", "vit", "no-such-type"])
def test_types_that_are_no_encoder(kind: str, made: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made["bert"], tmp_path / "copy"))
    tiny.edit(folder / "config.json", model_type=kind)
    with pytest.raises(UserError, match=f"model_type '{kind}' cannot be trained here. Known: albert, "):
        locate(str(folder))


def test_a_model_without_an_attention_mask(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="A fnet encoder takes no attention mask"):
        tiny.encoder(folder_of(tmp_path, "fnet"))


class TestFlops:
    @pytest.mark.parametrize("kind", [kind for kind in SPECIFIC if not kind.startswith("deb")])
    def test_agree_with_torchs_counter(self, kind: str, made: dict[str, Path]) -> None:
        """The library's padded forward on equal lengths; narrow embeddings are widened once, which is left out."""
        encoder, config = tiny.encoder(made[kind]), locate(str(made[kind])).config
        plain = AutoModelForMaskedLM.from_pretrained(str(made[kind]), attn_implementation="eager").base_model
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            plain(input_ids=torch.randint(5, 40, (2, 60)))
        assert forward_flops(config, 120, 2 * 60**2) == pytest.approx(counter.get_total_flops(), rel=0.06)
        assert forward_flops(encoder.shape, 120, 2 * 60**2) == forward_flops(config, 120, 2 * 60**2)

    @pytest.mark.parametrize("kind", ["deberta", "deberta-v2"])
    def test_disentangled_attention(self, kind: str, tmp_path: Path) -> None:
        """At a size where the projection of the table of distances, once a batch, is small."""
        folder = folder_of(tmp_path, kind, max_relative_positions=20)
        config = locate(str(folder)).config
        plain = AutoModelForMaskedLM.from_pretrained(str(folder)).base_model
        with FlopCounterMode(display=False) as counter:
            plain(input_ids=torch.randint(5, 40, (24, 60)))
        plainly = forward_flops({**config, "relative_attention": False}, 1440, 86400)
        assert forward_flops(config, 1440, 86400) == pytest.approx(counter.get_total_flops(), rel=0.1)
        assert plainly < 0.95 * forward_flops(config, 1440, 86400)


@pytest.fixture(scope="module")
def sentence_pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("spm")
    pieces = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for row in TEXTS for text in row]),
        model_prefix=str(root / "spm"),
        vocab_size=90,
        **{f"{name}_id": place for place, name in enumerate(pieces)},
        **{f"{name}_piece": piece for name, piece in pieces.items()},
        user_defined_symbols=["[MASK]"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return root / "spm.model"


@pytest.mark.parametrize("kind", ["deberta-v2", "albert"])
def test_sentence_piece_files_are_read_and_identify(
    kind: str, sentence_pieces: Path, made: dict[str, Path], tmp_path: Path
) -> None:
    """The file that the encoder is published with, without a tokenizer.json."""
    folder = Path(shutil.copytree(made[kind], tmp_path / "copy"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    path = Path(shutil.copy(sentence_pieces, folder / FAMILIES[kind].tokenizer[0]))
    digest = locate(str(folder)).encoder.digest
    assert digest != locate(str(made[kind])).encoder.digest
    tokens = Tokeniser(folder)(TEXTS, 80)
    assert tokens.special[0]
    assert int(tokens.lengths.min()) > 4
    path.write_bytes(path.read_bytes() + b" ")
    assert locate(str(folder)).encoder.digest != digest
