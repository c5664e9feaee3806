"""A translation that was kept stays as it was, whoever asks and whoever else writes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from store import samples
from store.samples import record, stage
from store.test_mistakes import nobody
from store.test_processes import READY, process, received

from harness.errors import UserError
from harness.store import Owner, Store

TEXTS = {"a": "one", "b": "", "c": "zwei\nZeilen 日本 😀 \u2028 'quoted' % ?", "d": "x" * 100_000, "e": "a\x00b"}


def test_translations_come_back(store: Store, url: str) -> None:
    assert store.translations(list(TEXTS)) == {}
    store.keep_translations(TEXTS)
    store.keep_translations({})
    assert Store(url).translations(["a", "nowhere", "e", "d", "c", "b", "a"]) == TEXTS
    assert store.translations([]) == {}


def test_what_was_kept_first_stays(store: Store) -> None:
    store.keep_translations({"a": "one"})
    store.keep_translations({"a": "another", "b": "two"})
    store.keep_translations({"a": "a third", "b": "another"})
    assert store.translations(["a", "b"]) == {"a": "one", "b": "two"}


def test_many_thousands(store: Store) -> None:
    texts = {f"{i:032x}": f"text {i}" for i in range(20_000)}
    store.keep_translations(texts)
    assert store.translations([*texts, "nowhere"]) == texts


def test_processes_that_write_the_same_keys_agree_on_them(store: Store, url: str) -> None:
    keys = [f"{i:032x}" for i in range(500)]
    barrier = READY.Barrier(2)
    with (
        process(READY, samples.translate, url, "A", keys, barrier) as (_, first),
        process(READY, samples.translate, url, "B", keys, barrier) as (_, second),
    ):
        answers = [received(first), received(second)]
    assert answers[0] == answers[1] == store.translations(keys)
    assert {text[1:] for text in answers[0].values()} == {f" {key}" for key in keys}


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    assert Store(f"sqlite:///{tmp_path / 'folder' / 'harness.db'}", create=False).translations(["a"]) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_may_only_be_read(tmp_path: Path) -> None:
    closed = [p for p in (tmp_path, *tmp_path.parents) if not p.stat().st_mode & 0o001]
    modes = [p.stat().st_mode for p in closed]
    url = f"sqlite:///{tmp_path / 'harness.db'}"
    path = tmp_path / "harness.db"
    Store(url).keep_translations(TEXTS)
    for each in closed:
        each.chmod(0o755)
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        with nobody():
            store = Store(url, create=False)
            assert store.translations(list(TEXTS)) == TEXTS
            with pytest.raises(UserError, match=r"check that it is there, may be written"):
                store.keep_translations({"new": "text"})
    finally:
        for each, mode in zip(closed, modes, strict=True):
            each.chmod(mode)


def test_leases_and_records_go_on_beside_translations(store: Store) -> None:
    of, owner = stage(), Owner.current()
    store.keep_translations({of.key: "a text under a stage's key"})
    assert store.lease(of.key, owner) == "granted"
    assert store.commit(of, record(of), owner)
    assert store.statuses([of.key]) == {of.key: ("done", 1)}
