"""A table whose runs start from runs of another: interrupted between the two, the same command goes on, and each starts from the selected one."""

from __future__ import annotations

from pathlib import Path

from cluster.conftest import Bench
from cluster.driver import kept

from harness.store import Store

LINE = "bench --table scl_transfer --subsets 0,1,2 --set fine_tune.steps=8 --set max_length=16 --format json --slots 2"
SLOTS = 2
EARLIER = LATER = 6
"""Three seeds, and three subsets, of two rows."""


def test_interrupted_between_the_two_the_same_command_goes_on(bench: Bench, tmp_path: Path) -> None:
    bench(tmp_path, LINE, status=130, interrupt_after=EARLIER)
    before = kept(tmp_path)
    assert EARLIER <= len(before) < EARLIER + LATER
    again = bench(tmp_path, LINE)
    found = kept(tmp_path)
    assert {key: found[key] for key in before} == before
    assert {(each.status, each.attempt) for each in found.values()} == {("done", 1)}
    assert len(found) == EARLIER + LATER
    assert [(cell["done"], cell["expected"]) for cell in again.table["cells"]] == [(3, 3)] * 2

    store = Store(f"sqlite:///{tmp_path / '.harness' / 'harness.db'}")
    records, stages = store.records(found), {key: store.stage(key) for key in found}
    selected = set()
    for row in ("CE", "CE + SCL"):
        labels = [label for label in store.recorded_runs() if label["row"] == row]
        dev = {
            each["key"]: records[each["key"]].dev_scores["accuracy"]
            for each in labels
            if each["table"] == "scl_full_size"
        }
        seeds = {each["key"]: each["seed"] for each in labels}
        best = min(dev, key=lambda key: (-dev[key], seeds[key]))
        later = [stages[each["key"]] for each in labels if each["table"] == "scl_transfer"]
        assert {stage.parent.key for stage in later if stage and stage.parent} == {best}
        assert len(later) == 3
        for stage in later:
            assert stage is not None
            assert records[stage.key].provenance["parent_product"] == records[best].weights_digest
        selected.add(best)
    # A run that ended while the driver was interrupted keeps its weights: one a slot at most.
    stored = {path.stem for path in (tmp_path / ".harness").rglob("*.safetensors")}
    assert selected <= stored
    assert len(stored - selected) <= SLOTS
