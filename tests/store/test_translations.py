"""A translation that was kept stays as it was, whoever asks and whoever else writes it."""

from __future__ import annotations

from harness.store import Store

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
