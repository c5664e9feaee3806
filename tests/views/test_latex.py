"""Tables of LaTeX compile: as a whole document, and pasted into a paper that loads booktabs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from views.runs import filled, result, results, rows_of

from harness.planning.request import Request
from harness.planning.resolve import resolve
from harness.planning.table import load_table
from harness.views.caption import Caption
from harness.views.comparison import rendered, rendered_variance
from harness.views.document import latex_document
from harness.views.numbers.comparison import compared
from harness.views.table import render
from harness.views.variance import decomposed

PAPER = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}Text.\n%s\\end{document}\n"


def tables() -> str:
    """A table with the paper's rows and a failed run, its comparisons and its variances."""
    request = Request(preset="paper", methods=("ft", "scl"), tasks=("sst2", "mrpc"), sizes=(20, 100), seeds=(31, 42))
    r = resolve(load_table("few_shot"), request)
    found = results(r)
    last = found[-1]
    place = (last.row, last.size, last.column, last.subset, last.seed)
    found[-1] = result(r, *place, status="failed", reason="a_b & 5% {x} \\y ~^# $1 [q] <é>")
    grid = filled(r, found, rows_of(r))
    return "\n".join(
        [
            render(grid, Caption(len(found), "files"), "latex"),
            rendered(compared(grid), "latex"),
            rendered_variance(decomposed(grid, {}), grid, "latex"),
        ]
    )


def test_comparisons_are_set_as_tables_are() -> None:
    text = tables()
    assert text.count("\\toprule") == text.count("\\bottomrule") == text.count("\\caption{") == 4
    assert "Verdict \\\\" in text
    assert "95 \\% interval" in text
    assert "(acc) & SCL & " in text
    body = text[text.index("\\begin{tabular}{llrrrrrrl}") :]
    body = body[: body.index("\\end{tabular}")]
    assert "$-$" in body
    assert " -" not in body.replace("$-$", "")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("whole", [True, False], ids=["a document", "in a paper"])
def test_pdflatex_compiles_them(whole: bool, tmp_path: Path) -> None:
    (tmp_path / "x.tex").write_text(latex_document(tables()) if whole else PAPER % tables())
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "x.tex"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")
    if whole:
        assert "Overfull \\hbox" not in done.stdout
