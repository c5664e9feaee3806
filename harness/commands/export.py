"""Exports a recorded stage: its weights, trained again where they were not kept and held against the record, as a folder of
Hugging Face's, with a model card: its metadata, and for people what it is, how it was made and how to use it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from harness.commands.recorded import StageRecord
from harness.commands.train import Show
from harness.commands.trained import TrainedModel, trained_model
from harness.commands.views import grid_of
from harness.errors import UserError, masked
from harness.hub import is_id
from harness.methods import methods_named
from harness.paths import check_new_folder, new_folder, without_folders
from harness.planning.runs import Plan
from harness.specs import Run, Stage
from harness.tasks.task import GLUE, TASKS, Task
from harness.views.cells import CELL, Grid
from harness.views.view import rendered, shown, with_spread
from harness.wording import counted, escaped, in_points, value_text
from harness.yaml_files import format_value

if TYPE_CHECKING:
    from harness.encoders.models.pretrained_folder import Form

CHECKED_ROWS = 64
"""Rows on which the written folder is held against the model in memory."""
TOLERANCE = 1e-4
"""The greatest difference of logits that rounding explains: plain transformers adds up in another order."""
SETTINGS = "harness.json"
"""What `harness predict` and `--encoder` know of a folder besides what transformers reads."""


class Exported(NamedTuple):
    """A written folder. `form`: what loads it; `sentences`: what was checked and what to know, for people."""

    key: str
    folder: Path
    form: Form
    sentences: tuple[str, ...]


def export(
    recorded: StageRecord,
    out: Path,
    show: Show,
    *,
    storage: str | None = None,
    accept_difference: bool = False,
    license: str = "",
    onnx: bool = False,
) -> Exported:
    """Write a recorded stage to the folder `out`, which must be new or empty. `license`: what the card states, as the hub calls it (default: that those of
    encoder and data hold); `onnx`: also as a file of ONNX, of a classifier.

    Weights that are not stored are trained again, shown by `show`. Raises UserError, and writes nothing, where the stage did not
    finish, its data or encoder are not at hand, or what is trained again differs from the record (`accept_difference`: all the same).
    """
    data = recorded.stage.data
    if data.kind and data.kind.target_scale and data.kind.output_type == "float64":
        mean, spread = data.kind.target_scale
        fix = "train on the scores less their mean, or predict with the run's key"
        raise UserError(f"{recorded.key[:12]}: float32 loses its scores ({mean:.15g} ± {spread:g}); {fix}.")
    if onnx:
        if data.kind is None or data.spans or data.prompt or recorded.stage.encoder.relative_buckets:
            raise UserError(f"--onnx: {recorded.key[:12]} is no classifier that transformers computes; leave it out.")
        from harness.encoders.models.onnx_file import BATCHES, ONNX_FILE, check_onnx, write_onnx

        check_onnx()
    check_new_folder(out)
    model = trained_model(recorded, show, storage=storage, accept_difference=accept_difference)
    with new_folder(out) as folder:
        form = _write(recorded, model, folder)
        checks = [model.sentence, *_compared(recorded, model, folder, form)]
        if onnx:
            texts = _checked_texts(model)
            difference, greatest = write_onnx(folder, form, texts)
            _check_equal(recorded, difference, greatest, f"--onnx: ONNX Runtime computes other logits from {ONNX_FILE}")
            within = f"within {difference:.1g} ({len(texts)} texts, in batches of {', '.join(map(str, BATCHES))})"
            checks.append(f"ONNX Runtime gives the logits of plain transformers from {ONNX_FILE} {within}.")
        text = card(recorded, model, form, checks, str(out), license, onnx)
        (folder / "README.md").write_text(text, encoding="utf-8")
        for path in folder.iterdir():
            path.chmod((folder / "README.md").stat().st_mode)  # safetensors writes files for their owner alone
    return Exported(recorded.key, out, form, tuple(checks))


def _write(recorded: StageRecord, model: TrainedModel, folder: Path) -> Form:
    """Weights, configuration, tokenizer and our own settings."""
    from harness.encoders.models.pretrained_folder import Head, write_model, write_tokenizer

    stage, objective, task = model.stage, model.objective, model.task
    head, kind = None, stage.data.kind
    if objective.has_classifier and kind:
        tensors = {name.partition("/")[2]: tensor for name, tensor in objective.parts().items()}
        if stage.data.standardised:
            mean, spread = stage.data.standardised
            tensors["out.weight"] = spread * tensors["out.weight"]
            tensors["out.bias"] = mean + spread * tensors["out.bias"]
        head = Head(tensors, kind.names, kind.per_token)
    objective.to("cpu")
    form = write_model(objective.encoder, folder, head)
    write_tokenizer(model.setup.encoders[stage.encoder.digest][0], objective.encoder, folder, stage.data.max_length)
    columns = task.columns if task and objective.params.labelled else ()
    settings = {"key": recorded.key, "columns": columns, "stage": stage.to_json()}
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return form


def _check_equal(recorded: StageRecord, difference: float, greatest: float, what: str) -> None:
    """Raises UserError where logits differ by more than rounding explains, which would be an error of this program."""
    if not difference <= TOLERANCE * max(1.0, greatest):
        wrong = f"{recorded.key[:12]}: {what} (by up to {difference:.2g}); nothing was written"
        raise UserError(f"{wrong}. Please report it with the encoder's name.")


def _compared(recorded: StageRecord, model: TrainedModel, folder: Path, form: Form) -> Iterator[str]:
    """What plain transformers computes with the folder, beside the model in memory, in sentences. Raises UserError where it is something else."""
    import torch

    from harness.encoders.models.batch import Batch
    from harness.encoders.models.pretrained_folder import plain_logits
    from harness.encoders.models.text_encoder import load_encoder
    from harness.encoders.tokens import Tokeniser
    from harness.encoders.tokens.reading import reading_of

    objective, data = model.objective, model.stage.data
    if objective.encoder.fresh_head and not objective.has_classifier:
        yield "No stage trained its MLM head, and the encoder came without one."
    if data.prompt and data.kind:
        words = zip(data.prompt.words, data.kind.word_names, strict=True)
        answers = ", ".join(f"{word} ({name})" for word, name in words)
        beside = " beside training examples, which are not in this folder," if data.prompt.demonstrations else ""
        yield f"It was trained{beside} to answer {answers} at the mask of '{data.prompt.template}'."
    if form == "relative":
        wrote, read = objective.encoder.parts(), load_encoder(folder, "", seed=0).parts()
        same = wrote.keys() == read.keys() and all(torch.equal(wrote[name], read[name]) for name in wrote)
        _check_equal(recorded, 0.0 if same else math.inf, 0.0, "the written folder has other weights")
        yield "transformers has no class with relative positions and refuses this folder; harness --encoder takes it (checked)."
        return
    texts = _checked_texts(model)
    if not texts:
        yield "Its texts are not at hand, so what plain transformers computes was not checked."
        return
    if data.spans:  # plain transformers reads whole questions
        asked = Tokeniser(folder).placed([question for question, _ in texts])
        texts = [row for row, (ids, _) in zip(texts, asked, strict=True) if len(ids) <= data.spans.question]
    examples = reading_of(replace(data, views=1, blocks="text", prompt=None)).examples(texts, Tokeniser(folder))
    firsts = examples.tokens if examples.starts is None else examples.tokens.take(examples.starts[:-1])
    batch = Batch.of(firsts, torch.device("cpu"))
    objective.eval()
    with torch.inference_mode():
        if objective.has_classifier:
            ours = objective.predict(batch)
        else:
            ours = objective.encoder(batch, batch.first)
            ours = objective.encoder.mlm_logits(ours) if form == "masked_lm" else ours
    theirs = plain_logits(folder, form, texts)
    allowed = ~torch.isneginf(ours)  # of question answering the tokens that may be an answer
    difference, greatest = float((ours - theirs)[allowed].abs().max()), float(ours[allowed].abs().max())
    _check_equal(recorded, difference, greatest, "plain transformers computes other logits from the written folder")
    what = "states" if form == "encoder" and not objective.has_classifier else "logits"
    yield f"Plain transformers gives the same {what} within {difference:.1g} ({len(texts)} texts)."


def _checked_texts(model: TrainedModel) -> list[tuple[str, ...]]:
    """Some rows of dev, or of the training set without further views; of a corpus its first texts."""
    data, plan = model.stage.data, model.prepared.plan
    for row_set in (data.dev, data.train):
        if row_set and row_set.digest in plan.library:
            rows = plan.library[row_set.digest]
            width = rows.columns // (data.views if row_set is data.train else 1)
            return [row[:width] for row in rows.take(range(min(len(rows), CHECKED_ROWS))).texts]
    corpus = next((corpus for corpus in plan.corpora if corpus.digest == data.train.digest), None)
    return [(text,) for text in islice(corpus.texts() if corpus else (), CHECKED_ROWS)]


HUB_METRICS = {"mcc": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
"""What the hub calls our metrics, where it is something else."""


def card(
    recorded: StageRecord, model: TrainedModel, form: Form, checks: Sequence[str], folder: str, license: str, onnx: bool
) -> str:
    """README.md with its metadata. `folder`: what its code loads, also the repository of that name on the hub; `license`: the hub's
    identifier of the licence that the user gives it; left out, the card says that those of encoder and data hold; `onnx`: there is a file of ONNX."""
    from huggingface_hub import EvalResult, ModelCardData

    from harness.encoders.models.pretrained_folder import PIPELINES

    prepared, plan, resolved = model.prepared, model.prepared.plan, model.prepared.resolved
    task, run, stage = model.task if model.objective.has_classifier else None, recorded.run_in(plan), model.stage
    results = scores_of(recorded.key, run, task, grid_of(prepared)) if task else []
    title = _title(plan, stage, run, task)
    dataset = TASKS[task.name].published if task and not (task.own or task.package) else ""
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
                dataset_config=task.name if dataset == GLUE else None,
                metric_name=result["metric"],
                metric_value=round(100 * result["own"], 2),
            )
            for result in results
            if task
        ]
        or None,
    )
    filters: dict[str, Any] = {"counted": counted, "in_points": in_points, "value": value_text, "setting": format_value}
    filters["objective"], filters["code"] = _objective, lambda text: Markup("`" + text.replace("`", "'") + "`")
    parts = dict.fromkeys([*(row.pre_train for row in resolved.rows if row.name == run.row), run.method])
    known: dict[str, Any] = {"title": title, "form": form, "onnx": onnx, "task": task, "results": results, "run": run}
    known |= {"stage": stage, "plan": plan, "resolved": resolved, "recorded": recorded, "checks": checks}
    known |= {"name": Markup(json.dumps(folder, ensure_ascii=False)), "again": Markup(escaped(recorded.again))}
    known["methods"] = [method for name in parts if name for method in methods_named(name)]
    known["encoder_license"] = encoder_license(plan.encoders[0].folder)
    how: dict[str, Any] = {"autoescape": False, "keep_trailing_newline": True}
    how["finalize"] = lambda value: value if isinstance(value, Markup) else shown(str(value), "md")
    body = rendered("harness.commands", "model_card.jinja", known, filters, **how)
    return escaped(masked(f"---\n{data.to_yaml()}\n---\n\n" + without_folders(body)), lines=True)


def _title(plan: Plan, stage: Stage, run: Run, task: Task | None) -> str:
    name = plan.resolved.encoder.rpartition("/")[2]
    if task is None:
        return f"{name} after {stage.objective.name} ({stage.phase}) on {stage.data.train.name}"
    examples = (
        f"{counted(run.size, 'labelled example')}{plan.resolved.protocol.size_unit.removeprefix('training examples')}"
    )
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
    """Of each column that a run fills: the `dataset` and `metric`, the `own` score of the run, and its `cell`, what to expect of the recipe, as the card shows it."""
    resolved, rows = grid.resolved, grid.results[(grid.results["key"] == key) & (grid.results["row"] == run.row)]
    own = rows.dropna(subset="test").drop_duplicates("column").set_index("column")["test"].to_dict()
    counts = grid.counted.groupby(CELL).size()
    found = []
    for name, column in ((name, column) for name, column in resolved.columns.items() if column.task == run.task):
        place = run.size, resolved.titles[run.row], name
        cell, text = grid.cells[place], "the table shows scores on dev"
        if resolved.aggregate.scores != "dev":
            text = f"{cell.done}/{cell.expected} runs"
            if cell.value is not None:
                spread = "" if cell.spread is None else in_points(cell.spread)
                rule = f"{resolved.aggregate.label} of {counted(int(counts[place]), 'run')}"
                text = f"{with_spread(in_points(cell.value), spread)} ({rule})"
        scored = "dev" if resolved.protocol.scores_dev and column.evaluation == "test" else column.evaluation
        found.append({"dataset": f"{task.title} ({scored})", "metric": column.metric, "own": own[name], "cell": text})
    return found


def _objective(stage: Stage) -> str:
    """What a stage minimises: the classification objective is the mean squared error where the labels are scores."""
    kind = stage.data.kind
    return kind.loss if kind and stage.objective.name == "cross_entropy" else stage.objective.name
