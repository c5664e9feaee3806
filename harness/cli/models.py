"""Models and what is the user's own. `errors`: the examples that a run got wrong. `export`: a stage as a folder of Hugging Face's. `predict`: new
rows through one. `init`: a task's YAML file for a file of rows. `check`: a method from outside, held to the contract of the built-in ones."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from harness.cli.progress import RowProgress, show
from harness.cli.terminal import print_lines, say
from harness.commands.export import export as write
from harness.commands.predict import ROWS, STANDARD_INPUT, check_new, classifier, predict_file, predict_row, writer
from harness.commands.recorded import best_key, misclassified, recorded
from harness.errors import UserError
from harness.methods import read_method
from harness.paths import PYTHON, named_path, replace_file
from harness.planning.request import LABELLED, YAML, Request, flag_of, has_rows
from harness.specs import digest_of
from harness.store import DEFAULT_URL
from harness.tasks.inferred import infer_task, task_yaml
from harness.tasks.sources import TextSource
from harness.tasks.task import load_user_task
from harness.wording import counted
from harness.yaml_files import dumped

MISTAKES = {
    "confidence": ("{wrong}{examples} are misclassified", "highest confidence", 100, "{:.0f} %"),
    "difference": ("{examples}, scored by a regression", "largest errors", 1, "off by {:.3f}"),
    "f1": ("{wrong}{examples} are not answered exactly", "lowest F1", 100, "F1 {:.0f}"),
}
"""By what orders mistakes: how many there are, which come first, and the measure of one, in words."""


def errors(args: argparse.Namespace) -> int:
    """Print the examples of one split that a run got wrong, those of the highest confidence first."""
    out, split = Path(args.output) if args.output else None, args.split
    if out:
        check_new(out)
    frame = misclassified(args.key, split=split, store=args.store or DEFAULT_URL)
    wrong, textless, measure = (frame.attrs[name] for name in ("wrong", "textless", "measure"))
    worded, order, scale, number = MISTAKES[measure]
    what = worded.format(wrong=f"{wrong:,} of ", examples=f"{counted(frame.attrs['rows'], 'example')} of {split}")
    shown = frame.head(0 if out else args.limit)
    end = ":" if len(shown) else "."
    if out and wrong:
        with writer(out) as write_rows:
            write_rows([{str(name): value for name, value in row.items()} for row in frame.to_dict("records")])
        end = f"; written to {args.output}."
    elif len(shown) < wrong:
        end = f"; the {len(shown)} of the {order}:"
    missing = [f"Texts are missing ({textless}): rows are numbered in the split's own order."] if textless else []
    print_lines([f"{what}{end}", *missing])
    for row in shown.to_dict("records"):
        gold, predicted = (str(row.pop(name)) or "no answer" for name in ("gold", "predicted"))
        place = f"row {row['row']}: " if textless else ""
        print(f"\n{place}{gold} predicted as {predicted} ({number.format(scale * row[measure])})")
        texts = [value for name, value in row.items() if isinstance(value, str) and name != "split"]
        print_lines(f"  {' '.join(text.split())}" for text in texts)
    if 0 < len(shown) < wrong:
        say("More: --limit N; all of them in a file: --output FILE.")
    return 0


LOADED_BY = {
    "classifier": "AutoModelForSequenceClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "masked_lm": "AutoModelForMaskedLM",
    "encoder": "AutoModel and the code in its README.md",
    "relative": "harness alone (--encoder, harness predict): transformers has no class with relative positions",
}


def export(args: argparse.Namespace) -> int:
    """Write the folder, and say what was checked."""
    if bool(args.key) == args.best:
        raise UserError("export: name a key ('harness list runs'), or give --best for the best run of the last bench.")
    asked = {name: getattr(args, name) for name in ("methods", "tasks", "sizes", "store")}
    found = recorded(args.store, best_key(Request(**asked)) if args.best else args.key)
    options = {name: getattr(args, name) for name in ("storage", "accept_difference", "license", "onnx")}
    done = write(found, Path(args.out), show, **options)
    lines = [f"Exported {done.key[:12]} to {done.folder}; loaded by {LOADED_BY[done.form]}.", *done.sentences]
    if found.stage.data.kind:
        out = shlex.quote(str(done.folder))
        lines.append(f"Predict for new rows: harness predict {out} --input new.csv --output scored.csv")
    print_lines(lines)
    return 0


def predict(args: argparse.Namespace) -> int:
    """Predict for the rows of a file, or for one on the command line. What goes to standard output is JSON lines and nothing else."""
    if args.row and (args.text or args.output or args.batch_size):
        raise UserError("predict: --text, --output and --batch-size are for --input; leave them out with --row.")
    model = classifier(args.model, store=args.store, storage=args.storage)
    if args.row:
        predict_row(model, args.row)
        return 0
    source, size = STANDARD_INPUT if args.input == "-" else Path(args.input), args.batch_size or ROWS
    if not args.output:
        predict_file(model, source, None, args.text, lambda done: None, size)
        return 0
    with RowProgress("rows predicted", 0) as progress:
        rows = predict_file(model, source, Path(args.output), args.text, progress, size)
    said = {"class": f"predicted class ({', '.join(model.kind.names)})", "score": "predicted number", "span": "answer"}
    print_lines([f"Wrote {counted(rows, 'row')} to {args.output}, each with its {said[model.kind.answer]}."])
    return 0


def init(args: argparse.Namespace) -> int:
    """Infer the task, write its file, and print it with the command that takes it. Overwrites nothing."""
    if not has_rows(args.file):
        raise UserError(f"init {args.file}: name a file of rows (.csv, .tsv, .jsonl or .parquet) or hub:OWNER/NAME.")
    said = {name: value for name in LABELLED if (value := getattr(args, name)) is not None}
    file = infer_task(args.file, lambda name: "FILE" if name == "tasks" else flag_of(name), TextSource(), **said)
    out = named_path(args.out or f"{file.name}.yaml")
    if out.suffix not in YAML:
        raise UserError(f"--out {out}: should end in .yaml.")
    if out.exists():
        raise UserError(f"{out}: exists already; name another file with --out, or delete it.")
    text = f"# harness bench --tasks {shlex.quote(out.name)}\n{dumped(task_yaml(file, out.parent))}"
    replace_file(out, text)
    load_user_task(out)  # what was written is what is read
    print(text, end="")
    say(f"Written to {out}. Next: harness plan --tasks {shlex.quote(str(out))}")
    return 0


def check(args: argparse.Namespace) -> int:
    """Print each law that does not hold, and how many do. 0: all do."""
    from harness.commands.contract import check as outcomes  # imports torch

    if not args.file.endswith(PYTHON):
        raise UserError(f"check {args.file}: name a Python file (.py) that defines a method.")
    path = named_path(args.file)
    method = read_method(path)
    source = digest_of(path.read_text(encoding="utf-8"))
    held, broken = 0, 0
    for law, how in outcomes(method, source):
        held, broken = held + (not how), broken + bool(how)
        if how:
            print_lines([f"BROKEN  {law}: {how}."])
    said = f"Method {method.name} ({method.title}), source {source[:8]} of {path.name}"
    print(f"{said}: {held} laws hold, {broken} do not.")
    if not broken:
        say(f"Next: harness plan --table few_shot --methods {shlex.quote(f'ft,{args.file}')}")
    return bool(broken)
