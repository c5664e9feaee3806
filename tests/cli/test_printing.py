"""Lines are wrapped between words on a terminal only, and no control character is printed."""

from __future__ import annotations

import io
import json
import sys

import pandas as pd
import pytest
from cli.command import Terminal

from harness.cli import main
from harness.cli.terminal import duration, print_lines, print_view, say, standard_streams
from harness.views.view import Table, View, noted, page

SENTENCE = "The caption says what differs from the paper, in a sentence that is longer than sixty columns, without-breaking-hyphens."
TABLE = Table(
    "100 training examples", ["Method", "Another rather long title of a column"], [["w/ SimCLR", "49.28" * 10]]
)


def test_on_a_terminal_words_stay_whole_and_lines_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a table are not wrapped. Elsewhere a sentence is a line."""
    monkeypatch.setenv("COLUMNS", "60")
    long, view = f"{SENTENCE} {'x' * 80}", View("x", pd.DataFrame(), [TABLE], [SENTENCE])
    screen, file = Terminal(), io.StringIO()
    for stream in (screen, file):
        print_lines([long, "short"], stream)
        monkeypatch.setattr("sys.stdout", stream)
        print_view(view)
    assert file.getvalue() == f"{long}\nshort\n{view.written('text')}"
    first, *lines = screen.getvalue().splitlines()
    assert " ".join(screen.getvalue().split()) == " ".join(file.getvalue().split())
    rows = str(view.written("text")).splitlines()[:4]
    assert [line for line in lines if line in rows] == rows
    assert [len(line) > 60 for line in (first, *lines) if line not in rows].count(True) == 1, "the word of 80 letters"
    assert lines[0].startswith("  ")


@pytest.mark.parametrize(
    "text", ["\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\rb", "a\nb", "\x9b2J", "\u202egnp.exe", "\u200fa", "\udcff"]
)
def test_nothing_steers_a_terminal_whatever_prints_it(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A sentence, a table, an error, a plain print and each format of a document; JSON still says the same."""
    table = Table(text, [text, "x"], [[text, noted("1", "a")]])
    view = View(text, pd.DataFrame(), [table], [text, "Größe 3 × ½, 数据, 🙂"], notes=[text])
    with standard_streams():
        say(text)
        print_view(view)
        print(json.dumps(text, ensure_ascii=False))
        for format in ("text", "md", "latex"):
            sys.stdout.write_bytes(str(view.written(format)).encode())  # type: ignore[attr-defined]
        print(page(text, text, [("x", text, view.html)], text), view._repr_html_())
    main(["show", text.encode(errors="replace").decode()])
    out, err = capfd.readouterr()
    assert (out + err).replace("\n", "").isprintable()
    assert json.dumps(text) in out.splitlines()
    assert "Größe 3 × ½, 数据, 🙂" in out


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        *((0.0, "1 s"), (20 / 3600, "20 s"), (59.7 / 3600, "1 min"), (0.1, "6 min"), (5.0, "5.0 h")),
        *((30.0, "30.0 h"), (100.0, "4.2 days"), (407.2 * 24, "407.2 days"), (1e5, "11.4 years")),
    ],
)
def test_durations(hours: float, text: str) -> None:
    assert duration(hours) == text
