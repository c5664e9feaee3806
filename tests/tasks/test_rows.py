"""Identity of rows: by content, whatever their order; every change of content is another digest. Every hash is that of the plain formula."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest

from harness.tasks.overlap import normal_ids, normalised
from harness.tasks.rows import Rows, mix, scoped

TEXTS = (("a", "b"), ("c", "d"), ("a", "b"), ("e", ""), ("a", "b"))
LABELS = np.array([0, 1, 0, 1, 1])


def rows(texts: tuple[tuple[str, ...], ...] = TEXTS, labels: np.ndarray | None = LABELS) -> Rows:
    return Rows(texts, labels)


def test_order_changes_neither_digest_nor_ids_nor_the_sorted_rows() -> None:
    original = rows().sorted()
    for order in itertools.permutations(range(len(TEXTS))):
        other = rows().take(list(order))
        assert other.digest == original.digest
        assert set(other.ids.tolist()) == set(original.ids.tolist())
        assert other.sorted().texts == original.texts
        assert np.array_equal(other.sorted().gold, original.gold)


def test_kinds_of_labels_are_told_apart() -> None:
    texts = (("x",), ("y",))
    codes = Rows(texts, np.array([1, 0]))
    scores = Rows(texts, np.array([1, 0], dtype=np.float32))
    assert len({codes.digest, scores.digest, codes.unlabelled().digest}) == 3
    assert scores.digest == Rows(texts, np.array([1, -0.0], dtype=np.float32)).digest


def test_unlabelled_rows_know_only_their_texts() -> None:
    other = rows(labels=1 - LABELS)
    assert rows().digest != other.digest
    assert rows().unlabelled().digest == other.unlabelled().digest
    assert rows().unlabelled().texts == other.unlabelled().texts
    assert rows().unlabelled().labels is None
    with pytest.raises(ValueError, match="no labels"):
        _ = rows().unlabelled().gold


def test_take_by_mask_and_by_index_agree() -> None:
    mask = np.array([True, False, True, False, True])
    assert rows().take(mask).texts == rows().take([0, 2, 4]).texts
    assert len(rows().take([])) == 0
    assert len(Rows(()).digest) == 32
    assert Rows(()).sorted().texts == ()


def test_mix_is_splitmix64_and_one_to_one() -> None:
    assert int(mix(np.zeros(1, dtype=np.uint64))[0]) == 0xE220A8397B1DCDAF  # first output for seed 0
    ids = np.arange(100_000, dtype=np.uint64)
    assert len(np.unique(mix(ids))) == len(ids)


def test_scopes_order_rows_independently() -> None:
    ids = np.arange(20_000, dtype=np.uint64)
    first, second = scoped(ids, ["task", 1, 0]), scoped(ids, ["task", 1, 1])
    assert np.array_equal(first, scoped(ids, ["task", 1, 0]))
    assert abs(np.corrcoef(first.astype(float), second.astype(float))[0, 1]) < 0.03
    assert abs(np.corrcoef(first.astype(float), ids.astype(float))[0, 1]) < 0.03
    assert abs(float(first.astype(float).mean()) / 2**63 - 1) < 0.02
    assert not np.array_equal(scoped(ids, ["a", "bc"]), scoped(ids, ["ab", "c"]))


ALPHABET = [*"abcXYZ019 .,;:'\"|\n\t\0_-", "é", "ß", "\u0130", "ﬁ", "\u00a0", "漢", "🎈", "\u0301", "\udc80", "\ud83d", "\ude00"]  # fmt: skip


def random_rows(seed: int, columns: int, count: int = 60) -> list[tuple[str, ...]]:
    """Rows of every length from none, some in ASCII alone, some of one text, with separators, NULs and half characters."""
    rng = np.random.default_rng(seed)
    found = []
    for row in range(count):
        letters = ALPHABET[:24] if row % 3 else ALPHABET
        found.append(tuple("".join(rng.choice(letters, int(rng.integers(0, 9)))) for _ in range(columns)))
    return [*found, *found[: count // 4]]


def plain(content: str) -> int:
    digest = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def content(texts: tuple[str, ...]) -> str:
    return "".join(f"{len(text)}:{text}" for text in texts)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_texts_and_hashes_are_those_of_the_plain_formula(seed: int, columns: int) -> None:
    texts = random_rows(seed, columns)
    codes = np.arange(len(texts)) % 3
    scores = (np.arange(len(texts)) * np.float32(-0.37)).astype(np.float32)
    rows = Rows(texts, codes)
    order = np.random.default_rng(seed).permutation(len(texts))
    for some, chosen in ((rows, range(len(texts))), (rows.take(order), order), (rows.take(order[:3]), order[:3])):
        expected = [texts[index] for index in chosen]
        assert some.texts == tuple(expected)
        assert some.text_ids.tolist() == [plain(content(row)) for row in expected]
        forms = [tuple(map(normalised, row)) for row in expected]
        assert normal_ids(some)[:, 0].tolist() == [plain(content(row)) for row in forms]
        each = [[plain(f"{len(form)}:{form}") for form in row] for row in forms]
        assert normal_ids(some, whole=False).tolist() == each
        assert some.mean_chars == sum(len(text) for row in expected for text in row) / len(expected)
    for labels, shown in ((codes, [str(code) for code in codes]), (scores, [f"{float(s) + 0.0:.9g}" for s in scores])):
        first: dict[int, int] = {}
        for index, row in enumerate(texts):
            first.setdefault(plain(f"{shown[index]}|{content(row)}"), index)
        ids = Rows(texts, labels).ids
        assert {key: int(ids[index]) for key, index in first.items()} == {key: key for key in first}
        assert len(np.unique(ids)) == len(texts)


def test_rows_that_are_taken_keep_the_hashes_of_their_texts() -> None:
    hashed = list[str]()

    def form(text: str) -> str:
        hashed.append(text)
        return text

    rows, order = Rows(random_rows(0, 1, 200)), [5, 4, 9]
    of_all = rows.hashes(form)
    assert np.array_equal(rows.take(order).hashes(form), of_all[order])
    assert len(hashed) == len(rows)
