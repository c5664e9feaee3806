"""Tokenizers that are trained on a corpus: a naive loop's merges, the same file each time, an identity by content, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from harness.encoders import Located, locate
from harness.encoders.tokens import Tokeniser
from harness.encoders.trained_tokenizer import SPECIAL
from harness.errors import UserError

SIZE = 512
WORDS = [
    "Correcting",
    "contrasting",
    "corrected",
    "sequences",
    "encoder",
    "Encoders",
    "masked",
    "masks",
    "Über",
    "naïve",
]


def texts(seed: int = 0) -> list[str]:
    return [
        f"{WORDS[i % 10]} {WORDS[(3 * i + seed) % 10]} {WORDS[i * i % 10]} {i % 7}{(i + seed) % 9}, {chr(97 + i % 26)}{chr(97 + i * i % 26)}{chr(97 + i % 5)}."
        for i in range(400)
    ]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def made(
    folder: Path, name: str = "a.txt", lines: list[str] | None = None, size: int = SIZE, prefix: str = "bpe"
) -> Located:
    path = folder / name
    path.write_text("\n".join(texts() if lines is None else lines), encoding="utf-8")
    return locate(f"new:tiny@{prefix}:{size}:{path}")


def merges_of(alphabet: dict[str, int], number: int, pieces: Counter[str]) -> list[list[str]]:
    """By the definition: each time the most frequent pair of neighbours, of equal ones that with the smallest ids."""
    ids = dict(alphabet)
    words = {word: list(word) for word in pieces}
    found = []
    while len(found) < number:
        counts: Counter[tuple[str, str]] = Counter()
        for word, symbols in words.items():
            for pair in pairwise(symbols):
                counts[pair] += pieces[word]
        best = min(counts, key=lambda pair: (-counts[pair], ids[pair[0]], ids[pair[1]]))
        found.append([*best])
        joined = "".join(best)
        ids.setdefault(joined, len(ids))
        for word, symbols in words.items():
            new: list[str] = []
            for symbol in symbols:
                if new and (new[-1], symbol) == best:
                    new[-1] = joined
                else:
                    new.append(symbol)
            words[word] = new
    return found


@pytest.mark.parametrize("prefix", ["bpe", "bpe-cased"])
def test_the_merges_are_a_naive_loops(prefix: str, tmp_path: Path) -> None:
    located = made(tmp_path, prefix=prefix)
    assert located.folder is not None
    file = json.loads((located.folder / "tokenizer.json").read_text())
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(located.folder / "tokenizer.json"))
    pieces = Counter(
        piece
        for text in texts()
        for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
    )
    merges = file["model"]["merges"]
    vocabulary = file["model"]["vocab"]
    assert [token for token, _ in sorted(vocabulary.items(), key=lambda item: item[1])][:5] == [*SPECIAL]
    alphabet = {token: at for token, at in vocabulary.items() if at < 5 + 256}
    assert len(merges) == SIZE - 261 == len(vocabulary) - 261
    assert merges == merges_of(alphabet, len(merges), pieces)


def test_ids_of_a_text(tmp_path: Path) -> None:
    located = made(tmp_path)
    assert located.folder is not None
    tokeniser = Tokeniser(located.folder)
    upper, lower = (tokeniser([(text,)], 64).ids.tolist() for text in ("ENCODERS Über", "encoders uber"))
    assert upper == lower, "uncased"
    assert (lower[0], lower[-1]) == (SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]"))
    pair = tokeniser([("masks", "masked")], 64)
    assert set(pair.types.tolist()) == {0, 1}
    assert SPECIAL.index("[UNK]") not in tokeniser([("文字 🙂 ∑",)], 64).ids, "bytes stand for what the corpus lacks"
    assert (located.config["vocab_size"], located.config["pad_token_id"]) == (SIZE, 0)


def test_a_cased_vocabulary_keeps_case_and_accents(tmp_path: Path) -> None:
    """COCO-LM's base++ and large++ have one; it is another encoder than the uncased one of the same texts and size."""
    cased, uncased = made(tmp_path, prefix="bpe-cased"), made(tmp_path)
    assert cased.encoder.digest != uncased.encoder.digest
    assert cased.folder is not None
    assert cased.folder != uncased.folder
    tokeniser = Tokeniser(cased.folder)
    texts_of = ["ENCODERS Über", "encoders Über", "encoders über", "encoders uber"]
    assert len({tuple(tokeniser([(text,)], 64).ids.tolist()) for text in texts_of}) == len(texts_of)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(cased.folder / "tokenizer.json"))
    for text in texts_of:
        assert tokenizer.decode(tokenizer.encode(text).ids).strip() == text
    assert " ".join(tokenizer.encode("Encoders").tokens[1:-1]) == "ĠEncoders", "a word of the corpus in its own case"
    assert (cased.config["vocab_size"], cased.config["pad_token_id"]) == (SIZE, 0)


def test_the_same_file_whatever_the_process_and_its_threads(tmp_path: Path) -> None:
    digest = made(tmp_path).encoder.digest
    script = (
        f"from harness.encoders import locate; print(locate('new:tiny@bpe:{SIZE}:{tmp_path / 'a.txt'}').encoder.digest)"
    )
    threads = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "XDG_CACHE_HOME": str(tmp_path / "other")}
    ran = subprocess.run([sys.executable, "-c", script], env={**os.environ, **threads}, capture_output=True, text=True)
    assert ran.stdout.strip() == digest, ran.stderr
    assert len([*(tmp_path / "other/harness/tokenizers").glob("*/tokenizer.json")]) == 1, "it trained its own"


def test_content_and_size_are_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made(tmp_path)
    with monkeypatch.context() as context:  # texts and size are known: nothing is trained again
        context.setattr("harness.encoders.trained_tokenizer._train", None)
        assert made(tmp_path, "moved.txt").encoder.digest == first.encoder.digest
    assert made(tmp_path, lines=texts(1)).encoder.digest != first.encoder.digest
    assert made(tmp_path, size=SIZE + 1).encoder.digest != first.encoder.digest


def test_a_corpus_that_is_not_at_hand_leaves_the_encoder_unresolved() -> None:
    for name, size in (("coco-lm-base@bpe", 32_768), ("coco-lm-base++@bpe-cased", 64_000)):
        located = locate(f"new:{name}:{size}:hub:nobody/nothing")
        assert not located.encoder.resolved
        assert located.config["vocab_size"] == size


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bpe:4096", "is named bpe:SIZE:CORPUS"),
        ("bpe-cased:4096", "is named bpe-cased:SIZE:CORPUS"),
        ("bpe:many:boolq_prose", "is named bpe:SIZE:CORPUS"),
        ("bpe:100:boolq_prose", "100 entries; take 512 to 200000"),
        ("bpe:512:boolq_pros", "Did you mean 'boolq_prose'"),
        ("bpe:20000:few.txt", "entries; ask for at most as many, or name a larger corpus"),
    ],
)
def test_wrong_names_are_refused(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("few.txt").write_text("\n".join(texts()))
    with pytest.raises(UserError) as raised:
        locate(f"new:tiny@{name}")
    assert said in str(raised.value)
