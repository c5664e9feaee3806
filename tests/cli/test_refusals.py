"""What a user wrote wrong is one sentence with the place and the fix, exit status 2, and nothing is trained or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli.command import MOVIES, SST2, sst2, write_csv

import harness
from harness.cli import main
from harness.yaml_files import packaged_files

Refused = Callable[..., str]
LONG = "x" * 300
REVIEWS = "name: reviews\ncolumns: [text]\nmetrics: [accuracy]\nclasses: [a, b]\n"


@pytest.fixture
def files(workdir: Path) -> Path:
    """Tables, points, tasks and rows of the user's own, each with one mistake."""
    table = packaged_files("benchmarks")["few_shot"].read_text(encoding="utf-8")
    old, new = "{name: TAPT, method: tapt}", "{name: TAPT, method: cmlm, set: {alpha: -2}}"
    assert old in table
    Path("alpha.yaml").write_text(table.replace(old, new, 1), encoding="utf-8")
    Path("point.yaml").write_text("method: taco\nset: {window: -1}\n", encoding="utf-8")
    Path("one.yaml").write_text(REVIEWS)
    Path("two.yaml").write_text(REVIEWS)
    write_csv(Path("wrong/sst2/train.csv"), [("plain", "5")])
    write_csv(Path("wrong/sst2/validation.csv"), sst2(30))
    return workdir


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("benhc --table few_shot", "unknown command 'benhc'. Did you mean 'bench'? Known: bench, "),
        ("bench --table few_shto", "--table: unknown table 'few_shto'. Did you mean 'few_shot'? Known: "),
        ("bench --table few_shot --tasks movis", "--tasks: unknown task 'movis'. Did you mean 'movies'? Known: "),
        (f"bench {MOVIES} --encoder bert-tny", "--encoder: unknown encoder 'bert-tny'. Did you mean 'bert-tiny'? Know"),
        (
            "bench --table few_shot --corpus boolq_prose",
            "--corpus boolq_prose: this table has no row that is pre-trained",
        ),
        ("bench --table few_shot --methods taco --set taco.contrast_group=9", "set taco.contrast_group to 8 or less"),
        ("bench --tabel few_shot", "bench: unknown flag '--tabel'. Did you mean '--table'? Known: "),
        ("bench --table few_shot --format jsn", "--format: unknown format 'jsn'. Did you mean 'json'?"),
        ("list tasks --seeds 31", "list tasks: --seeds is for 'list runs'; leave it out."),
        ("bench --table few_shot --seeds -1", "--seeds: should be greater than or equal to 0, not '-1'"),
        ("bench --table few_shot --methods ,", "--methods: ',' has no name"),
        (f"bench {MOVIES} --set fine_tune.lr=fast", "--set fine_tune.lr=fast: should be a valid number"),
        (f"bench {MOVIES} --set fine_tune.lr", "--set fine_tune.lr: should be KEY=VALUE, for example fine_tune.lr=1e-"),
        (
            "bench",
            "bench: name a table with --table, a file of labelled rows with --tasks, or a file with a target with",
        ),
        ("bench --table", "bench: argument --table: expected one argument"),
        ("plan --table few_shot --items", "plan: --items is part of a sealed comparison; add --seal, or leave it out."),
        ("plan --table alpha.yaml --tasks movies", "key rows.3.set.alpha: should be greater"),
        (
            f"plan {MOVIES} --methods taco --with point.yaml",
            "harness: point.yaml, line 2, key set.window: should be gre",
        ),
        ("bench --table nowhere.yaml", "nowhere.yaml: there is no such file"),
        (
            "bench --table few_shot --tasks one.yaml,two.yaml",
            "--tasks: one.yaml and two.yaml both name their task 'reviews'; rename one of them.",
        ),
        (f"bench {SST2} --data nowhere", "nowhere: there is no such folder; --data takes 'hub', or a folder"),
        (f"plan {SST2} --data wrong", "train.csv, line 2: label '5' is unknown"),
        *((f"plan {MOVIES} {flag}{LONG}", "File name too long") for flag in ("--encoder ", "--table ./")),
        (f"plan {MOVIES} --store sqlite:///{LONG}", "cannot be opened"),
        (
            f"bench {MOVIES} --store postgresql://someone:hush@127.0.0.1:1/x",
            "--store: a password in the URL can be seen",
        ),
    ],
)
@pytest.mark.usefixtures("files")
def test_one_sentence_names_the_place_and_the_fix(refused: Refused, line: str, said: str) -> None:
    assert said in (found := refused(line)), found
    assert "hush" not in found


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in {
        ("--version",): f"harness {harness.__version__}\n",
        (): "usage: harness",
        ("bench", "--help"): "usage: harness bench",
    }.items():
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        assert said in capsys.readouterr().out
