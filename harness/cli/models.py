"""`export`: a recorded stage as a folder of Hugging Face's, and on the hub. `predict`: new rows through one. `errors`: the
examples that a run got wrong, with their texts."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.progress import RowProgress, show_stages
from harness.cli.terminal import columns, escaped, print_lines, wrapped
from harness.commands.export import export as write
from harness.commands.predict import ROWS, classifier, predict_file, predict_row
from harness.commands.recorded import best_key, misclassified, recorded
from harness.commands.row_files import STANDARD_INPUT, kind_of, writer
from harness.errors import UserError
from harness.hub import Repository
from harness.planning.request import Request
from harness.store import DEFAULT_URL
from harness.wording import counted

if TYPE_CHECKING:
    import pandas as pd

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
    key = args.key
    if args.best:
        key = best_key(Request(methods=args.methods, tasks=args.tasks, sizes=args.sizes, store=args.store, flags=True))
    found = recorded(args.store, key, args.update)
    done = write(
        found,
        Path(args.out),
        show_stages,
        storage=args.storage,
        accept_difference=args.accept_difference,
        hub_name=args.push or "",
        license=args.license,
        onnx=args.onnx,
    )
    lines = [
        f"Exported {done.key[:12]}{found.after} to {done.folder}; loaded by {LOADED_BY[done.form]}.",
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


def errors(args: argparse.Namespace) -> int:
    """Print the examples of one split that a run got wrong, those of the highest confidence first."""
    out = Path(args.output) if args.output else None
    if out:
        kind_of(out, "--output")
        if out.exists():
            raise UserError(f"--output {args.output}: exists already; name a new file, or delete that one.")
    frame = misclassified(args.key, split=args.split, store=args.store or DEFAULT_URL)
    wrong, examples = frame.attrs["wrong"], counted(frame.attrs["rows"], "example")
    worded, order, _ = _MEASURES[frame.attrs["measure"]]
    what = worded.format(wrong=f"{wrong:,} of ", examples=f"{examples} of {args.split}")
    shown = frame.head(args.limit)
    if out and wrong:
        with writer(out) as write:
            write([{str(name): value for name, value in row.items()} for row in frame.to_dict("records")])
        end, shown = f"; written to {args.output}.", frame.head(0)
    elif len(shown) < wrong:
        end = f"; the {len(shown)} of the {order}:"
    else:
        end = ":" if len(shown) else "."
    print_lines([f"{what}{end}"], sys.stdout)
    if textless := frame.attrs["textless"]:
        print_lines(
            [escaped(f"Texts are missing ({textless}): rows are numbered in the split's own order.")], sys.stdout
        )
    for _, row in shown.iterrows():
        _print_example(row, frame.attrs["measure"], f"row {row['row']}: " if textless else "")
    return 0


_MEASURES: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "confidence": ("{wrong}{examples} are misclassified", "highest confidence", lambda share: f"{100 * share:.0f} %"),
    "difference": ("{examples}, scored by a regression", "largest errors", lambda value: f"off by {value:.3f}"),
    "f1": ("{wrong}{examples} are not answered exactly", "lowest F1", lambda f1: f"F1 {100 * f1:.0f}"),
}
"""By what orders mistakes: how many there are, which come first, and the measure of one, in words."""


def _print_example(row: pd.Series[Any], measure: str, place: str) -> None:
    values = {str(name): value for name, value in row.items()}
    given, predicted = values.pop("gold"), values.pop("predicted")
    sure = f" ({_MEASURES[measure][2](values.pop(measure))})"
    texts = [value for name, value in values.items() if isinstance(value, str) and name != "split"]
    gold, answer = (escaped(str(value)) or "no answer" for value in (given, predicted))
    print(f"\n{place}{gold} predicted as {answer}{sure}")
    for text in texts:
        print("\n".join(wrapped(f"  {escaped(' '.join(text.split()))}", columns(sys.stdout), 2)))
