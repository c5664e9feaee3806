"""The documents agree with the repository: links, anchors, names of files, and what the code cites of them."""

from __future__ import annotations

import html
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from harness.statistics.crossed import difference

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "harness"
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md")),
    *sorted((REPOSITORY / "docs").glob("**/*.md")),
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


def result_tables() -> ModuleType:
    """The script that writes tables of results into pages."""
    spec = importlib.util.spec_from_file_location("result_tables", REPOSITORY / "scripts" / "result_tables.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_anchors_and_files_that_are_named_exist(page: Path) -> None:
    wrong = []
    for target in LINK.findall(prose(page)):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if "://" not in name and (not path.exists() or (anchor and anchor not in anchors(path))):
            wrong.append(target)
    names = set() if page.name in HISTORY else {name.rstrip("/") for name in NAMED.findall(page.read_text())}
    assert [*wrong, *(name for name in sorted(names) if not (REPOSITORY / name).exists())] == []


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


def test_the_tables_of_results_are_those_of_their_files() -> None:
    module = result_tables()
    holding = [path for path in module.pages() if module.BLOCK.search(path.read_text(encoding="utf-8"))]
    assert REPOSITORY / "docs/findings.md" in holding
    for path in holding:
        text = path.read_text(encoding="utf-8")
        emptied = module.BLOCK.sub(lambda found: found[1] + found[4], text)
        assert module.written(emptied) == text != emptied, f"{path}: run python scripts/result_tables.py"


def scored(rows: dict[str, np.ndarray]) -> pd.DataFrame:
    """Test scores [subsets, seeds] of each row, as a file of results has them."""
    return pd.DataFrame(
        {"row": row, "column": "c", "metric": "accuracy", "size": 100, "subset": subset, "seed": seed, "test": score}
        for row, scores in rows.items()
        for (subset, seed), score in np.ndenumerate(scores)
    )


def test_a_missing_run_of_a_file_leaves_out_its_subset_and_its_mean_and_no_average_has_it() -> None:
    one, other = np.random.default_rng(0).random((2, 3, 2))
    module, frame = result_tables(), scored({"A": one, "B": other}).iloc[1:]
    [(size, column, row, ours)] = module.compared(frame, "A")
    assert (size, column, row, ours.num_subsets, ours.num_seeds) == (100, "c", "B", 2, 2)
    assert ours == difference((other - one)[1:], 0.01)
    assert module.score_rows(frame)[1][0] == ["A", "5/6"]
    frame = pd.concat([scored({"A": one}), scored({"A": other}).assign(column="d").iloc[1:]])
    average = module.averaged(frame, "Avg").query("column == 'Avg'").set_index(["subset", "seed"])["test"]
    means = {at: (one[at] + other[at]) / 2 for at in np.ndindex(3, 2) if at != (0, 0)}
    assert average.to_dict() == pytest.approx(means)


def test_the_terminal_of_the_readme_shows_the_table_of_the_session() -> None:
    """Both are of one run of `make demo`: scripts/terminal_picture.py, and the cells in docs/results.md."""
    picture = html.unescape((REPOSITORY / "docs/pictures/demo.svg").read_text(encoding="utf-8"))
    session = (REPOSITORY / "docs/results.md").read_text(encoding="utf-8").partition(">>> (100 * cells")[2]
    cells = re.findall(r"([A-Z]+) +(\d+\.\d\d) +(\d+\.\d\d)$", session.partition(">>>")[0], re.MULTILINE)
    drawn = re.findall(r"([A-Z]+)\s+(\d+\.\d\d)\s±\s(\d+\.\d\d)\s+(\d+\.\d\d)\s±\s(\d+\.\d\d)", picture)
    assert cells == [(row, *rest[:2]) for row, *rest in drawn] + [(row, *rest[2:]) for row, *rest in drawn]
    assert len(cells) == 8
