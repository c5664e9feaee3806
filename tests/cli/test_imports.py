"""What the light commands import, as a user starts them: no training library, nothing that only reads data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = {"torch", "ray", "transformers", "tokenizers", "optuna", "sklearn"}
DATA = {"pandas", "pyarrow", "datasets", "scipy"}


def imported_by(folder: Path, line: str) -> set[str]:
    """Every module that `python -m harness` imports for a command line, by its first name; a file of the current folder is none."""
    (folder / "secrets.py").write_text("raise SystemError")
    words = [sys.executable, "-X", "importtime", "-m", "harness", *line.split()]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False)
    told = [each for each in done.stderr.splitlines() if not each.startswith("import time:")]
    assert done.returncode == 0, "\n".join(told)
    names = (each.rsplit("|", 1)[1].strip() for each in done.stderr.splitlines() if each.startswith("import time:"))
    return {name.split(".")[0] for name in names}


def test_a_plan_needs_neither_training_nor_data(workdir: Path) -> None:
    assert not (TRAINING | DATA | {"jinja2"}) & imported_by(workdir, "plan --table few_shot --preset paper")


@pytest.mark.parametrize("line", ["--help", "tune --help", "bench --help"])
def test_help_opens_no_store(workdir: Path, line: str) -> None:
    assert not (TRAINING | DATA | {"numpy", "sqlalchemy", "rich", "ruamel"}) & imported_by(workdir, line)
