"""The protocols for a user's own data: what is cut from where, by content alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tasks.task_files import cut, forms, write_file

from harness.errors import UserError
from harness.tasks.overlap import normalised
from harness.tasks.protocols import PROTOCOLS
from harness.tasks.rows import Rows
from harness.tasks.sources import TextSource, open_source
from harness.tasks.task import Task, load_user_task

OWN = {name: protocol for name, protocol in PROTOCOLS.items() if name.startswith("own")}
ONCE = OWN["own"]


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Different texts, every fifth of them three times in other letters, with one of three labels."""
    found = []
    for i in range(start, start + count):
        found.append({"text": f"Text number {i}.", "label": "abc"[i % 3]})
        if i % 5 == 0:
            found += [{"text": f"TEXT number {i}", "label": "abc"[i % 3]}, {"text": f"text, number {i}!", "label": "a"}]
    return found


def opened(folder: Path, data: str, *more: str, name: str = "mine") -> tuple[Task, TextSource]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "task.yaml"
    head = f"name: {name}\ndata: {data}\ncolumns: [text]\nclasses: [a, b, c]\nmetrics: [accuracy]\n"
    path.write_text(head + "\n".join(more) + "\n", encoding="utf-8")
    return load_user_task(path), open_source(None)


@pytest.mark.parametrize("name", OWN)
def test_every_row_is_in_one_set_and_neither_order_nor_file_nor_name_matter(name: str, tmp_path: Path) -> None:
    every = rows(200)
    write_file(tmp_path / "a.csv", every)
    write_file(tmp_path / "elsewhere/b.jsonl", every[::-1])
    one, two = opened(tmp_path, "a.csv"), opened(tmp_path / "elsewhere", "b.jsonl", name="other")
    whole = cut(OWN[name], *one)
    assert sum((Counter(part.texts) for part in whole), Counter()) == Counter((row["text"],) for row in every)
    for size, subset in ((0, 0), (0, 2), (10, 1), (20, 3), (50, 4)):
        ours, theirs = cut(OWN[name], *one, size, subset), cut(OWN[name], *two, size, subset)
        assert [each.digest for each in ours] == [each.digest for each in theirs]
        train, dev, test = map(forms, ours)
        assert train
        assert dev
        assert not train & dev
        assert not (train | dev) & test
        assert set(ours[2].texts) == set(whole[2].texts)
    assert {cut(OWN[name], *one, 0, subset)[2].digest for subset in range(5)} == {whole[2].digest}
    redrawn = {each.digest for subset in range(5) for each in cut(OWN[name], *one, 0, subset)[:2]}
    assert (len(redrawn), OWN[name].redraws) == ((10, True) if name != "own" else (2, False))


def test_a_test_set_of_all_rows_leaves_none_for_training(tmp_path: Path) -> None:
    write_file(tmp_path / "a.csv", rows(20))
    task, source = opened(tmp_path, "a.csv", "test: a.csv")
    with pytest.raises(UserError, match="no row is left for training"):
        ONCE.evaluation_sets(task, source)


def classes_of(some: Rows) -> dict[int, int]:
    """Distinct texts of each class; a text of several classes counts for the lowest."""
    lowest: dict[str, int] = {}
    for (text,), code in zip(some.texts, some.gold.tolist(), strict=True):
        lowest[normalised(text)] = min(code, lowest.get(normalised(text), code))
    return Counter(lowest.values())


@pytest.mark.parametrize("name", OWN)
def test_each_class_has_its_share_of_test_and_dev(name: str, tmp_path: Path) -> None:
    """A class with 8 of 408 texts as well: 2 of them are test, and of the other 6 one in five is dev."""
    common = [{"text": f"Text {i}.", "label": "ab"[i % 2]} for i in range(400)]
    write_file(tmp_path / "a.csv", [*common, *({"text": f"Rare {i}!", "label": "c"} for i in range(8))])
    task, source = opened(tmp_path, "a.csv")
    for subset in range(5):
        train, dev, test = cut(OWN[name], task, source, 0, subset)
        whole = classes_of(source.load(task, "all rows"))
        assert whole == {0: 200, 1: 200, 2: 8}
        assert classes_of(test) == {0: 50, 1: 50, 2: 2}
        others = Counter(whole) - Counter(classes_of(test))
        share = len(dev) / others.total()
        for code, count in others.items():
            assert abs(classes_of(dev).get(code, 0) - share * count) <= 1
            assert classes_of(train)[code] + classes_of(dev).get(code, 0) == count


def test_a_class_keeps_a_text_for_training_and_one_with_few_rows_is_named(tmp_path: Path) -> None:
    common = [{"text": f"Text {i}.", "label": "ab"[i % 2]} for i in range(312)]
    for few in (1, 6):
        write_file(tmp_path / "a.csv", [*common, *({"text": f"Rare {i}!", "label": "c"} for i in range(few))])
        task, source = opened(tmp_path, "a.csv")
        train, dev, test = (classes_of(each).get(2, 0) for each in cut(ONCE, task, source))
        assert (train + dev + test, train >= 1) == (few, True)
        assert classes_of(cut(OWN["own_redrawn"], task, source)[0])[2] >= 1
        rare = ONCE.evaluation_sets(task, source).rare
        assert f"c ({train} training, {dev} dev, {test} test)" in rare
        assert "a (" not in rare
    write_file(tmp_path / "b.csv", common[:2] + [{"text": f"Text {i}.", "label": "abc"[i % 3]} for i in range(300)])
    assert not ONCE.evaluation_sets(*opened(tmp_path / "other", str(tmp_path / "b.csv"))).rare


def test_shares_and_their_bounds(tmp_path: Path) -> None:
    write_file(tmp_path / "a.csv", [{"text": f"Text {i}.", "label": "abc"[i % 3]} for i in range(40_000)])
    task, source = opened(tmp_path, "a.csv")
    train, dev, test = cut(ONCE, task, source)
    assert (len(test), len(dev), len(train)) == (5000, 1000, 34_000)
    write_file(tmp_path / "b.csv", [{"text": f"Text {i}.", "label": "abc"[i % 3]} for i in range(2000)])
    train, dev, test = cut(ONCE, *opened(tmp_path, "b.csv"))
    assert (len(test), len(dev), len(train)) == (500, 300, 1200)


def test_the_users_test_and_dev_files_are_whole_and_out_of_training(tmp_path: Path) -> None:
    write_file(tmp_path / "a.csv", rows(100))
    held_out = [*rows(20, 1000), {"text": "TEXT: number 7", "label": "b"}]
    write_file(tmp_path / "held_out.jsonl", held_out)
    write_file(tmp_path / "dev.csv", [*rows(9, 2000), {"text": "text number 8", "label": "c"}, held_out[0]])
    task, source = opened(tmp_path, "a.csv", "test: held_out.jsonl", "dev: dev.csv")
    train, dev, test = cut(ONCE, task, source)
    assert Counter(test.texts) == Counter((row["text"],) for row in held_out)
    assert held_out[0]["text"] not in {text for (text,) in dev.texts}
    assert set(train.texts) == {(row["text"],) for row in rows(100)} - {("Text number 7.",), ("Text number 8.",)}
    origin = ONCE.evaluation_sets(task, source).origin
    assert "test all 29 rows of held_out.jsonl" in origin
    assert "2 labelled rows left out, their text is in test or dev" in origin
    for name in ("own_redrawn", "own_cross_validated"):
        with pytest.raises(
            UserError, match=f"protocol {name} draws dev from the labelled rows, and the task has a dev set"
        ):
            cut(OWN[name], task, source)


@pytest.mark.parametrize("has_test", [False, True])
def test_a_folders_validation_set_is_dev(has_test: bool, tmp_path: Path) -> None:
    """Without a test set, too, which is then drawn from the training file: labelled rows are not left unread."""
    write_file(tmp_path / "data/train.csv", rows(400))
    write_file(tmp_path / "data/validation.csv", rows(60, 1000))
    if has_test:
        write_file(tmp_path / "data/test.csv", rows(60, 2000))
    train, dev, test = cut(ONCE, *opened(tmp_path, "data"))
    assert Counter(dev.texts) == Counter((row["text"],) for row in rows(60, 1000))
    assert len(train) + (0 if has_test else len(test)) == len(rows(400))
    assert len(forms(test)) == (60 if has_test else 100)


@pytest.mark.parametrize("size", [0, 50])
def test_each_labelled_row_is_in_dev_once(size: int, tmp_path: Path) -> None:
    write_file(tmp_path / "a.csv", rows(100))
    task, source = opened(tmp_path, "a.csv")
    folds = [cut(OWN["own_cross_validated"], task, source, size, subset)[:2] for subset in range(5)]
    whole = Counter(text for train, dev in folds[:1] for text in (*train.texts, *dev.texts))
    assert not size or whole.total() == size
    assert sum((Counter(dev.texts) for _, dev in folds), Counter()) == whole
    for train, dev in folds:
        assert Counter((*train.texts, *dev.texts)) == whole
        every = Counter(classes_of(folds[0][0])) + Counter(classes_of(folds[0][1]))
        for code, count in Counter(every).items():
            assert abs(classes_of(dev)[code] - count / 5) <= 1, "equal texts stay together"
    with pytest.raises(UserError, match="there are 5 subsets"):
        cut(OWN["own_cross_validated"], task, source, size, 5)


def test_sizes_are_a_learning_curve_up_to_all_rows(tmp_path: Path) -> None:
    for count, sizes in ((40, (10, 0)), (400, (20, 100, 0)), (4000, (200, 1000, 0))):
        write_file(tmp_path / "a.csv", [{"text": f"Text {i}.", "label": "abc"[i % 3]} for i in range(count)])
        assert ONCE.sizes(*opened(tmp_path, "a.csv")) == sizes
