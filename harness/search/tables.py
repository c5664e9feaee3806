"""The table of all points of a study: rounded as text, Markdown and LaTeX, unrounded as CSV and JSON.

Pure: the same trials in any order give the same bytes.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.errors import unknown
from harness.search.results import COSTS, Study, above_default, budget, design, ranked
from harness.search.trials import Trial
from harness.tables.caption import counted, in_points, letter, shortened, some_of
from harness.tables.cells import Note
from harness.tables.recipe import Value
from harness.tables.render import FORMATS, SHORT, STYLES, Style, csv_value, latex_table, table_lines

WORST = "A failed or diverged replicate counts with the metric's worst value, and its point cannot be the best."


@dataclass(frozen=True)
class PointRows:
    """All trials, best first, in a style. `left`: columns of text; `notes`: the footnotes. Header, rows and notes are escaped."""

    header: list[str]
    body: list[list[str]]
    left: tuple[int, ...]
    notes: list[str]


def point_rows(study: Study, style: Style) -> PointRows:
    trials = ranked(study)
    letters, notes = _footnotes(study, trials)
    best = {trial.number for trial in study.front}
    columns = [
        aligned([score_cell(study, trial, k, trial.number in best, style) for trial in trials], style)
        for k in range(len(study.metrics))
    ]
    header = ["#", *study.paths, *(title_of(metric) for metric in study.metrics), "replicates", "note"]
    body = []
    for i, trial in enumerate(trials):
        marks = ",".join(letters[note] for note in _notes(study, trial))
        body.append(
            [
                str(trial.number),
                *(shown_value(trial.point.get(path), style) for path in study.paths),
                *(column[i] for column in columns),
                f"{len(trial.outcomes)}/{len(study.replicates)}",
                (", ".join(_words(study, trial, trial.number in best)) + (style.mark(marks) if marks else "")).strip(),
            ]
        )
    left = (0, len(header) - 1)
    return PointRows([style.escape(name) for name in header], body, left, [style.escape(line) for line in notes])


def points_table(study: Study, format: str) -> str:
    """All trials, best first, as text, md, latex, csv or json; ends with a newline. Raises UserError for another format."""
    style = style_of(format)
    if style is None:
        return _points_csv(study) if format == "csv" else _points_json(study)
    rows = point_rows(study, style)
    header, body, left, notes = rows.header, rows.body, rows.left, rows.notes
    lines = [style.escape(line) for line in caption(study, bold=format != "text")]
    if format == "latex":
        return latex_table(f"{study.name}-points", header, [("", body)], lines, notes, left)
    bullet = "- " if format == "md" else ""
    parts = [*table_lines(header, body, format, left), "", *(bullet + line for line in [*notes, *lines])]
    return "\n".join(parts) + "\n"


def caption(study: Study, bold: bool) -> list[str]:
    """The caption of the table of points, one sentence a line, without markup."""
    spent = budget(study)
    scores = [metric for metric in study.metrics if metric not in COSTS]
    costs = [metric for metric in study.metrics if metric in COSTS]
    shown = [f"dev {' and '.join(scores)} in points (x100) at the checkpoint selected on dev"] if scores else []
    shown += [f"{' and '.join(costs)} of training"] if costs else []
    mark = "Bold" if bold else "Star"
    eligible = "among those with all replicates done"
    lines = [
        f"Study {study.name}: {row_title(study)}, {study.mode} over {', '.join(study.paths)}; "
        f"sampler {study.sampler}, racing {study.racing}, seed {study.seed}.",
        f"Values: {', '.join(shown)}; {design(study.replicates)}. Test was not scored.",
        f"{mark}: the best point, {eligible}."
        if len(study.metrics) == 1
        else f"{mark}: the Pareto front of {_aims(study)}, {eligible}; sorted by {study.metrics[0]}.",
    ]
    if scores and sum(study.eligible(trial) for trial in study.trials) > 1:
        lines.append("The best of several dev means is biased upwards, because it was selected.")
    if len(study.metrics) == 1 and study.directions[0] == "minimize":
        lines.append("Lower is better.")
    if any(trial.outcomes and not study.complete(trial) for trial in study.trials):
        lines.append(
            "In parentheses: the mean so far of a point whose replicates are not all done; this is not a result."
        )
    if any(outcome.status != "done" for trial in study.trials for outcome in trial.outcomes):
        lines.append(WORST + (" A failed one's FLOPs are those planned." if "flops" in study.metrics else ""))
    lines.append(f"default: the point of trial 0 ({_point(study.default)}).")
    difference = above_default(study)
    if difference is not None and scores[:1] == list(study.metrics[:1]) and study.front[0] is not study.default_trial:
        spread = "" if difference.spread is None else f" ± {in_points(difference.spread)}"
        lines.append(
            f"The best point is {in_points(difference.mean)}{spread} above the default one: mean and standard deviation, between "
            "subsets, of the differences on the same replicates."
        )
    states = {"complete": spent.complete, "dropped": spent.dropped, "failed": spent.failed}
    states["not finished"] = spent.trials - sum(states.values())
    counts = ", ".join(f"{number} {state}" for state, number in states.items() if number)
    lines += [
        f"{counted(spent.trials, 'point')}{f' ({counts})' if counts else ''}; {spent.replicates} of {spent.full} replicates "
        f"ended; {counted(spent.trained_stages, 'stage')} trained for this study, {spent.reused_stages} reused; "
        f"{_cost(spent.flops)} FLOPs and {spent.hours:.2f} hours of training, without MLM heads and pre-training.",
        *study.notes,
    ]
    return lines


def row_title(study: Study) -> str:
    return study.row + (f" ({study.method})" if study.method != study.row else "")


def _aims(study: Study) -> str:
    return " and ".join(
        f"{'high' if direction == 'maximize' else 'low'} {metric}"
        for metric, direction in zip(study.metrics, study.directions, strict=True)
    )


def style_of(format: str) -> Style | None:
    """None for csv and json."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    return STYLES.get(format)


def title_of(metric: str) -> str:
    if metric in COSTS:
        return "FLOPs" if metric == "flops" else metric
    return f"dev {SHORT.get(metric, metric)}"


def shown_value(value: Value | None, style: Style, exact: bool = False) -> str:
    """A hyperparameter's value; a float with more than six digits is rounded to four unless `exact`."""
    if value is None:
        return style.dash
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, float):
        text = repr(value) if exact or len(re.sub(r"e.*|\D", "", repr(value))) <= 6 else f"{value:.4g}"
        text = re.sub(r"e([+-]?)0*(\d)", lambda found: f"e{found[1].strip('+')}{found[2]}", text)
    else:
        text = str(value)
    return style.escape(text)


def _point(point: Mapping[str, Value]) -> str:
    return ", ".join(f"{path} = {shown_value(value, STYLES['text'])}" for path, value in point.items()) or "no values"


def _cost(value: float) -> str:
    return f"{value:.2e}"


def number_text(metric: str, value: float, style: Style) -> str:
    text = _cost(value) if metric in COSTS else in_points(value)
    return style.escape(text.replace("-", "−") if style is STYLES["latex"] else text)


CellParts = tuple[str, str, str, str]
"""A number in four aligned parts: before, mean, spread, after."""


def score_cell(study: Study, trial: Trial, k: int, best: bool, style: Style) -> CellParts | str:
    center, spread = trial.mean(k), trial.spread(study.replicates, k)
    if center is None:
        return style.dash
    metric = study.metrics[k]
    mean = number_text(metric, center, style)
    sd = number_text(metric, spread, style) if spread is not None and metric not in COSTS else ""
    if not study.complete(trial):
        return "(", mean, sd, ")"
    before, _, after = style.best("|").partition("|") if best else ("", "", "")
    return before, mean, sd, after


def aligned(cells: Sequence[CellParts | str], style: Style) -> list[str]:
    """Numbers as text, with aligned parts in plain text."""
    plain = style is STYLES["text"]
    parts = [cell for cell in cells if not isinstance(cell, str)]
    width, last = (max((len(part[i]) for part in parts), default=0) if plain else 0 for i in (2, 3))
    out = []
    for cell in cells:
        if isinstance(cell, str):
            out.append(cell + " " * last)
            continue
        before, mean, spread, after = cell
        text = before + mean + (f"{style.plus_minus}{spread.rjust(width)}" if spread else "") + after
        missing = width + len(style.plus_minus) if plain and width and not spread else 0
        out.append(text + " " * (missing + last - len(after) if plain else 0))
    return out


def _words(study: Study, trial: Trial, best: bool) -> Iterator[str]:
    if best:
        yield "best" if len(study.metrics) == 1 else "front"
    if trial.number == 0:
        yield "default"
    if not study.complete(trial):
        yield "unfinished" if trial.state == "complete" else trial.state


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
    front = {trial.number for trial in study.front}
    return [
        {
            "number": trial.number,
            "point": dict(trial.point),
            "state": trial.state,
            "reason": trial.reason,
            "default": trial.number == 0,
            "best": trial.number in front,
            "eligible": study.eligible(trial),
            "mean": {metric: trial.mean(k) for k, metric in enumerate(study.metrics)},
            "spread": {metric: trial.spread(study.replicates, k) for k, metric in enumerate(study.metrics)},
            "replicates": [
                {
                    "subset": subset,
                    "seed": seed,
                    **asdict(outcome),
                    "values": dict(zip(study.metrics, outcome.values, strict=True)),
                }
                for (subset, seed), outcome in zip(study.replicates, trial.outcomes, strict=False)
            ],
        }
        for trial in ranked(study)
    ]


def _points_csv(study: Study) -> str:
    """A row for each trial (kind 'trial') with its mean and spread, then one for each replicate; a column that does not apply
    is empty."""
    names = ["kind", "number", *(f"set.{path}" for path in study.paths), "subset", "seed"]
    names += [f"{kind}.{metric}" for metric in study.metrics for kind in ("value", "spread")]
    names += ["state", "default", "best", "eligible", "done", "expected"]
    names += ["status", "reason", "flops", "seconds", "trained", "stages"]
    rows, replicates = [], []
    for record in _records(study):
        same = {"number": record["number"], **{f"set.{path}": record["point"].get(path) for path in study.paths}}
        values = {f"value.{metric}": value for metric, value in record["mean"].items()}
        values |= {f"spread.{metric}": value for metric, value in record["spread"].items()}
        state = {name: record[name] for name in ("state", "default", "best", "eligible", "reason")}
        done = {"done": len(record["replicates"]), "expected": len(study.replicates)}
        rows.append({"kind": "trial", **same, **values, **state, **done})
        for found in record["replicates"]:
            rest = {name: value for name, value in found.items() if name != "values"}
            values = {f"value.{metric}": value for metric, value in found["values"].items()}
            replicates.append({"kind": "replicate", **same, **rest, **values})
    return csv_text(names, [*rows, *replicates])


def csv_text(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_value(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _points_json(study: Study) -> str:
    names = ("name", "method", "row", "paths", "metrics", "directions", "mode", "sampler", "racing", "seed", "notes")
    body = {
        **{name: getattr(study, name) for name in names},
        "default": dict(study.default),
        "grid": {path: list(values) for path, values in study.grid.items()} if study.grid else None,
        "replicates": [{"subset": subset, "seed": seed} for subset, seed in study.replicates],
        "budget": asdict(budget(study)),
        "caption": caption(study, bold=False),
        "footnotes": _footnotes(study, ranked(study))[1],
        "front": [trial.number for trial in study.front],
        "trials": _records(study),
    }
    return json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
