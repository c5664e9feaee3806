"""Table `k_shot`: a seed for each split, the same rows for every method, the grid selected for each split, the population's deviation."""

from __future__ import annotations

from pathlib import Path

import pytest
from requested import resolve_table
from views.runs import filled, render

from harness.commands.prepare import check_lengths
from harness.encoders import locate
from harness.planning.runs import Plan, make_plan
from harness.tasks.sources import open_source
from harness.views.caption import Caption


@pytest.fixture(scope="module")
def quick(packaged: dict[str, Path]) -> Plan:
    resolved = resolve_table("k_shot", "quick")
    return make_plan(resolved, open_source(None), locate(resolved.encoder))


def test_a_run_has_the_seed_of_its_split(quick: Plan) -> None:
    seeds = {(run.subset, run.seed): run.stage.seed for run in quick.runs}
    assert seeds == {(0, 0): 13, (1, 0): 21, (2, 0): 42, (3, 0): 87, (4, 0): 100}
    assert len({run.name for run in quick.runs}) == len(quick.runs) == 25


def test_methods_share_the_rows_of_a_split_and_splits_share_no_set(quick: Plan) -> None:
    sets = {
        run.subset: {(r.stage.data.train, r.stage.data.dev) for r in quick.runs if r.subset == run.subset}
        for run in quick.runs
    }
    assert [len(each) for each in sets.values()] == [1] * 5
    assert len({rows.digest for each in sets.values() for pair in each for rows in pair if rows}) == 10
    for run in quick.runs:
        assert (run.stage.data.train.rows, run.stage.data.dev and run.stage.data.dev.rows) == (32, 32)
        assert [rows.rows for rows in run.stage.data.tests] == [2509]


def test_sizes_are_said_to_be_of_each_class() -> None:
    resolved = resolve_table("k_shot", "laptop")
    text = render(filled(resolved), Caption(0), "text")
    assert "16 training examples per class" in text
    assert "examples per class" not in render(filled(resolve_table("few_shot", "laptop")), Caption(0), "text")


def test_the_small_presets_fit_their_encoder(packaged: dict[str, Path]) -> None:
    for table, presets in (("k_shot", ("laptop", "quick")), ("coco_lm_prompt", ("laptop", "quick"))):
        for preset in presets:
            resolved = resolve_table(table, preset)
            check_lengths(resolved, locate(resolved.encoder))
