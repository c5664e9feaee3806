"""The values of a table by path (recipe.fine_tune.lr, max_length, ...): where each comes from, and its words in a caption.

An origin is 'P' (the paper), 'R' (code that its authors released) or 'C' (chosen here), with what the table says behind it
('P 4.3': section 4.3). Origins are no part of a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from harness.specs import Optim
from harness.tables.aggregation import RULES

if TYPE_CHECKING:
    from harness.tables.recipe import PreTrain, StartsFrom
    from harness.tables.resolve import ResolvedTable
    from harness.tables.table import Table

PHASES = ("fine_tune", "post_train", "pre_train")
TASK_RECIPES = "task_recipes"
PHASE_WORDS = {"fine_tune": "fine-tuning", "post_train": "post-training", "pre_train": "pre-training"}
EXCLUSIVE = (("epochs", "steps"), ("warmup", "warmup_steps"))
"""Fields of a phase that say one thing in two ways: the one that is set later replaces the other."""


def stated(table: Table) -> dict[str, Any]:
    """Every value that a table states, by path; encoder and data are those of its reference preset."""
    reference = table.reference
    found: dict[str, Any] = {"encoder": reference.encoder, "data": reference.data}
    found |= {f"encoder.{name}": value for name, value in table.encoder_under(reference).items()}
    for phase in PHASES:
        fields = getattr(table.recipe, phase).model_dump(exclude_none=True)
        found |= {f"recipe.{phase}.{name}": value for name, value in fields.items()}
    for spec in table.task_recipes:
        for phase in PHASES:
            fields = getattr(spec, phase).model_dump(exclude_none=True)
            found |= {f"{TASK_RECIPES}.{'+'.join(spec.tasks)}.{phase}.{name}": value for name, value in fields.items()}
    translator = table.translator if reference.translator is None else reference.translator
    found |= {"translator": translator} if translator else {}
    text = reference.pre_train or table.pre_train
    found |= {f"pre_train.{name}": value for name, value in _text(text).items()} if text else {}
    found |= _start(reference.starts_from or table.starts_from)
    for name in ("max_length", "selection_every", "sizes", "subsets", "seeds"):
        found[name] = getattr(table, name)
    return found | {f"aggregate.{name}": value for name, value in table.aggregate.stated.items()}


def _text(pre_train: PreTrain) -> dict[str, Any]:
    """The text of pre-training; all of the corpus goes without saying, and which weights are stored on the way changes no number."""
    plain = {name for name, value in (("fraction", 1), ("held_out", 0)) if getattr(pre_train, name) == value}
    return pre_train.model_dump(exclude={"save_at", *plain})


def used(resolved: ResolvedTable) -> dict[str, Any]:
    """The same of a resolved table: what its chosen rows use, and no more."""
    found: dict[str, Any] = {"encoder": resolved.encoder, "data": resolved.data}
    found |= {f"encoder.{name}": value for name, value in resolved.encoder_settings.items()}
    own = [row.recipe_settings for row in resolved.rows if not row.skip]
    for phase in resolved.phases:
        fields = getattr(resolved.recipe, phase).model_dump(exclude_none=True)
        fields = {name: value for name, value in fields.items() if not all(name in row.get(phase, {}) for row in own)}
        found |= {f"recipe.{phase}.{name}": value for name, value in fields.items()}
    found |= _task_values(resolved, own)
    if resolved.translates:
        found["translator"] = resolved.translator
    if resolved.pre_train:
        found |= {f"pre_train.{name}": value for name, value in _text(resolved.pre_train).items()}
    found |= _start(resolved.starts_from)
    for name in ("max_length", "selection_every", "sizes", "seeds"):
        found[name] = getattr(resolved, name)
    found["subsets"] = len(resolved.subsets)
    draws = resolved.table.presets[resolved.preset].draws
    found |= {"draws": draws} if draws else {}
    return found | {f"aggregate.{name}": value for name, value in resolved.aggregate.stated.items()}


def _task_values(resolved: ResolvedTable, rows: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """What the recipes of chosen tasks say of their own; `rows`: the settings of rows, which go before them."""
    found = {}
    for spec in resolved.table.task_recipes:
        task = next((task for task in spec.tasks if task in resolved.tasks), "")
        for phase in resolved.phases if task else ():
            mine = getattr(resolved.task_recipes[task], phase).model_dump(exclude_none=True)
            for name in getattr(spec, phase).model_dump(exclude_none=True):
                if name in mine and not all(name in row.get(phase, {}) for row in rows):
                    found[f"{TASK_RECIPES}.{'+'.join(spec.tasks)}.{phase}.{name}"] = mine[name]
    return found


def _start(starts_from: StartsFrom | None) -> dict[str, Any]:
    values = starts_from.model_dump() if starts_from else {}
    return {f"starts_from.{name}": value for name, value in values.items()}


def changed(resolved: ResolvedTable) -> dict[str, tuple[Any, Any]]:
    """Values that are not the table's own, by path: (ours, the table's). Fewer sizes are no change of a value."""
    table = resolved.table
    theirs = stated(table)
    found: dict[str, tuple[Any, Any]] = {}
    for path, ours in used(resolved).items():
        other = theirs.get(path)
        if path == "subsets":
            same = sorted(resolved.subsets) == list(range(table.subsets))
        elif path == "seeds":
            same = sorted(ours) == sorted(table.seeds)
        else:
            same = path == "sizes" or ours == other or (ours, other) == ("", None)
        if not same:
            found[path] = (ours, other)
    return found


def deviations(resolved: ResolvedTable) -> list[str]:
    """Each changed value as 'fine_tune.lr 0.0001 instead of 1e-05', by the name under which a user sets it."""
    theirs, found = stated(resolved.table), []
    for path, (ours, other) in changed(resolved).items():
        if ours == other:  # as many subsets, but others
            ours, other = resolved.subsets, range(resolved.table.subsets)
        name = path.removeprefix("recipe.")
        found.append(f"{name} {_plain(ours)} instead of {_unset(path, theirs) if other is None else _plain(other)}")
    extra = [task for task in resolved.tasks if task not in resolved.table.tasks]
    return [*found, *([f"tasks that the paper's table lacks: {', '.join(extra)}"] if extra else [])]


def _unset(path: str, theirs: Mapping[str, Any]) -> str:
    """The value that a table has where it states none: the other of a pair, or the default."""
    parent, _, name = path.rpartition(".")
    for pair in EXCLUSIVE:
        other = next((each for each in pair if name in pair and each != name), None)
        if other and f"{parent}.{other}" in theirs:
            return f"{other} {_plain(theirs[f'{parent}.{other}'])}"
    default = getattr(Optim, name, None) if path.startswith("recipe.") else None
    return "none" if default is None else f"{_plain(default)}, the default"


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{v:g} at {k}" for k, v in value.items())
    if isinstance(value, (tuple, list, range)):
        return ", ".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, (int, float)) else str(value) or "none"


# ----------------------------------------------------------------------------------------------------------- origins


def matching(origin: Mapping[str, str], path: str) -> list[str]:
    """The patterns of `origin` ('recipe.*.lr') that a path fits; a table has exactly one for each of its values."""
    return [pattern for pattern in origin if fnmatchcase(path, pattern)]


def by_origin(resolved: ResolvedTable) -> dict[str, dict[str, Any]]:
    """The values in use that are the table's own, by the letter of their origin. Empty for a table that names none."""
    origin, ours = resolved.table.origin, changed(resolved)
    found: dict[str, dict[str, Any]] = {"P": {}, "R": {}, "C": {}}
    for path, value in used(resolved).items():
        patterns = matching(origin, path)
        if patterns and path not in ours:
            found[origin[patterns[0]][0]][path] = value
    return found if origin else {}


# ------------------------------------------------------------------------------------------------------------- words


_LENGTHS = {"epochs": "epochs", "steps": "updates"}


def _lengths(value: Any, noun: str, sizes: Iterable[int]) -> str:
    if not isinstance(value, Mapping):
        return f"{value:g} {noun if value != 1 else noun.removesuffix('s')}"
    kept = [(size, value[size]) for size in sizes if size in value] or list(value.items())
    if len(kept) == 1:
        return f"{kept[0][1]:g} {noun}"
    return f"{listed(f'{v:g}' for _, v in kept)} {noun} for {listed(str(size) for size, _ in kept)} examples"


def _seeds(value: Any) -> str:
    return f"seed{'' if len(value) == 1 else 's'} {listed(map(str, value))}"


def _apart(every: str) -> str:
    """'after the last update alone', 'every 0.5 epochs'."""
    return "after the last update alone" if every == "last" else f"every {every}"


def _rule(name: str) -> str:
    """'the mean of the runs', 'the run that is best on dev'."""
    label = RULES[name].label.format(k="k")
    return f"the {label}" if "run" in label else f"the {label} of the runs"


_WORDS: Mapping[str, Callable[[Any], str]] = {
    "encoder": lambda v: f"encoder {v}",
    "encoder.relative_buckets": lambda v: f"{v} buckets of relative positions" if v else "no relative positions",
    "encoder.relative_distance": lambda v: f"relative positions up to a distance of {v}",
    "data": lambda v: "GLUE's data" if v == "glue" else f"data {v}",
    "lr": lambda v: f"learning rate {v:g}",
    "batch_size": lambda v: f"batch size {v}",
    "min_steps": lambda v: f"at least {v} updates",
    "schedule": lambda v: "linear decay" if v == "linear" else "constant learning rate",
    "warmup": lambda v: f"warm-up over {100 * v:g} % of the updates" if v else "no warm-up",
    "warmup_steps": lambda v: f"warm-up over {v} updates",
    "weight_decay": lambda v: f"weight decay {v:g}" if v else "no weight decay",
    "clip": lambda v: f"gradient norm clipped at {v:g}" if v else "no gradient clipping",
    "beta1": lambda v: f"Adam beta1 {v:g}",
    "beta2": lambda v: f"Adam beta2 {v:g}",
    "eps": lambda v: f"Adam epsilon {v:g}",
    "dropout": lambda v: f"dropout {v:g}",
    "precision": str,
    "translator": lambda v: f"back-translation by {v or 'none'}",
    "max_length": lambda v: f"at most {v} tokens a sequence",
    "selection_every": lambda v: (
        f"dev evaluation every {v} updates and after the last" if isinstance(v, int) else f"dev evaluation {_apart(v)}"
    ),
    "draws": lambda v: f"{v} random point{'' if v == 1 else 's'} of each grid",
    "subsets": lambda v: f"{v} subset{'' if v == 1 else 's'}",
    "seeds": _seeds,
    "pre_train.corpus": lambda v: f"pre-training corpus {v}",
    "pre_train.fraction": lambda v: f"{100 * v:g} % of its texts",
    "pre_train.held_out": lambda v: f"{100 * v:g} % of its texts held out",
    "pre_train.blocks": lambda v: "packed blocks framed by special tokens" if v == "packed" else "one text a sequence",
    "pre_train.max_length": lambda v: f"{v} tokens a pre-training sequence",
    "pre_train.seed": lambda v: f"pre-training seed {v}",
    "starts_from.table": lambda v: f"each run started from the run of its row in table {v} that is best on dev",
    "starts_from.task": lambda v: f"that run trained on {v}",
    "starts_from.size": lambda v: f"on {v} examples" if v else "on its full training set",
    "starts_from.head": lambda v: "with its classification head" if v else "without its classification head",
    "aggregate.center": _rule,
    "aggregate.k": lambda v: f"k = {v}",
    "aggregate.spread": lambda v: "its standard deviation" if v == "std" else "",
    "aggregate.ddof": lambda v: f"ddof {v}",
    "aggregate.scores": lambda v: f"scores on {v}",
    "aggregate.select": lambda v: f"configurations selected by dev {v.replace('_', ' ')}",
    "aggregate.select_by": lambda v: f"selected by {_rule(v)}",
    "aggregate.average": lambda v: {"per_replicate": "Avg within each run", "of_cells": "Avg of the cells"}.get(v, ""),
    "aggregate.average_over": lambda v: f"Avg over {listed(g if isinstance(g, str) else ' with '.join(g) for g in v)}",
}


def phase_words(values: Mapping[str, Any]) -> str:
    """Values of one phase in words."""
    lengths = [_lengths(values[name], noun, ()) for name, noun in _LENGTHS.items() if name in values]
    return ", ".join([*lengths, *(_WORDS[name](value) for name, value in values.items() if name not in _LENGTHS)])


def words(resolved: ResolvedTable, values: Mapping[str, Any]) -> str:
    """Values of a table in words: what all phases share, what each phase has of its own, the rest."""
    hidden = ["subsets"] if not any(resolved.sizes) else []  # a full training set is one
    hidden += ["aggregate.ddof"] if resolved.aggregate.spread == "none" else []
    hidden += ["aggregate.average"] if len(resolved.columns) == 1 else []
    if len(resolved.printed_rows) == len(resolved.rows):  # nothing to select
        hidden += ["aggregate.select", "aggregate.select_by"]
    by_phase: dict[str, list[str]] = {}
    by_tasks: dict[str, list[str]] = {}
    rest = []
    for path, value in values.items():
        group, _, name = path.partition(".")
        phase, _, field = name.rpartition(".") if group == TASK_RECIPES else name.partition(".")
        if group in ("recipe", TASK_RECIPES):
            text = _lengths(value, _LENGTHS[field], resolved.sizes) if field in _LENGTHS else _WORDS[field](value)
            (by_phase if group == "recipe" else by_tasks).setdefault(phase, []).append(text)
        elif path == "sizes":
            rest.append(sizes_text(value))
        elif path not in hidden:
            rest.append(_WORDS[path](value))
    phases = list(by_phase)
    shared = [text for text in by_phase[phases[0]] if all(text in by_phase[p] for p in phases)] if phases else []
    where = {1: "", 2: " in both phases"}.get(len(resolved.phases), " in all phases")
    if len(phases) < len(resolved.phases):
        shared = []
    groups = [", ".join(shared) + where] if shared else []
    for phase, texts in by_phase.items():
        own = [text for text in texts if text not in shared]
        groups += [f"{', '.join(own)} in {PHASE_WORDS[phase]}"] if own else []
    for place, texts in by_tasks.items():
        tasks, _, phase = place.partition(".")
        titles = [c.title for task in tasks.split("+") for c in resolved.columns.values() if c.task == task]
        groups.append(f"{', '.join(texts)} in {PHASE_WORDS[phase]} on {listed(titles)}")
    return "; ".join([*groups, *([", ".join(filter(None, rest))] if any(rest) else [])])


def sizes_text(sizes: Iterable[int]) -> str:
    """'20, 100 and 1000 training examples and the full training set'."""
    counts = [str(size) for size in sizes if size]
    full = ["the full training set"] if 0 in tuple(sizes) else []
    return " and ".join([*([f"{listed(counts)} training examples"] if counts else []), *full])


def listed(items: Iterable[str]) -> str:
    """'a, b and c'."""
    *first, last = [*items] or [""]
    return f"{', '.join(first)} and {last}" if first else last
