"""`export`: a recorded stage as a folder of Hugging Face's, and on the hub. `predict`: new rows through one."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from harness.cli.progress import RowProgress, show
from harness.cli.terminal import print_lines
from harness.commands.export import export as write
from harness.commands.predict import ROWS, classifier, predict_file, predict_row
from harness.commands.recorded import best_key, recorded
from harness.commands.row_files import STANDARD_INPUT
from harness.errors import UserError
from harness.hub import Repository
from harness.planning.request import Request
from harness.wording import counted

LOADED_BY = {
    "classifier": "AutoModelForSequenceClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "masked_lm": "AutoModelForMaskedLM",
    "encoder": "AutoModel and the code in its README.md",
    "relative": "harness alone (--encoder, harness predict): transformers has no class with relative positions",
}


def export(args: argparse.Namespace) -> int:
    """Write the folder, upload it where that is asked for, and say what was checked."""
    if bool(args.key) == args.best:
        raise UserError("export: name a key ('harness list runs'), or give --best for the best run of the last bench.")
    if args.public and not args.push:
        raise UserError("export: --public is for --push OWNER/NAME; leave it out.")
    remote = Repository("model", args.push, "--push", "leave --push out") if args.push else None
    if remote:
        remote.check_writable()
    key, said = args.key, list[str]()
    if args.best:
        key, said = best_key(Request(methods=args.methods, tasks=args.tasks, sizes=args.sizes, store=args.store))
    found = recorded(args.store, key, args.update)
    done = write(
        found,
        Path(args.out),
        show,
        storage=args.storage,
        accept_difference=args.accept_difference,
        hub_name=args.push or "",
        license=args.license,
        onnx=args.onnx,
    )
    lines = [
        f"Exported {done.key[:12]}{found.after} to {done.folder}; loaded by {LOADED_BY[done.form]}.",
        *said,
        *done.sentences,
    ]
    if remote:
        url = remote.upload(done.folder, f"harness export {done.key[:12]}", private=not args.public)
        lines.append(f"Uploaded to {url} ({'public' if args.public else 'private'}).")
    if found.stage.data.kind:
        out = shlex.quote(str(done.folder))
        lines.append(f"Predict for new rows: harness predict {out} --input new.csv --output scored.csv")
    print_lines(lines, sys.stdout)
    return 0


def predict(args: argparse.Namespace) -> int:
    """Predict for the rows of a file, or for one on the command line. What goes to standard output is JSON lines and nothing else."""
    if bool(args.input) == bool(args.row):
        raise UserError("predict: give --input FILE (- for standard input), or --row with the texts of one row.")
    if args.row and (args.text or args.output or args.batch_size):
        raise UserError("predict: --text, --output and --batch-size are for --input; leave them out with --row.")
    model = classifier(args.model, store=args.store, storage=args.storage, calibrated=args.calibrated)
    if args.row:
        predict_row(model, args.row)
        return 0
    source, size = STANDARD_INPUT if args.input == "-" else Path(args.input), args.batch_size or ROWS
    if not args.output:
        predict_file(model, source, None, args.text, lambda done: None, size)
        return 0
    with RowProgress("rows predicted", 0) as progress:
        rows = predict_file(model, source, Path(args.output), args.text, progress, size)
    what = model.kind.predicted
    print_lines([f"Wrote {counted(rows, 'row')} to {args.output}, each with its {what}."], sys.stdout)
    return 0
