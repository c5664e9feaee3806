"""Paths as users type them."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import UserError, quoted

T = TypeVar("T")
PYTHON = ".py"
"""What the file of a method from outside ends with."""


def named_path(text: str) -> Path:
    """The path that a user named, `~` expanded; nothing need be there. Raises UserError for one that the system cannot look up: a name that is too long, a
    folder that may not be read."""
    path = Path(os.path.expanduser(text))
    try:
        path.exists()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{quoted(text)} cannot be looked up ({reason}); name another path.") from None
    return path


_KIND = r"((?:file:|sqlite:///|bpe[\w-]*:\d+:)?)(?:~[\w.-]*)?/"  # what an absolute path begins with
_FOLDERS = (
    re.compile(rf"(?<=\")(?!//){_KIND}(?:(?:[^\"\\\n]|\\.)*/)?([^\"/\n]+)(?=\")"),
    re.compile(rf"(?<=')(?!//){_KIND}(?:(?:[^',\n]|,(?![/~]))*/)?([^'/\n]+?)(?='|,[/~])"),
    re.compile(
        rf"(?m:^|(?<=[,\[])|(?<=[:-] ))(?!//)(?=[~/]|file:|sqlite:|bpe)(?:(?<=[,\[])|(?!.*[.:;] ))"
        rf"{_KIND}(?:(?:[^,\]\n]|,(?! ?[/~]))*/)?([^'/\n]+?)/*(?m:(?=$|['\]]|, ?[/~]))"
    ),
    re.compile(rf"(?<![\w.~:/<>}}-]){_KIND}+(?:[^\s'\"`,;()<>/]+/)*([^\s'\"`,;()<>/]+)"),
)
"""Of a path between quotes, of one that is a whole line or a value of YAML, and of others, which end at a space or a bracket. How the third begins is
asked before the rest of its line is read: a line of JSON has millions of characters."""


def without_folders(text: str) -> str:
    """A text as it is published: of each absolute path in it the last part alone, since folders name people and machines."""
    for path in _FOLDERS:
        text = path.sub(r"\1\2", text)
    return text


def user_cache(name: str) -> Path:
    """Where the harness keeps what can be made again, in the user's cache; nothing need be there."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harness" / name


def check_writable(path: Path) -> None:
    """Raises UserError where a file or folder cannot be written, or made."""
    place = next(each for each in (path, *path.parents) if each.exists())
    if not os.access(place, os.W_OK) or (place != path and not place.is_dir()):
        raise UserError(f"{place} is not writable; name another place with its flag.")


def check_new_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out} exists already; name a new folder, or delete that one.")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder whose content is `out`'s when it is whole. `out` is new, or an empty folder, perhaps the current one or one behind a link. Raises OSError
    that names `out`."""
    import tempfile  # takes as long as all of --help's other imports

    place = out.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    hidden = place.with_name(f".{place.name}.")
    with _named(out, hidden), tempfile.TemporaryDirectory(prefix=hidden.name, dir=place.parent) as folder:
        yield Path(folder)
        place.mkdir(exist_ok=True)
        for path in Path(folder).iterdir():
            shutil.move(path, place)


_OPENED = re.compile("/dev/(stdout$|stderr$|fd/)|/proc/")
"""Of another program: its content may be more than this command's, as after `>> FILE`."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, whose content is `path`'s once it is whole: a file, or the one behind a link, is replaced at once and keeps its
    permissions; a device, a pipe or what another program has opened is written into. After an error what was there stays. Raises OSError that names `path`."""
    if _OPENED.match(os.path.abspath(path)) or (path.exists() and not (path.is_file() or path.is_dir())):
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            yield (part := Path(folder, path.name))
            with path.open("ab") as file:
                file.write(part.read_bytes())
        return
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{path.name}.{secrets.token_hex(4)}.part{path.suffix}")  # by its ending a writer packs it
    try:
        with _named(path, part):
            yield part
            if target.is_file():
                shutil.copymode(target, part)
            part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _named(path: Path, hidden: Path) -> Iterator[None]:
    """An OSError about `hidden`, or about no file, is one about `path`, which the user named; also what a library written in Rust makes of one."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        of_rust = re.search(r"\(os error (\d+)\)$", str(error))
        code = error.errno if isinstance(error, OSError) else of_rust and int(of_rust[1])
        if not code or not str(getattr(error, "filename", None) or hidden).startswith(str(hidden)):
            raise
        raise OSError(code, os.strerror(code), str(path)) from error


def replace_file(path: Path, content: bytes | str) -> None:
    """Writes a file at once, as `replacing` does; text as UTF-8."""
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def read_json(path: Path, version: int) -> dict[str, Any]:
    """What `write_json` wrote, or nothing: it only saves time."""
    try:
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return body if body["version"] == version else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_json(path: Path, body: dict[str, Any]) -> None:
    """Written whole or not at all, whoever else writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(body, indent=1))


def remembered(path: Path, key: str, make: Callable[[], T]) -> T:
    """`make()`, a JSON value, kept in a file under a key; nothing is kept where it cannot be written."""
    known = read_json(path, 1)
    if key not in known:
        known[key] = make()
        with suppress(OSError):
            write_json(path, known | {"version": 1})
    found: T = known[key]
    return found
