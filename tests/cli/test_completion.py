"""Completion: what each argument offers, and what a real bash and zsh complete."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


LINES = {
    "harness be": {"bench"},
    "harness bench --table few_shot --methods ft,cm": {"ft,cmlm"},
    "harness list me": {"methods"},
    "harness plan --methods ft,cmlm+sc": {"ft,cmlm+scl"},
    "harness plan --tasks cola,ss": {"cola,sst2"},
    "harness bench --keep ": {"best", "all", "none"},
    "harness tune cmlm --tr": {"--track", "--trials", "--translator"},
}


@pytest.fixture
def command(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH begins with a command `harness`."""
    program = tmp_path / "harness"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m harness "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}


BASH = """
eval "$(harness --completion)"
complete -p harness >/dev/null || exit 1
for COMP_LINE in "$@"; do
    COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; COMPREPLY=()
    _python_argcomplete harness
    echo "$COMP_LINE;${COMPREPLY[*]}"
done
"""
ZSH = """
compdef() { [[ $2 == harness ]] || exit 1 }
_describe() { found=(${(P)2}) }
eval "$(harness --completion)"
for BUFFER in "$@"; do
    CURSOR=${#BUFFER}; words=(${=BUFFER}); found=()
    _python_argcomplete
    print -r -- "$BUFFER;${(j: :)found[@]%%:*}"
done
"""


@pytest.mark.parametrize(("shell", "program"), [("bash", BASH), ("zsh", ZSH)])
def test_a_real_shell_completes(shell: str, program: str, command: dict[str, str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words = [shell, *(["-f"] if shell == "zsh" else ["--norc"]), "-c", program, shell, *LINES]
    done = subprocess.run(words, env=command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = dict(line.rsplit(";", 1) for line in done.stdout.splitlines())
    assert {line: set(words.split()) for line, words in said.items()} == LINES
