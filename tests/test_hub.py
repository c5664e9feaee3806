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


@pytest.mark.parametrize(("kind", "word"), [("dataset", "data set"), ("model", "model")])
def test_what_is_there_and_what_is_not(kind: str, word: str, hub: StandIn, tmp_path: Path) -> None:
    code = f"{ASK}\nask('me/there', {kind!r})\nask('me/none', {kind!r})\nask('me/there', {kind!r}, 'nowhere')\nask('me/there', {kind!r}, None, 'b.txt')"
    said = elsewhere(code, tmp_path, HF_ENDPOINT=hub.address).splitlines()
    commit, file, folder = said[:3]
    assert commit == COMMIT
    assert Path(file).read_text() == (Path(folder) / "a.txt").read_text() == "a"
    fix = "correct the name, or log in with `hf auth login`."
    assert set(said[3:6]) == {f"UserError task mine: the hub has no {word} me/none (or it is private); {fix}"}
    wrong = f"UserError task mine: {word} me/there has no revision 'nowhere'; name a branch, a tag or a commit of it."
    assert set(said[6:9]) == {wrong}
    assert said[10].startswith(f"UserError task mine: {word} me/there has no file b.txt; correct")


def test_consent_is_asked_for(hub: StandIn, tmp_path: Path) -> None:
    said = elsewhere(f"{ASK}\nask('me/gated')", tmp_path, HF_ENDPOINT=hub.address).splitlines()
    page = f"{hub.address}/datasets/me/gated"
    wanted = (
        f"UserError task mine: data set me/gated asks for consent; give it on {page} and log in with `hf auth login`."
    )
    assert said[1:] == [wanted, wanted]


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
    code += "print(there.cached('a.txt'), there.fetch('a.txt'), there.cached_snapshot(['*']), there.cached('b.txt'), sep='\\n')"
    assert elsewhere(code, tmp_path, HF_HUB_OFFLINE="1").splitlines() == [first[1], *first[1:], "None"]


UPLOAD = """
from pathlib import Path
from harness.errors import UserError
from harness.hub import Repository
def upload(name, folder, private=True):
    remote = Repository('model', name, '--push', 'leave it out')
    try:
        remote.check_writable()
        print(remote.upload(Path(folder), 'a model', private=private))
    except UserError as error:
        print(type(error).__name__, error)
"""


def test_a_folder_is_uploaded_privately(hub: StandIn, tmp_path: Path) -> None:
    """And a second time to the same repository."""
    folder = tmp_path / "model"
    folder.mkdir()
    for version in ("first", "second"):
        (folder / "README.md").write_text(version)
        (folder / "model.safetensors").write_text(f"{version} weights")
        code = f"{UPLOAD}\nupload('me/new', {str(folder)!r})"
        said = elsewhere(code, tmp_path, HF_ENDPOINT=hub.address, HF_TOKEN="hf_mine")
        assert said == f"{hub.address}/me/new\n"
        there = hub.folder("me/new", "models")
        assert {path.name: path.read_text() for path in there.iterdir()} == {
            "README.md": version,
            "model.safetensors": f"{version} weights",
        }
    assert hub.private == {"me/new": True}
    elsewhere(
        f"{UPLOAD}\nupload('us/open', {str(folder)!r}, False)", tmp_path, HF_ENDPOINT=hub.address, HF_TOKEN="hf_mine"
    )
    assert hub.private["us/open"] is False


def test_who_may_not_upload_is_told_before(hub: StandIn, tmp_path: Path) -> None:
    folder = str(tmp_path)
    said = elsewhere(f"{UPLOAD}\nupload('me/new', {folder!r})", tmp_path, HF_ENDPOINT=hub.address)
    assert "--push: nobody is logged in to the hub; run `hf auth login`" in said
    code = f"{UPLOAD}\nupload('they/new', {folder!r})\nupload('new', {folder!r})\nupload('a/b/c', {folder!r})"
    lines = elsewhere(code, tmp_path, HF_ENDPOINT=hub.address, HF_TOKEN="hf_mine").splitlines()
    assert "--push they/new: the token is that of me; upload to one of me, us." in lines[0]
    assert all("write OWNER/NAME" in line for line in lines[1:])
    assert not any("create" in request for request in hub.asked)
