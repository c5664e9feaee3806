"""The flags of every command. Imports the standard library alone, so that --help is fast."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import harness
from harness.cli.argument_parser import Completion, Parser
from harness.cli.comparison_flags import comparison_flags, detect_flag, until_flags
from harness.cli.flag_types import count, keep, names, number, numbers, one_of, positive, store

LISTED = ("methods", "tasks", "tables", "spaces", "encoders", "corpora", "translators", "benches", "runs")
FORMATS = ("text", "md", "latex", "csv", "json")
TABLE_FORMATS = (*FORMATS, "parquet")
FIGURE_FORMATS = ("png", "svg", "pdf")
SUBMISSION = "glue-submission"
REPORT_FORMATS = (*TABLE_FORMATS, "html", *FIGURE_FORMATS, SUBMISSION)


def _choice_flags(parser: argparse.ArgumentParser) -> Any:
    what = parser.add_argument_group("table")
    what.add_argument("--table", help="table: a name ('harness list tables') or your own YAML file")
    what.add_argument("--preset", help="preset: paper, laptop or quick (default: quick)")
    what.add_argument("--methods", type=names, help="methods or rows of the table, comma-separated")
    _data_flags(what)
    return what


def _table_flags(parser: argparse.ArgumentParser) -> None:
    what = _choice_flags(parser)
    what.add_argument(
        "--with",
        dest="with_file",
        metavar="FILE",
        help="YAML file with a method's hyperparameters (best.yaml of 'tune'); its target gives the flags that are left out",
    )
    labelled_flags(parser)
    _execution_flags(parser)


def _data_flags(what: Any) -> None:
    what.add_argument(
        "--tasks", type=names, help="tasks, comma-separated: names, files of labelled rows (.csv ...) or YAML files"
    )
    what.add_argument("--sizes", type=numbers, help="numbers of labelled training examples, comma-separated")
    what.add_argument("--subsets", type=numbers, help="indices of training subsets from 0, comma-separated")
    what.add_argument("--seeds", type=numbers, help="training seeds, comma-separated")
    what.add_argument(
        "--protocol", help="which rows are train, dev and test: own, own_redrawn, own_small_dev or own_cross_validated"
    )
    what.add_argument("--encoder", help="encoder: a packaged name, a folder or a Hugging Face model id")
    what.add_argument("--data", help="data: 'hub', or a folder with TASK/SPLIT.parquet, .csv or .jsonl")
    what.add_argument("--corpus", metavar="NAME", help="pre-training corpus: a name, files or hub:OWNER/NAME")
    what.add_argument(
        "--translator", metavar="NAME", help="translator for the back-translations of CSSL ('harness list translators')"
    )
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override of a value, such as optim.lr=1e-5 or cmlm.alpha=0.3; repeatable",
    )


def labelled_flags(parser: argparse.ArgumentParser) -> None:
    """Of a file of labelled rows."""
    what = parser.add_argument_group("a file of labelled rows; what is left out is inferred and shown")
    what.add_argument("--text", type=names, metavar="COLUMN", help="text column, or the two of a pair: COLUMN,COLUMN")
    what.add_argument("--label", metavar="COLUMN", help="label column")
    what.add_argument("--kind", metavar="classes|regression", help="what the labels are")
    what.add_argument("--test", metavar="FILE", help="test set (default: a quarter of the rows, drawn by their text)")
    what.add_argument(
        "--dev", metavar="FILE", help="dev set, which selects checkpoints (default: a fifth of the other rows)"
    )
    what.add_argument(
        "--unlabelled", metavar="FILE", help="texts for post-training: a file, a folder or hub:OWNER/NAME"
    )
    what.add_argument(
        "--remove-overlap",
        action="store_const",
        const=True,
        default=None,
        help="leave out the unlabelled texts that stand in dev or test",
    )


def _execution_flags(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("execution and storage")
    _store_flags(where)
    where.add_argument(
        "--slots", type=count, default=0, help="runs at the same time (default: one per CPU core or GPU share)"
    )
    where.add_argument(
        "--gpus-per-run",
        type=number("GPUs such as 1 or 0.5"),
        default=None,
        help="GPUs reserved by each run, such as 1 or 0.5 (default: 1 if there is a GPU)",
    )
    where.add_argument(
        "--cpus-per-run",
        type=number("CPU cores such as 1 or 0.5", above_zero=True),
        default=1.0,
        help="CPU cores reserved by each run (default: 1)",
    )
    where.add_argument(
        "--num-workers",
        type=positive,
        default=None,
        help="workers that train one stage together by Ray Train (default: 1)",
    )
    where.add_argument(
        "--micro-batch",
        type=positive,
        default=0,
        help="sequences per forward pass on a worker; the batch size is unchanged",
    )
    where.add_argument(
        "--dev-points",
        type=count,
        default=0,
        help="score dev this often along a stage for its learning curve; selects nothing (default: 0)",
    )
    where.add_argument(
        "--checkpoint-minutes",
        type=number("minutes such as 10, or 0 for never"),
        default=10.0,
        help="minutes between two checkpoints of a running stage (default: 10; 0: none)",
    )
    where.add_argument(
        "--address", default="local", help="address of a Ray cluster: 'auto' or HOST:PORT (default: this machine)"
    )
    where.add_argument("--retry", action="store_true", help="also retrain diverged stages (failed stages always are)")


def _tune_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", help="method: 'cmlm', or several as 'cmlm+scl' ('harness list methods')")
    what = parser.add_argument_group("search")
    what.add_argument(
        "--space", metavar="FILE", help="search space: a name ('harness list spaces') or your own YAML file"
    )
    mode = what.add_mutually_exclusive_group()
    mode.add_argument("--grid", action="store_true", help="run every point of the space's grid")
    mode.add_argument(
        "--search", action="store_true", help="sample from the space's distributions (default where it has some)"
    )
    what.add_argument("--preset", help="preset: paper, laptop or quick (default: quick)")
    what.add_argument("--trials", type=positive, help="number of trials (a grid runs all of its points)")
    what.add_argument("--sampler", metavar="NAME", help="sampler: tpe, random, cmaes or nsga2; for a grid also grid")
    what.add_argument("--racing", metavar="RULE", help="rule that stops trials early: paired, asha, median or none")
    what.add_argument(
        "--metric", type=names, help="dev metric(s) to optimise; several, comma-separated, give a Pareto front"
    )
    what.add_argument("--seed", type=count, default=0, help="sampler seed (default: 0)")
    judged = parser.add_argument_group("data")
    _data_flags(judged)
    labelled_flags(parser)
    end = parser.add_argument_group("results")
    end.add_argument(
        "--out", metavar="FOLDER", help="folder of best.yaml, tables and plots (default: beside the store)"
    )
    end.add_argument("--final-test", action="store_true", help="score the best trial on the test set at the end")
    _format_flag(end, FORMATS)
    _execution_flags(parser)


def _store_flag(parser: Any, what: str = "database of records") -> None:
    default = "sqlite:///.harness/harness.db"
    parser.add_argument("--store", type=store, metavar="URL", help=f"{what} (default: {default})")


def _store_flags(parser: Any) -> None:
    _store_flag(parser)
    parser.add_argument(
        "--storage",
        metavar="URI",
        help="artifact storage (weights, checkpoints): a folder, s3://... or gs://... (default: beside the store)",
    )


def _format_flag(parser: Any, formats: Sequence[str]) -> None:
    parser.add_argument(
        "--format",
        type=one_of(formats),
        default="text",
        metavar="|".join(formats),
        help="output format (default: text)",
    )


def _output_flags(parser: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    parser.add_argument(
        "--format",
        type=one_of(formats),
        metavar="|".join(formats),
        help="output format (default: text, or by the ending of --out)",
    )
    folder = f"; for --format {SUBMISSION} a new folder, or a .zip" if SUBMISSION in formats else ""
    parser.add_argument("--out", metavar="FILE", help=f"file to write or replace (default: standard output){folder}")
    parser.add_argument(
        "--standalone", action="store_true", help="with --format latex: a whole document, which pdflatex compiles"
    )


def _keep_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep",
        type=keep,
        default="none",
        metavar="best|all|none",
        help="weights that stay in the storage: of each cell's best run by dev, of all stages, or none (default)",
    )


def _track_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--track",
        type=names,
        default=(),
        metavar="TRACKER",
        help="also write what is recorded to these trackers, comma-separated: tensorboard, mlflow, wandb",
    )


def _last_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--last", action="store_true", help="take every value that is not given from the last bench (of the table)"
    )


def _compare_flags(parser: argparse.ArgumentParser) -> None:
    _last_flag(parser)
    comparison_flags(parser)
    _output_flags(parser, FORMATS)


def _yes_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--yes", action="store_true", help="do not ask for confirmation before a plan of more than an hour"
    )


def _export_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "key", nargs="?", default="", help="key of a stage, or its first characters ('harness list runs')"
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="folder to write, new or empty")
    parser.add_argument("--update", type=positive, metavar="N", help="its weights after update N (default: the last)")
    which = parser.add_argument_group("in place of a key")
    which.add_argument("--best", action="store_true", help="the run of the last bench with the best dev score")
    which.add_argument("--methods", type=names, help="for --best: methods or rows of the table, comma-separated")
    which.add_argument("--tasks", type=names, help="for --best: the task")
    which.add_argument("--sizes", type=numbers, help="for --best: numbers of labelled training examples")
    hub = parser.add_argument_group("hub")
    hub.add_argument(
        "--license",
        default="",
        metavar="ID",
        help="licence that the model card states, such as apache-2.0 (default: other)",
    )
    hub.add_argument("--push", metavar="OWNER/NAME", help="upload to this repository of the Hugging Face hub, private")
    hub.add_argument("--public", action="store_true", help="make the repository public if it is new")
    _store_flags(parser)
    parser.add_argument(
        "--accept-difference",
        action="store_true",
        help="export a retrained model whose predictions differ from the record's (another kind of processor)",
    )


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="harness", description="Train and compare contrastive objectives for language encoders.")
    parser.add_argument("--version", action="version", version=f"harness {harness.__version__}")
    parser.add_argument("--completion", action=Completion, help="print the completion script of bash and zsh")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)

    bench = commands.add_parser("bench", help="train the missing runs of a table and print it")
    _table_flags(bench)
    until_flags(bench)
    _keep_flag(bench)
    _track_flag(bench)
    _format_flag(bench, TABLE_FORMATS)
    _yes_flag(bench)
    bench.set_defaults(handler="harness.cli.bench:bench", out=None, standalone=False)

    tune = commands.add_parser("tune", help="search a method's hyperparameters over subsets and seeds")
    _tune_flags(tune)
    _track_flag(tune)
    _yes_flag(tune)
    tune.set_defaults(handler="harness.cli.tune:tune")

    plan = commands.add_parser(
        "plan", help="show what a bench would run, what is done and what it costs; trains nothing"
    )
    _table_flags(plan)
    _keep_flag(plan)
    detect_flag(plan)
    plan.set_defaults(handler="harness.cli.bench:plan")

    report = commands.add_parser(
        "report", help="print a table from the store; without flags that of the last bench; trains nothing"
    )
    _table_flags(report)
    _last_flag(report)
    report.add_argument(
        "--figure",
        metavar="NAME",
        help="the figure of table NAME, 'cost' (score against FLOPs), 'variance' of the cells, 'embeddings' of a test set, or of pre-trained rows "
        "'context', 'words', 'cosines', 'alignment', 'similar_pairs', 'contrast' or 'copying': png, svg, pdf or csv",
    )
    _track_flag(report)
    _output_flags(report, REPORT_FORMATS)
    report.set_defaults(handler="harness.cli.bench:report")

    compare = commands.add_parser(
        "compare", help="compare rows of a table from the store: intervals, tests, verdicts; trains nothing"
    )
    _table_flags(compare)
    _compare_flags(compare)
    compare.set_defaults(handler="harness.cli.compare:compare")

    verify = commands.add_parser("verify", help="check a published file of results against the records of the store")
    verify.add_argument("file", metavar="FILE", help=".csv, .json or .parquet file that 'report --format' wrote")
    again = verify.add_argument_group("training again")
    again.add_argument(
        "--rerun",
        type=positive,
        default=0,
        metavar="K",
        help="train K stages again, drawn from those of the file, and compare them with their records",
    )
    again.add_argument("--seed", type=count, help="seed of the draw (default: 0)")
    _store_flags(verify)
    verify.set_defaults(handler="harness.cli.verify:verify")

    init = commands.add_parser("init", help="write a task's YAML file for a file of labelled rows")
    init.add_argument(
        "file", metavar="FILE", help="file of labelled rows: .csv, .tsv, .jsonl, .parquet or hub:OWNER/NAME"
    )
    labelled_flags(init)
    init.add_argument("--out", metavar="FILE", help="the YAML file (default: named after the task, in this folder)")
    init.set_defaults(handler="harness.cli.init:init")

    submit = commands.add_parser("submit", help="submit a bench or tune to a Ray cluster as a job")
    submit.add_argument(
        "--address",
        dest="cluster",
        metavar="ADDRESS",
        default="auto",
        help="address of the cluster: its dashboard's URL, HOST:PORT or auto (default: RAY_ADDRESS, else this machine)",
    )
    submit.add_argument("--runtime-env", metavar="FILE", help="YAML file with the job's Ray runtime environment")
    submit.add_argument("--id", metavar="NAME", help="name of the job (default: harness-TABLE-DATE-TIME-XXXX)")
    submit.add_argument("--follow", action="store_true", help="print the job's output and exit with its status")
    submit.add_argument("words", nargs=argparse.PARSER, metavar="bench|tune", help="the command, with its flags")
    submit.set_defaults(handler="harness.cli.submit:submit")

    listing = commands.add_parser("list", help=f"list {', '.join(LISTED)}")
    listing.add_argument("what", metavar="|".join(LISTED))
    _store_flag(listing, "database of records, for 'list benches' and 'list runs'")
    runs = listing.add_argument_group("for 'list runs'")
    runs.add_argument("--table", help="runs of one table, by its own name")
    runs.add_argument("--methods", type=names, help="methods or rows of the table, comma-separated")
    runs.add_argument("--tasks", type=names, help="tasks, comma-separated")
    runs.add_argument("--sizes", type=numbers, help="numbers of labelled training examples, comma-separated; 0: full")
    runs.add_argument("--subsets", type=numbers, help="indices of training subsets, comma-separated")
    runs.add_argument("--seeds", type=numbers, help="training seeds, comma-separated")
    listing.set_defaults(handler="harness.cli.show:listing")

    show = commands.add_parser(
        "show", help="show one record: its numbers, its parents and the command that reproduces it"
    )
    show.add_argument("key", help="key of a stage, or its first characters")
    _store_flags(show)
    show.set_defaults(handler="harness.cli.show:show")

    errors = commands.add_parser("errors", help="show the examples that a run got wrong, with their texts")
    errors.add_argument("key", help="key of a run, or its first characters ('harness list runs')")
    errors.add_argument("--split", default="dev", help="dev, test, or the name of a test set (default: dev)")
    errors.add_argument("--limit", type=positive, default=20, help="examples to print (default: 20)")
    errors.add_argument(
        "--output", metavar="FILE", help="write all of them to a new .csv, .tsv, .jsonl or .parquet file"
    )
    _store_flag(errors)
    errors.set_defaults(handler="harness.cli.runs:errors")

    translate = commands.add_parser(
        "translate", help="print training texts of a table beside their back-translations; makes those that are missing"
    )
    _choice_flags(translate)
    labelled_flags(translate)
    translate.add_argument("--limit", type=positive, default=2, help="examples of each task (default: 2)")
    _store_flag(translate, "database that keeps back-translations")
    _format_flag(translate, ("text", "csv"))
    translate.set_defaults(handler="harness.cli.translate:translate")

    export = commands.add_parser(
        "export", help="write a trained model as a Hugging Face folder with a model card, and upload it"
    )
    _export_flags(export)
    export.set_defaults(handler="harness.cli.export:export")

    predict = commands.add_parser(
        "predict", help="classify the rows of a file with an exported model or a recorded run"
    )
    predict.add_argument("model", help="folder that 'export' wrote, or key of a run whose weights are stored")
    predict.add_argument(
        "--input", required=True, metavar="FILE", help="rows to classify: .csv, .tsv, .jsonl or .parquet"
    )
    predict.add_argument("--output", required=True, metavar="FILE", help="new file of the same rows, scored")
    predict.add_argument(
        "--text", type=names, metavar="COLUMN", help="text column, or two, comma-separated (default: the task's)"
    )
    _store_flags(predict)
    predict.set_defaults(handler="harness.cli.export:predict")

    doctor = commands.add_parser("doctor", help="check Python, torch, Ray, packages, data, store and disk")
    _store_flags(doctor)
    doctor.add_argument("--data", help="data: 'hub' or a folder")
    doctor.add_argument(
        "--quarantine", action="store_true", help="move damaged records of the store to a separate table"
    )
    doctor.set_defaults(handler="harness.cli.doctor:run")
    return parser
