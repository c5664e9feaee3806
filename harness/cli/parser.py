"""Every command with its flags, its handler and its help. Imports no more than a request needs, so that --help is fast."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, NoReturn

from pydantic import Field, NonNegativeInt

import harness
from harness.errors import UserError, masked, unknown
from harness.planning.request import MODEL_FIELDS, Amount, Count, Request, flag_of, names_of, read, said_of, value_of
from harness.yaml_files import one_of

FORMATS = ("text", "md", "latex", "csv", "json")
TABLE_FORMATS = (*FORMATS, "parquet")
COMPARE_FORMATS = (*TABLE_FORMATS, "html", "png", "svg", "pdf")
SUBMISSION = "glue-submission"
REPORT_FORMATS = (*COMPARE_FORMATS, SUBMISSION)
TABLE_VIEWS = (
    *("results", "notes", "settings", "classes", "figure"),
    *("differences", "variance", "ranks", "cost", "examples"),
)
"""What `report --view` prints of a table."""
CODE = "Python files of the methods that records name: nothing that a record names is run"
POINTS = Annotated[Amount, Field(gt=0)]
LISTED = ("methods", "tasks", "tables", "spaces", "encoders", "corpora", "translators", "benches", "studies", "runs")
"""What `list` takes."""


class Parser(argparse.ArgumentParser):
    """Raises one sentence for a mistake, where argparse would print the whole usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    @property
    def _place(self) -> str:
        """'bench' of 'harness bench'."""
        return self.prog.partition(" ")[2]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reports an unknown command or flag first, with the closest one: a missing flag is often a misspelt one. What follows a command is the command's."""
        groups: Any = self._subparsers and self._subparsers._group_actions
        if groups and args and not args[0].startswith("-") and args[0] not in groups[0].choices:
            raise unknown("command", args[0], groups[0].choices)
        for text in args[:1] if groups else args:
            flag = text.partition("=")[0]
            if flag.startswith("--") and flag != "--" and flag not in self._option_string_actions:
                known = [name for name in self._option_string_actions if name.startswith("--")]
                raise unknown("flag", flag, known, self._place)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self._place}{': ' if self._place else ''}{message}; see '{self.prog} --help'.")


def store(text: str) -> str:
    """The URL of a store, without a password: every user of the machine sees the words of a command."""
    if masked(text) != text:
        raise UserError(
            "--store: a password in the URL can be seen by every user of this machine; put it into PGPASSWORD or ~/.pgpass."
        )
    return text


# ---------------------------------------------------------------------------------------------------- groups of flags


def _flag(parser: Any, flag: str, help: str, metavar: str | None = None, kind: Any = str, **options: Any) -> None:
    """`kind`: as what its words are read, a type of pydantic's."""
    parser.add_argument(flag, type=partial(value_of, kind, place=flag), help=help, metavar=metavar, **options)


def _switch(parser: Any, flag: str, help: str) -> None:
    parser.add_argument(flag, action="store_true", help=help)


def _add(parser: Any, *named: str, **other: str) -> None:
    """The flags of fields of a request. `other`: a help text of its own, by field."""

    def value(name: str, text: str) -> Any:
        return getattr(read(Request, {name: text}, flag_of), name)

    for name in (*named, *other):
        said = said_of(name)
        flag: dict[str, Any] = {"help": other.get(name, said["help"])}
        if MODEL_FIELDS[name].annotation in (bool, bool | None):
            flag |= {"action": "store_const", "const": True}
        else:
            flag |= {"type": store if name == "store" else partial(value, name), "metavar": said["metavar"]}
        parser.add_argument(flag_of(name), **flag)


def _table_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("table")
    _flag(what, "--table", "table: a name ('harness list tables') or your own YAML file")
    _add(what, "preset", "methods", "reference")
    _data_flags(what)
    _labelled_flags(parser)
    help = (
        "YAML file of one row's hyperparameters (best.yaml of 'tune'); its target gives the flags left out; repeatable"
    )
    parser.add_argument("--with", action="append", metavar="FILE", help=help)
    _execution_flags(parser)


def _data_flags(what: Any) -> None:
    _add(what, "tasks", "sizes", "subsets", "seeds", *names_of("data"))
    help = "override of a value, such as optim.lr=1e-5, or of one row: CMLM:fine_tune.lr=1e-5; repeatable"
    what.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=help)


def _labelled_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("a file of labelled rows; what is left out is inferred and shown")
    _add(what, *names_of("labelled"))


def _execution_flags(parser: argparse.ArgumentParser) -> None:
    _add(parser.add_argument_group("execution and storage"), "store", "storage", *names_of("execution"))


def _recalled_flags(parser: argparse.ArgumentParser) -> None:
    _table_flags(parser)
    _switch(parser, "--last", "take every value that is not given from the last bench (of the table)")


def _rule_flags(parser: argparse.ArgumentParser, title: str) -> Any:
    """How rows are compared."""
    what = parser.add_argument_group(title)
    _flag(what, "--against", "row that the others are compared with (default: the first), or an encoder", "ROW")
    _flag(what, "--region", "rows are equivalent within this difference (default: 1)", "POINTS", kind=POINTS)
    _switch(what, "--items", "test items as a third random factor, so that conclusions hold for other test sets too")
    return what


def _format_flag(parser: Any, formats: Sequence[str], default: str | None = "text") -> None:
    help = f"output format (default: text{'' if default else ', or by the ending of --out'})"
    _flag(parser, "--format", help, "|".join(formats), kind=Annotated[str, one_of("format", formats)], default=default)


def _output_flags(parser: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    _flag(parser, "--other-system", "CSV with scores of another system on the same examples, as further rows", "FILE")
    _format_flag(parser, formats, None)
    folder = f"; for --format {SUBMISSION} a new folder" if SUBMISSION in formats else ""
    _flag(parser, "--out", f"file to write or replace (default: standard output){folder}", "FILE")


def _yes_flag(parser: argparse.ArgumentParser) -> None:
    _switch(parser, "--yes", "do not ask for confirmation before a plan of more than an hour")


# ----------------------------------------------------------------------------------------------------------- commands


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="harness",
        description="Train and compare contrastive objectives for language encoders.\nTry first: harness doctor, harness plan --table few_shot, harness bench --table few_shot.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="",
    )
    parser.add_argument("--version", action="version", version=f"harness {harness.__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=Parser, help="one of those below"
    )

    def group(title: str) -> None:
        parser.epilog = f"{parser.epilog}\n{title}:\n"

    def command(name: str, handler: str, help: str) -> argparse.ArgumentParser:
        """`handler`: MODULE:FUNCTION below `harness.cli`."""
        parser.epilog = f"{parser.epilog}  {name:<9} {help}\n"
        made: argparse.ArgumentParser = commands.add_parser(name, description=help)
        made.set_defaults(handler=f"harness.cli.{handler}")
        return made

    group("train")
    plan = command("plan", "bench:plan", "show what a bench would run, what is done and what it costs; trains nothing")
    _table_flags(plan)
    _add(plan, "keep")
    detect = "smallest difference that the plan detects with 80 %% power, and the cheapest design for this one"
    _flag(plan, "--detect", detect, "POINTS", kind=POINTS)
    what = _rule_flags(plan, "a sealed comparison")
    _switch(what, "--seal", "keep rows, columns, design, decision rule and power in the store, before the first run")

    bench = command("bench", "bench:bench", "train the missing runs of a table and print it")
    _table_flags(bench)
    _add(bench, "keep", "track")
    _format_flag(bench, TABLE_FORMATS)
    _yes_flag(bench)
    bench.set_defaults(out=None)

    tune = command("tune", "tune:tune", "search a method's hyperparameters over subsets and seeds")
    tune.add_argument("method", help="method: 'cmlm', several as 'cmlm+scl', or its own Python file")
    what = tune.add_argument_group("search")
    _flag(what, "--space", "search space: a name ('harness list spaces') or your own YAML file", "FILE", default="")
    mode = what.add_mutually_exclusive_group()
    sampled = "sample from the space's distributions (default where it has some)"
    for name, help in (("grid", "run every point of the space's grid"), ("search", sampled)):
        mode.add_argument(f"--{name}", dest="mode", action="store_const", const=name, help=help)
    _flag(what, "--preset", "preset of the space: quick, laptop, paper or, for one task, paper_TASK (default: quick)")
    _flag(what, "--trials", "number of trials (a grid runs all of its points)", kind=Count)
    _flag(what, "--sampler", "sampler: tpe or random; of a grid, draws from its values (default: all points)", "NAME")
    _flag(what, "--racing", "rule that stops trials early: paired or none", "RULE")
    _flag(what, "--metric", "dev metric to optimise (default: what checkpoints are selected by)", "NAME")
    _flag(what, "--seed", "sampler seed (default: 0)", kind=NonNegativeInt, default=0)
    _data_flags(tune.add_argument_group("data"))
    _labelled_flags(tune)
    end = tune.add_argument_group("results")
    _flag(end, "--out", "folder of best.yaml, tables and plots (default: beside the store)", "FOLDER")
    _switch(end, "--plan", "show what is left of the study and what it costs; train nothing")
    _format_flag(end, FORMATS)
    _execution_flags(tune)
    _add(tune, "track")
    _yes_flag(tune)

    group("look at results")
    report = command("report", "report:report", "print a table from the store; without flags that of the last bench")
    _recalled_flags(report)
    report.add_argument("--view", choices=TABLE_VIEWS, help="what to print of the table (default: results)")
    _add(report, "track")
    _output_flags(report, REPORT_FORMATS)

    compare = command("compare", "report:compare", "compare the rows of a table: intervals, tests, verdicts")
    _recalled_flags(compare)
    what = _rule_flags(compare, "comparison")
    _output_flags(compare, COMPARE_FORMATS)

    listing = command("list", "show:listing", "list what is packaged, and the benches, studies and runs of a store")
    one = partial(value_of, Annotated[str, one_of("list", LISTED)], place="list")
    listing.add_argument("what", metavar="|".join(LISTED), type=one)
    _add(listing, store=f"{said_of('store')['help']}, for 'list benches', 'list studies' and 'list runs'")
    runs = listing.add_argument_group("for 'list runs'")
    _flag(runs, "--table", "runs of one table, by its own name")
    _add(runs, *names_of("filter"))

    show = command("show", "show:show", "show one record, its parents and the command that reproduces it")
    show.add_argument("key", help="key of a stage, or its first characters")
    _add(show, "store", "storage", methods=CODE)

    errors = command("errors", "models:errors", "show the examples that a run got wrong")
    errors.add_argument("key", help="key of a run, or its first characters ('harness list runs')")
    _flag(errors, "--split", "dev, test, or the name of a test set (default: dev)", default="dev")
    _flag(errors, "--limit", "examples to print (default: 5)", kind=Count, default=5)
    _flag(errors, "--output", "write all of them to a new .csv, .tsv, .jsonl or .parquet file", "FILE")
    _add(errors, "store", methods=CODE)

    group("use a model")
    export = command("export", "models:export", "write a model as a Hugging Face folder with a model card")
    export.add_argument("key", nargs="?", default="", help="key of a stage, or its first characters")
    _flag(export, "--out", "folder to write, new or empty", "FOLDER", required=True)
    _switch(export, "--onnx", "also write a classifier as model.onnx, checked by ONNX Runtime")
    which = export.add_argument_group("in place of a key")
    _switch(which, "--best", "the run of the last bench with the best dev score; the flags below select among its runs")
    _add(which, "methods", "tasks", "sizes")
    _flag(export, "--license", "licence that the card states, such as apache-2.0 (default: other)", "ID", default="")
    _add(export, "store", "storage")
    _switch(export, "--accept-difference", "export a retrained model whose predictions differ from the record's")

    predict = command("predict", "models:predict", "predict for new rows with an exported model or a recorded run")
    predict.add_argument("model", help="folder that 'export' wrote, or key of a run whose weights are stored")
    what = predict.add_mutually_exclusive_group(required=True)
    _flag(what, "--input", "rows: .csv, .tsv, .jsonl or .parquet, or - for JSON lines on standard input", "FILE")
    what.add_argument("--row", nargs="+", metavar="TEXT", help="one row in place of a file: its text, or both")
    _flag(predict, "--output", "new file of the same rows, scored (default: JSON lines on standard output)", "FILE")
    _flag(predict, "--batch-size", "rows read, predicted and written at a time (default: 2,048)", "N", kind=Count)
    _add(predict, text="text column, or two, comma-separated (default: the task's)")
    _add(predict, "store", "storage", methods=CODE)

    group("share a table")
    publish = command(
        "publish", "stores:publish", "write results and records as a folder that others check and continue"
    )
    publish.add_argument("folder", metavar="FOLDER", help="folder to write, new or of the same table")
    _switch(publish, "--without-labels", "leave out the gold labels of the examples, which 'merge' takes from the data")
    _recalled_flags(publish)

    merge = command("merge", "stores:merge", "take over the records of other stores and published folders")
    help = "store, folder that 'publish' wrote, or its file of records: a path or an URL"
    merge.add_argument("others", nargs="+", metavar="OTHER", type=store, help=help)
    _add(merge, "store", methods=CODE)
    _add(merge, data="data of what was published without labels (default: as its bench named them)")

    verify = command("verify", "stores:verify", "check a published file of results against the records of the store")
    verify.add_argument("file", metavar="FILE", help="file of 'report --format csv' or parquet, or folder of 'publish'")
    again = verify.add_argument_group("training again")
    _flag(again, "--rerun", "train K stages again, drawn from those of the file, and compare", "K", Count, default=0)
    _flag(verify, "--seal", "digest of a sealed plan, as it was published before the first run", "DIGEST")
    _add(verify, "store", "storage", methods=CODE)

    group("prepare")
    init = command("init", "models:init", "write a task's YAML file for a file of labelled rows")
    help = "file of labelled rows: .csv, .tsv, .jsonl, .parquet, hub:OWNER/NAME"
    init.add_argument("file", metavar="FILE", help=help)
    _labelled_flags(init)
    _flag(init, "--out", "the YAML file (default: named after the task, in this folder)", "FILE")

    check = command(
        "check", "models:check", "hold a method of your own, a Python file, to the contract of the built-in ones"
    )
    check.add_argument("file", help="Python file that defines a method (docs/extending.md)")

    doctor = command("doctor", "doctor:run", "check Python, torch, Ray, packages, data, store and disk")
    _add(doctor, "store", "storage", "data")
    _switch(doctor, "--clean", "delete weights and checkpoints that no stage left to train needs, after it asks")
    _flag(doctor, "--forget", "delete a bench, a study or all of a task, with what it alone needs, after it asks")
    _switch(doctor, "--yes", "do not ask before --clean or --forget deletes")
    return parser
