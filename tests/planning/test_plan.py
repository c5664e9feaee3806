"""From tables to runs and stages: how many there are, which are shared, what changes a key, and what is reported as missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from requested import BERT_TINY, ROBERTA_BASE, TINY, resolve_table
from tasks.task_files import write_file

from harness import specs
from harness.answers import SpanReading
from harness.commands.prepare import check_work
from harness.encoders import Located, locate
from harness.encoders.packaged import HEAD_TRAINING
from harness.encoders.tokens import Vocabulary
from harness.errors import NotAtHand, UserError
from harness.planning.runs import CHARS_PER_TOKEN, Plan, best_run, make_plan, stage_flops
from harness.specs import Encoder, Parent, Record, Selection, Stage
from harness.tasks.sources import TextSource, open_source
from harness.tasks.task import TASKS, load_user_task
from harness.tasks.translation import UNNAMED, Translator
from harness.views.notes import encoder_sentences

SHAPE = ROBERTA_BASE
ROBERTA = Located(Encoder("unresolved:roberta-base", "roberta-base"), None, ROBERTA_BASE, None)


def plan(
    table: str, preset: str = "paper", located: Located = ROBERTA, translator: Translator = UNNAMED, **overrides: Any
) -> Plan:
    """A plan without a source: every row set is unresolved, and keys are those of names. CSSL is skipped without a
    translator."""
    resolved = resolve_table(table, preset, **overrides)
    return make_plan(resolved, None, located, translator_of=lambda augment: translator)


@pytest.fixture(scope="module")
def few_shot() -> Plan:
    return plan("few_shot")


@pytest.mark.parametrize("seed", range(20))
def test_the_first_of_the_best_on_dev_is_selected(few_shot: Plan, seed: int) -> None:
    """Against a naive loop, with ties, failures and diverged runs among them."""
    draw = np.random.default_rng(seed)
    best, records = None, dict[str, Record]()
    runs = [run for run in few_shot.runs if (run.row, run.task) == ("FT", "sst2")]
    for run in runs:
        end, score = draw.choice(["done", "failed", "diverged"], p=[0.6, 0.3, 0.1]), float(draw.integers(3)) / 4
        records[run.stage.key] = Record(run.stage.key, end, dev_scores={"accuracy": score} if end == "done" else {})
        if end == "done" and (best is None or score > records[best.stage.key].dev_scores["accuracy"]):
            best = run
    assert best_run(runs, records) == best


def test_methods_that_the_table_has_no_row_for_get_one() -> None:
    made = plan("few_shot", methods=("ft", "cmlm+scl", "taco"), set=("scl.lam=0.5",), **ONE)
    assert [row.name for row in made.resolved.rows] == ["FT", "CMLM+SCL", "TACO"]
    leaf = next(run.stage for run in made.runs if run.row == "CMLM+SCL")
    assert [stage.objective.name for stage in leaf.chain] == ["cmlm", "scl"]
    assert leaf.objective.params["lam"] == 0.5
    assert made.resolved.row_incomparable(made.resolved.rows[1])


@pytest.mark.parametrize(
    ("method", "shape", "words"),
    [
        ("electra", {"model_type": "mpnet"}, "an auxiliary network cannot be made of MPNet's layers"),
        ("coco_lm", {"embedding_size": 64}, "set coco_lm.lm to none"),
    ],
)
def test_an_encoder_that_an_objective_cannot_train_is_refused(method: str, shape: dict[str, Any], words: str) -> None:
    located = Located(Encoder("5" * 32, "odd"), None, {**BERT_TINY, **shape}, None)
    with pytest.raises(UserError, match=words):
        plan("few_shot", located=located, methods=(method,))


def test_masks_need_a_mask_token(few_shot: Plan) -> None:
    items: Any = [SimpleNamespace(name="a run", stage=stage) for stage in few_shot.stages.values()]
    with pytest.raises(UserError, match="a run masks tokens, but the tokenizer of roberta-base has no mask token"):
        check_work(items, SimpleNamespace(vocabulary=Vocabulary(50_265, None)), ROBERTA, {})


def test_a_plan_takes_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Any] = []
    hashed = specs._hash
    monkeypatch.setattr(specs, "_hash", lambda text: computed.append(text) or hashed(text))
    made = plan("few_shot")
    assert len(made.stages) == len(computed) == 1890  # one a stage
    assert made.names()
    assert made.pending({}, False)
    assert made.unresolved
    assert len(computed) == 1890


# ------------------------------------------------------------------------------------- narrowing and overriding

ONE = {"tasks": ("sst2",), "sizes": (20,), "subsets": (0,), "seeds": (31,)}


def test_narrowing_gives_some_of_the_same_keys(few_shot: Plan) -> None:
    whole = {run.name: run.stage.key for run in few_shot.runs}
    for overrides, runs in (({"tasks": ("rte", "mnli")}, 360), ({"methods": ("tapt",), **ONE}, 1)):
        narrow = plan("few_shot", **overrides)
        assert len(narrow.runs) == runs
        assert set(narrow.stages) < set(few_shot.stages)
        assert all(whole[run.name] == run.stage.key for run in narrow.runs)


def keyed(made: Plan) -> dict[tuple[str, str], str]:
    return {(run.row, stage.phase): stage.key for run in made.runs for stage in run.stage.chain}


FT, SCL = ("FT", "fine-tune"), ("SCL", "fine-tune")
TAPT_1, TAPT_2 = ("TAPT", "post-train"), ("TAPT", "fine-tune")
CMLM_1, CMLM_2 = ("CMLM", "post-train"), ("CMLM", "fine-tune")
ALL = {FT, SCL, TAPT_1, TAPT_2, CMLM_1, CMLM_2}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("fine_tune.lr=2e-5", ALL - {TAPT_1, CMLM_1}),
        ("post_train.lr=2e-5", ALL - {FT, SCL}),
        ("optim.dropout=0", ALL),
        ("optim.precision=fp16", ALL),
        ("max_length=64", ALL),
        ("cmlm.p_c=0.5", {CMLM_1, CMLM_2}),
        ("tapt.p_m=0.2", {TAPT_1, TAPT_2}),
        ("scl.temperature=0.1", {SCL}),
        # no effect, or the value that is there already, however written
        ("cmlm.temperature=1", set()),
        ("cmlm.alpha=0.50", set()),
        ("fine_tune.steps=700", set()),
        ("max_length=128", set()),
    ],
)
def test_an_override_changes_the_keys_it_should(text: str, changed: set[tuple[str, str]]) -> None:
    before, after = keyed(plan("few_shot", **ONE)), keyed(plan("few_shot", **ONE, set=(text,)))
    assert set(before) == set(after) == ALL
    assert {stage for stage in before if before[stage] != after[stage]} == changed


def test_a_setting_that_no_row_takes_is_refused() -> None:
    """Where every chosen row sets it itself, the command line would change nothing, and the caption say that it did."""
    for table, method, text, other in (
        ("objectives", "electra", "electra.auxiliary=narrow", "electra.auxiliary=shallow"),
        ("pretraining", "w/o Rel-Pos", "encoder.relative_buckets=64", "encoder.relative_distance=64"),
    ):
        with pytest.raises(UserError, match=f"--set {text}: has no effect, each chosen row sets"):
            plan(table, methods=(method,), set=(text,))
        assert plan(table, methods=(method,), set=(other,)).runs
    assert plan("ablation", methods=("CMLM", "w/o CL"), set=("cmlm.alpha=0.3",)).runs


# ------------------------------------------------------------------------------------------------------ MLM head


def test_one_trained_mlm_head_serves_the_rows_that_use_one_and_no_other() -> None:
    made, training = plan("few_shot", located=TINY), TINY.head_training
    (head,) = (stage for stage in made.stages.values() if stage.phase == "mlm-head")
    assert {run.row for run in made.runs if run.stage.chain[0].key == head.key} == {"TAPT", "CMLM"}
    assert (head.objective.name, head.seed, head.data.max_length, head.data.train.name) == ("mlm", 0, 64, "boolq_prose")
    assert training is not None
    assert (head.optim.steps, head.optim.lr) == (training.steps, training.lr)
    for run in made.runs:
        assert run.stage.chain[0].encoder == TINY.encoder
        if run.row in ("FT", "SCL"):  # plain keys: what an encoder with an MLM head of its own would have
            assert run.stage.chain[0].init == TINY.encoder


def test_a_drawn_mlm_head_is_named_until_it_is_trained() -> None:
    headless = replace(TINY, lacks=("cls.predictions.bias",), head_training=HEAD_TRAINING)
    (sentence,) = encoder_sentences(plan("few_shot", located=headless))
    assert "cls.predictions.bias" in sentence
    assert "TAPT and CMLM start" in sentence
    made = plan("few_shot", located=headless, set=("mlm_head.steps=50",))
    assert {stage.optim.steps for stage in made.stages.values() if stage.phase == "mlm-head"} == {50}
    assert not any("random" in each for each in encoder_sentences(made))


@pytest.mark.parametrize(("size", "said"), [("coco-lm-base", False), ("coco-lm-large++", True)])
def test_an_encoder_of_another_size_than_the_tables_is_named(size: str, said: bool) -> None:
    made = plan("coco_lm_glue", located=locate(f"new:{size}"), encoder=f"new:{size}")
    assert [f"new:{size} trains with" in each for each in encoder_sentences(made)] == [True] * said


def test_the_rows_of_an_ablation_start_alike() -> None:
    """From the encoder after one MLM stage, w/o MLM too; an encoder with a head of its own needs none."""
    made = plan("ablation", "quick", located=TINY)
    starts: dict[str, set[tuple[str, str]]] = {}
    for run in made.runs:
        first, second = run.stage.chain[:2]
        assert first.phase == "mlm-head"
        assert isinstance(second.init, Parent)
        assert second.init.parts == (("encoder",) if run.row == "w/o MLM" else ("encoder", "mlm_head"))
        starts.setdefault(run.row, set()).add((first.key, second.phase))
    assert len(starts) == 5
    assert len(set(map(str, starts.values()))) == 1
    (note,) = encoder_sentences(made)
    assert "w/o MLM" in note
    assert "other rows" not in note
    apart = plan("ablation", "quick", located=TINY, set=("mlm_head.shared=false",))
    assert {run.row for run in apart.runs if run.stage.chain[0].phase != "mlm-head"} == {"w/o MLM"}
    assert {run.stage.key for run in apart.runs if run.row != "w/o MLM"} < made.stages.keys()
    assert {run.stage.chain[0].phase for run in plan("ablation", "quick").runs} == {"post-train"}


# -------------------------------------------------------------------------------------- what is missing or wrong


def test_what_is_not_at_hand_is_named(few_shot: Plan) -> None:
    made = plan("few_shot", methods=("ft", "tapt"), **{**ONE, "tasks": ("mnli",)})
    names = ("train-n20-subset0", "dev", "matched", "mismatched", "train-n20-subset0-texts")
    assert made.unresolved == ("encoder roberta-base", *(f"data mnli/{name}" for name in names))
    assert (made.table_data.source, made.library, made.table_data.overlaps) == ("not read", {}, ())
    # 7 tasks x (15 training sets with and without labels + dev + test), MNLI's second test set, the encoder
    assert len(few_shot.unresolved) == 7 * (2 * 15 + 2) + 1 + 1


def absent(error: type[Exception] = NotAtHand) -> Any:
    """A source that has nothing at hand."""
    known = {"once": lambda _, make: make(), "describe": lambda task: "nowhere", "at_hand": lambda *_: False}
    return Mock(TextSource, load=Mock(side_effect=error("it is not here")), **known)


def test_a_source_without_the_files_gives_the_plan_of_no_source() -> None:
    made = make_plan(resolve_table("few_shot", "paper", **ONE), absent(), ROBERTA)
    assert list(made.stages) == list(plan("few_shot", **ONE).stages)
    assert made.table_data.source == "nowhere"
    assert "data sst2/dev" in made.unresolved


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cmlm.alpa=1", ["Did you mean 'alpha'?"]),
        ("cmlm.p_c=1.5", ["less than or equal to 1", "1.5"]),
        ("ft.lr=1", ["Known: none"]),
    ],
)
def test_a_wrong_hyperparameter_is_told_before_anything_is_read(text: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        make_plan(resolve_table("few_shot", "paper", set=(text,)), absent(AssertionError), ROBERTA)
    assert str(caught.value).startswith(f"--set {text}: ")
    assert all(word in str(caught.value) for word in words)


# -------------------------------------------------------------------------------------------------- real rows


@pytest.fixture(scope="module")
def source(packaged: dict[str, Path]) -> TextSource:
    return open_source(None)


@pytest.fixture(scope="module")
def quick(source: TextSource) -> Plan:
    return make_plan(resolve_table("few_shot", "quick"), source, locate("bert-tiny"))


def test_subset_k_is_the_same_for_all_methods_and_tables(quick: Plan, source: TextSource) -> None:
    sets: dict[tuple[int, int], set[str]] = {}
    for run in quick.runs:
        sets.setdefault((run.size, run.subset), set()).add(run.stage.data.train.digest)
    assert {cell: len(found) for cell, found in sets.items()} == {(n, k): 1 for n in (100, 1000) for k in range(3)}
    assert len(set.union(*sets.values())) == 6
    ablation = make_plan(resolve_table("ablation", "quick"), source, locate("bert-tiny"))
    for run in ablation.runs:
        assert sets[run.size, run.subset] == {run.stage.data.train.digest}
    # subset 2 does not depend on subsets 0 and 1
    alone = make_plan(resolve_table("few_shot", "quick", subsets=(2,)), source, locate("bert-tiny"))
    assert set(alone.stages) < set(quick.stages)
    assert {r.stage.data.train.digest for r in alone.runs} == sets[100, 2] | sets[1000, 2]


def test_post_training_reads_the_texts_of_the_subset_without_labels(quick: Plan) -> None:
    for run in quick.runs:
        for stage in run.stage.chain:
            if stage.phase == "post-train":
                texts, labelled = quick.library[stage.data.train.digest], quick.library[run.stage.data.train.digest]
                assert texts.labels is None
                assert sorted(texts.texts) == sorted(labelled.texts)
    tests = quick.tasks["movies"].tests["test"]
    assert all(tests not in stage.row_sets for stage in quick.stages.values() if stage.phase != "fine-tune")


def test_no_row_is_trained_on_and_scored(quick: Plan) -> None:
    for run in quick.runs:
        data = run.stage.data
        assert data.dev
        ids = [set(quick.library[r.digest].ids.tolist()) for r in (data.train, data.dev, *data.tests)]
        assert sum(map(len, ids)) == len(set.union(*ids))


USERS_TASK = "name: reviews\ntitle: Reviews\ncolumns: [text]\nclasses: ['no', 'yes', 'so']\nmetrics: [accuracy, mcc]\n"


def test_a_users_task(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(USERS_TASK)
    for split, count in (("train", 90), ("validation", 100)):
        rows = [{"text": f"{split} {i}", "label": ("no", "yes", "so")[i % 3]} for i in range(count)]
        if split == "train":
            rows[0]["text"] = "Validation  7"  # a text of dev or test, but for case and space
        write_file(tmp_path / f"reviews/{split}.csv", rows)
    task = load_user_task(tmp_path / "task.yaml")
    fields = {"tasks": ("reviews",), "sizes": (20,), "subsets": (0, 1), "seeds": (31,)}
    resolved = resolve_table("few_shot", "paper", {**TASKS, "reviews": task}, **fields)
    made = make_plan(resolved, open_source(tmp_path), ROBERTA, user_tasks={"reviews": task})
    assert made.unresolved == ("encoder roberta-base",)
    assert (len(made.runs), len(made.stages)) == (8, 12)
    assert made.table_data.source.startswith(f"folder {tmp_path.name}, reviews (rows ")
    assert {(r.stage.data.num_labels, r.stage.selection) for r in made.runs} == {(3, Selection("accuracy", 100))}
    dev, test = made.tasks["reviews"].dev, made.tasks["reviews"].tests["test"]
    assert (dev.rows, test.rows, dev.name) == (72, 28, "reviews/dev")
    assert made.tasks["reviews"].note == ""  # the paper has no effect on it
    assert [(s.training, s.evaluation, s.rows) for s in made.table_data.overlaps] == [
        ("training sets", "reviews/dev", 72),
        ("training sets", "reviews/test", 28),
    ]
    # on the full training set the text in common is counted
    full = resolve_table("full_size", "paper", {**TASKS, "reviews": task}, tasks=("reviews",))
    whole = make_plan(full, open_source(tmp_path), ROBERTA, user_tasks={"reviews": task})
    assert sum(s.most for s in whole.table_data.overlaps) == 1
    costed = make_plan(resolved, None, ROBERTA, user_tasks={"reviews": task})
    assert costed.stage_flops(costed.runs[0].stage) > 0, "without a source its cost is still estimated"


# --------------------------------------------------------------------------------------------------------- cost


def test_estimated_flops(few_shot: Plan) -> None:
    post, fine = next(run.stage.chain for run in few_shot.runs if run.row == "CMLM")

    def flops(stage: Stage, config: dict[str, Any] = SHAPE, **changes: Any) -> float:
        return stage_flops(replace(stage, **changes), config)

    def longer(stage: Stage) -> float:
        return flops(stage, optim=replace(stage.optim, steps=2 * stage.optim.steps))

    assert longer(post) == pytest.approx(2 * flops(post))
    assert flops(fine) < longer(fine) < 2 * flops(fine)  # the test set is predicted once
    assert flops(post, optim=replace(post.optim, batch_size=16)) == pytest.approx(2 * flops(post))
    assert flops(fine, selection=None) < flops(fine, selection=Selection("accuracy", 350)) < flops(fine)
    views, alone = (
        replace(post.objective, params=post.objective.params | p) for p in ({"num_views": 3}, {"mlm": False})
    )
    assert flops(post, objective=views) > 1.5 * flops(post) > flops(post, objective=alone)
    assert flops(fine, BERT_TINY) < flops(fine) / 50
    assert stage_flops(fine, {}) == 0.0
    # 6 FLOPs a parameter and token, of 85 M parameters outside the embeddings: within a factor of two
    tokens = fine.optim.steps * 16 * (41 / 4.3 + 2.5)
    assert 0.5 < flops(fine, selection=None) / (6 * 85e6 * tokens) < 2


def test_longer_texts_cost_more_up_to_the_maximum_length(few_shot: Plan) -> None:
    leaf = next(run.stage for run in few_shot.runs if run.task == "rte" and run.row == "FT")

    def at(chars: float) -> float:
        rows = replace(leaf.data.train, mean_chars=chars)
        return stage_flops(replace(leaf, data=replace(leaf.data, train=rows)), SHAPE)

    assert at(100) < at(300) < at(10_000) == at(100_000)
    reading = SpanReading(stride=64)
    leaf = replace(leaf, data=replace(leaf.data, num_labels=2, spans=reading), selection=None)
    windows = [at(CHARS_PER_TOKEN * (128 + 64 * more - 2.5)) for more in range(5)]
    assert windows == pytest.approx(
        [windows[0] * (1 + more) for more in range(5)]
    )  # of 128 tokens, of which 64 are new
