"""A table whose runs start from runs of another: each from the selected one of those that a bench trained before."""

from __future__ import annotations

from pathlib import Path

from cluster.conftest import Bench
from cluster.driver import kept

from harness.store import Store

SETTINGS = "--set fine_tune.steps=8 --set max_length=16 --format json --slots 2"
FIRST = f"bench --table scl_full_size --tasks movies --methods ft --keep best {SETTINGS}"
LINE = f"bench --table scl_transfer --subsets 0,1,2 --methods ft {SETTINGS}"
EARLIER = LATER = 3
"""Three seeds, and three subsets, of one row."""


def test_each_starts_from_the_selected_run(bench: Bench, tmp_path: Path) -> None:
    bench(tmp_path, FIRST)
    before = kept(tmp_path)
    assert len(before) == EARLIER
    again = bench(tmp_path, LINE)
    found = kept(tmp_path)
    assert {key: found[key] for key in before} == before
    assert {(each.status, each.attempt) for each in found.values()} == {("done", 1)}
    assert len(found) == EARLIER + LATER
    assert [(cell["done"], cell["expected"]) for cell in again.table["cells"]] == [(3, 3)]

    store = Store(f"sqlite:///{tmp_path / '.harness' / 'harness.db'}")
    records, stages = store.records(found), {key: store.stage(key) for key in found}
    selected = set()
    for row in ("CE",):
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
    assert {path.stem for path in (tmp_path / ".harness").rglob("*.safetensors")} == selected
