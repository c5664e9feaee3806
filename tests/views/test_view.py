"""One view in every format: escaped, aligned, the same bytes each time."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.cells import cell_len

from harness.errors import UserError
from harness.views.view import FORMATS, PICTURES, Table, View, best, escape_latex, noted, shown, with_spread

NASTY = "a|b <i>*x*</i> & 5% {y} \\z ~^# $1 _q_ [é]"


def picture() -> Any:
    from matplotlib.figure import Figure

    drawn = Figure()
    drawn.add_subplot().set_title(NASTY)
    return drawn


def view(text: str = NASTY, **fields: Any) -> View:
    rows = [
        [text, best(with_spread("55.10", "1.20"))],
        ["FT", noted(with_spread("9.28", "10.40"), "a")],
        ["SCL", "7/15"],
    ]
    frame = pd.DataFrame({"row": [text, "FT"], "value": [1 / 3, None]})
    return View("x", frame, [Table(text, ["Method", "SST-2 (acc)"], rows)], [text, "two"], notes=["a: why"], **fields)


def test_numbers_spreads_and_marks_stand_below_one_another() -> None:
    lines = str(view("数据").written("text")).splitlines()
    assert lines[0] == "数据"
    assert lines[3].endswith("55.10 ±  1.20*")
    assert lines[4].endswith(" 9.28 ± 10.40 [a]")
    assert lines[3].index("±") + 2 == lines[4].index("±"), "the ideographs take two columns"
    assert lines[5].index("7/15") == lines[4].index("9.28")
    assert lines[6:] == ["", "a: why", "数据", "two"]


@pytest.mark.parametrize("format", FORMATS)
def test_equal_views_are_equal_bytes(format: str) -> None:
    assert view(picture=picture).written(format) == view(picture=picture).written(format)


def test_every_format_shows_the_same_text() -> None:
    found = view(picture=picture)
    markdown, latex, page = (str(found.written(format)) for format in ("md", "latex", "html"))
    assert "a\\|b \\<i\\>\\*x\\*\\</i\\>" in markdown
    assert "**55.10 ± 1.20**" in markdown
    assert "\\& 5\\% \\{y\\} \\textbackslash{}z \\textasciitilde{}\\textasciicircum{}\\# \\$1" in latex
    assert "\\textbf{55.10 $\\pm$ 1.20}" in latex
    page = page.replace("</figure>", "</img></figure>")  # as XML has it
    assert "".join(ElementTree.fromstring(f"<x>{page}</x>").itertext()).count(NASTY) == 3, "escaped, and balanced"
    assert "<b>55.10 ± 1.20</b>" in page
    assert "9.28 ± 10.40<sup>a</sup>" in page
    assert json.loads(found.written("json"))["x"] == [{"row": NASTY, "value": 1 / 3}, {"row": "FT", "value": None}]
    assert pd.read_csv(io.StringIO(str(found.written("csv"))))["value"][0] == 1 / 3
    assert repr(found) + "\n" == found.written("text")


def test_a_column_is_as_wide_as_it_shows() -> None:
    table = Table("", ["class", "n"], [["категория", "1"], ["日本語", "22"], ["x", "333"]], frozenset({0}))
    text = str(View("x", pd.DataFrame(), [table]).written("text"))
    assert {cell_len(line) for line in text.splitlines()} == {14}
    assert str(View("x", pd.DataFrame(), [table]).written("latex")).count("日本語") == 1


def test_latex_escapes() -> None:
    assert escape_latex("a_b & 5% #1 $x {y}") == r"a\_b \& 5\% \#1 \$x \{y\}"
    assert escape_latex("\\~^±") == r"\textbackslash{}\textasciitilde{}\textasciicircum{}$\pm$"
    assert escape_latex("--set a ?`b` '' –") == "-{}-set a ?{}`b` '{}' --"
    assert shown("é 漢\n\tx\x1b", "latex") == r"é 漢 x\textbackslash{}u001b"
    assert "LuaLaTeX" in str(view("漢").written("latex"))
    table = Table("", ["class", "n"], [["-1", "-1.5 to 1e-5"]])
    assert "-1 & $-$1.5 to 1e-5" in str(View("x", pd.DataFrame(), [table]).written("latex"))


def test_what_cannot_be_written_is_said() -> None:
    with pytest.raises(UserError, match="nothing to draw"):
        view().written(PICTURES[0])
    with pytest.raises(UserError, match="xlsx"):
        view().written("xlsx")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_pdflatex_compiles_it(tmp_path: Path) -> None:
    start = "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage[landscape,margin=15mm]{geometry}\\usepackage{booktabs}"
    table = str(view(NASTY * 3).written("latex"))
    (tmp_path / "x.tex").write_text(f"{start}\n\\begin{{document}}\n{table}\\end{{document}}\n")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "x.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull \\hbox" not in done.stdout
