"""The test examples of a table over its runs, against loops over what is recorded."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from requested import TINY, resolve_table
from views.runs import OWNER

from harness.kinds import Predictions
from harness.planning.runs import Plan, make_plan
from harness.scores import results_of
from harness.specs import Record, Run
from harness.store import Store
from harness.views.cells import Grid, aggregate
from harness.views.examples import class_scores, examples
from harness.views.view import View

ROWS = 83


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Store, Grid]:
    """FT and SCL on CoLA and MNLI, 3 subsets x 2 seeds; FT lacks a run. All runs of a test set have its labels."""
    resolved = resolve_table(
        "few_shot",
        "paper",
        methods=("ft", "scl"),
        tasks=("cola", "mnli"),
        sizes=(20,),
        subsets=(0, 1, 2),
        seeds=(31, 42),
    )
    plan = make_plan(resolved, None, TINY)
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('store')}/harness.db")
    for run in plan.runs:
        if (run.row, run.subset, run.seed) != ("FT", 2, 42):
            _commit(store, run)
    return plan, store, aggregate(resolved, results_of(plan, store))


def _commit(store: Store, run: Run) -> None:
    stage, draw = run.stage, np.random.default_rng(int(run.stage.key[:8], 16))
    record = Record(stage.key, "done")
    assert stage.data.dev is not None
    for rows in (stage.data.dev, *stage.data.tests):
        gold = np.random.default_rng(len(rows.name)).integers(0, stage.data.num_labels, ROWS)
        logits = draw.normal(size=(ROWS, stage.data.num_labels)) + 1.5 * np.eye(stage.data.num_labels)[gold]
        record.predictions[rows.digest] = Predictions({"logits": 3 * logits.astype(np.float32)}, gold)
    assert stage.selection is not None
    record.dev_scores = {stage.selection.metric: 0.5}
    assert store.lease(stage.key, OWNER) == "granted"
    assert store.commit(stage, record, OWNER)


@pytest.fixture(scope="module")
def found(made: tuple[Plan, Store, Grid]) -> View:
    return examples(*made)


def predictions(made: tuple[Plan, Store, Grid], row: str, column: str) -> dict[tuple[int, int], Predictions]:
    plan, store, _ = made
    spec = plan.resolved.columns[column]
    digest = plan.tasks[spec.task].tests[spec.evaluation].digest
    found = {}
    for run in plan.runs:
        record = store.records([run.stage.key], predictions=True).get(run.stage.key)
        if record and (run.row, run.task) == (row, spec.task):
            found[run.subset, run.seed] = record.predictions[digest]
    return found


def test_examples_are_what_all_runs_predict(made: tuple[Plan, Store, Grid], found: View) -> None:
    for column in made[0].resolved.columns:
        of_row = {row: [*predictions(made, row, column).values()] for row in ("FT", "SCL")}
        assert (len(of_row["FT"]), len(of_row["SCL"])) == (5, 6)
        shown = found.frame[found.frame["column"] == column].sort_values("example")
        names = made[0].tasks[made[0].resolved.columns[column].task].task.kind.names
        every = [each for runs in of_row.values() for each in runs]
        for i in range(ROWS):
            row = shown.iloc[i]
            codes = [int(each.decoded[i]) for each in every]
            gold = int(every[0].gold[i])
            most = max(range(len(names)), key=lambda c: (codes.count(c), -c))
            assert (row["example"], row["gold"], row["consensus"]) == (i + 1, names[gold], names[most])
            assert row["agreement"] == pytest.approx(codes.count(most) / 11)
            assert row["right"] == pytest.approx(codes.count(gold) / 11)
            assert row["gold_probability"] == pytest.approx(np.mean([each.probabilities[i, gold] for each in every]))
            assert row["doubted"] == (most != gold and codes.count(most) >= 0.9 * 11)
            wrong, apart = 0, list[Any]()
            for name, runs in of_row.items():
                own = [int(each.decoded[i]) for each in runs]
                wrong += max(range(len(names)), key=lambda c: (own.count(c), -c)) != gold
                assert row[f"right.{name}"] == pytest.approx(own.count(gold) / len(own))
                apart += [np.mean([one != other for one, other in itertools.combinations(own, 2)])]
            assert row["flips"] == pytest.approx(np.mean(apart)), "of pairs of runs of a row"
            assert (row["rows_wrong"], row["all_rows_wrong"]) == (wrong, wrong == 2)
    order = found.frame[["doubted", "gold_probability"]].to_numpy().tolist()
    assert order == sorted(order, key=lambda each: (not each[0], each[1])), "the labels that are doubted most first"


def test_rows_that_share_their_runs_are_all_there(tmp_path: Path) -> None:
    """MLM on a task's own texts is TAPT by another name: one computation, two rows."""
    design = {"tasks": ("cola",), "sizes": (20,), "subsets": (0, 1), "seeds": (31, 42)}
    resolved = resolve_table("few_shot", "paper", methods=("mlm", "tapt"), **design)
    plan, store = make_plan(resolved, None, TINY), Store(f"sqlite:///{tmp_path}/harness.db")
    for run in {run.stage.key: run for run in plan.runs}.values():
        _commit(store, run)
    found = examples(plan, store, aggregate(resolved, results_of(plan, store)))
    assert len({run.stage.key for run in plan.runs}) == 4
    assert list(found.frame["runs"].unique()) == [8]
    assert (found.frame["right.MLM"] == found.frame["right.TAPT"]).all()


CLASSES = ("a", "b", "c")


def test_precision_recall_f1_and_confusion_are_means_over_runs() -> None:
    generator = np.random.default_rng(1)
    gold = generator.integers(0, 3, 40)
    runs = [(gold, generator.integers(0, 3, 40)) for _ in range(3)]
    for code, each in enumerate(class_scores(CLASSES, runs).to_dict("records")):
        precision, recall, f1, confusion = [], [], [], np.zeros(3)
        for _, predicted in runs:
            hits = int(((gold == code) & (predicted == code)).sum())
            precision.append(hits / int((predicted == code).sum()))
            recall.append(hits / int((gold == code).sum()))
            f1.append(2 * hits / int((predicted == code).sum() + (gold == code).sum()))
            for other in {0, 1, 2} - {code}:
                confusion[other] += ((gold == code) & (predicted == other)).sum() / 3
        expected = (np.mean(precision), np.mean(recall), np.mean(f1))
        assert (each["precision"], each["recall"], each["f1"]) == pytest.approx(expected)
        assert each["other"] == f"{CLASSES[int(confusion.argmax())]} {confusion.max():.1f}"
        assert (each["class"], each["gold"]) == (CLASSES[code], int((gold == code).sum()))


def test_a_class_that_is_never_predicted_has_zeros() -> None:
    gold = np.array([0, 0, 1])
    never = class_scores(CLASSES, [(gold, np.zeros(3, dtype=int))])
    assert (never.loc[1:, ["precision", "recall", "f1"]] == 0).all(axis=None)
    assert (never["recall"][0], never["other"].tolist()) == (1, ["", "a 1.0", ""])
