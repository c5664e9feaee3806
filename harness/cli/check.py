"""`check`: a method from outside, held to the contract of the built-in ones."""

from __future__ import annotations

import argparse
import shlex
import sys

from harness.cli.terminal import print_lines
from harness.contract import check as outcomes
from harness.errors import UserError
from harness.methods import read_method
from harness.paths import PYTHON, named_path
from harness.specs import digest_of


def check(args: argparse.Namespace) -> int:
    """Print each law that does not hold, and how many do. 0: all do."""
    if not args.file.endswith(PYTHON):
        raise UserError(f"check {args.file}: name a Python file (.py) that defines a method.")
    path = named_path(args.file, "check")
    method = read_method(path)
    source = digest_of(path.read_text(encoding="utf-8"))
    held, broken = 0, 0
    for outcome in outcomes(method, source):
        held += not outcome.broken
        broken += bool(outcome.broken)
        if outcome.broken:
            print_lines([f"BROKEN  {outcome.subject}: {outcome.law}: {outcome.broken}."], sys.stdout)
    print(
        f"Method {method.name} ({method.title}), source {source[:8]} of {path.name}: {held} laws hold, {broken} do not."
    )
    if not broken:
        print_lines([f"Next: harness plan --table few_shot --methods {shlex.quote(f'ft,{args.file}')}"])
    return bool(broken)
