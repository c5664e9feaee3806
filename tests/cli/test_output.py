"""Exit status 0 means that the table was written; a closed standard error does not stop the command."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import cast

import pytest
from cli.command import MOVIES, TrainingStartedError
from cli.conftest import Benched

from harness.cli import main
from harness.cli.terminal import OutputError, Stream, standard_streams
from harness.errors import KEPT


def unread() -> io.TextIOWrapper:
    """A pipe whose reading end is closed."""
    read, write = os.pipe()
    os.close(read)
    return open(write, "w", encoding="utf-8")


def full() -> io.TextIOWrapper:
    return open("/dev/full", "w", encoding="utf-8")


@pytest.mark.parametrize(("opened", "expected"), [(unread, 141), (full, 1)])
def test_a_table_that_was_not_written_is_no_success(
    opened: Callable[[], io.TextIOWrapper], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As text, as a help and as bytes."""
    said = io.StringIO()
    with opened() as out, opened() as help, opened() as data:
        monkeypatch.setattr("sys.stderr", said)
        for stream, words in ((out, ["list", "spaces"]), (help, ["--help"])):
            monkeypatch.setattr("sys.stdout", stream)
            assert main(words) == expected
        monkeypatch.setattr("sys.stdout", data)
        with standard_streams(), pytest.raises(OutputError) as caught:
            cast(Stream, sys.stdout).write_bytes(b"PAR1")
        assert (caught.value.errno == errno.EPIPE) is (expected == 141)
        for stream in (out, help, data):
            stream.flush()  # Python's own flush at the end prints nothing more
    assert said.getvalue().count("No space left on device") == said.getvalue().count("\n") == 2 * (expected == 1)


@pytest.mark.usefixtures("workdir")
def test_a_bench_goes_on_when_nobody_reads_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is printed there before anything is trained."""
    with unread() as err:
        err.reconfigure(line_buffering=True)
        monkeypatch.setattr("sys.stderr", err)
        with pytest.raises(TrainingStartedError):
            main(["bench", *MOVIES.split()])


def test_characters_that_the_terminal_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with standard_streams():
        print("70.1 ± 2.3")
        sys.stdout.flush()
    assert raw.getvalue() == b"70.1 \\xb1 2.3\n"


@pytest.mark.parametrize(
    ("ending", "expected"), [(">&-", 0), (">/dev/full", 1), ("2>&-", 0), ("<&- 2>&- >/dev/null", 0), ("2>/dev/full", 0)]
)
def test_the_status_that_a_shell_sees(ending: str, expected: int, tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m harness list methods {ending}', sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expected, done
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_an_argument_that_is_not_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", os.fsdecode(b"a\xff")]) == 2
    assert "the argument 'a\\xff' is not UTF-8 text" in capsys.readouterr().err


def test_parquet_is_not_printed_on_a_terminal(
    refused: Callable[..., str], workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is read or trained."""
    monkeypatch.setattr("harness.cli.terminal.Stream.isatty", lambda stream: True, raising=False)
    fix = "redirect it, as in harness report --format parquet > report.parquet."
    for words in ("report", f"bench {MOVIES}"):
        assert refused(f"{words} --format parquet").endswith(fix)
    monkeypatch.undo()
    assert "unknown format 'parquet'" in refused("tune ft --format parquet")


@pytest.mark.parametrize(
    "words",
    [
        "report --format html",
        "report --view variance --format parquet",
        "compare --format csv",
        "errors --split test --output",
    ],
)
def test_a_file_that_the_user_named(
    words: str, benched: Benched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is behind a link is replaced whole, or not at all where the disk is full, and keeps its permissions. A pipe stays a pipe and gets the same."""
    monkeypatch.chdir(benched.folder)
    command, new = f"{words} --out".replace("--output --out", "--output").split(), words.endswith("--output")
    command[1:1] = [benched.keys["FT", 31]] if new else []
    file, link, pipe = (tmp_path / name for name in ("file.jsonl", "link.jsonl", "pipe.jsonl"))
    link.symlink_to(file.name)
    if not new:
        file.write_text("before")
        file.chmod(0o640)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", partialmethod(fails_with, errno.ENOSPC))
            assert main([*command, str(link)]) == 2
        said = capsys.readouterr().err
        assert said.endswith(f"harness: {link}: cannot be used (No space left on device); {KEPT}.\n")
        assert file.read_text() == "before"
        assert main([*command, str(tmp_path)]) == 2
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert main([*command, str(pipe)]) == main([*command, str(link)]) == 0
        assert file.read_bytes() == reader.communicate(timeout=60)[0] != b"before"
    assert new or file.stat().st_mode & 0o777 == 0o640
    assert (link.is_symlink(), pipe.is_fifo()) == (True, True)
    assert sorted(tmp_path.iterdir()) == [file, link, pipe]


def fails_with(path: Path, number: int, *_: object) -> None:
    raise OSError(number, os.strerror(number))
