"""`init`: a task's YAML file for a file of labelled rows. `check`: a method from outside, held to the contract of the built-in ones."""

from __future__ import annotations

import argparse
import shlex
import sys

from harness.cli.terminal import print_lines
from harness.errors import UserError
from harness.methods import read_method
from harness.paths import PYTHON, named_path, replace_file
from harness.planning.request import LABELLED, YAML, has_rows
from harness.specs import digest_of
from harness.tasks.inferred import Description, infer_task, task_yaml
from harness.tasks.task import load_user_task
from harness.yaml_files import dumped


def init(args: argparse.Namespace) -> int:
    """Infer the task, write its file, and print it with the command that takes it. Overwrites nothing."""

    def option(name: str) -> str:
        return "FILE" if name == "tasks" else f"--{name.replace('_', '-')}"

    if not has_rows(args.file):
        raise UserError(
            f"init {args.file}: name a file of labelled rows (.csv, .tsv, .jsonl or .parquet) or hub:OWNER/NAME."
        )
    described = Description(**{name: value for name in LABELLED if (value := getattr(args, name)) is not None})
    task, _ = infer_task(args.file, described, option)
    out = named_path(args.out or f"{task.name}.yaml", "--out")
    if out.suffix not in YAML:
        raise UserError(f"--out {out}: should end in .yaml.")
    if out.exists():
        raise UserError(f"{out}: exists already; name another file with --out, or delete it.")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}.")
    text = f"# harness bench --tasks {shlex.quote(out.name)}\n{dumped(task_yaml(task, out.parent))}"
    replace_file(out, text)
    load_user_task(out)  # what was written is what is read
    print(text, end="")
    print_lines([f"Written to {out}. Next: harness plan --tasks {shlex.quote(str(out))}"])
    return 0


def check(args: argparse.Namespace) -> int:
    """Print each law that does not hold, and how many do. 0: all do."""
    from harness.contract import check as outcomes  # imports torch

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
