"""The hub's one client: each way in which a request can fail is one sentence of its own, said within seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub import COMMIT, StandIn, elsewhere, hanging_up, stand_in

ASK = """
from harness.errors import UserError
from harness.hub import Repository
def ask(name, kind='dataset', revision=None, file='a.txt'):
    there = Repository(kind, name, 'task mine', 'name a folder', revision)
    for call in (there.commit, lambda: there.fetch(file), lambda: there.snapshot(['*.txt'])):
        try:
            print(call())
        except UserError as error:
            print(type(error).__name__, error)
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path / "hub") as made:
        for kind in ("datasets", "models"):
            for name in ("me/there", "me/gated"):
                made.folder(name, kind).mkdir(parents=True)
                (made.folder(name, kind) / "a.txt").write_text("a")
        made.gated = {"me/gated"}
        yield made


def test_what_is_there_what_is_not_and_what_asks_for_consent(hub: StandIn, tmp_path: Path) -> None:
    """In order the commit, a file and a folder of files."""
    asked = "ask('me/there', {0}); ask('me/none', {0}); ask('me/there', {0}, 'nowhere'); ask('me/there', {0}, None, 'b.txt')"
    code = "\n".join([ASK, *(asked.format(repr(kind)) for kind in ("dataset", "model")), "ask('me/gated')"])
    said = elsewhere(code, tmp_path, HF_ENDPOINT=hub.address).splitlines()
    for word, lines in (("data set", said[:12]), ("model", said[12:24])):
        commit, file, folder = lines[:3]
        assert commit == COMMIT
        assert Path(file).read_text() == (Path(folder) / "a.txt").read_text() == "a"
        fix = "correct the name, or log in with `hf auth login`."
        assert {*lines[3:6]} == {f"UserError task mine: the hub has no {word} me/none (or it is private); {fix}"}
        wrong = f"{word} me/there has no revision 'nowhere'; name a branch, a tag or a commit of it."
        assert {*lines[6:9]} == {f"UserError task mine: {wrong}"}
        assert lines[10].startswith(f"UserError task mine: {word} me/there has no file b.txt; correct")
    page = f"{hub.address}/datasets/me/gated"
    asks = f"data set me/gated asks for consent; give it on {page} and log in with `hf auth login`."
    assert said[25:] == [f"UserError task mine: {asks}"] * 2


def test_a_hub_that_is_not_there_is_asked_once_a_minute(tmp_path: Path) -> None:
    """Not five times a file, as the client does."""
    with hanging_up() as (address, calls):
        for variables in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": address}):
            said = elsewhere(f"{ASK}\n[ask('me/there') for _ in range(9)]", tmp_path, **variables).splitlines()
            assert len(said) == 27
            assert len(set(said)) == 2
            for line in said:
                assert "me/there is not in the hub cache and cannot be fetched (" in line
                assert line.startswith("NotAtHand task mine: ")
                assert line.endswith("connect, set HF_ENDPOINT to a mirror, or name a folder.")
            assert len(calls) < 9
        assert calls


def test_what_was_fetched_needs_no_hub(hub: StandIn, tmp_path: Path) -> None:
    first = elsewhere(f"{ASK}\nask('me/there')", tmp_path, HF_ENDPOINT=hub.address).splitlines()
    code = "from harness.hub import Repository\nthere = Repository('dataset', 'me/there', 'x', 'y')\n"
    code += "print(there.fetch('a.txt'), there.cached_snapshot(['*']), sep='\\n')"
    assert elsewhere(code, tmp_path, HF_HUB_OFFLINE="1").splitlines() == first[1:]
