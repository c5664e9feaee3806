"""The model card of an exported stage: Hugging Face's metadata, and for people what it is, how it was made and how to use it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from harness.commands.recorded import StageRecord
from harness.commands.views import grid_of
from harness.errors import masked
from harness.hub import HUB, is_id
from harness.methods import methods_named
from harness.paths import without_folders
from harness.planning.runs import Plan
from harness.specs import Run, Stage
from harness.tasks.sources import HUB_DATASET, OTHER_DATASETS
from harness.tasks.task import Task
from harness.views.cells import Grid
from harness.views.view import shown
from harness.wording import counted, escaped, in_points, value_text
from harness.yaml_files import format_value

if TYPE_CHECKING:
    from harness.commands.trained import TrainedModel
    from harness.encoders.models.pretrained_folder import Form

HUB_METRICS = {"mcc": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
"""What the hub calls our metrics, where it is something else."""


def card(
    recorded: StageRecord, model: TrainedModel, form: Form, checks: Sequence[str], folder: str, license: str, onnx: bool
) -> str:
    """README.md with its metadata. `folder`: what its code loads, also the repository of that name on the hub; `license`: the hub's
    identifier of the licence that the user gives it; left out, the card says that those of encoder and data hold; `onnx`: there is a file of ONNX."""
    from huggingface_hub import EvalResult, ModelCardData
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from harness.encoders.models.pretrained_folder import PIPELINES

    prepared, plan, resolved = model.prepared, model.prepared.plan, model.prepared.resolved
    task, run, stage = model.task if model.objective.has_classifier else None, recorded.run_in(plan), model.stage
    results = scores_of(recorded.key, run, task, grid_of(prepared)) if task else []
    title, dataset = _title(plan, stage, run, task), ""
    if task and not (task.own or task.packaged):
        dataset = OTHER_DATASETS.get(task.name, HUB_DATASET).removeprefix(HUB)
    data: Any = ModelCardData(
        license=license or "other",
        license_name=None if license else "of-encoder-and-data",
        library_name="transformers" if form != "relative" else "harness",
        pipeline_tag=PIPELINES.get(form),
        base_model=resolved.encoder if "/" in resolved.encoder and is_id(resolved.encoder) else None,
        datasets=[dataset] if dataset else None,
        metrics=list(dict.fromkeys(HUB_METRICS.get(r["metric"], r["metric"]) for r in results)) or None,
        tags=["harness", *dict.fromkeys(map(_objective, stage.chain))],
        model_name=title if results else None,
        eval_results=[
            EvalResult(
                task_type=task.kind.pipeline,
                metric_type=HUB_METRICS.get(result["metric"], result["metric"]),
                dataset_name=result["dataset"],
                dataset_type=dataset or result["dataset"].partition(" ")[0].lower(),
                dataset_config=task.name if dataset == HUB_DATASET else None,
                metric_name=f"{result['metric']}, {what}",
                metric_value=round(100 * value, 2),
            )
            for result in results
            for what, value in result["values"].items()
            if task
        ]
        or None,
    )
    environment = Environment(
        loader=PackageLoader("harness.commands"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        finalize=lambda value: value if isinstance(value, Markup) else shown(str(value), "md"),
        keep_trailing_newline=True,
    )
    filters: dict[str, Any] = {"counted": counted, "in_points": in_points, "value": value_text, "setting": format_value}
    filters["code"] = lambda text: Markup("`" + text.replace("`", "'") + "`")
    environment.filters |= filters | {"objective": _objective}
    parts = dict.fromkeys([*(row.pre_train for row in resolved.rows if row.name == run.row), run.method])
    known: dict[str, Any] = {"title": title, "form": form, "onnx": onnx, "task": task, "results": results, "run": run}
    known |= {"stage": stage, "plan": plan, "resolved": resolved, "recorded": recorded, "checks": checks}
    known |= {"name": Markup(json.dumps(folder, ensure_ascii=False)), "again": Markup(escaped(recorded.again))}
    known["methods"] = [method for name in parts if name for method in methods_named(name)]
    known["encoder_license"] = encoder_license(plan.encoders[0].folder)
    body = environment.get_template("model_card.jinja").render(known)
    return escaped(masked(f"---\n{data.to_yaml()}\n---\n\n" + without_folders(body)), lines=True)


def _title(plan: Plan, stage: Stage, run: Run, task: Task | None) -> str:
    name = plan.resolved.encoder.rpartition("/")[2]
    if task is None:
        return f"{name} after {stage.objective.name} ({stage.phase}) on {stage.data.train.name}"
    examples = f"{counted(run.size, 'labelled example')}{plan.resolved.size_unit.removeprefix('training examples')}"
    return f"{name}, {run.row} on {task.title} ({examples if run.size else 'the full training set'})"


def encoder_license(folder: Path | None) -> str:
    """The licence that the model card in an encoder's folder states in its metadata, '' without."""
    from huggingface_hub import metadata_load

    try:
        metadata = metadata_load(folder / "README.md") if folder else None
    except Exception:  # there is no such file, or it is of no form: whoever made the encoder wrote it
        metadata = None
    stated = (metadata or {}).get("license")
    return stated if isinstance(stated, str) else ""


def scores_of(key: str, run: Run, task: Task, grid: Grid) -> list[dict[str, Any]]:
    """Of each column that a run fills: the `dataset` and `metric`, the `own` score of the run, its `cell` as the card shows it, and the `values` that the
    metadata have, in words: the run's, and the cell's where all its runs are done and it is of these scores."""
    resolved, rows = grid.resolved, grid.results[(grid.results["key"] == key) & (grid.results["row"] == run.row)]
    own = rows.dropna(subset="test").drop_duplicates("column").set_index("column")["test"].to_dict()
    counts = grid.counted.groupby(["size", "row", "column"]).size()
    found = []
    for name, column in ((name, column) for name, column in resolved.columns.items() if column.task == run.task):
        place = run.size, resolved.titles[run.row], name
        cell, values = grid.cells[place], {"this model": own[name]}
        if resolved.aggregate.scores == "dev":
            text = "the table shows scores on dev"
        elif cell.value is None:
            text = f"{cell.done}/{cell.expected} runs"
        else:
            rule = f"{resolved.aggregate.label} of {counted(int(counts[place]), 'run')}"
            values[f"{rule} (subsets and seeds)"] = cell.value
            spread = f" ± {in_points(cell.spread)}" if cell.spread is not None else ""
            text = f"{in_points(cell.value)}{spread} ({rule})"
        scored = "dev" if resolved.scores_dev and column.evaluation == "test" else column.evaluation
        place_of_set = {"dataset": f"{task.title} ({scored})", "metric": column.metric}
        found.append({**place_of_set, "own": own[name], "cell": text, "values": values})
    return found


def _objective(stage: Stage) -> str:
    """What a stage minimises: the classification objective is the mean squared error where the labels are scores."""
    kind = stage.data.kind
    return kind.loss if kind and stage.objective.name == "cross_entropy" else stage.objective.name
