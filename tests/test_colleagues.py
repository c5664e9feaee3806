"""What a colleague meets first: the example notebook, what a notebook shows, the citation, and the wheel in an environment of its own."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli.command import record_all, write_csv
from ruamel.yaml import YAML

import harness
from harness.api import StageRecord
from harness.api.arguments import in_notebook

REPOSITORY = Path(__file__).resolve().parent.parent


IPYTHON = SimpleNamespace(get_ipython=lambda: SimpleNamespace(config={"IPKernelApp": {}}), version_info=(9, 0))
"""As in a notebook's kernel."""


def cells() -> list[str]:
    body = json.loads((REPOSITORY / "docs/example.ipynb").read_text(encoding="utf-8"))
    assert all(cell.get("outputs", []) == [] for cell in body["cells"]), "no outputs in the repository"
    return ["".join(cell["source"]) for cell in body["cells"] if cell["cell_type"] == "code"]


def shown(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line, where that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


@pytest.mark.usefixtures("packaged", "workdir")
def test_the_notebook_runs_from_its_first_cell_to_its_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.commands.train.train", record_all)
    names = dict[str, Any]()
    monkeypatch.setitem(sys.modules, "IPython", IPYTHON)
    values = [shown(source, names) for source in cells()]
    assert names["done"].complete
    _, first, *_, last = capsys.readouterr().out.split("\r")
    assert first.rstrip() == "0 of 4 stages: FT/movies/n20/subset0/seed31 started"
    assert last.startswith("4 of 4 stages: ")
    assert sum(hasattr(value, "_repr_html_") for value in values) == len(values) - 1
    html = [value._repr_html_() for value in values if type(value).__name__ in ("BenchResult", "View")]
    assert len(html) == 2
    assert "<td" in html[0]
    assert ">FT<" in html[0]
    record = next(value for value in values if isinstance(value, StageRecord))
    assert record.key[:12] in record._repr_html_()
    shown(cells()[2], names)
    assert " stages: " not in capsys.readouterr().out, "the same cell again trains nothing"


def test_no_notebook_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_notebook(3) is None
    terminal = SimpleNamespace(get_ipython=lambda: SimpleNamespace(config={}))
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    assert in_notebook(3) is None


def test_the_citation_is_of_this_version() -> None:
    body = YAML(typ="safe", pure=True).load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert body["version"] == harness.__version__
    assert body["license"] == "Apache-2.0"
    assert {"cff-version", "title", "message", "authors"} <= body.keys()


@pytest.mark.slow
@pytest.mark.network
def test_the_wheel_benches_in_an_environment_of_its_own(bert: Path, tmp_path: Path) -> None:
    """`pip install` of the wheel, then a bench on a file of rows: whatever the checkout alone has is missed."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(REPOSITORY)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = str(tmp_path / "env/bin/python")
    constraints = str(REPOSITORY / "constraints.txt")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--constraint", constraints, str(wheel)], check=True)
    rows = [(f"the film was {('dull', 'fine')[i % 2]} and number {i}", ("bad", "good")[i % 2]) for i in range(200)]
    write_csv(tmp_path / "films.csv", rows, ("text", "label"))
    line = f"bench --tasks films.csv --encoder {bert} --sizes 20 --subsets 0 --seeds 31 --methods ft --slots 1 --set fine_tune.steps=4 --set max_length=64 --format csv"
    words, environment = (
        [str(tmp_path / "env/bin/harness"), *line.split()],
        {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("FT,ft,films,films,test,20,0,31,accuracy,"), done.stdout
