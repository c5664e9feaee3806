"""Identity of rows: by content, whatever their order; every change of content is another digest."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from harness.tasks import Rows
from harness.tasks.rows import mix, scoped

TEXTS = (("a", "b"), ("c", "d"), ("a", "b"), ("e", ""), ("a", "b"))
LABELS = np.array([0, 1, 0, 1, 1])


def rows(texts: tuple[tuple[str, ...], ...] = TEXTS, labels: np.ndarray | None = LABELS) -> Rows:
    return Rows(texts, labels, "some")


def test_order_changes_neither_digest_nor_ids_nor_the_sorted_rows() -> None:
    original = rows().sorted()
    for order in itertools.permutations(range(len(TEXTS))):
        other = rows().take(list(order))
        assert other.digest == original.digest
        assert set(other.ids.tolist()) == set(original.ids.tolist())
        assert other.sorted().texts == original.texts
        assert np.array_equal(other.sorted().gold, original.gold)


def test_one_row_more_or_less_is_another_digest() -> None:
    digests = {rows().digest, *(rows().take([i for i in range(5) if i != left]).digest for left in (1, 2, 3, 4))}
    assert len(digests) == 5
    assert rows().take([0, 1, 2, 3, 4, 0]).digest not in digests


def test_editing_a_text_or_a_label_changes_the_digest() -> None:
    base = rows().digest
    for index in range(len(TEXTS)):
        labels = LABELS.copy()
        labels[index] = 2
        assert rows(labels=labels).digest != base
        texts = tuple((t[0] + "!", t[1]) if i == index else t for i, t in enumerate(TEXTS))
        assert rows(texts).digest != base


def test_where_one_text_ends_and_the_next_begins_matters() -> None:
    splits = [("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", "")]
    assert len({Rows((split,)).digest for split in splits}) == len(splits)
    assert Rows((("1:a", ""),)).digest != Rows((("a", "0:"),)).digest


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


def test_row_set_carries_the_content_and_labels_beside_it() -> None:
    row_set = rows().row_set()
    assert (row_set.digest, row_set.name, row_set.rows) == (rows().digest, "some", 5)
    assert row_set.mean_chars == 1.8
    assert rows().row_set("other") == row_set  # names are labels
    assert rows().row_set("other").name == "other"


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
