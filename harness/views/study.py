"""The table of all points of a study: rounded as text, Markdown and LaTeX, unrounded as CSV and JSON.

Pure: the same trials in any order give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.analysis.schema import csv_text
from harness.planning.recipe import Value
from harness.search.results import FinalTest, Measured, Study, above_default, budget, ranked
from harness.search.trials import Trial
from harness.tasks.metrics import METRICS
from harness.views.cells import Note
from harness.views.document import DASH, Document, Entry, Table, written
from harness.views.view import json_text
from harness.wording import counted, in_points, letter, shortened, some_of

WORST = "A failed or diverged replicate counts with the metric's worst value, and its point cannot be the best."


def points(study: Study) -> Table:
    """All trials, best first."""
    trials = ranked(study)
    letters, _ = _footnotes(study, trials)
    best = study.best
    head = ["#", *study.paths, title_of(study.metric), "replicates", "note"]
    rows: list[list[str | Entry]] = []
    for trial in trials:
        first = trial is best
        marks = ",".join(letters[note] for note in _notes(study, trial))
        rows.append(
            [
                str(trial.number),
                *(shown_value(trial.point.get(path)) for path in study.paths),
                score_entry(study, trial, first),
                f"{len(trial.outcomes)}/{len(study.replicates)}",
                Entry(", ".join(_words(study, trial, first)), marks=marks),
            ]
        )
    return Table("", head, rows, frozenset({0, len(head) - 1}))


def footnotes(study: Study) -> list[str]:
    """The footnotes of the table of points."""
    return _footnotes(study, ranked(study))[1]


def points_table(study: Study, format: str) -> str:
    """All trials, best first, as text, md, latex, csv or json; ends with a newline. Raises UserError for another format."""
    if format == "csv":
        return _points_csv(study)
    if format == "json":
        return _points_json(study)
    lines = caption(study, bold=format != "text")
    return written(Document(f"{study.name}-points", [points(study)], lines, footnotes(study), lines), format)


def caption(study: Study, bold: bool) -> list[str]:
    """The caption of the table of points, one sentence a line, without markup."""
    spent = budget(study)
    lines = [
        f"Study {study.name}: {row_title(study)}, {study.mode} over {', '.join(study.paths)}; "
        f"sampler {study.sampler}, racing {study.racing}, seed {study.seed}.",
        f"Values: dev {study.metric} in points (x100) at the checkpoint selected on dev; {design(study.replicates)}. Test sets have "
        "no part in them.",
        f"{'Bold' if bold else 'Star'}: the best point, among those with all replicates done.",
    ]
    if sum(trial.eligible for trial in study.trials) > 1:
        lines.append("The best of several dev means is biased upwards, because it was selected.")
    if any(trial.outcomes and trial.state != "complete" for trial in study.trials):
        lines.append(
            "In parentheses: the mean so far of a point whose replicates are not all done; this is not a result."
        )
    if any(outcome.status != "done" for trial in study.trials for outcome in trial.outcomes):
        lines.append(WORST)
    lines.append(f"default: the point that was tried first ({_point(study.default)}).")
    difference = above_default(study)
    if difference is not None and study.best is not study.default_trial:
        lines.append(
            f"The best point is {_shown(difference)} above the default one: mean and standard deviation"
            f"{', between subsets,' if len({subset for subset, _ in study.replicates}) > 1 else ''} of the differences on the same replicates."
        )
    states = {state: spent[state] for state in ("complete", "dropped", "failed")}
    states["not finished"] = spent["trials"] - sum(states.values())
    counts = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    lines += [
        f"{counted(spent['trials'], 'point')}{f' ({counts})' if counts else ''}; {spent['replicates']} of {spent['full']} replicates "
        f"ended; {counted(spent['stages'], 'stage')}, "
        f"{spent['flops']:.2e} FLOPs and {spent['seconds'] / 3600:.2f} hours of training, a stage of several points counted with each, without MLM heads and pre-training.",
        *study.notes,
    ]
    return lines


def row_title(study: Study) -> str:
    return study.row + (f" ({study.method})" if study.method != study.row else "")


def title_of(metric: str) -> str:
    return f"dev {METRICS[metric].short}"


def shown_value(value: Value | None, exact: bool = False) -> str:
    """A hyperparameter's value; a float with more than six digits is rounded to four unless `exact`."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, float):
        text = repr(value) if exact or len(re.sub(r"e.*|\D", "", repr(value))) <= 6 else f"{value:.4g}"
        text = re.sub(r"e([+-]?)0*(\d)", lambda found: f"e{found[1].strip('+')}{found[2]}", text)
    else:
        text = str(value)
    return text


def _point(point: Mapping[str, Value]) -> str:
    return ", ".join(f"{path} = {shown_value(value)}" for path, value in point.items()) or "no values"


def score_entry(study: Study, trial: Trial, best: bool) -> Entry:
    """A trial's mean and its spread; in parentheses while replicates are missing."""
    center, spread = trial.mean(), trial.spread(study.replicates)
    if center is None:
        return Entry(DASH)
    complete = trial.state == "complete"
    return Entry(
        in_points(center), "" if spread is None else in_points(spread), best=best and complete, partial=not complete
    )


def _words(study: Study, trial: Trial, best: bool) -> Iterator[str]:
    if best:
        yield "best"
    if trial is study.default_trial:
        yield "default"
    if trial.state != "complete":
        yield trial.state


def _notes(study: Study, trial: Trial) -> list[Note]:
    """A trial's marks: its failed replicates, and why it was dropped or cannot be run."""
    found = [Note(o.status, _reason(o.reason)) for o in trial.outcomes if o.status != "done"]
    if trial.state == "dropped":
        found.append(Note(f"dropped after {len(trial.outcomes)} of {len(study.replicates)}", _reason(trial.reason)))
    if trial.state == "failed":
        found.append(Note("cannot be run", _reason(trial.reason)))
    return list(dict.fromkeys(found))


def _reason(text: str) -> str:
    return " ".join(text.split()) or "no reason recorded"


def _footnotes(study: Study, trials: Iterable[Trial]) -> tuple[dict[Note, str], list[str]]:
    """A letter for each reason in the order of the trials, and its line."""
    members: dict[Note, list[str]] = {}
    for trial in trials:
        for note in _notes(study, trial):
            where = [
                f"#{trial.number} subset{subset} seed{seed}"
                for (subset, seed), outcome in zip(study.replicates, trial.outcomes, strict=False)
                if Note(outcome.status, _reason(outcome.reason)) == note
            ]
            members.setdefault(note, []).extend(where or [f"#{trial.number}"])
    letters = {note: letter(i) for i, note in enumerate(members)}
    lines = []
    for note, runs in members.items():
        kind = f"{counted(len(runs), 'replicate')} {note.kind}" if note.kind in ("failed", "diverged") else note.kind
        lines.append(f"{letters[note]}: {kind} ({shortened(note.reason)}): {some_of(runs)}.")
    return letters, lines


def _records(study: Study) -> list[dict[str, Any]]:
    """Every trial unrounded, best first."""
    best = study.best
    return [
        {
            "number": trial.number,
            "point": dict(trial.point),
            "state": trial.state,
            "reason": trial.reason,
            "default": trial is study.default_trial,
            "best": trial is best,
            "eligible": trial.eligible,
            "mean": trial.mean(),
            "spread": trial.spread(study.replicates),
            "replicates": [
                {"subset": subset, "seed": seed, **asdict(outcome)}
                for (subset, seed), outcome in zip(study.replicates, trial.outcomes, strict=False)
            ],
        }
        for trial in ranked(study)
    ]


def _points_csv(study: Study) -> str:
    """A row for each trial (kind 'trial') with its mean and spread, then one for each replicate; a column that does not apply
    is empty."""
    names = ["kind", "number", *(f"set.{path}" for path in study.paths), "subset", "seed"]
    names += ["value", "spread", "state", "default", "best", "eligible", "done", "expected"]
    names += ["status", "reason", "flops", "seconds", "stages"]
    rows, replicates = [], []
    for record in _records(study):
        same = {"number": record["number"], **{f"set.{path}": record["point"].get(path) for path in study.paths}}
        values = {"value": record["mean"], "spread": record["spread"]}
        state = {name: record[name] for name in ("state", "default", "best", "eligible", "reason")}
        done = {"done": len(record["replicates"]), "expected": len(study.replicates)}
        rows.append({"kind": "trial", **same, **values, **state, **done})
        replicates += [{"kind": "replicate", **same, **found} for found in record["replicates"]]
    return csv_of(names, [*rows, *replicates])


def csv_of(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV, floats unrounded; what is missing is empty."""
    import pandas as pd

    texts = [{k: str(value).lower() if isinstance(value, bool) else value for k, value in row.items()} for row in rows]
    return csv_text(pd.DataFrame(texts, columns=[*names], dtype=object))


def _points_json(study: Study) -> str:
    names = ("name", "method", "row", "paths", "metric", "mode", "sampler", "racing", "seed", "notes")
    body = {
        **{name: getattr(study, name) for name in names},
        "default": dict(study.default),
        "grid": {path: list(values) for path, values in study.grid.items()} if study.grid else None,
        "replicates": [{"subset": subset, "seed": seed} for subset, seed in study.replicates],
        "budget": budget(study),
        "caption": caption(study, bold=False),
        "footnotes": footnotes(study),
        "trials": _records(study),
    }
    return json_text(body, sort_keys=True)


# ------------------------------------------------------------------------------------------------------------ sentences


def rule(study: Study) -> str:
    """How the best point is chosen, without a full stop."""
    eligible = sum(trial.eligible for trial in study.trials)
    whom = f"{counted(eligible, 'point')} of {len(study.trials)} whose {counted(len(study.replicates), 'replicate')}"
    return f"the highest mean dev {study.metric} among the {whom} are done"


def test_lines(
    test: FinalTest, replicates: Sequence[tuple[int, int]], metric: str, before: Sequence[int]
) -> Iterator[str]:
    """The final test in words. `metric`: of dev; `before`: the other trials of the study whose test scores were seen."""
    scores = [f"{title} {_shown(cell)}" for title, cell in test["columns"].items()]
    scores += [f"mean of the columns {_shown(test['test'])}"] if len(scores) > 1 else []
    yield f"Test: {', '.join(scores)}."
    dev, default = _shown(test["dev"]), test["default"]
    if test["difference"]:
        yield f"Dev: {dev}, {_distance(test['difference'])} test."
    else:
        yield f"Dev {metric}: {dev}, not a mean of the same scores as that of test."
    if default and test["above_default"]:
        yield f"Test of the default point: {_shown(default)}; the best point is {_distance(test['above_default'])} it."
    yield f"Values are in points (x100): {design(replicates)}."
    points = "this point and the default one" if default else "this point"
    if before:
        tried = ", ".join(map(str, before))
        yield (
            f"The test set was scored for {points} after the choice on dev, and before for trial {tried} of this study: this score is one of "
            f"{len(before) + 1}."
        )
    else:
        yield f"The test set was scored once, for {points}, after the choice on dev."


def _distance(difference: Measured) -> str:
    mean, spread = difference["mean"], difference["spread"]
    return f"{_shown({'mean': abs(mean), 'spread': spread})} {'above' if mean >= 0 else 'below'}"


def _shown(cell: Measured) -> str:
    return in_points(cell["mean"]) + (f" ± {in_points(cell['spread'])}" if cell["spread"] is not None else "")


def design(replicates: Sequence[tuple[int, int]]) -> str:
    """What a mean and its ± are taken over, in words."""
    subsets, seeds = {subset for subset, _ in replicates}, {seed for _, seed in replicates}
    if len(replicates) == 1:
        return "one replicate, so no spread"
    if len(subsets) == 1:
        return f"mean ± standard deviation (ddof 1) over {len(replicates)} replicates of one subset"
    over = f"{len(subsets)} subsets x {counted(len(seeds), 'seed')}"
    if len(replicates) != len(subsets) * len(seeds):
        over = f"{len(replicates)} replicates of {len(subsets)} subsets"
    return f"mean ± standard deviation of the subsets' means (ddof 1) over {over}"


def conclusion(study: Study) -> str:
    """One sentence: the best point and how far it is from the default one."""
    best, difference = study.best, above_default(study)
    if best is None:
        return "There is no best point: no point has all its replicates done."
    point = f"The best point is trial {best.number} ({_point(best.point)})"
    if best is study.default_trial:
        return f"{point}, the default one: no point tried is better."
    if difference is None:
        return f"{point}."
    return f"{point}: {_distance(difference)} the default one on dev, where it was selected; only a test on other rows says whether this holds."
