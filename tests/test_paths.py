"""A folder that is written whole or not at all, wherever the user wants it."""

from __future__ import annotations

import json
import os
import shlex
import stat
from pathlib import Path

import pytest

from harness.paths import new_folder, replace_file, without_folders
from harness.yaml_files import dumped


@pytest.mark.parametrize("where", ["new", "a/b/new", "empty", ".", "link", "../empty"])
def test_a_new_folder_is_where_it_was_asked_for(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "empty", "here/empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "here" / "link").symlink_to(tmp_path / "empty")
    monkeypatch.chdir(tmp_path / "here" / "empty" if where == "." else tmp_path / "here")
    with new_folder(Path(where)) as folder:
        assert not [*Path(where).glob("*")]
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("x")
    assert (Path(where) / "sub" / "file").read_text() == "x"
    assert [*tmp_path.rglob(".*")] == []


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_was_not_finished_leaves_nothing(there: bool, tmp_path: Path) -> None:
    if there:
        (tmp_path / "out").mkdir()

    def fail() -> None:
        with new_folder(tmp_path / "out") as folder:
            (folder / "file").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [*tmp_path.rglob("*")] == ([tmp_path / "out"] if there else [])


def test_what_is_no_file_of_its_own_is_written_into(tmp_path: Path) -> None:
    """A device, and what another program has opened, which may hold more than this."""
    device, kept = tmp_path / "null", tmp_path / "kept"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        device.symlink_to("/dev/null")
    replace_file(device, "text")
    assert device.is_char_device()
    with kept.open("w+") as file:
        file.write("before\n")
        file.flush()
        replace_file(Path(f"/dev/fd/{file.fileno()}"), "text\n")
        assert kept.read_text() == "before\ntext\n"


def test_a_full_disk_names_what_the_user_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No space left on device: .*/out'$"), new_folder(tmp_path / "out"):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("folder", ["/home/jane", "~jane", "/home/jane doe/my, data (old)", "/Users/jane/it's"])
def test_no_folder_is_published(folder: str) -> None:
    """Neither of a value, nor of several encoders, nor in JSON, YAML or a command; what is no path stays."""
    path = f"{folder}/a b.csv"
    for write in (
        str,
        lambda text: json.dumps({"data": [text, "and/or"], "url": "https://x/y"}),
        lambda text: f"{text},/b/c d",
        lambda text: dumped({"encoder": text, "tasks": [text, "hub:a/b"]}, lists_in_a_line=False),
    ):
        assert without_folders(write(path)) == write("a b.csv").replace("/b/c d", "c d")
    words = shlex.join(["harness", "bench", "--tasks", path, "--data", "hub", "--encoder", "/e/f,s3://g/h"])
    assert "jane" not in without_folders(words) or "'" in folder
    assert without_folders(words).endswith("a b.csv' --data hub --encoder f,s3://g/h")
