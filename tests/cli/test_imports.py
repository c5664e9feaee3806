"""What the light commands import, as a user starts them: no training library, nothing that only reads data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli.command import MOVIES

TRAINING = {"torch", "ray", "transformers", "tokenizers", "optuna", "sklearn"}
DATA = {"pandas", "pyarrow", "datasets", "scipy"}


@pytest.mark.parametrize(
    ("line", "heavy"),
    [
        ("plan --table few_shot --preset paper", TRAINING | DATA | {"jinja2"}),
        ("bench --help", TRAINING | DATA | {"numpy", "sqlalchemy", "rich", "ruamel"}),
    ],
)
def test_a_light_command(line: str, heavy: set[str], workdir: Path) -> None:
    """A file of the current folder is no library of ours."""
    (workdir / "secrets.py").write_text("raise SystemError")
    words = [sys.executable, "-X", "importtime", "-m", "harness", *line.split()]
    done = subprocess.run(words, capture_output=True, text=True, cwd=workdir, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    names = (each.rsplit("|", 1)[1].strip() for each in done.stderr.splitlines() if each.startswith("import time:"))
    assert not heavy & {name.split(".")[0] for name in names}


def test_these_commands_import_neither_torch_nor_ray(workdir: Path) -> None:
    """One after another in one process, so that the first that imports one of them is named."""
    lines = ["list methods", "list tables", "show abc", "plan --table nothing", f"plan {MOVIES}", f"report {MOVIES}"]
    code = (
        "import sys; from harness.cli import main\n"
        f"for line in {lines!r}:\n"
        "    main(line.split())\n"
        "    heavy = {'torch', 'ray', 'transformers', 'optuna'} & set(sys.modules)\n"
        "    if heavy: sys.exit(f'{line} imported {heavy}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=workdir, check=False)
    assert done.returncode == 0, done.stderr
