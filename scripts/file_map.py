"""Writes the file map of CONTRIBUTING.md from the docstrings of the packages and modules of `harness/`: `python scripts/file_map.py`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DOCUMENT = REPOSITORY / "CONTRIBUTING.md"
BEGIN, END = "<!-- file map -->\n", "<!-- /file map -->\n"


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, without its full stop; '' where there is none."""
    paragraph = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    return re.split(r"\.(?:\s|$)", " ".join(paragraph.split()), maxsplit=1)[0].replace("|", "\\|")


def file_map(rooms: list[str]) -> str:
    """A table of the modules at the root, then one of each package in the order of `rooms`, its inner packages after it."""
    package = REPOSITORY / "harness"
    root = [path for path in sorted(package.glob("*.py")) if path.name != "__init__.py"]
    parts = [_table("| at the root | |", [(f"harness/{path.name}", path) for path in root])]
    for room in rooms:
        for init in sorted((package / room).rglob("__init__.py")):
            folder = init.parent
            name = folder.relative_to(REPOSITORY).as_posix()
            modules = [path for path in sorted(folder.glob("*.py")) if path != init]
            parts.append(_table(f"| `{name}/` | {first_sentence(init)} |", [(path.name, path) for path in modules]))
    return "\n".join(parts)


def _table(head: str, rows: list[tuple[str, Path]]) -> str:
    return "\n".join([head, "|:--|:--|", *(f"| `{name}` | {first_sentence(path)} |" for name, path in rows), ""])


def rooms_in(text: str) -> list[str]:
    """The packages in the order of imports, as `ROOMS` in tests/test_repository.py lists them."""
    listed = re.search(r"^ROOMS = (\[.*?\])", text, re.DOTALL | re.MULTILINE)
    assert listed, "tests/test_repository.py has no ROOMS"
    rooms: list[str] = ast.literal_eval(listed[1])
    return rooms


def current() -> str:
    """CONTRIBUTING.md with the map of today's files."""
    before, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
    rooms = rooms_in((REPOSITORY / "tests" / "test_repository.py").read_text(encoding="utf-8"))
    return before + BEGIN + file_map(rooms) + END + rest.split(END)[1]


if __name__ == "__main__":
    DOCUMENT.write_text(current(), encoding="utf-8")
