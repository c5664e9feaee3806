"""`list` and `show` say what there is; `doctor`'s exit status says whether something needed is missing, and it deletes what nothing needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import optuna
from cli.conftest import Harness
from store.samples import committed, run, stage

from harness.encoders.families import FAMILIES
from harness.methods import METHODS
from harness.storage import Storage, checkpoint_of, weights_of
from harness.store import Owner, Store, StoredRequest
from harness.store.studies import storage_of
from harness.tasks.sources import open_source
from harness.tasks.task import TASKS

Refused = Callable[..., str]
STORE = "--store sqlite:///x.db"


def test_show(harness: Harness, refused: Refused, workdir: Path) -> None:
    """Records in full, a failed one with its reason; of an unknown or ambiguous key a sentence."""
    assert "There is no store at sqlite:///.harness/harness.db; run a bench first" in refused("show abc")
    store = Store(f"sqlite:///{workdir / 'x.db'}")
    stages = [stage(seed) for seed in range(20)]
    for of in stages:
        committed(store, of, "failed" if of.seed == 7 else "done")
    store.label("few_shot", [run(stages[0]), run(stages[0], "w/o CL")])
    keys = [of.key for of in stages]
    said = harness(f"show {keys[0][:10]} {STORE}")
    assert (said.status, said.err) == (0, "")
    for part in (
        f"{keys[0]}  fine-tune  done",
        "objective       cross_entropy v1",
        "AdamW           lr 2e-05, batch_size 16, steps 20, ",
        "selected        step 20: best dev accuracy among evaluations every 50 steps and at the end",
        f"{stage().chain[1].key}  post-train  cmlm  not recorded; the next stage starts from its encoder; weights deleted",
        "table few_shot, row FT: toy, n20, subset 0, seed 0",
        "the command that reproduces it is unknown: the store has lost the request",
    ):
        assert part in said.out
    assert f"{keys[7]}  fine-tune  failed: it broke" in harness(f"show {keys[7]} {STORE}").out
    assert "has no record whose key begins with 'zz'" in refused(f"show zz {STORE}")
    by_digit = defaultdict(list)
    for key in keys:
        by_digit[key[0]].append(key)
    digit, several = next((digit, found) for digit, found in by_digit.items() if len(found) > 1)
    said_of_several = refused(f"show {digit} {STORE}")
    assert all(part in said_of_several for part in (f"Several keys begin with '{digit}'", *(k[:12] for k in several)))


def test_lists(harness: Harness) -> None:
    lines: dict[str, dict[str, str]] = {}
    for what, names in {
        "methods": [*METHODS, "cmlm.alpha", "scl.temperature"],
        "tasks": TASKS,
        "tables": ["few_shot", "full_size", "ablation"],
        "spaces": ["cmlm", "taco_fine_tune"],
        "encoders": ["bert-tiny", "minilm", "FOLDER", "ORG/NAME", *FAMILIES],
    }.items():
        said = harness(f"list {what}")
        assert (said.status, said.err) == (0, "")
        parts = (line.strip().partition("  ") for line in said.out.splitlines())
        lines[what] = {name: text for name, _, text in parts}
        assert set(names) <= lines[what].keys()
    source = open_source("hub")
    for name, task in TASKS.items():  # each task names the data set that --data hub reads
        if not task.package:
            place = source.describe(task).removeprefix("hub ").removeprefix("hub:").partition("@")[0]
            assert lines["tasks"][name].endswith(place), name
    assert lines["tables"]["few_shot"].endswith("; --preset paper, laptop, quick")
    for family, text in {
        "bert": "packed; all methods; pre-trained on Wikipedia",
        "modernbert": "packed; all methods but ELECTRA",
        "deberta-v2": "DeBERTa-v2/v3; padded, by transformers; all methods but ELECTRA",
        "mpnet": "saw MNLI's and QQP's pairs",
    }.items():
        assert text in lines["encoders"][family]


def test_doctor_says_by_its_exit_status_whether_something_is_missing(harness: Harness, workdir: Path) -> None:
    said = harness("doctor")
    assert said.status == 0, said.out
    assert "Nothing that is needed is missing." in said.out
    for name in ("python", "torch", "ray", "transformers", "optuna", "store", "disk"):
        assert name in said.out
    assert list(workdir.iterdir()) == []
    (workdir / "letter.txt").write_text("this is a letter and no database" * 40)
    for flags, missing in {"--store sqlite:///letter.txt": "store", "--data nowhere": "data folder"}.items():
        said = harness(f"doctor {flags}")
        assert said.status == 1
        assert f"Needed and missing: {missing}" in said.out


def test_clean_deletes_what_no_stage_left_needs_after_it_was_told(harness: Harness, workdir: Path) -> None:
    """A kill after the last commit leaves its parent's weights; heads, weights of runs, an open bench's and strangers' stay."""
    store, storage = Store(f"sqlite:///{workdir / 'x.db'}"), Storage(str(workdir / "products"))
    leaf, waiting = stage(1), stage(2)
    head, inner = replace(leaf.chain[0], phase="mlm-head"), leaf.chain[1]
    for of in (leaf, inner, head, waiting.chain[1]):
        committed(store, of)
    store.label("few_shot", [run(leaf)])
    store.keep_request(StoredRequest("few_shot", {}), [of.key for of in leaf.chain])
    store.keep_request(StoredRequest("few_shot", {"a": 1}), [of.key for of in waiting.chain[1:]])
    gone = [weights_of(inner.key), weights_of(inner.key, 5), checkpoint_of(leaf.key), f".{weights_of(leaf.key)}.0.part"]
    stay = [weights_of(leaf.key), weights_of(head.key), weights_of(waiting.chain[1].key), checkpoint_of(waiting.key)]
    stay += [weights_of("f" * 32), "mark"]
    for name in gone + stay:
        storage.write(name, b"weights")
    told = harness(f"doctor --clean {STORE}").out
    assert all(part in told for part in (*gone, "4 files", "Nothing was deleted"))
    assert set(storage.sizes()) == {*gone, *stay}
    owner = Owner.current()
    store.lease(waiting.key, owner)
    assert "Another command trains" in harness(f"doctor --clean --yes {STORE}").err
    store.release(owner)
    assert "Deleted 4 files" in harness(f"doctor --clean --yes {STORE}").out
    assert set(storage.sizes()) == {*stay}
    assert "0 files" in harness(f"doctor --clean --yes {STORE}").out


def test_forget_deletes_what_a_bench_a_study_or_a_task_alone_needs(harness: Harness, workdir: Path) -> None:
    """What another one needs stays, and so does what a seal names."""
    store, storage = Store(f"sqlite:///{workdir / 'x.db'}"), Storage(str(workdir / "products"))
    first, second, third = stage(1), stage(2), stage(3)
    for of in {each.key: each for leaf in (first, second, third) for each in leaf.chain}.values():
        committed(store, of)
    alone = {of.key for of in first.chain} - {of.key for of in second.chain}
    bench, other = StoredRequest("few_shot", {}), StoredRequest("few_shot", {"a": 1})
    study = StoredRequest("few_shot", {"b": 1}, study="mine")
    for request, leaf in ((bench, first), (other, second), (study, third)):
        store.keep_request(request, [of.key for of in leaf.chain])
        storage.write(weights_of(leaf.key), b"weights")
    optuna.create_study(study_name="mine", storage=storage_of(store))
    forget, before = f"doctor {STORE} --forget", store.keys()
    assert "Nothing was deleted" in harness(f"{forget} {bench.digest[:8]}").out
    assert store.keys() == before
    assert harness(f"{forget} none --yes").status == 2
    assert "Deleted" in harness(f"{forget} {bench.digest[:8]} --yes").out
    assert store.keys() == before - alone
    assert set(storage.sizes()) == {weights_of(second.key), weights_of(third.key)}
    assert "Deleted mine" in harness(f"{forget} mine --yes").out
    assert store.studies() == []
    store.label("few_shot", [run(second), replace(run(third), task="rare")])
    for request in (bench, study):
        store.keep_request(request, [third.key])
    assert "Deleted all benches of rare alone" in harness(f"{forget} rare --yes").out
    assert [each.digest for each in store.requests()] == [other.digest]
    store.keep_seal("few_shot", {"runs": [["", "none"], ["", ["none", second.key]]]}, [])
    assert "sealed" in harness(f"{forget} {other.digest[:8]} --yes").err
    assert {second.key} <= store.keys()
