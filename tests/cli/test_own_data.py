"""A file of labelled rows on the command line: what it gives is shown before anything trains, what is wrong is one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from cli.command import sst2, write_csv
from cli.conftest import Harness

from harness.commands.prepare import prepare
from harness.commands.recorded import like_last
from harness.errors import UserError
from harness.planning.request import Request
from harness.planning.runs import Plan
from harness.planning.table import load_table
from harness.search.request import TuneRequest
from harness.search.space import requested_space
from harness.specs import RowSet
from harness.tasks.inferred import infer_task
from harness.tasks.overlap import normalised
from harness.tasks.sources import ALL_ROWS, open_source
from harness.tasks.task import load_user_task

ENCODER = "--encoder bert-tiny --methods ft,tapt"


@pytest.fixture
def reviews(workdir: Path) -> Path:
    """200 labelled rows, and texts without labels, of which some stand in the file."""
    write_csv(workdir / "reviews.csv", [(t, "+-"[int(label)]) for t, label in sst2(200)], ("review", "stars"))
    texts = [text for text, _ in sst2(150, 100)]
    (workdir / "more.txt").write_text("\n".join(texts))
    return workdir


@pytest.mark.usefixtures("packaged")
def test_a_plan_shows_what_was_inferred_and_cut(harness: Harness, reviews: Path) -> None:
    said = harness(*f"plan --tasks reviews.csv --text review --label stars --unlabelled more.txt {ENCODER}".split())
    assert said.status == 0, said.err
    assert "reviews: text in 'review', labels in 'stars': 2 classes (+ " in said.out
    assert "of the 200 labelled rows, drawn once by their text; dev " in said.out
    assert "reviews: 150 unlabelled texts for post-training." in said.out
    assert "share a text with the unlabelled texts" in said.out
    assert "Table own, preset quick" in said.out
    assert not list(reviews.glob(".harness*"))
    clean = harness(*f"plan --tasks reviews.csv --label stars --unlabelled more.txt --remove-overlap {ENCODER}".split())
    assert "of them are also in dev or test and are left out" in clean.out
    assert "Overlap: no dev or test text of this table is part of the training text." in clean.out


@pytest.mark.usefixtures("packaged")
def test_bad_rows_are_left_out_counted_and_change_nothing_else(harness: Harness, workdir: Path) -> None:
    """The flag, a task's YAML and a file without the bad rows have the same data; the caption keeps the count."""
    rows = [(text, "+-"[int(label)]) for text, label in sst2(100)]
    write_csv(workdir / "clean.csv", rows, ("text", "label"))
    write_csv(workdir / "bad.csv", [*rows[:50], ("", "+"), ("A text.", ""), *rows[50:]], ("text", "label"))
    refused = harness(*f"plan --tasks bad.csv {ENCODER}".split())
    assert (
        "2 of 102 rows cannot be read: line 52: text blank; line 53: the label is missing; correct them" in refused.err
    )
    flag = harness(*f"plan --tasks bad.csv --skip-bad-rows {ENCODER}".split()).out
    assert harness("init bad.csv --skip-bad-rows").status == 0
    outs = [flag, *(harness(*f"plan --tasks {name} {ENCODER}".split()).out for name in ("bad.yaml", "clean.csv"))]
    digests = [re.findall(r"\(rows (\w+)\)", out) for out in outs]
    assert digests[0] == digests[1] == digests[2] != []
    assert ["2 bad rows left out" in out for out in outs] == [True, True, False]
    assert "2 bad rows left out" in harness(*f"report --view notes --tasks bad.yaml {ENCODER}".split()).out


@pytest.mark.usefixtures("packaged")
def test_a_plan_shows_the_files_shares_and_warns_of_a_rare_class(harness: Harness, workdir: Path) -> None:
    """Of 100 rows 64 are 'a', 30 'b' and 6 'c', whatever the first subset of 10 holds."""
    labels = "a" * 64 + "b" * 30 + "c" * 6
    write_csv(
        workdir / "my,intents.csv", [(f"Sentence {i}.", label) for i, label in enumerate(labels)], ("text", "intent")
    )
    words = f"--tasks my,intents.csv --label intent --sizes 10 {ENCODER}"
    said = harness(*f"plan {words}".split()).out
    assert "3 classes (a 64 %, b 30 %, c 6 %)" in said
    warning = next(line for line in said.replace("\n  ", " ").splitlines() if "intents: warning" in line)
    assert "fewer than 5 rows of a class" in warning
    assert "c (" in warning
    assert "a (" not in warning
    notes = harness(*f"report --view notes --table own {words}".split()).out
    assert "warning, fewer than 5 rows of a class in a set" in notes


def forms(plan: Plan, row_sets: Iterable[RowSet]) -> set[str]:
    return {normalised(text) for rows in row_sets for (text,) in plan.library[rows.digest].texts}


@pytest.mark.usefixtures("packaged", "reviews")
def test_the_data_of_ones_own_files_are_not_those_of_the_preset() -> None:
    """Under a paper's table too; a task of the preset beside them has the preset's. Class names are recorded with each run."""
    for tasks, data in ((("reviews.csv",), "own"), (("reviews.csv", "movies"), "packaged")):
        request = Request("few_shot", tasks=tasks, label="stars", encoder="bert-tiny", methods=("ft",), sizes=(20,))
        prepared = prepare(request, train=False)
        assert prepared.resolved.data == data
        assert data == "packaged" or not any("packaged" in said for said in prepared.resolved.deviations)
        assert ("+", "-") in {run.stage.data.classes for run in prepared.plan.runs}


@pytest.mark.usefixtures("packaged", "reviews")
def test_tuning_sees_no_test_row_of_own() -> None:
    """What a study of a user's file trains on and selects on, and what table `own` tests on, share no text."""
    request = TuneRequest("cmlm", Request(tasks=("reviews.csv",), label="stars"))
    space = requested_space(request)
    study = prepare(space.bench(request.base, space.defaults), train=False).plan
    bench = prepare(Request("own", tasks=("reviews.csv",), label="stars"), train=False).plan
    tested = forms(bench, bench.tasks["reviews"].tests.values())
    sets = study.table_data.training.values()
    assert tested
    assert not tested & forms(study, [rows for each in sets for rows in (each.labelled, each.texts, each.dev)])


@pytest.mark.usefixtures("packaged", "reviews")
def test_a_point_that_was_selected_on_test_rows_is_refused(harness: Harness, refused: Callable[..., str]) -> None:
    """As of a study that an earlier version ran under the table's own protocol."""
    target = (
        "{table: few_shot, preset: quick, row: FT, sizes: [20], subsets: [0, 1], tasks: [reviews.csv], label: stars"
    )
    words = f"--table own --tasks reviews.csv --label stars {ENCODER} --with best.yaml"
    Path("best.yaml").write_text(f"method: ft\nset: {{fine_tune.lr: 1e-4}}\ntarget: {target}}}\n")
    said = refused(f"plan {words}")
    assert "best.yaml: its point was selected under protocol cmlm_few_shot on rows of reviews of which " in said
    assert said.endswith("take the study's with --protocol cmlm_few_shot, or tune again with --protocol own.")
    assert harness(*f"plan {words} --protocol cmlm_few_shot".split()).status == 0
    Path("best.yaml").write_text(f"method: ft\nset: {{fine_tune.lr: 1e-4}}\ntarget: {target}, protocol: own}}\n")
    assert harness(*f"plan {words}".split()).status == 0
    assert harness(*f"plan {words} --protocol own_cross_validated".split()).status == 0


@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize("format", ["text", "html"])
def test_a_report_names_the_file_and_its_rows_but_no_folder(harness: Harness, reviews: Path, format: str) -> None:
    words = f"report --table own --tasks {reviews}/reviews.csv --label stars --unlabelled {reviews}/more.txt {ENCODER}"
    said = harness(*f"{words} --format {format} --out report".split())
    assert said.status == 1, "nothing is trained"
    text = (reviews / "report").read_text()
    assert str(reviews) not in text
    source = open_source()
    rows = source.load(infer_task("reviews.csv", str, source, label="stars"), ALL_ROWS)
    assert f"file reviews.csv (rows {rows.digest[:10]})" in text, "whoever has the file can tell that it is the one"


@pytest.mark.usefixtures("reviews")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("bench --tasks nowhere.csv", "--tasks: there is no file nowhere.csv"),
        ("bench --tasks reviews.csv --label star", "unknown column 'star'. Did you mean 'stars'?"),
        (
            "bench --tasks reviews.csv,other.csv --label stars --dev more.txt",
            "--dev goes with one file of labelled rows",
        ),
        (
            "bench --tasks movies --table own --text review",
            "--text describes a file of labelled rows, and --tasks names none",
        ),
        ("bench --tasks reviews.csv --label stars --remove-overlap", "there are no unlabelled texts; add unlabelled"),
        ("bench --table own", "table own has no task of its own"),
        ("init reviews.csv --label stars --out more.txt", "should end in .yaml"),
    ],
)
def test_what_is_wrong_is_one_sentence(words: str, expected: str, refused: Callable[..., str]) -> None:
    assert expected in refused(*words.split())


@pytest.mark.usefixtures("packaged")
def test_init_writes_the_task_once(harness: Harness, reviews: Path) -> None:
    said = harness(*["init", "reviews.csv", "--label", "stars", "--unlabelled", "more.txt", "--out", "reviews.yaml"])
    assert said.status == 0, said.err
    task = load_user_task(reviews / "reviews.yaml")
    assert (task.columns, task.label, task.classes) == (("review",), "stars", ("+", "-"))
    assert said.out == (reviews / "reviews.yaml").read_text()
    again = harness("init reviews.csv --label stars --out reviews.yaml")
    assert again.status == 2
    assert "exists already" in again.err
    plans = [
        harness(*f"plan --tasks {words} {ENCODER}".split()).out.partition("\n")[2]
        for words in ("reviews.yaml", "reviews.csv --label stars --unlabelled more.txt")
    ]
    assert plans[0] == plans[1] != ""


def test_the_preset_follows_the_encoder() -> None:
    presets = [load_table("own").preset_for(each and (each,)) for each in (None, "bert-tiny", "minilm", "./my-encoder")]
    assert presets == ["quick", "quick", "laptop", "base"]


def test_a_task_of_ones_own_is_named_as_its_table_names_it(workdir: Path) -> None:
    """`--last` takes the name of a column for the file that it was read from; flags for files go with files alone."""
    write_csv(workdir / "Intents 2.csv", sst2(4), ("text", "label"))
    (workdir / "r.yaml").write_text("{name: reviews, columns: [text], classes: [a, b], metrics: [accuracy]}")
    last = Request("own", tasks=("r.yaml", "Intents 2.csv", "movies"), label="label", kind="classes")
    for named, files, label in (
        (("intents-2",), ("Intents 2.csv",), "label"),
        (("reviews", "movies"), ("r.yaml", "movies"), None),
        (("r.yaml",), ("r.yaml",), None),
        (("movies", "intents-2"), ("movies", "Intents 2.csv"), "label"),
        (None, last.tasks, "label"),
    ):
        found = like_last(Request(tasks=named), last)
        assert (found.tasks, found.label) == (files, label)
    with pytest.raises(UserError, match=r"unknown task 'intents'.*'intents-2'"):
        like_last(Request(tasks=("intents",)), last)
