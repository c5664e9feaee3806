"""The model card of an exported stage: Hugging Face's metadata, and for people what it is, how it was made and how to use it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
from harness.commands.prepare import Prepared
from harness.commands.recorded import Recorded
from harness.commands.report import grid_of
from harness.hub import is_id
from harness.methods import methods_named
from harness.specs import Run, Stage
from harness.tables.caption import counted, in_points
from harness.tasks import Task
from harness.tasks.hub_data import HUB
from harness.tasks.sources import HUB_DATASET, OTHER_DATASETS
from harness.yaml_files import format_value

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from harness.encoders.models.pretrained_folder import Form

HUB_METRICS = {"mcc": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
"""What the hub calls our metrics, where it is something else."""


@dataclass(frozen=True)
class Checked:
    """What was checked of a written folder, in sentences; a row of texts to show its use with; the task of a classifier."""

    sentences: tuple[str, ...]
    example: tuple[str, ...]
    task: Task | None = None


@dataclass(frozen=True)
class Result:
    """A score on one test set, on the metric's own scale: of this model, and of its cell over `runs` runs."""

    column: str
    dataset: str
    metric: str
    own: float
    cell: str
    runs: int


def card(found: Recorded, prepared: Prepared, form: Form, checked: Checked, name: str, license: str = "") -> str:
    """README.md with its metadata. `name`: the folder or the repository that its code loads; `license`: the hub's identifier of the
    licence that the user gives it; left out, the card says that those of encoder and data hold."""
    from huggingface_hub import ModelCardData

    run = found.run_in(prepared.plan)
    results = list(_results(found, prepared, run, checked.task))
    stage = prepared.plan.stages[found.key]
    title = _title(prepared, stage, run, checked.task) + found.after
    encoder = prepared.resolved.encoder
    base = encoder if "/" in encoder and is_id(encoder) else None
    data: Any = ModelCardData(
        license=license or "other",
        license_name=None if license else "of-encoder-and-data",
        library_name="transformers" if form != "relative" else "harness",
        pipeline_tag="text-classification" if checked.task else "fill-mask" if form == "masked_lm" else None,
        base_model=base,
        datasets=[hub_id] if (hub_id := _dataset(checked.task)) else None,
        metrics=list(dict.fromkeys(HUB_METRICS.get(r.metric, r.metric) for r in results)) or None,
        tags=["harness", *dict.fromkeys(each.objective.name for each in stage.chain)],
        model_name=title if results else None,
        eval_results=[each for result in results for each in _metadata(result)] or None,
    )
    body = [f"# {title}", *_use(form, checked, name), *_table(results, run), *_training(found, prepared, stage, run)]
    body += ["## Checks", "\n".join(f"- {sentence}" for sentence in checked.sentences)]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(body) + "\n"


def _title(prepared: Prepared, stage: Stage, run: Run, task: Task | None) -> str:
    name = prepared.resolved.encoder.rpartition("/")[2]
    if task is None:
        return f"{name} after {stage.objective.name} ({stage.phase}) on {stage.data.train.name}"
    size = counted(run.size, "labelled example") if run.size else "the full training set"
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


# ------------------------------------------------------------------------------------------------------------- results


def _results(found: Recorded, prepared: Prepared, run: Run, task: Task | None) -> Iterator[Result]:
    """Of each column of the table that scores this model."""
    if task is None:
        return
    grid = grid_of(prepared)[0]
    mine = grid.results[(grid.results["key"] == found.record.key) & (grid.results["row"] == run.row)]
    own = mine.dropna(subset="test").drop_duplicates("column").set_index("column")["test"].to_dict()
    title = next(row.title for row in prepared.resolved.rows if row.name == run.row)
    for name, column in prepared.resolved.columns.items():
        if column.task != run.task:
            continue
        cell = grid.cells[run.size, title, name]
        spread = f" ± {in_points(cell.spread)}" if cell.spread is not None else ""
        shown = f"{in_points(cell.value)}{spread}" if cell.value is not None else f"{cell.done}/{cell.expected} runs"
        yield Result(column.title, f"{task.title} ({column.evaluation})", column.metric, own[name], shown, cell.done)


def _metadata(result: Result) -> Iterator[EvalResult]:
    from huggingface_hub import EvalResult

    kind = HUB_METRICS.get(result.metric, result.metric)
    common: dict[str, Any] = {"task_type": "text-classification", "metric_type": kind}
    common |= {"dataset_name": result.dataset, "dataset_type": result.dataset.partition(" ")[0].lower()}
    yield EvalResult(**common, metric_name=f"{result.metric}, this model", metric_value=in_points(result.own))
    over = f"{result.metric}, mean ± sd of {counted(result.runs, 'run')} (subsets and seeds)"
    yield EvalResult(**common, metric_name=over, metric_value=result.cell)


def _table(results: list[Result], run: Run) -> Iterator[str]:
    if not results:
        return
    yield "## Results"
    yield (
        f"Test scores in points. The first is of this model (subset {run.subset}, seed {run.seed}); the second over all subsets and "
        "seeds of its recipe, mean ± standard deviation, which is what to expect of the recipe. Checkpoints were selected on dev."
    )
    lines = ["| test set | metric | this model | recipe |", "|:--|:--|--:|--:|"]
    lines += [
        f"| {r.dataset} | {r.metric} | {in_points(r.own)} | {r.cell} ({counted(r.runs, 'run')}) |" for r in results
    ]
    yield "\n".join(lines)


# ----------------------------------------------------------------------------------------------------------------- use


def _use(form: Form, checked: Checked, name: str) -> Iterator[str]:
    yield "## Use"
    if form == "relative":
        yield (
            "**transformers cannot load this model**: it has no class for T5's relative positions in an encoder (COCO-LM). With "
            "`harness`: `--encoder FOLDER` starts from these weights, bit for bit"
            + (
                ", and `harness predict FOLDER --input new.csv --output scored.csv` classifies."
                if checked.task
                else "."
            )
        )
        return
    if form == "masked_lm":
        code = [
            "from transformers import pipeline",
            "",
            f'fill = pipeline("fill-mask", model="{name}")',
            'print(fill(f"A sentence with one {fill.tokenizer.mask_token}."))',
        ]
    elif form == "classifier":
        code = _classifier_code(checked.example, name)
    else:
        code = _encoder_code(checked, name)
        if checked.task:
            yield "transformers has no classifier with this head for this encoder, so the head is applied by hand:"
    yield "\n".join(["```python", *code, "```"])


def _classifier_code(example: tuple[str, ...], name: str) -> list[str]:
    return [
        "import torch",
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")',
        f'model = AutoModelForSequenceClassification.from_pretrained("{name}").eval()',
        f'given = tokenizer({_arguments(example)}, truncation=True, return_tensors="pt")',
        "with torch.no_grad():",
        "    logits = model(**given).logits",
        *_verdict(),
    ]


def _encoder_code(checked: Checked, name: str) -> list[str]:
    load = [
        "import torch",
        "from safetensors.torch import load_file",
        "from transformers import AutoModel, AutoTokenizer",
        "",
        f'folder = "{name}"',
        "tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()",
        f'given = tokenizer({_arguments(checked.example)}, truncation=True, return_tensors="pt")',
        "with torch.no_grad():",
        "    state = model(**given).last_hidden_state[:, 0]",
    ]
    if checked.task is None:
        return [line for line in load if "load_file" not in line] + ["print(state.shape)"]
    return [
        *load,
        '    head = load_file(f"{folder}/classifier.safetensors")',
        '    pooled = torch.tanh(state @ head["dense.weight"].T + head["dense.bias"])',
        '    logits = pooled @ head["out.weight"].T + head["out.bias"]',
        *_verdict(),
    ]


def _arguments(example: tuple[str, ...]) -> str:
    """Texts that are nobody's: rows of a data set may not be passed on."""
    return ", ".join(f'"{text}"' for text in ("A text to classify.", "The second text.")[: max(1, len(example))])


def _verdict() -> list[str]:
    return [
        "if model.config.num_labels > 1:",
        "    print(model.config.id2label[int(logits.argmax())], logits.softmax(-1).tolist())",
        "else:",
        "    print(float(logits))",
    ]


# ------------------------------------------------------------------------------------------------------------ training


def _training(found: Recorded, prepared: Prepared, stage: Stage, run: Run) -> Iterator[str]:
    plan, resolved = prepared.plan, prepared.resolved
    yield "## Training"
    yield f"From the encoder `{resolved.encoder}` (digest {stage.encoder.digest[:10]}), in {counted(len(stage.chain), 'stage')}:"
    yield "\n".join(f"{number}. {_stage(each)}" for number, each in enumerate(stage.chain, 1))
    notes = [resolved.table.title, *(found_.note for found_ in plan.tasks.values() if found_.note)]
    notes += [f"{each.task.title}: {each.origin}" for each in plan.tasks.values() if each.origin]
    yield f"Data: {plan.source}. " + " ".join(f"{note.rstrip('.')}." for note in notes)
    origin = found.record.provenance
    yield (
        f"Trained on {origin.get('device', '?')} with torch {origin.get('torch', '?')}, transformers "
        f"{origin.get('transformers', '?')} and harness {origin.get('harness', harness.__version__)}."
    )
    update = "" if found.step == "last" else f" --update {found.step}"
    if found.again:
        yield f"To make it again, and export it:\n\n```sh\n{found.again}\nharness export {found.key[:12]}{update} --out FOLDER\n```"
    yield "## Licence and citation"
    stated = encoder_license(plan.located.folder)
    yield (
        f"The weights derive from the encoder `{resolved.encoder}`{f' (its card states: {stated})' if stated else ''} and from the training "
        "data, whose licences hold for them. Cite the paper of the method:"
    )
    methods = [
        part for name in dict.fromkeys((_pre(prepared, run), run.method)) if name for part in methods_named(name)
    ]
    yield "\n".join(f"- {method.title}: {method.citation}" for method in methods)


def _pre(prepared: Prepared, run: Run) -> str:
    return next((row.pre_train for row in prepared.resolved.rows if row.name == run.row), "") or ""


def _stage(stage: Stage) -> str:
    """One stage in a sentence."""
    params = ", ".join(f"{name} {format_value(value)}" for name, value in sorted(stage.objective.params.items()))
    optim = stage.optim
    said = (
        f"**{stage.phase}**: objective `{stage.objective.name}`{f' ({params})' if params else ''} on {stage.data.train.name} "
        f"({counted(stage.data.train.rows, 'row')}, digest {stage.data.train.digest[:10]}); {counted(optim.steps, 'update')} of "
        f"{optim.batch_size}, AdamW, lr {optim.lr:g} ({optim.schedule}, warm-up {optim.warmup:g}), weight decay "
        f"{optim.weight_decay:g}, clip {optim.clip:g}, dropout {optim.dropout:g}, at most {stage.data.max_length} tokens, "
        f"{optim.precision}, seed {stage.seed}"
    )
    if stage.selection and stage.data.dev:
        said += (
            f"; best checkpoint by {stage.selection.metric} on {stage.data.dev.name} ({counted(stage.data.dev.rows, 'row')}), scored "
            f"every {counted(stage.selection.every, 'update')}"
        )
    return f"{said}."
