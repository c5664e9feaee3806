"""The tokens of an encoder are those of its tokenizer.json, here, in a file of predictions and in an exported folder."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from packaging.requirements import Requirement
from packaging.version import Version
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from harness.encoders import locate
from harness.encoders.models.pretrained_folder import write_model, write_tokenizer
from harness.encoders.models.text_encoder import load_encoder
from harness.encoders.tokens import Tokeniser

ROOT = Path(__file__).parents[2]
TEXTS = ["The Film of 2024, a film: GOOD", "  good\tfilm\nÉté W1 ", "w1 2024 20 24", "", "[MASK] <mask> </s>"]


KNOWN = "The the Film film 2024 20 24 of a good GOOD Été ete , : W1 w1"


def cased() -> Tokenizer:
    """WordPiece whose casing, accents and numbers depend on its own normalizer and pre-tokenizer."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    ids = {token: i for i, token in enumerate((*special, *KNOWN.split()))}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.add_special_tokens(special)
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(False)])
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def lowered() -> Tokenizer:
    """RoBERTa's shape, byte-level BPE, with a normalizer, which RoBERTa has not."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS * 9, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


MADE: dict[str, Callable[[], Tokenizer]] = {"bert": cased, "roberta": lowered}
CLASSES = {"bert": "BertTokenizer", "roberta": "RobertaTokenizer"}
KINDS = pytest.mark.parametrize("kind", MADE)


@pytest.fixture
def folder(kind: str, folders: dict[str, Path], tmp_path: Path) -> Path:
    """An encoder whose tokenizer.json its transformers class does not read as it stands."""
    copy = Path(shutil.copytree(folders[kind], tmp_path / "encoder"))
    made = MADE[kind]()
    made.save(str(copy / "tokenizer.json"))
    tiny.edit(copy / "config.json", vocab_size=made.get_vocab_size())
    (copy / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": CLASSES[kind]}))
    return copy


def of_file(folder: Path) -> list[list[int]]:
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [made.encode(text).ids for text in TEXTS]


def ours(folder: Path) -> list[list[int]]:
    tokens = Tokeniser(folder)([(text,) for text in TEXTS], 64)
    return [tokens.ids[a:b].tolist() for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]


@KINDS
def test_the_file_is_taken_where_the_class_reads_it_otherwise(kind: str, folder: Path) -> None:
    library = AutoTokenizer.from_pretrained(str(folder))
    assert library(TEXTS)["input_ids"] != of_file(folder), "else this shows nothing"
    assert ours(folder) == of_file(folder)
    sequence = Tokeniser(folder)([(TEXTS[0], TEXTS[2])], 64)
    pair = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXTS[0], TEXTS[2])
    assert (sequence.ids.tolist(), sequence.types.tolist()) == (pair.ids, pair.type_ids)
    vocabulary = Tokeniser(folder).vocabulary
    assert vocabulary.mask_id == library.mask_token_id


@KINDS
def test_an_exported_folder_has_the_same_tokens_for_plain_transformers(
    kind: str, folder: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    out, encoder = tmp_path / "exported", load_encoder(folders[kind], kind, seed=0)
    write_model(encoder, out)
    write_tokenizer(folder, encoder, out, 64)
    assert AutoTokenizer.from_pretrained(str(out))(TEXTS, truncation=True)["input_ids"] == of_file(folder)
    assert ours(out) == of_file(folder), "what predict reads"


@pytest.mark.parametrize("encoder", ["bert-tiny", "minilm"])
@pytest.mark.usefixtures("packaged")
def test_the_ids_of_packaged_encoders_stay(encoder: str) -> None:
    """Golden: another release of transformers or tokenizers that changes one would change the meaning of recorded keys."""
    tokeniser = Tokeniser(locate(encoder).folder)  # type: ignore[arg-type]
    assert tokeniser([("Café naïve Ångström ÜBER cafe\u0301 İstanbul straße ﬁne Ⅷ ½",)], 64).ids.tolist() == [
        *(101, 7668, 15743, 17076, 15687, 19169, 7668, 9960, 2358, 27807, 1984, 2638, 100, 1092, 102)
    ]
    assert tokeniser([("A 2024 film", "電影 ok")], 64).ids.tolist() == [
        *(101, 1037, 16798, 2549, 2143, 102, 100, 100, 7929, 102)
    ]


@pytest.mark.parametrize("package", ["transformers", "tokenizers"])
def test_only_the_tested_release_is_installed(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (wanted,) = [r for r in map(Requirement, project) if r.name == package]
    pinned = [line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines()]
    (tested,) = [Version(version) for name, _, version in pinned if name == package]
    assert tested in wanted.specifier
    for other in (tested.minor - 1, tested.minor + 1):
        assert f"{tested.major}.{other}.0" not in wanted.specifier
