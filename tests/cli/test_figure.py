"""`report --figure`, and the runs that tables share in a plan: nothing is trained."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.command import Said
from cli.conftest import BENCH, Benched

from harness.cli import main
from harness.store import Store
from harness.tasks import TASKS


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--figure", "view", "--format", "csv"], "unknown figure 'view'. Did you mean 'views'?"),
        (
            ["--figure", "few_shot", "--format", "png"],
            "unknown figure 'few_shot'. Known: embeddings, learning_curves, taco_updates, unlabelled, views",
        ),
        (["--figure", "views"], "a figure is png, svg, pdf or csv; add --format png"),
        (["--figure", "views", "--format", "md"], "a figure is png, svg, pdf or csv"),
        (["--figure", "views", "--table", "few_shot", "--format", "csv"], "leave --table few_shot out"),
        (["--table", "views", "--format", "svg"], "name a figure with --figure NAME"),
        (["--figure", "embeddings"], "a figure is png, svg, pdf or csv; add --format png"),
        (
            ["--figure", "embeddings", "--table", "few_shot", "--tasks", "sst2,cola", "--format", "csv"],
            "name one task with --tasks",
        ),
        (["--figure", "embeddings", "--table", "few_shot", "--format", "csv"], "no run of these cells is recorded"),
    ],
)
def test_wrong_words_say_what_to_do(
    words: list[str], says: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *words]) == 2
    assert says in capsys.readouterr().err


def test_an_empty_figure_says_what_is_missing(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--figure", "views", "--format", "csv"]) == 1
    out, err = capsys.readouterr()
    assert "0 of 5 points are drawn" in err
    assert [row["x"] for row in csv.DictReader(io.StringIO(out))] == ["1.0", "2.0", "3.0", "4.0", "5.0"]


def test_embeddings_of_the_best_runs_are_drawn_and_their_weights_made_again(
    harness: Callable[..., Said], benched: Benched, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CE and SCL on the tiny BERT: of two seeds the better one on dev, its vectors those of the restored model."""
    import trained

    monkeypatch.chdir(benched.folder)
    monkeypatch.setattr("harness.commands.trained.train", trained.train_here)
    before = sorted((benched.folder / ".harness").rglob("*"))
    words = BENCH.format(encoder=folders["bert"], methods="ft,scl").replace("bench", "report", 1)
    said = harness(f"{words} --figure embeddings --format csv")
    assert said.status == 0, said.err
    assert sorted((benched.folder / ".harness").rglob("*")) == before, "weights made for the figure stay"
    rows = list(csv.DictReader(io.StringIO(said.out)))
    store = Store("sqlite:///.harness/harness.db", create=False)
    records = store.records(benched.keys.values(), predictions=True)
    for row in ("FT", "SCL"):
        mine = [each for each in rows if each["row"] == row]
        runs = [records[benched.keys[row, seed]] for seed in (31, 42)]
        best = max(runs, key=lambda record: next(iter(record.dev_scores.values())))  # the first of equal ones
        assert {each["key"] for each in mine} == {best.key}
        test = list(best.predictions.values())[-1]
        names = TASKS["sst2"].classes
        assert [each["gold"] for each in mine] == [names[code] for code in test.gold]
        assert [each["predicted"] for each in mine] == [names[code] for code in test.logits.argmax(axis=1)]
        assert f"{row}, 20 examples: run {best.key[:12]}" in said.err
        assert -1 <= float(mine[0]["silhouette"]) <= 1
        assert 0 <= float(mine[0]["purity"]) <= 1
    assert "It was trained again; its" in said.err
    assert "the state of the first token after the last layer" in said.err
    words = BENCH.format(encoder=folders["bert"], methods="ft,cmlm+scl").replace("bench", "report", 1)
    said = harness(f"{words} --figure embeddings --format svg")
    assert said.status == 1
    assert "1 of 2 panels are drawn" in said.err
    assert said.out.startswith("<?xml")


def test_a_plan_counts_the_runs_that_tables_share(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--table", "views"]) == 0
    assert "3 of these runs are runs of table few_shot, preset quick" in capsys.readouterr().out.replace("\n", " ")
    assert main(["plan", "--table", "scl_few_shot"]) == 0
    assert "are runs of table" not in capsys.readouterr().out
