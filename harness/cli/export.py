"""`export`: a recorded stage as a folder of Hugging Face's, and on the hub. `predict`: a file classified with one."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from harness.cli.bench import live
from harness.cli.printing import print_lines
from harness.commands.export import export as write
from harness.commands.predict import classifier, predict_file
from harness.commands.recorded import after_update, best_key, recorded
from harness.errors import UserError
from harness.hub import Repository
from harness.tables.caption import counted
from harness.tables.request import Request

LOADED_BY = {
    "classifier": "AutoModelForSequenceClassification",
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
    key = args.key
    if args.best:
        key = best_key(Request(methods=args.methods, tasks=args.tasks, sizes=args.sizes, store=args.store, flags=True))
    found = recorded(args.store, key)
    if args.update:
        found = after_update(found, args.update)
    done = write(
        found,
        Path(args.out),
        live,
        storage=args.storage,
        accept_difference=args.accept_difference,
        name=args.push or "",
        license=args.license,
    )
    lines = [
        f"Exported {done.key[:12]}{found.after} to {done.folder}; loaded by {LOADED_BY[done.form]}.",
        *done.sentences,
    ]
    if remote:
        url = remote.upload(done.folder, f"harness export {done.key[:12]}", private=not args.public)
        lines.append(f"Uploaded to {url} ({'public' if args.public else 'private'}).")
    if found.stage.data.num_labels:
        out = shlex.quote(str(done.folder))
        lines.append(f"Classify a file: harness predict {out} --input new.csv --output scored.csv")
    print_lines(lines, sys.stdout)
    return 0


def predict(args: argparse.Namespace) -> int:
    """Classify the rows of a file."""
    from harness.cli.progress import RowProgress

    model = classifier(args.model, store=args.store, storage=args.storage)
    with RowProgress("rows classified") as progress:
        rows = predict_file(model, Path(args.input), Path(args.output), args.text, progress)
    what = f"{', '.join(model.classes)}" if model.classes else "a number"
    print_lines([f"Wrote {counted(rows, 'row')} to {args.output}, each with its predicted class ({what})."], sys.stdout)
    return 0
