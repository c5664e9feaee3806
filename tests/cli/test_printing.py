"""Lines are wrapped between words on a terminal only, and no control character is printed."""

from __future__ import annotations

import io
import json
import sys

import pandas as pd
import pytest

from harness.cli import main
from harness.cli.terminal import duration, print_lines, print_table, standard_streams
from harness.views.page import Section, page
from harness.views.view import Table, View, noted
from harness.wording import escaped

TABLE = """100 training examples
Method        Movies (acc)  Another rather long title of a column (acc)
------------  ------------  -------------------------------------------
FT            55.10 ± 1.20*                                        7/15
w/ SimCLR     49.28 ± 0.40                                 50.00 ± 0.10

The caption says what differs from the paper, in a sentence that is longer than sixty columns, without-breaking-hyphens.
a: a second one.
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


def test_words_stay_whole_and_lines_fit(narrow: Terminal) -> None:
    text = (
        "Table few_shot, preset quick: each from 5 subsets; digest 90a68a056828a9492f548d4386dadbb7, sqlite:///"
        + "x" * 80
    )
    print_lines([text, "short"], narrow)
    lines = narrow.getvalue().splitlines()
    assert " ".join(" ".join(lines).split()) == f"{text} short"
    assert [len(line) > 60 for line in lines].count(True) == 1, "only the word that is longer than a line"
    assert all(line.startswith("  ") for line in lines[1:-1])


def test_elsewhere_a_sentence_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = io.StringIO()
    print_lines(["word " * 60], out)
    print_table(TABLE, out)
    assert out.getvalue() == "word " * 60 + "\n" + TABLE


def test_tables_are_not_wrapped(narrow: Terminal) -> None:
    print_table(TABLE, narrow)
    lines, before = narrow.getvalue().splitlines(), TABLE.splitlines()
    assert lines[:6] == before[:6]
    assert all(len(line) <= 60 for line in lines[6:])
    assert " ".join(" ".join(lines[6:]).split()) == " ".join(before[6:])


@pytest.mark.parametrize(
    "text", ["\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\rb", "a\nb", "\x9b2J", "\u202egnp.exe", "\u200fa", "\udcff"]
)
def test_nothing_steers_a_terminal_whatever_prints_it(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A sentence, a table, an error, a plain print and each format of a document; JSON still says the same."""
    assert escaped("Größe 3 × ½, 数据, 🙂") == "Größe 3 × ½, 数据, 🙂"
    table = Table(text, [text, "x"], [[text, noted("1", "a")]])
    view = View(text, pd.DataFrame(), [table], [text], notes=[text])
    with standard_streams():
        print_lines([text])
        print_table(text, sys.stdout)
        print(json.dumps(text, ensure_ascii=False))
        for format in ("text", "md", "latex"):
            sys.stdout.write_bytes(str(view.written(format)).encode())  # type: ignore[attr-defined]
        print(page(text, text, [Section("x", text, [table, [text]])], text), view._repr_html_())
    main(["show", text.encode(errors="replace").decode()])
    out, err = capfd.readouterr()
    assert (out + err).replace("\n", "").isprintable()
    assert json.dumps(text) in out.splitlines()


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (0.0, "1 s"),
        (20 / 3600, "20 s"),
        (59.7 / 3600, "1 min"),
        (0.1, "6 min"),
        (5.0, "5.0 h"),
        (30.0, "30.0 h"),
        (100.0, "4.2 days"),
        (407.2 * 24, "407.2 days"),
        (1e5, "11.4 years"),
    ],
)
def test_durations(hours: float, text: str) -> None:
    assert duration(hours) == text
