"""The GLUE tables of the pre-training papers: numbers, counts, recipes by task, grids over the recipe, and what is selected."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from analysis.runs import filled, result, rows_of
from pydantic import ValidationError
from requested import resolve_table
from ruamel.yaml import YAML

from harness.commands.prepare import Prepared
from harness.commands.probe import _lines as probe_lines
from harness.encoders import SIZES, Located
from harness.errors import UserError
from harness.planning.recipe import updates_between
from harness.planning.row import Row
from harness.planning.runs import Plan, make_plan
from harness.planning.table import Table, load_table
from harness.report.caption import Caption
from harness.report.figures.figure import drawn, points_of
from harness.report.figures.probes import FIGURES
from harness.report.notes import starts_of
from harness.report.table import render
from harness.specs import Encoder, Parent
from harness.tasks import TASKS

PAPERS = Path(__file__).resolve().parents[2].parent / "shared" / "papers"
ENCODER = {
    "hidden_size": 8,
    "num_hidden_layers": 4,
    "intermediate_size": 16,
    "vocab_size": 50,
    "model_type": "bert",
    "num_attention_heads": 2,
}
LOCATED = Located(Encoder("7" * 32), None, ENCODER, None, new=True)
COLUMNS = ["mnli", "mnli_mm", "qqp", "qnli", "sst2"]


def plan(table: str, preset: str = "paper", **fields: Any) -> Plan:
    return make_plan(resolve_table(table, preset, **fields), None, LOCATED)


def numbers(table: str, columns: list[str]) -> dict[str, list[float]]:
    return {row: [cells[column][0] for column in columns] for row, cells in load_table(table).paper[0].items()}


@pytest.mark.skipif(not PAPERS.exists(), reason="the papers' texts are not here")
def test_the_numbers_of_taco_are_the_papers() -> None:
    lines = (PAPERS / "taco.txt").read_text().splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith("Table 1:"))
    found = {}
    for line in lines[end - 8 : end]:
        cells = line.split("\t")
        if len(cells) == 11 and cells[1] in ("MLM-250k", "TACO-50k", "TACO-250k"):
            found.setdefault(cells[1], [float(x) for cell in cells[2:] for x in re.findall(r"\d+\.\d", cell)])
    assert numbers("taco_small", [*COLUMNS, "cola", "stsb", "mrpc", "rte", "avg"]) == found


@pytest.mark.skipif(not PAPERS.exists(), reason="the papers' texts are not here")
def test_the_numbers_of_tacos_fractions_are_the_papers() -> None:
    lines = (PAPERS / "taco.txt").read_text().splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith("Table 2:"))
    cells = [line.split("\t") for line in lines[end - 6 : end]]
    found = {name: [float(x) for x in values] for name, *values in cells if name.endswith("%")}
    assert len(found) == 4
    assert numbers("taco_fraction", ["mnli", "qqp", "qnli", "sst2", "avg"]) == found


@pytest.mark.skipif(not PAPERS.exists(), reason="the papers' texts are not here")
def test_the_numbers_of_tacos_base_models_are_the_papers() -> None:
    lines = (PAPERS / "taco.txt").read_text().splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith("Table 3:"))
    rows = [line.split("\t") for line in lines[end - 8 : end] if "00k" in line or "250k" in line]
    found = {name: [float(x) for x in values] for name, *values in rows}
    assert len(found) == 6
    columns = ["mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte", "avg"]
    assert numbers("taco_base", columns) == {
        **found,
        **{f"{row} at one point": values for row, values in found.items()},
    }


@pytest.mark.skipif(not PAPERS.exists(), reason="the papers' texts are not here")
def test_the_grids_of_tacos_base_models_are_the_papers() -> None:
    """Table 8, task by task: the values of the grid, and what is one value in the task's recipe."""
    titles = {"MNLI": "mnli", "QQP": "qqp", "QNLI": "qnli", "SST-2": "sst2", "CoLA": "cola", "STS-B": "stsb"}
    lines = (PAPERS / "taco.txt").read_text().splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith("Table 8:"))
    text = (Path(__file__).parents[2] / "benchmarks/taco_base.yaml").read_text()
    ours = {task: each["grid"] for each in YAML(typ="safe").load(text)["rows"][0]["grid"] for task in each["tasks"]}
    r = resolve_table("taco_base", "paper")
    names = ("lr", "batch_size", "epochs", "warmup_steps")
    checked = 0
    for line in lines[end - 10 : end]:
        title, *cells = line.split("\t")
        task = titles.get(title, title.lower())
        if task not in ours:
            continue
        for name, cell in zip(names, cells, strict=True):
            printed = [float(x) for x in cell.strip("{}").split(",")]
            recipe = r.task_recipes.get(task, r.recipe).fine_tune
            assert ours[task].get(f"fine_tune.{name}", [getattr(recipe, name)]) == printed, (task, name)
        checked += 1
    assert checked == 8


@pytest.mark.skipif(not PAPERS.exists(), reason="the papers' texts are not here")
@pytest.mark.parametrize(
    ("setting", "tables"),
    [
        ("Base", ["coco_lm_glue", "coco_lm_squad"]),
        ("Base++", ["coco_lm_base_plus"]),
        ("Large++", ["coco_lm_large_plus"]),
    ],
)
def test_the_numbers_of_coco_lm_are_the_papers(setting: str, tables: list[str]) -> None:
    columns = (*COLUMNS, "cola", "rte", "mrpc", "stsb", "avg", "squad_em", "squad_f1")
    html = (PAPERS / "coco_lm.txt").read_text().partition("Table 1: Results on GLUE and SQuAD")[0]
    found: dict[str, dict[str, float]] = {}
    here = ""
    for row in re.findall(r"<tr>(.*?)</tr>", html[html.rindex("<table") :], flags=re.DOTALL):
        cells = [re.sub("<[^>]*>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
        if len(cells) == 1:
            here = cells[0].partition(" Setting")[0]
        elif cells and here == setting and cells[0] in ("RoBERTa (Ours)", "ELECTRA (Ours)", "COCO-LM"):
            values = dict(zip(columns, [*cells[2].split("/"), *cells[3:13]], strict=True))
            found[cells[0]] = {column: float(text) for column, text in values.items() if text not in ("-", "—")}
    ours: dict[str, dict[str, float]] = {}
    for table in map(load_table, tables):
        for name, cells in table.paper[0].items():
            ours.setdefault(name, {}).update(
                {column: value for column, (value, _) in cells.items() if column in columns}
            )
    assert ours == found


@pytest.mark.skipif(not PAPERS.exists(), reason="the papers' texts are not here")
def test_the_numbers_of_coco_lms_ablations_are_the_papers() -> None:
    text = (PAPERS / "coco_lm.txt").read_text()
    html = text[: text.index("Table 3: Ablations on GLUE Dev")]
    found: dict[str, list[float]] = {}
    for row in re.findall(r"<tr>(.*?)</tr>", html[html.rindex("<table") :], flags=re.DOTALL)[1:]:
        cells = [
            re.sub("<[^>]*>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.DOTALL)
        ]
        name = cells[-10].replace("w/o.", "w/o").replace("w.", "w/").replace("’", "'").removesuffix("Base")
        found[name] = [float(x) for cell in cells[-9:] for x in cell.split("/")]
    assert len(found) == 11
    assert numbers("coco_lm_ablation", [*COLUMNS, "cola", "rte", "mrpc", "stsb", "avg"]) == found


@pytest.mark.parametrize(
    ("table", "groups"),
    [
        ("taco_small", 9),
        ("taco_fraction", 4),
        ("taco_base", 8),
        ("coco_lm_glue", 8),
        ("coco_lm_base_plus", 8),
        ("coco_lm_large_plus", 8),
        ("coco_lm_ablation", 8),
    ],
)
def test_the_printed_averages_are_those_of_our_groups(table: str, groups: int) -> None:
    """To the rounding of the printed numbers."""
    over = resolve_table(table, "paper").average_over
    assert len(over) == groups
    for cells in load_table(table).paper[0].values():
        means = [sum(cells[column][0] for column in group) / len(group) for group in over]
        assert abs(sum(means) / groups - cells["avg"][0]) < 0.1001


def test_a_printed_average_stands_where_all_of_its_columns_are() -> None:
    """Of a table with a column that the average leaves out, with or without that column."""
    text = YAML(typ="safe").load((Path(__file__).parents[2] / "benchmarks/coco_lm_glue.yaml").read_text())
    text["aggregate"]["average_over"] = [["mnli", "mnli_mm"], "qqp", "qnli", "sst2", "cola", "mrpc", "stsb"]
    table = Table.model_validate(text)
    for left_out, whole in ((), True), (("rte",), True), (("sst2",), False):
        r = resolve_table(table, "paper", tasks=tuple(task for task in table.tasks if task not in left_out))
        assert ("87.20" in render(filled(r, [], rows_of(r)), Caption(0), "text")) == whole


def test_taco_has_the_papers_runs_and_recipes() -> None:
    """Table 1: 3 checkpoints x 8 tasks x 4 seeds = 96 fine-tunings on 2 pre-trainings; Table 7's recipes."""
    made = plan("taco_small")
    assert len(made.runs) == 96
    assert len(made.stages) == 98
    recipes = {}
    for run in made.runs:
        optim, rows = run.stage.optim, TASKS[run.task].official_rows("train")
        assert rows is not None
        epochs = optim.steps / math.ceil(rows / optim.batch_size)
        recipes[run.task] = (optim.lr, optim.batch_size, epochs, math.ceil(optim.warmup * optim.steps))
        assert run.stage.selection is not None
        assert run.stage.selection.every > optim.steps, "the last checkpoint alone"
        assert (optim.weight_decay, optim.clip, optim.eps) == (0, 1, 1e-8)
    large, middle, small = (5e-5, 64, 6, 2000), (5e-5, 64, 4, 200), (5e-5, 32, 4, 100)
    assert recipes == {
        **dict.fromkeys(("mnli", "qqp"), large),
        **dict.fromkeys(("qnli", "sst2"), middle),
        **dict.fromkeys(("cola", "stsb", "mrpc", "rte"), small),
    }


def test_taco_base_has_six_points_of_each_grid_or_four_seeds() -> None:
    """Table 3: 2 pre-trainings; 6 checkpoints x 8 tasks x 6 points = 288 fine-tunings, or x 4 seeds = 192."""
    drawn, seeds = plan("taco_base"), plan("taco_base", "seeds")
    assert (len(drawn.runs), len(drawn.stages)) == (288, 290)
    assert (len(seeds.runs), len(seeds.stages)) == (192, 194)
    trained = [{key for key, stage in made.stages.items() if stage.phase == "pre-train"} for made in (drawn, seeds)]
    assert trained[0] == trained[1]
    (mlm, _) = [stage for stage in drawn.stages.values() if stage.phase == "pre-train"]
    assert (mlm.optim.steps, math.ceil(mlm.optim.warmup * mlm.optim.steps)) == (500_000, 10_000)
    assert {run.stage.init.step for run in drawn.runs if isinstance(run.stage.init, Parent)} == {
        100_000, 250_000, "last",
    }  # fmt: skip
    points: dict[str, dict[str, set[Any]]] = {}
    for run in drawn.runs:
        optim = run.stage.optim
        point = (optim.lr, optim.batch_size, optim.steps, optim.warmup)
        points.setdefault(run.task, {}).setdefault(run.row.partition(" on ")[0], set()).add(point)
    for task, rows in points.items():
        assert len(rows) == 6
        assert len({frozenset(row) for row in rows.values()}) == 1, f"all rows draw the same points of {task}"
    assert points["cola"] != points["stsb"], "each task draws its own"


def test_a_task_that_grids_lack_is_run_at_the_points_of_the_last() -> None:
    """As the table's own task of that group is, and not at those of all groups."""
    for table in ("taco_base", "coco_lm_glue"):
        r = resolve_table(table, "paper", tasks=("movies",))
        for title, rows in r.printed_rows.items():
            groups = {row.tasks: row for row in r.table.rows if row.title == title}
            taken = [row for row in rows if r.takes(row, "movies")]
            assert {row.tasks for row in taken} == {[*groups][-1]}
            assert taken == [row for row in rows if r.takes(row, [*groups][-1][0])]


def test_a_caption_names_a_row_and_not_its_configurations() -> None:
    """Reasons and starts are those of the row: 288 names would hide them."""
    made = plan("taco_base")
    r = made.resolved
    text = render(filled(r, [], rows_of(r)), Caption(1, notes=tuple(starts_of(made))), "text")
    assert "mean over 6 configurations x 1 seed" in text
    assert "MLM-100k, TACO-100k start after update 100,000 of 500,000 of pre-training" in text
    assert "instead of the paper's BooksCorpus and English Wikipedia (54 cells)" in text
    assert not [row.name for row in r.rows if row.name in text]
    one = resolve_table("taco_base", "quick")
    said = render(filled(one, [], rows_of(one)), Caption(1), "text")
    assert "one run a cell" in said
    assert "several configurations" not in said


def test_tacos_figure_and_fractions_share_the_runs_of_its_table() -> None:
    """Figure 5: 2 runs x 10 checkpoints x 8 tasks x 4 seeds = 640 with Table 1's 96; Table 2: 2 pre-trainings and 32 more."""
    table, figure, fractions = (plan(name) for name in ("taco_small", "taco_updates", "taco_fraction"))
    stages = {
        name: {run.stage.key for run in made.runs} for name, made in (("t", table), ("f", figure), ("q", fractions))
    }
    assert len(stages["f"]) == 640
    assert stages["t"] < stages["f"]
    assert len(stages["q"] - stages["t"]) == 32, "Table 2 shares the 32 runs of the whole corpus, MNLI's too"
    trained = [{key for key, stage in made.stages.items() if stage.phase == "pre-train"} for made in (table, figure)]
    assert trained[0] == trained[1]
    assert len(trained[0]) == 2
    (mlm, taco) = [stage for stage in table.stages.values() if stage.phase == "pre-train"]
    updates = {5_000, 10_000, 20_000, 30_000, 40_000, 50_000, 100_000, 150_000, 200_000}
    assert table.saved_at(mlm) == table.saved_at(taco) == updates, "so the figure needs no other run"


@pytest.mark.parametrize(
    ("table", "runs", "pre_trainings", "other", "shared", "shared_pre_trainings"),
    [
        ("taco_variants", 1280, 4, "taco_updates", 640, 2),  # Figure 6b: 2 more pre-trainings, 640 more runs
        ("taco_grid", 256, 8, "taco_small", 32, 1),  # A.1: the eighth is TACO
        ("taco_embeddings", 96, 3, "taco_small", 32, 1),  # Figure 4: 2 more
        ("coco_lm_hours", 420, 3, "coco_lm_glue", 180, 3),  # Figure 3: 60 runs of each checkpoint
        ("coco_lm_fractions", 50, 2, "coco_lm_glue", 0, 1),  # Figures 7c, d: 2 models x 5 fractions x 5 runs
    ],
)
def test_figures_share_what_is_pre_trained_already(
    table: str, runs: int, pre_trainings: int, other: str, shared: int, shared_pre_trainings: int
) -> None:
    of_mnli = {"tasks": ("mnli",)} if other == "coco_lm_glue" else {}
    ours, theirs = plan(table), plan(other, **of_mnli)
    assert len(ours.runs) == runs
    common = ours.stages.keys() & theirs.stages.keys()
    trained = {key for key, stage in ours.stages.items() if stage.phase == "pre-train"}
    assert (len(trained), len(trained & common)) == (pre_trainings, shared_pre_trainings)
    assert len(common - trained) == shared
    for key in trained & common:
        assert ours.saved_at(ours.stages[key]) <= theirs.saved_at(theirs.stages[key]), "so it is trained once"


def test_crops_share_the_base_model() -> None:
    """Figure 4: 3 more pre-trainings of 1,520 runs each."""
    crops, base = (plan(name, tasks=("rte",)) for name in ("coco_lm_crop", "coco_lm_glue"))
    assert (len(crops.runs), len(crops.stages)) == (4 * 320, 4 * 321)
    assert len(crops.stages.keys() & base.stages.keys()) == 321
    assert {run.stage.init.stage.objective.params["crop_ratio"] for run in crops.runs} == {0.7, 0.8, 0.9, 1}  # type: ignore[union-attr]


def test_a_figure_of_rows_with_grids_has_a_point_for_each_row() -> None:
    r = resolve_table("coco_lm_crop", "laptop")
    runs = [result(r, row, size, *rest, 0.1, dev=0.1) for size, row, *rest in r.places]
    points = points_of(filled(r, runs, rows_of(r)))
    assert [(point.column, point.x, point.row) for point in points] == [
        ("RTE", x, f"{100 * x:.0f} %") for x in (0.7, 0.8, 0.9, 1.0)
    ]
    assert all(point.value == pytest.approx(10) for point in points)


def test_variants_are_lines_of_their_own() -> None:
    r = resolve_table("taco_variants", "laptop")
    runs = [result(r, row, size, *rest, 0.1, dev=0.1) for size, row, *rest in r.places]
    lines: dict[str, list[float]] = {}
    for point in points_of(filled(r, runs, rows_of(r))):
        lines.setdefault(point.series, []).append(point.x)
    assert list(lines) == ["MLM", "MLM+TP", "TACO", "TACO concentrated"]
    assert len({tuple(xs) for xs in lines.values()}) == 1


def test_a_figure_over_sizes_has_a_line_for_each_row_and_bars_from_the_lowest_run_to_the_highest() -> None:
    r = resolve_table("coco_lm_fractions", "paper")
    scores = {31: 0.5, 42: 0.7, 53: 0.6, 64: 0.9, 75: 0.8}
    runs = [
        result(r, row, size, column, subset, seed, scores[seed], dev=0.1)
        for size, row, column, subset, seed in r.places
        if not (row == "w/o SCL" and size == 3927 and seed == 31)
    ]
    grid = filled(r, runs, rows_of(r))
    points = [point for point in points_of(grid) if point.column == "MNLI"]
    assert {point.series for point in points} == {"COCO-LM", "w/o SCL"}
    for point in points:
        assert point.x == point.size
        missing = point.series == "w/o SCL" and point.x == 3927
        found = (point.value, point.low, point.high)
        assert found == ((None, None, None) if missing else (pytest.approx(70), pytest.approx(50), pytest.approx(90)))
    assert drawn(grid, "png").startswith(b"\x89PNG")


def test_a_full_training_set_has_no_place_in_a_figure_over_sizes() -> None:
    text = load_table("coco_lm_fractions").model_dump(mode="json", exclude={"presets"}, exclude_none=True)
    with pytest.raises(ValidationError, match="a full training set has no size to stand at"):
        Table.model_validate({**text, "sizes": [0], "presets": {"quick": {"description": "x", "encoder": "new:tiny"}}})


def test_a_figure_has_a_line_for_each_pre_training() -> None:
    """At the updates that were run, with an Avg; the last point is the end."""
    r = resolve_table("taco_updates", "laptop", tasks=("rte", "mrpc"))
    runs = [
        result(r, row.name, 0, column, 0, seed, 0.5 + 0.01 * index, dev=0.5)
        for index, row in enumerate(r.rows)
        for column in r.columns
        for seed in r.seeds
    ]
    points = points_of(filled(r, runs, rows_of(r)))
    assert {point.column for point in points} == {"RTE", "MRPC", "Avg"}
    for column in ("RTE", "Avg"):
        for series, first in (("MLM", 50.0), ("TACO", 60.0)):
            line = [point for point in points if (point.column, point.series) == (column, series)]
            assert [point.x for point in line] == [40, 80, 160, 240, 320, 400, 800, 1200, 1600, 2000]
            assert [point.value for point in line] == pytest.approx([first + index for index in range(10)])


def test_coco_lm_has_the_papers_runs() -> None:
    """Table 7: 64 points for each of 4 small tasks and 12 for each of 4 large ones, 5 seeds: 1,520 fine-tunings a row."""
    made = plan("coco_lm_glue")
    assert len(made.runs) == 3 * 1520
    assert len(made.stages) == 3 * 1521
    for task, points in (("rte", 64), ("mnli", 12)):
        runs = [run for run in made.runs if run.task == task and run.row.startswith("COCO-LM")]
        assert len({run.row for run in runs}) == points
        for run in runs:
            optim, rows = run.stage.optim, TASKS[task].official_rows("train")
            assert rows is not None
            assert run.stage.selection is not None
            assert run.stage.selection.every == math.ceil(math.ceil(rows / optim.batch_size) / 2), "twice an epoch"
    rates = {run.stage.optim.lr for run in made.runs if run.task == "mnli"}
    assert rates == {1e-5, 2e-5, 3e-5, 4e-5}


@pytest.mark.parametrize(
    ("table", "lr", "relative", "small", "large"),
    [
        ("coco_lm_base_plus", 2e-4, (64, 128), {2e-5, 3e-5, 4e-5, 5e-5}, {1e-5, 2e-5, 3e-5, 4e-5}),
        ("coco_lm_large_plus", 1e-4, (128, 256), {7e-6, 1e-5, 2e-5, 3e-5}, {5e-6, 7e-6, 1e-5, 2e-5}),
    ],
)
def test_coco_lms_larger_settings_have_the_papers_recipe(
    table: str, lr: float, relative: tuple[int, int], small: set[float], large: set[float]
) -> None:
    """Tables 6, 7 and 8, columns base++ and large++; what the settings share is as in the base setting's table. On SQuAD 32 points x 5 seeds, with
    the rates of the small tasks."""
    made, base = plan(table), plan("coco_lm_glue", methods=("COCO-LM",))
    assert (len(made.runs), len(made.stages)) == (1680, 1681)
    (trained,) = [stage for stage in made.stages.values() if stage.phase == "pre-train"]
    (other,) = [stage for stage in base.stages.values() if stage.phase == "pre-train"]
    optim = trained.optim
    assert (optim.steps, optim.lr, math.ceil(optim.warmup * optim.steps)) == (1_950_000, lr, 10_000)
    assert replace(optim, steps=0, lr=0, warmup=0) == replace(other.optim, steps=0, lr=0, warmup=0)
    assert (trained.encoder.relative_buckets, trained.encoder.relative_distance) == relative
    assert trained.objective == other.objective
    for task, rates in (("rte", small), ("mnli", large), ("squad_v2", small)):
        assert {run.stage.optim.lr for run in made.runs if run.task == task} == rates
    setting = "base++" if "base" in table else "large++"
    assert f"new:coco-lm-{setting}@bpe-cased:64000:" in made.resolved.encoder
    assert SIZES[f"coco-lm-{setting}"].relative_positions == relative
    assert SIZES[f"coco-lm-{setting}"].vocabulary == 64_000


@pytest.mark.parametrize("table", ["coco_lm_glue", "coco_lm_hours"])
def test_coco_lms_baselines_have_the_papers_dropout_and_masking(table: str) -> None:
    """3.3: to sample without dropout is COCO-LM's own; appendix D: RoBERTa masks special tokens too. Other tables can be set to both."""

    def settings(table: str, **fields: Any) -> dict[str, dict[str, Any]]:
        stages = plan(table, tasks=("mnli",), **fields).stages.values()
        return {s.objective.name: dict(s.objective.params) for s in stages if s.phase == "pre-train"}

    baselines = {name: settings(table)[name] for name in ("mlm", "electra")}
    assert baselines["mlm"] == {"p_m": 0.15, "mask_special_tokens": True}
    assert baselines["electra"]["sampling_dropout"] is True
    assert "sampling_dropout" not in settings(table)["coco_lm"]
    rows, both = ("MLM", "ELECTRA"), ("electra.sampling_dropout=true", "mlm.mask_special_tokens=true")
    assert settings("pretraining", methods=rows, set=both) == baselines
    plain = settings("pretraining", methods=rows)
    assert plain["mlm"] == {"p_m": 0.15}
    assert "sampling_dropout" not in plain["electra"]


@pytest.mark.parametrize(
    ("table", "decayed"),
    [("coco_lm_glue", True), ("coco_lm_ablation", True), ("scl_full_size", True), ("taco_small", False)],
)
def test_what_weight_decay_is_of_is_what_each_papers_library_does(table: str, decayed: bool) -> None:
    """Fairseq decays biases and norms, Hugging Face's Trainer does not; without weight decay it changes no key."""

    def decays(*changes: str) -> set[bool]:
        stages = plan(table, set=changes, seeds=(31,)).stages.values()
        return {stage.optim.decay_biases_and_norms for stage in stages if stage.optim.weight_decay}

    assert decays() == {decayed}
    other = tuple(f"{phase}.decay_biases_and_norms={not decayed}" for phase in ("fine_tune", "pre_train"))
    assert decays(*other) == {not decayed}
    none = ("fine_tune.weight_decay=0", "pre_train.weight_decay=0")
    once = {"seeds": (31,)}
    assert plan(table, set=none, **once).stages.keys() == plan(table, set=(*none, *other), **once).stages.keys()


def test_coco_lms_ablations_share_the_base_model_with_its_table() -> None:
    """Table 3: the run of Table 1's base model, 10 more pre-trainings and that of an auxiliary network, 1,520 fine-tunings each."""
    tasks = ("mnli", "rte")
    table, ablation = (
        plan("coco_lm_glue", methods=("COCO-LM",), tasks=tasks),
        plan("coco_lm_ablation", tasks=tasks),
    )
    assert len(ablation.runs) == 11 * (12 + 64) * 5
    assert len(ablation.stages) == 11 * (12 + 64) * 5 + 11 + 1
    shared = table.stages.keys() & ablation.stages.keys()
    assert shared == table.stages.keys()
    assert sum(table.stages[key].phase == "pre-train" for key in shared) == 1
    objectives = {}
    for run in ablation.runs:
        assert isinstance(run.stage.init, Parent)
        trained = run.stage.init.stage
        objectives[run.row.partition(" on ")[0]] = (trained.objective, trained.encoder.relative_buckets)
    assert len({str(each) for each in objectives.values()}) == 11
    assert [name for name, (_, buckets) in objectives.items() if not buckets] == ["w/o Rel-Pos"]
    assert objectives["RTD Only"][0].name == "electra", "with the shallow network and without the contrast"


def test_a_line_of_a_probe_has_the_name_of_its_printed_row() -> None:
    """Not that of the first point of the row's grid; where several rows share a pre-training, that of its objective."""
    for table, expected in {
        "coco_lm_ablation": list(load_table("coco_lm_ablation").paper[0]),
        "coco_lm_hours": ["COCO-LM", "RoBERTa-125k", "ELECTRA-125k"],
    }.items():
        made = plan(table, tasks=("mnli",))
        lines = probe_lines(cast("Prepared", SimpleNamespace(plan=made, resolved=made.resolved)), FIGURES["copying"])
        assert [line.name for line in lines] == expected


def test_a_preset_and_an_override_go_over_the_recipes_of_tasks() -> None:
    quick = plan("taco_small", "quick")
    assert {run.stage.optim.steps for run in quick.runs} == {200}
    ours = plan("taco_small", tasks=("mnli", "rte"), set=("fine_tune.batch_size=16",))
    assert {(run.task, run.stage.optim.batch_size) for run in ours.runs} == {("mnli", 16), ("rte", 16)}


def test_a_row_that_takes_no_other_task_leaves_their_cells_to_the_rest() -> None:
    """The cell of RTE is made of the configurations for small tasks; the best median on dev is selected among them."""
    r = resolve_table("coco_lm_glue", "paper", tasks=("rte", "mnli"), methods=("COCO-LM",))
    small = [row.name for row in r.rows if "rte" in row.tasks]
    runs = []
    for size, row, column, subset, seed in r.places:
        score = 0.9 if row == small[5] else 0.5 + 0.01 * (seed == 31)
        runs.append(result(r, row, size, column, subset, seed, score, dev=score))
    cell = filled(r, runs, rows_of(r)).cells[0, "COCO-LM", "rte"]
    assert (cell.expected, cell.selected, cell.value) == (64 * 5, (small[5],), pytest.approx(0.9))
    assert filled(r, runs, rows_of(r)).cells[0, "COCO-LM", "mnli"].expected == 12 * 5


def test_draws_of_a_grid_are_points_of_it_and_always_the_same() -> None:
    grid = {"fine_tune.lr": (1e-5, 2e-5, 3e-5), "fine_tune.epochs": (2, 3), "lam": (0.1, 0.9)}
    row = Row(name="A", method="scl", grid=grid)
    every = {each.name: each for each in row.configurations}
    assert len(every) == 12
    drawn = row.model_copy(update={"draws": 4}).configurations
    assert [each.name for each in drawn] == [each.name for each in row.model_copy(update={"draws": 4}).configurations]
    assert len({each.name for each in drawn}) == 4
    for each in drawn:
        same = every[each.name]
        assert (each.recipe_settings, each.set) == (same.recipe_settings, same.set)
        assert {"lr", "epochs"} == set(each.recipe_settings["fine_tune"])
    other = row.model_copy(update={"draws": 4, "tasks": ("rte",)}).configurations
    assert {each.name for each in other} != {each.name for each in drawn}


def test_grids_of_tasks_are_a_grid_for_each() -> None:
    grid = {"fine_tune.lr": (1e-5, 2e-5), "fine_tune.epochs": (2, 3)}
    row = Row(
        name="A",
        method="ft",
        grid=({"tasks": ("rte", "cola"), "grid": grid}, {"tasks": ("sst2",), "grid": {"lam": (0.1,)}}),
    )
    of_rte = Row(name="A on rte, cola", configuration_of="A", method="ft", tasks=("rte", "cola"), grid=grid)
    assert row.configurations[:4] == of_rte.configurations
    assert [(each.tasks, each.title, each.set) for each in row.configurations[4:]] == [(("sst2",), "A", {"lam": 0.1})]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"grid": [{"tasks": ["rte"], "grid": {"fine_tune.lr": (2.0,)}}]}, "fine_tune.lr"),
        ({"grid": [{"tasks": [], "grid": {"fine_tune.lr": (1e-5,)}}] * 2}, "tasks"),
        ({"grid": [{"tasks": ["rte"], "grid": {"fine_tune.lr": (1e-5,)}}], "tasks": ["rte"]}, "leave tasks out"),
        ({"grid": {"fine_tune.lr": (2.0,)}}, "fine_tune.lr"),
        ({"grid": {"fine_tune.rate": (0.1,)}}, "rate"),
        ({"draws": 3}, "no grid to draw from"),
    ],
)
def test_a_wrong_grid_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises((ValidationError, UserError), match=said):
        Row(name="A", method="ft", **wrong)


@pytest.mark.parametrize(
    ("every", "updates"), [(100, 100), ("last", 10**9), ("0.5 epochs", 78), ("1 epoch", 156), ("0.001 epochs", 1)]
)
def test_updates_between_two_evaluations(every: int | str, updates: int) -> None:
    assert updates_between(every, 156) == updates
