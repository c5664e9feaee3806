"""The model card of an exported stage: Hugging Face's metadata, and for people what it is, how it was made and how to use it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

import harness
from harness.commands.prepare import Prepared
from harness.commands.recorded import StageRecord
from harness.commands.report import grid_of
from harness.errors import masked
from harness.hub import HUB, is_id
from harness.methods import methods_named
from harness.paths import without_folders
from harness.specs import Run, Stage
from harness.tasks.sources import HUB_DATASET, OTHER_DATASETS
from harness.tasks.task import Task
from harness.views.cells import counted_scores
from harness.views.view import shown
from harness.wording import counted, escaped, in_points, per_class, value_text
from harness.yaml_files import format_value

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from harness.encoders.models.pretrained_folder import Form

HUB_METRICS = {"mcc": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
"""What the hub calls our metrics, where it is something else."""


class Checked(NamedTuple):
    """What was checked of a written folder, in sentences; how many texts a row has; the task of a classifier."""

    sentences: tuple[str, ...]
    texts: int = 1
    task: Task | None = None


class CardScore(NamedTuple):
    """This model's score on one set, on the metric's own scale, and its cell's, as the card shows it. `value`, `of_cell`: the cell's as a number and in words, None and
    '' while runs are missing, and where the table shows other scores."""

    dataset: str
    metric: str
    own: float
    cell: str
    value: float | None
    of_cell: str


def card(
    recorded: StageRecord,
    prepared: Prepared,
    form: Form,
    checked: Checked,
    folder: str,
    hub_name: str = "",
    license: str = "",
    onnx: bool = False,
) -> str:
    """README.md with its metadata. `folder` or, where there is one, the repository `hub_name`: what its code loads; `license`: the hub's
    identifier of the licence that the user gives it; left out, the card says that those of encoder and data hold; `onnx`: there is a file of ONNX."""
    from huggingface_hub import ModelCardData
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from harness.encoders.models.pretrained_folder import PIPELINES

    task, plan, resolved, run = checked.task, prepared.plan, prepared.resolved, recorded.run_in(prepared.plan)
    results, stage = list(_results(recorded, prepared, run, task)), plan.stages[recorded.key]
    title = _title(prepared, stage, run, task) + recorded.after
    data: Any = ModelCardData(
        license=license or "other",
        license_name=None if license else "of-encoder-and-data",
        library_name="transformers" if form != "relative" else "harness",
        pipeline_tag=PIPELINES.get(form),
        base_model=resolved.encoder if "/" in resolved.encoder and is_id(resolved.encoder) else None,
        datasets=[hub_id] if (hub_id := _dataset(task)) else None,
        metrics=list(dict.fromkeys(HUB_METRICS.get(r.metric, r.metric) for r in results)) or None,
        tags=["harness", *dict.fromkeys(map(_objective, stage.chain))],
        model_name=title if results else None,
        eval_results=[each for result in results if task for each in _metadata(result, task)] or None,
    )
    pre_train = next((row.pre_train for row in resolved.rows if row.name == run.row), "")
    names = dict.fromkeys(name for name in (pre_train, run.method) if name)
    environment = Environment(
        loader=PackageLoader("harness.commands"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        finalize=lambda value: value if isinstance(value, Markup) else shown(str(value), "md"),
        keep_trailing_newline=True,
    )
    environment.filters |= {"counted": counted, "in_points": in_points}
    origins = [f"{data.task.title}: {data.origin}" for data in plan.tasks.values() if data.origin]
    name = json.dumps(hub_name or folder, ensure_ascii=False)
    body = environment.get_template("model_card.jinja").render(
        title=title,
        form=form,
        name=Markup(name),
        hub=bool(hub_name),
        place=Markup(f"snapshot_download({name})" if hub_name else name),
        onnx=onnx,
        task=task,
        spans=task.spans if task else None,
        texts=checked.texts,
        results=results,
        scored="dev" if resolved.scores_dev else "test",
        spread=resolved.aggregate.spread == "std",
        run=run,
        stage=stage,
        stages=[*map(_stage, stage.chain)],
        encoder=_code(resolved.encoder),
        encoder_license=encoder_license(plan.encoders[0].folder),
        source=plan.source,
        notes=[resolved.table.title, *(data.note for data in plan.tasks.values() if data.note), *origins],
        origin=dict.fromkeys(("device", "torch", "transformers", "harness")) | recorded.record.provenance,
        version=harness.__version__,
        recorded=recorded,
        again=Markup(escaped(recorded.again)),
        methods=[method for name in names for method in methods_named(name)],
        checks=checked.sentences,
    )
    return escaped(masked(f"---\n{data.to_yaml()}\n---\n\n" + without_folders(body)), lines=True)


def _code(text: str) -> Markup:
    """A name in the quotes of code."""
    return Markup("`" + text.replace("`", "'") + "`")


def _title(prepared: Prepared, stage: Stage, run: Run, task: Task | None) -> str:
    name = prepared.resolved.encoder.rpartition("/")[2]
    if task is None:
        return f"{name} after {stage.objective.name} ({stage.phase}) on {stage.data.train.name}"
    examples = f"{counted(run.size, 'labelled example')}{per_class(prepared.resolved.size_unit)}"
    size = examples if run.size else "the full training set"
    return f"{name}, {run.row} on {task.title} ({size})"


def _dataset(task: Task | None) -> str:
    """The hub's data set of a packaged task; '' where it has none."""
    if task is None or task.own or task.packaged:
        return ""
    return OTHER_DATASETS.get(task.name, HUB_DATASET).removeprefix(HUB)


def encoder_license(folder: Path | None) -> str:
    """The licence that the model card in an encoder's folder states in its metadata, '' without."""
    path = folder / "README.md" if folder else None
    if path is None or not path.is_file():
        return ""
    metadata = re.match(r"---\n(.*?)\n---\s", path.read_text(encoding="utf-8", errors="replace"), re.DOTALL)
    stated = re.search(r"^license: *([\w.-]+) *$", metadata[1], re.MULTILINE) if metadata else None
    return stated[1] if stated else ""


def _results(recorded: StageRecord, prepared: Prepared, run: Run, task: Task | None) -> Iterator[CardScore]:
    """This model's score and its cell's, one a column."""
    if task is None:
        return
    grid, resolved = grid_of(prepared), prepared.resolved
    rows = grid.results[(grid.results["key"] == recorded.record.key) & (grid.results["row"] == run.row)]
    own = rows.dropna(subset="test").drop_duplicates("column").set_index("column")["test"].to_dict()
    place = run.size, resolved.titles[run.row]
    counts = counted_scores(grid).groupby(["size", "row", "column"]).size()
    for name, column in ((name, column) for name, column in resolved.columns.items() if column.task == run.task):
        cell, value, of_cell = grid.cells[*place, name], None, ""
        if resolved.aggregate.scores == "dev":
            shown = "the table shows scores on dev"
        elif cell.value is None:
            shown = f"{cell.done}/{cell.expected} runs"
        else:
            value = cell.value
            of_cell = f"{resolved.aggregate.label} of {counted(int(counts[*place, name]), 'run')}"
            spread = f" ± {in_points(cell.spread)}" if cell.spread is not None else ""
            shown = f"{in_points(value)}{spread} ({of_cell})"
        scored = "dev" if resolved.scores_dev and column.evaluation == "test" else column.evaluation
        yield CardScore(f"{task.title} ({scored})", column.metric, own[name], shown, value, of_cell)


def _metadata(result: CardScore, task: Task) -> Iterator[EvalResult]:
    from huggingface_hub import EvalResult

    hub_id = _dataset(task)
    for what, value in (("this model", result.own), (f"{result.of_cell} (subsets and seeds)", result.value)):
        if value is not None:
            yield EvalResult(
                task_type=task.kind.pipeline,
                metric_type=HUB_METRICS.get(result.metric, result.metric),
                dataset_name=result.dataset,
                dataset_type=hub_id or result.dataset.partition(" ")[0].lower(),
                dataset_config=task.name if hub_id == HUB_DATASET else None,
                metric_name=f"{result.metric}, {what}",
                metric_value=round(100 * value, 2),
            )


def _objective(stage: Stage) -> str:
    """What a stage minimises: the classification objective is the mean squared error where the labels are scores."""
    kind = stage.data.kind
    return kind.loss if kind and stage.objective.name == "cross_entropy" else stage.objective.name


def _stage(stage: Stage) -> Markup:
    """One stage in a sentence."""
    params = ", ".join(f"{name} {format_value(value)}" for name, value in sorted(stage.objective.params.items()))
    if stage.data.standardised:
        mean, spread = stage.data.standardised
        params = f"of scores less {value_text(mean)} and divided by {value_text(spread)}"
    data, optim, selection = stage.data, stage.optim, ""
    if stage.selection and data.dev:
        dev = f"{shown(data.dev.name, 'md')} ({counted(data.dev.rows, 'row')})"
        every = counted(stage.selection.every, "update")
        selection = f"; best checkpoint by {stage.selection.metric} on {dev}, scored every {every}"
    decay = f"weight decay {value_text(optim.weight_decay)}{' (biases and norms too)' if optim.decay_biases_and_norms else ''}"
    return Markup(
        f"**{stage.phase}**: objective {_code(_objective(stage))}{f' ({params})' if params else ''} on {shown(data.train.name, 'md')} "
        f"({counted(data.train.rows, 'row')}, digest {data.train.digest[:10]}); {counted(optim.steps, 'update')} of {optim.batch_size}, AdamW, lr "
        f"{value_text(optim.lr)} ({optim.schedule}, warm-up {value_text(optim.warmup)}), {decay}, clip {value_text(optim.clip)}, dropout "
        f"{value_text(optim.dropout)}, at most {data.max_length} tokens, {optim.precision}, seed {stage.seed}{selection}."
    )
