"""The documents agree with the repository: links, anchors, names of files, the file map, and what the code cites of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "harness"
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
]
HISTORY = ("CHANGELOG.md", "LOG.md")
"""Pages that say what was: files that they name may be gone."""
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?<![\w/.-])(?:harness|tests|benchmarks|search_spaces|docs|deploy|scripts)/[\w./-]*\w")
CITED = re.compile(r"(?<![\w/])(?:docs/)?[a-z_]+\.md\b")


def prose(path: Path) -> str:
    """A page without its code blocks, fenced or indented, in which a '#' begins a comment and no heading."""
    return re.sub(r"(?m)^    .*$|^```.*?^```$", "", path.read_text())


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"(?m)^#{1,6} +(.+?) *$", prose(path)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = sum(bool(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", each)) for each in found)
        found.add(f"{slug}-{count}" if count else slug)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_relative_links_and_anchors_exist(page: Path) -> None:
    wrong = []
    for target in LINK.findall(prose(page)):
        name, _, anchor = target.partition("#")
        if "://" in name or name.startswith("mailto:"):
            continue
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            wrong.append(target)
    assert not wrong


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in HISTORY], ids=lambda page: str(page.relative_to(REPOSITORY))
)
def test_files_that_are_named_exist(page: Path) -> None:
    names = {name.rstrip("/") for name in NAMED.findall(page.read_text())}
    missing = [name for name in sorted(names) if not (REPOSITORY / name).exists()]
    assert not missing


def file_map() -> dict[str, str]:
    """What CONTRIBUTING says of each file under harness/, by path: of a package by its heading, of a module by its row."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text().partition("## File map")[2].partition("\n#")[0]
    found: dict[str, str] = {}
    package = ""
    for row in re.findall(r"(?m)^\| `([\w./]+)` \| (.+) \|$", text):
        name, what = row
        if name.startswith("harness/"):
            package = name if name.endswith("/") else ""
            found[name] = what
        else:
            found[package + name] = what
    return found


def test_the_file_map_names_every_module_and_no_other() -> None:
    modules = {path.relative_to(REPOSITORY) for path in PACKAGE.rglob("*.py")} - {Path("harness/__init__.py")}
    there = {f"{path.parent}/" if path.name == "__init__.py" else str(path) for path in modules}
    named = set(file_map())
    assert not there - named, "say in CONTRIBUTING.md, 'File map', what they hold"
    assert not named - there, "CONTRIBUTING.md, 'File map', names files that are gone"


def test_what_the_code_cites_is_in_the_documents() -> None:
    """A citation is 'docs/papers.md C8' or 'docs/papers.md C14-C16': numbers of its tables."""
    items = set(re.findall(r"(?m)^\| ([A-Z]\d+) \|", (REPOSITORY / "docs/papers.md").read_text()))
    wrong = []
    for path in sorted([*PACKAGE.rglob("*.py"), *(REPOSITORY / "tests").rglob("*.py")]):
        text = path.read_text()
        if path == Path(__file__).resolve():
            continue
        if PACKAGE in path.parents:
            wrong += [f"{path.name}: {name}" for name in CITED.findall(text) if not (REPOSITORY / name).exists()]
        for numbers in re.findall(r"docs/papers\.md,?((?:[\s,-]+(?:and )?[SCTLD]\d+)+)", text):
            wrong += [f"{path.name}: {item}" for item in re.findall(r"[SCTLD]\d+", numbers) if item not in items]
    assert not wrong
