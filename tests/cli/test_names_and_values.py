"""A misspelt name or a value of the wrong type gives one sentence with the place and the closest match, and exit status 2."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cli.command import MOVIES

import harness
from harness.cli import main
from harness.methods import METHODS
from harness.planning.table import table_names

Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("line", "place", "close"),
    [
        ("benhc --table few_shot", "unknown command 'benhc'", "bench"),
        ("bench --table few_shto", "--table: unknown table 'few_shto'", "few_shot"),
        ("bench --table few_shot --methods ft,cmml", "--methods: unknown method 'cmml'", "cmlm"),
        ("bench --table few_shot --methods tpat", "--methods: unknown method 'tpat'", "tapt"),
        ("bench --table few_shot --tasks movis", "--tasks: unknown task 'movis'", "movies"),
        ("plan --table few_shot --tasks stt2", "--tasks: unknown task 'stt2'", "sst2"),
        ("bench --table few_shot --preset papper", "--preset of table few_shot: unknown preset 'papper'", "paper"),
        (f"bench {MOVIES} --encoder bert-tny", "--encoder: unknown encoder 'bert-tny'", "bert-tiny"),
        (f"bench {MOVIES} --encoder mini/l/m", "--encoder: unknown encoder 'mini/l/m'", "minilm"),
        (f"bench {MOVIES} --set optim.lrr=1", "--set optim.lrr=1: unknown key 'optim.lrr'", "optim.lr"),
        (f"bench {MOVIES} --set optm.lr=1", "--set optm.lr=1: unknown key 'optm.lr'", "optim.lr"),
        (f"bench {MOVIES} --set fine_tune.step=1", "unknown key 'fine_tune.step'", "fine_tune.steps"),
        (f"bench {MOVIES} --set mlm_head.stepps=1", "unknown key 'mlm_head.stepps'", "mlm_head.steps"),
        (f"bench {MOVIES} --set max_lenght=9", "unknown key 'max_lenght'", "max_length"),
        (f"bench {MOVIES} --set sll.lam=1", "unknown key 'sll.lam'", "scl.lam"),
        ("bench --tabel few_shot", "bench: unknown flag '--tabel'", "--table"),
        ("bench --table few_shot --seed 3", "bench: unknown flag '--seed'", "--seeds"),
        ("plan --tables=few_shot", "plan: unknown flag '--tables'", "--table"),
        ("--versoin", "unknown flag '--versoin'", "--version"),
        ("bench --table few_shot --format jsn", "--format: unknown format 'jsn'", "json"),
        ("report --table few_shot --format ltex", "--format: unknown format 'ltex'", "latex"),
        ("list methds", "unknown list 'methds'", "methods"),
        ("list encoder", "unknown list 'encoder'", "encoders"),
    ],
)
def test_an_unknown_name_is_answered_with_the_closest(refused: Refused, line: str, place: str, close: str) -> None:
    said = refused(line)
    assert place in said
    assert f"Did you mean '{close}'? Known:" in said


@pytest.mark.parametrize(
    ("line", "known"),
    [
        (
            "bench --table qqqq",
            f"Known: {', '.join(table_names())}.",
        ),
        ("bench --table few_shot --methods zzz", f"Known: {', '.join(sorted(METHODS))}."),
        ("plan --table few_shot --preset xyz", "Known: laptop, paper, quick."),
        ("bench --table few_shot --sizes 30", "--sizes: unknown size '30'. Known: 20, 100, 1000."),
        ("list xyz", "Known: benches, corpora, encoders, methods, runs, spaces, studies, tables, tasks, translators."),
    ],
)
def test_where_nothing_is_close_all_are_named(refused: Refused, line: str, known: str) -> None:
    said = refused(line)
    assert said.endswith(known)
    assert "Did you mean" not in said


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("bench --table few_shot --sizes twenty", ["--sizes", "'twenty' is not a list of whole numbers"]),
        ("bench --table few_shot --seeds 1,x", ["--seeds", "'1,x' is not a list of whole numbers"]),
        ("bench --table few_shot --sizes 2.5", ["--sizes", "'2.5' is not a list of whole numbers"]),
        ("bench --table few_shot --seeds -1", ["--seeds: -1 is out of range; allowed are 0 to 4294967295"]),
        ("bench --table few_shot --subsets 1000", ["--subsets: 1000 is out of range; allowed are 0 to 999"]),
        ("bench --table few_shot --methods ,", ["--methods", "',' has no name"]),
        ("bench --table few_shot --tasks ,", ["--tasks", "',' has no name"]),
        ("bench --table few_shot --sizes ,", ["--sizes", "',' has no name"]),
        ("bench --table few_shot --slots two", ["--slots", "'two' is not a whole number"]),
        ("bench --table few_shot --slots -3", ["--slots", "'-3' is not a whole number"]),
        ("bench --table few_shot --num-workers 0", ["--num-workers", "'0' is not a whole number of 1 or more"]),
        ("bench --table few_shot --micro-batch -1", ["--micro-batch", "'-1' is not a whole number"]),
        (
            "bench --table few_shot --checkpoint-minutes nan",
            ["--checkpoint-minutes", "'nan' is not a number of minutes"],
        ),
        ("bench --table few_shot --gpus-per-run x", ["--gpus-per-run", "'x' is not a number of GPUs"]),
        ("bench --table few_shot --gpus-per-run -1", ["--gpus-per-run", "'-1' is not a number of GPUs"]),
        ("bench --table few_shot --gpus-per-run nan", ["--gpus-per-run", "'nan' is not a number of GPUs"]),
        (f"bench {MOVIES} --set fine_tune.lr=fast", ["--set fine_tune.lr=fast", "valid number", "not 'fast'"]),
        (f"bench {MOVIES} --set fine_tune.lr=-1", ["--set fine_tune.lr=-1", "greater than 0", "not -1"]),
        (f"bench {MOVIES} --set optim.steps=2.5", ["--set optim.steps=2.5", "valid integer", "not 2.5"]),
        (f"bench {MOVIES} --set optim.steps=true", ["--set optim.steps=true", "should be a number, not true"]),
        (f"bench {MOVIES} --set optim.schedule=cosine", ["'linear' or 'constant'", "not 'cosine'"]),
        (
            f"bench {MOVIES} --set fine_tune.lr",
            ["--set fine_tune.lr: should be KEY=VALUE, for example fine_tune.lr=1e-5"],
        ),
        (f"bench {MOVIES} --set fine_tune.lr=", ["--set fine_tune.lr=: should be KEY=VALUE"]),
        (f"bench {MOVIES} --set fine_tune=1", ["'fine_tune' needs a field, for example fine_tune.lr=1e-5"]),
        (f"bench {MOVIES} --set max_length=high", ["--set max_length=high", "valid integer", "not 'high'"]),
        (f"bench {MOVIES} --set max_length=8193", ["less than or equal to 8192, not 8193"]),
        (f"bench {MOVIES} --set mlm_head.steps=-1", ["greater than or equal to 0, not -1"]),
        (
            "bench",
            [
                "bench: name a table with --table, a file of labelled rows with --tasks, or a file with a target with --with; see 'harness bench --help'"
            ],
        ),
        ("show", ["show: the following arguments are required: key"]),
        ("list", ["list: the following arguments are required: methods|tasks|tables|spaces|encoders"]),
        ("bench --table", ["bench: argument --table: expected one argument"]),
        ("bench few_shot --table few_shot", ["unrecognized arguments: few_shot"]),
    ],
)
def test_a_wrong_value_names_the_flag_and_what_is_allowed(refused: Refused, line: str, parts: list[str]) -> None:
    said = refused(line)
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("cmlm.alhpa=1", ["unknown key", "Did you mean 'alpha'?"]),
        ("scl.lam=2", ["less than or equal to 1, not 2"]),
        ("cmlm.contrast=simcrl", ["'simsiam' or 'simclr', not 'simcrl'"]),
        ("cmlm.num_views=many", ["valid integer", "not 'many'"]),
    ],
)
def test_a_wrong_hyperparameter_names_its_key(refused: Refused, text: str, parts: list[str]) -> None:
    said = refused(f"bench --table few_shot --tasks movies --set {text}")
    assert said.startswith(f"harness: --set {text}: ")
    assert all(part in said for part in parts), said


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"harness {harness.__version__}\n"
    for words in (["--help"], ["bench", "--help"], ["list", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        assert "usage: harness" in capsys.readouterr().out


def test_without_arguments_three_commands_to_try_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert [f"harness {word}" in said for word in ("doctor", "plan --table few_shot", "bench --table few_shot")] == [
        True
    ] * 3
