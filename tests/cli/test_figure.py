"""`report --figure`, and the runs that tables share in a plan: nothing is trained."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.command import Said, write_csv
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
            "unknown figure 'few_shot'. Known: alignment, coco_lm_crop, coco_lm_fractions, coco_lm_hours, context, contrast, copying, cosines, cost, embeddings, learning_curves, similar_pairs, taco_updates, taco_variants, unlabelled, variance, views, words",
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
        (["--figure", "contxt", "--format", "csv"], "unknown figure 'contxt'. Did you mean 'context'?"),
        (["--figure", "context", "--format", "md"], "a figure is png, svg, pdf or csv"),
        (
            ["--figure", "context", "--table", "few_shot"],
            "no row of table few_shot is pre-trained; name a table such as",
        ),
        (
            ["--figure", "copying", "--table", "taco_updates"],
            "pre-training is recorded of none of MLM, TACO; run 'harness",
        ),
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
    assert "2 runs trained again for this figure, because their weights were not kept" in said.err
    assert "It was trained again; its" in said.err
    assert "the state of the first token after the last layer" in said.err
    words = BENCH.format(encoder=folders["bert"], methods="ft,cmlm+scl").replace("bench", "report", 1)
    said = harness(f"{words} --figure embeddings --format svg")
    assert said.status == 1
    assert "1 of 2 panels are drawn" in said.err
    assert said.out.startswith("<?xml")
    words = BENCH.format(encoder=folders["bert"], methods="ft,cssl").replace("bench", "report", 1)
    said = harness(f"{words} --translator apertium:none --figure embeddings --format svg")
    assert said.status == 0, "a row that is skipped is no panel that is missing"


def test_a_plan_counts_the_runs_that_tables_share(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--table", "views"]) == 0
    assert "3 of these runs are runs of table few_shot, preset quick" in capsys.readouterr().out.replace("\n", " ")
    assert main(["plan", "--table", "scl_few_shot"]) == 0
    assert "are runs of table" not in capsys.readouterr().out


PRE_TRAINED = (
    "bench --table pretraining --methods PLAIN,MLM,COCO-LM --tasks sst2 --data data --sizes 100 --subsets 0 --encoder {encoder} --corpus corpus.txt "
    "--set max_length=64 --set pre_train.steps=4 --set pre_train.save_at=[20] --set pre_train.batch_size=8 --set fine_tune.steps=2 "
    "--set encoder.relative_buckets=0 --set pre_train.max_length=16 --set coco_lm.contrast_group=4"
)


def test_probes_are_measured_once_of_rows_and_saved_updates(
    harness: Callable[..., Said], workdir: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import tiny
    import trained

    from harness.commands import probe

    for module in ("harness.commands.bench", "harness.commands.trained"):
        monkeypatch.setattr(f"{module}.train", trained.train_here)
    trained.sentiment_folder(workdir / "data")
    rows, labels = tiny.texts(120, 1)
    write_csv(
        workdir / "data" / "sst2" / "train.csv", [(row[0], str(label)) for row, label in zip(rows, labels, strict=True)]
    )
    stsb = [
        (first, second, score)
        for (first, second), score in zip(tiny.texts(30, 5, pairs=True)[0], [5.0, 2.0] * 15, strict=True)
    ]
    for split, rows in (("train", stsb[:20]), ("validation", stsb[20:])):
        (workdir / "data" / "stsb").mkdir(exist_ok=True)
        lines = ["sentence1,sentence2,label", *(",".join(map(str, row)) for row in rows)]
        (workdir / "data" / "stsb" / f"{split}.csv").write_text("\n".join(lines) + "\n")
    (workdir / "corpus.txt").write_text("\n".join(text for (text,) in tiny.texts(80, 6)[0]))
    words = [word.replace("PLAIN", "No pre-training") for word in PRE_TRAINED.format(encoder=folders["bert"]).split()]
    assert harness(*words).status == 0

    def report(*more: str) -> Said:
        return harness("report", *words[1:], *more)

    def rows_of(figure: str) -> dict[tuple[str, str, str], str]:
        said = report("--figure", figure, "--format", "csv")
        assert said.status == 0, said.err
        rows = [row for row in csv.DictReader(io.StringIO(said.out)) if row["number"] == ""]
        return {(row["row"], row["update"], row["measure"]): row["value"] for row in rows}

    context = rows_of("context")
    pre_trained = {(row, update) for row in ("MLM", "COCO-LM") for update in ("2", "4")}
    assert {(row, update) for row, update, _ in context} == {("tiny-bert as it is", "0"), *pre_trained}
    for row in ("MLM", "COCO-LM"):
        intra, inter, gap = (
            float(context[row, "4", name])
            for name in ("intra_context_cosine", "inter_context_cosine", "contextual_score")
        )
        assert gap == pytest.approx(intra - inter)
        assert context[row, "2", "contextual_score"] != context[row, "4", "contextual_score"]
    cosines, aligned = rows_of("cosines"), rows_of("alignment")
    for (row, update, measure), value in cosines.items():
        assert update in ("0", "4")
        assert aligned[row, update, measure] == value, "one probe, two figures"
    pairs = rows_of("similar_pairs")
    assert float(pairs["MLM", "4", "similar_cosine"]) == pytest.approx(float(cosines["MLM", "4", "similar_cosine"]))
    assert {row for row, _, _ in rows_of("contrast")} == {"COCO-LM"}
    assert float(rows_of("copying")["COCO-LM", "4", "copy_accuracy_original"]) <= 1
    said = report("--figure", "words")
    assert "Word embeddings of 1 pair of frequent words" in said.err, said.err  # good and bad
    weights = sorted((workdir / ".harness" / "products").glob("*.step-2.safetensors"))
    assert len(weights) == 2
    with monkeypatch.context() as patch:
        patch.setattr(probe, "trained_models", None)  # nothing is measured again
        assert rows_of("context") == context
        for figure in ("context", "cosines", "similar_pairs"):
            assert report("--figure", figure, "--format", "svg").out.startswith("<?xml")
        said = report("--figure", "context")
        assert "contextual_score" in said.out
        assert "Every token of" in said.err
    monkeypatch.setattr(probe, "VERSION", 0)  # as if nothing were kept
    for path in weights:
        path.unlink()
    assert rows_of("context") == context, "weights trained again, bit for bit"
    assert not any(path.exists() for path in weights)
