"""A misspelt name or a value of the wrong type gives one sentence with the place and the closest match, and exit status 2."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cli.command import MOVIES

import harness
from harness.cli import main

Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("line", "place", "close"),
    [
        ("benhc --table few_shot", "unknown command 'benhc'", "bench"),
        ("bench --table few_shto", "--table: unknown table 'few_shto'", "few_shot"),
        ("bench --table few_shot --methods ft,cmml", "--methods: unknown method 'cmml'", "cmlm"),
        ("bench --table few_shot --tasks movis", "--tasks: unknown task 'movis'", "movies"),
        ("bench --table few_shot --preset papper", "--preset of table few_shot: unknown preset 'papper'", "paper"),
        (f"bench {MOVIES} --encoder bert-tny", "--encoder: unknown encoder 'bert-tny'", "bert-tiny"),
        (f"bench {MOVIES} --set optim.lrr=1", "--set optim.lrr=1: unknown key 'optim.lrr'", "optim.lr"),
        (f"bench {MOVIES} --set max_lenght=9", "unknown key 'max_lenght'", "max_length"),
        ("bench --tabel few_shot", "bench: unknown flag '--tabel'", "--table"),
        ("--versoin", "unknown flag '--versoin'", "--version"),
        ("bench --table few_shot --format jsn", "--format: unknown format 'jsn'", "json"),
        ("list methds", "unknown list 'methds'", "methods"),
    ],
)
def test_an_unknown_name_is_answered_with_the_closest(refused: Refused, line: str, place: str, close: str) -> None:
    said = refused(line)
    assert place in said
    assert f"Did you mean '{close}'? Known:" in said


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (
            "bench --table few_shot --sizes twenty",
            ["--sizes", "should be a valid integer, unable to parse string as an integer, not 'twenty'"],
        ),
        ("bench --table few_shot --seeds -1", ["--seeds: should be greater than or equal to 0, not '-1'"]),
        ("bench --table few_shot --methods ,", ["--methods", "',' has no name"]),
        ("bench --table few_shot --slots two", ["--slots", "should be a valid integer"]),
        *(
            (f"bench --table few_shot {flag} 0", [flag, "should be greater than or equal to 1, not '0'"])
            for flag in ("--num-workers", "--slots", "--micro-batch")
        ),
        ("bench --table few_shot --gpus-per-run nan", ["--gpus-per-run", "should be a finite number, not 'nan'"]),
        (f"bench {MOVIES} --set fine_tune.lr=fast", ["--set fine_tune.lr=fast", "valid number", "not 'fast'"]),
        (f"bench {MOVIES} --set fine_tune.lr=-1", ["--set fine_tune.lr=-1", "greater than 0", "not -1"]),
        (f"bench {MOVIES} --set optim.steps=true", ["--set optim.steps=true", "should be a number, not true"]),
        (
            f"bench {MOVIES} --set fine_tune.lr",
            ["--set fine_tune.lr: should be KEY=VALUE, for example fine_tune.lr=1e-5"],
        ),
        (f"bench {MOVIES} --set fine_tune=1", ["unknown key 'fine_tune'", "fine_tune.*"]),
        (f"bench {MOVIES} --set max_length=8193", ["less than or equal to 8192, not 8193"]),
        (
            "bench",
            [
                "bench: name a table with --table, a file of labelled rows with --tasks, or a file with a target with --with; see 'harness bench --help'"
            ],
        ),
        ("bench --table", ["bench: argument --table: expected one argument"]),
        ("bench few_shot --table few_shot", ["unrecognized arguments: few_shot"]),
    ],
)
def test_a_wrong_value_names_the_flag_and_what_is_allowed(refused: Refused, line: str, parts: list[str]) -> None:
    said = refused(line)
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
