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

from harness.errors import UserError

T = TypeVar("T")
PYTHON = ".py"
"""What the file of a method from outside ends with."""


def named_path(text: str, place: str = "") -> Path:
    """The path that a user named, `~` expanded; nothing need be there.

    `place` names the flag or key in errors. Raises UserError for a path that the system cannot look up: a name that is
    too long, a `~USER` that does not exist, a folder that may not be read.
    """
    named = f"{place}: " if place else ""
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        user = text.partition("/")[0]
        raise UserError(f"{named}there is no user for '{_short(user)}'; write the path without '~'.") from None
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{named}'{_short(text)}' cannot be looked up ({reason}); name another path.") from None
    return path


_FOLDERS = re.compile(r"(?<![\w.~:/<>}-])((?:file:|sqlite:///)?)~?/(?:[^\s'\"`,;()<>/]+/)*([^\s'\"`,;()<>/]+)")


def without_folders(text: str) -> str:
    """A text as it is published: of each absolute path in it the last part alone, since folders name people and machines."""
    return _FOLDERS.sub(r"\1\2", text)


def user_cache(name: str) -> Path:
    """Where the harness keeps what can be made again, in the user's cache; nothing need be there."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harness" / name


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder whose content is `out`'s when it is whole. `out` is new, or an empty folder, perhaps the current one or one behind a link. Raises OSError."""
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    folder.mkdir()
    try:
        yield folder
        if out.exists():
            for path in folder.iterdir():
                shutil.move(path, out)
        else:
            folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write beside `path`, whose place it takes once it is whole; after an error the earlier one, or none, is there. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file at once, as `replacing` does."""
    with replacing(path) as part:
        part.write_bytes(content)


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
    replace_file(path, json.dumps(body, indent=1).encode())


def remembered(path: Path, group: str, key: str, make: Callable[[], T], most: int) -> T:
    """`make()`, a JSON value, kept under a key in a file that holds the last `most` of a group; nothing is kept where it cannot be
    written."""
    known: dict[str, T] = read_json(path, 1).get(group, {})
    if key not in known:
        known = dict([*known.items(), (key, make())][-most:])
        with suppress(OSError):
            write_json(path, {"version": 1, group: known})
    return known[key]


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
