"""A table as evaluations of Every Eval Ever (schema 0.3): written from records, and every number of such a folder derived again without a store."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import harness
from harness.analysis.cells import Grid
from harness.analysis.comparison import Comparison, Runs, compared, runs_of
from harness.analysis.published import differences
from harness.commands.prepare import Prepared
from harness.commands.report import grid_of
from harness.errors import UserError, first_line
from harness.kinds import Kind, Predictions
from harness.paths import new_folder, without_folders
from harness.statistics.crossed import mean_squares, t_inference
from harness.statistics.difference import LEVEL, mean_interval
from harness.tasks import METRICS
from harness.wording import listed, training_examples

EVERY_EVAL_EVER = "every-eval-ever"
SCHEMA = "0.3.0"
README = "README.md"
UNSTATED = "unstated"
"""The organization, where the user names none."""
METHOD = "crossed t over training subsets and seeds: half width squared = (t_subsets^2 MS_subsets + t_seeds^2 MS_seeds) / runs (Banerjee 1960)"
"""Of an interval; its degrees of freedom are levels - 1, and a factor of one level has no part."""
ERROR = "square root of (MS_subsets + MS_seeds) / runs"


@dataclass(frozen=True)
class Written:
    """`files`: of models; `samples`: rows of them; `unlabelled`: titles of columns whose labels may not be passed on."""

    folder: Path
    files: int
    samples: int
    unlabelled: tuple[str, ...]
    complete: bool


def write_evaluations(prepared: Prepared, folder: Path, *, organization: str = UNSTATED, gold: bool = True) -> Written:
    """Write one file a row and size, with the scores of its runs and of its cells, their intervals and differences; and beside it a file of samples with what
    each run predicts of each test example. No text is in them. `gold`: with samples, of the user's own tasks and of packaged ones: those of others
    have labels that may not be passed on.

    Raises UserError where nothing is done, and for a folder that holds anything.
    """
    if prepared.resolved.aggregate.scores == "dev":
        raise UserError(
            f"publish: table {prepared.resolved.table.name} shows scores on dev, and an evaluation is of a test set; publish it without --format."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists already; name a new folder.")
    grid, _ = grid_of(prepared)
    if not (grid.results["status"] == "done").any():
        raise UserError(f"publish: no run of this table is done in {prepared.store.shown}.")
    shared = {
        name
        for name, column in prepared.resolved.columns.items()
        if gold and ((task := prepared.plan.tasks[column.task].task).own or task.packaged)
    }
    unlabelled = tuple(c.title for name, c in prepared.resolved.columns.items() if name not in shared)
    files = samples = 0
    try:
        with new_folder(folder) as written:
            for model in _models(prepared, grid, organization):
                body, rows = model.body(), 0
                place = Path("data", _name(prepared.resolved.table.name), *model.id.split("/"), model.uuid)
                path = written / place
                path.parent.mkdir(parents=True, exist_ok=True)
                if lines := [*model.samples(shared)]:
                    content = "".join(
                        f"{json.dumps(line, ensure_ascii=False, allow_nan=False)}\n" for line in lines
                    ).encode()
                    path.with_name(f"{path.name}_samples.jsonl").write_bytes(content)
                    rows = len(lines)
                    body["detailed_evaluation_results"] = {
                        "format": "jsonl",
                        "file_path": f"{place.as_posix()}_samples.jsonl",
                        "hash_algorithm": "sha256",
                        "checksum": hashlib.sha256(content).hexdigest(),
                        "total_rows": rows,
                    }
                text = json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
                path.with_name(f"{path.name}.json").write_text(text, encoding="utf-8")
                files, samples = files + 1, samples + rows
            (written / README).write_text(_readme(prepared, unlabelled), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}).") from None
    return Written(folder, files, samples, unlabelled, grid.complete)


def _name(text: str) -> str:
    """As a part of a path and of an id."""
    return re.sub(r"[^\w.+-]+", "-", text).strip(".-") or "table"


# -------------------------------------------------------------------------------------------------------------- writing


@dataclass(frozen=True)
class _Model:
    """A printed row at one size. `runs`: by column; `keys`: of runs by (column, configuration, subset, seed); `compared`: with the first row, by column."""

    prepared: Prepared
    grid: Grid
    size: int
    row: str
    organization: str
    runs: Mapping[str, Runs]
    keys: Mapping[tuple[str, str, int, int], str]
    comparisons: Mapping[str, Comparison]
    finished: int

    @property
    def encoder(self) -> str:
        """The row's own, of a table of several."""
        resolved = self.prepared.resolved
        part, _ = resolved.origin_rows.get(resolved.printed_rows[self.row][0].name, (resolved, None))
        return without_folders(part.encoder)

    @property
    def id(self) -> str:
        encoder = self.encoder.rpartition("/")[2]
        return f"{_name(self.organization)}/{_name(f'{encoder}-{self.row}')}-{self.size or 'full'}"

    @property
    def uuid(self) -> str:
        named = json.dumps([self.id, sorted(self.keys.values())])
        return str(uuid.UUID(bytes=hashlib.sha256(named.encode()).digest()[:16], version=4))

    @property
    def evaluation(self) -> str:
        return f"{self.prepared.resolved.table.name}/{self.id}/{self.finished}"

    def body(self) -> dict[str, Any]:
        resolved, size = self.prepared.resolved, self.size
        about = {
            "table": resolved.table.name,
            "preset": resolved.preset,
            "row": self.row,
            "size": str(size),
            "encoder": self.encoder,
            "protocol": resolved.protocol,
        }
        examples = training_examples(size, resolved.size_unit)
        return {
            "schema_version": SCHEMA,
            "evaluation_id": self.evaluation,
            "evaluation_timestamp": str(self.finished),
            "retrieved_timestamp": str(self.finished),
            "source_metadata": {
                "source_name": f"harness, table {resolved.table.name}",
                "source_type": "evaluation_run",
                "source_organization_name": self.organization,
                "evaluator_relationship": "first_party",
            },
            "eval_library": {"name": "harness", "version": harness.__version__, "additional_details": about},
            "model_info": {
                "name": f"{about['encoder']}, {self.row}, {examples}",
                "id": self.id,
                "developer": self.organization,
                "additional_details": {"deployment_type": "self_deployed", "model_availability": "unknown", **about},
            },
            "evaluation_results": [*self._results()],
        }

    def _results(self) -> Iterator[dict[str, Any]]:
        for name, runs in self.runs.items():
            cell = self.grid.cells[self.size, self.row, name]
            if cell.complete and self.grid.resolved.aggregate.center == "mean":
                yield self._result(name, name, cell_details(runs.scores, self.comparisons.get(name)))
            for (subset, seed), score in runs.scores.items():
                key = self.keys.get((name, runs.configurations[subset, seed], subset, seed), "")
                about = {"subset": str(subset), "seed": str(seed), **({"key": key} if key else {})}
                yield self._result(name, f"{name}/{subset}/{seed}", {"score": score, "details": about})

    def _result(self, name: str, id: str, score: Mapping[str, Any]) -> dict[str, Any]:
        column = self.prepared.resolved.columns[name]
        data, metric = self.prepared.plan.tasks[column.task], METRICS[column.metric]
        rows = data.tests[column.evaluation]
        return {
            "evaluation_result_id": id,
            "evaluation_name": f"{column.title} ({column.evaluation})",
            "source_data": {
                "dataset_name": column.task,
                "source_type": "other",
                "additional_details": {"rows": str(rows.rows), "digest": rows.digest, "evaluation": column.evaluation},
            },
            "metric_config": {
                "metric_id": column.metric,
                "metric_name": metric.title,
                "metric_kind": column.metric,
                "metric_unit": "proportion",
                "lower_is_better": False,
                "score_type": "continuous",
                "min_score": metric.worst,
                "max_score": 1.0,
            },
            "score_details": score,
        }

    def samples(self, shared: Iterable[str]) -> Iterator[dict[str, Any]]:
        for name in (name for name in self.runs if name in shared):
            column, runs = self.prepared.resolved.columns[name], self.runs[name]
            data = self.prepared.plan.tasks[column.task]
            digest, kind = data.tests[column.evaluation].digest, data.task.kind
            known: dict[str, list[tuple[int, int]]] = {}  # all seeds of a row that draws nothing share one run
            for (of, _, subset, seed), key in self.keys.items():
                if of == name and runs.configurations.get((subset, seed)):
                    known.setdefault(key, []).append((subset, seed))
            recorded = self.prepared.store.each(known, predictions=True)
            for (subset, seed), record in ((pair, record) for key, record in recorded for pair in known[key]):
                for place, row in enumerate(_sampled(kind, column.metric, record.predictions[digest])):
                    yield {
                        "schema_version": SCHEMA,
                        "evaluation_id": self.evaluation,
                        "model_id": self.id,
                        "evaluation_name": f"{column.title} ({column.evaluation})",
                        "evaluation_result_id": f"{name}/{subset}/{seed}",
                        "sample_id": f"{digest}:{place}",
                        "interaction_type": "single_turn",
                        **row,
                    }


def _models(prepared: Prepared, grid: Grid, organization: str) -> Iterator[_Model]:
    runs, results = runs_of(grid), grid.results
    columns = [*prepared.resolved.columns]
    several = len(prepared.resolved.printed_rows) > 1
    comparisons = compared(grid).comparisons if several else ()
    done: Any = results[results["status"] == "done"]
    keys = {(r.size, r.column, r.row, r.subset, r.seed): r.key for r in done.itertuples()}
    for size in prepared.resolved.sizes:
        for row in prepared.resolved.printed_rows:
            mine = {column: runs[size, row, column] for column in columns if (size, row, column) in runs}
            if not mine:
                continue
            of_row = {
                (column, configuration, *pair): keys[size, column, configuration, *pair]
                for column, of in mine.items()
                for pair, configuration in of.configurations.items()
                if configuration
            }
            ends = [
                record.provenance.get("started_at", 0) + record.seconds
                for record in prepared.store.records(set(of_row.values())).values()
            ]
            against = {c.column: c for c in comparisons if (c.size, c.row) == (size, row)}
            yield _Model(prepared, grid, size, row, organization, mine, of_row, against, int(max(ends, default=0)))


def cell_details(scores: Mapping[tuple[int, int], float], comparison: Comparison | None = None) -> dict[str, Any]:
    """The score of a cell, the mean of `scores` by (subset, seed), with its uncertainty; and of its difference from another row."""
    subsets, seeds = (sorted({pair[side] for pair in scores}) for side in (0, 1))
    values = np.array([[scores[s, r] for r in seeds] for s in subsets])
    details = {"mean_of": f"{len(subsets)} subsets x {len(seeds)} seeds"}
    if comparison and comparison.difference:
        tested = comparison.difference
        details |= {"against": comparison.against, "difference": repr(tested.mean)}
        details |= {"difference_runs": f"{tested.num_subsets} subsets x {tested.num_seeds} seeds"}
        if tested.interval:
            details |= {"difference_lower": repr(tested.interval.low), "difference_upper": repr(tested.interval.high)}
            details |= {"difference_confidence_level": str(LEVEL), "difference_method": METHOD}
    found: dict[str, Any] = {"score": float(values.mean()), "details": details}
    if interval := mean_interval(values):
        error = float(np.sqrt(t_inference(mean_squares(values))[0].sum()))
        found["uncertainty"] = {
            "standard_error": {"value": error, "method": ERROR},
            "confidence_interval": {
                "lower": interval.low,
                "upper": interval.high,
                "confidence_level": LEVEL,
                "method": METHOD,
            },
            "num_samples": values.size,
        }
    return found


def _sampled(kind: Kind, metric: str, predicted: Predictions) -> Iterator[dict[str, Any]]:
    """What is predicted of each example, without its text: of spans the score alone, as answers are texts."""
    answers, per_item = predicted.decoded, METRICS[metric].per_item
    if kind.answer == "span" and per_item is None:
        return
    scores = per_item(predicted.gold, answers).astype(float) if per_item else None
    shares = predicted.probabilities if kind.names else None
    for i in range(len(predicted.gold)):
        reference: list[str] = []
        output: list[str] = []
        if kind.names:
            reference, output = [kind.names[predicted.gold[i]]], [kind.names[answers[i]]]
            score = float(predicted.gold[i] == answers[i])
        elif kind.answer == "score":
            reference, output = [repr(float(predicted.gold[i]))], [repr(float(answers[i]))]
            score = abs(float(predicted.gold[i]) - float(answers[i]))
        else:
            assert scores is not None
            score = float(scores[i])
        right = score == 0.0 if kind.answer == "score" else score == 1.0
        given: dict[str, Any] = {"raw": "", "reference": reference}
        row: dict[str, Any] = {
            "input": given | ({"choices": list(kind.names)} if kind.names else {}),
            "output": {"raw": output},
            "answer_attribution": [
                {
                    "turn_idx": 0,
                    "source": "output.raw",
                    "extracted_value": value,
                    "extraction_method": "highest probability" if kind.names else "regression",
                    "is_terminal": True,
                }
                for value in output
            ],
            "evaluation": {"score": score, "is_correct": right},
        }
        if shares is not None:
            row["metadata"] = {f"probability.{name}": repr(float(shares[i, c])) for c, name in enumerate(kind.names)}
        yield row


def _readme(prepared: Prepared, unlabelled: Sequence[str]) -> str:
    left = (
        [
            f"No samples of {listed(unlabelled)}: a sample states whether its prediction is right, and with it the label, which may not be passed on. So of these the scores of "
            "single runs, calibration, and intervals over test items cannot be computed again; the means, intervals and differences can.",
            "",
        ]
        if unlabelled
        else []
    )
    return "\n".join(
        [
            f"# {prepared.resolved.table.title}",
            "",
            f"Evaluations in the schema of Every Eval Ever {SCHEMA}: a file of JSON for each row and size of table `{prepared.resolved.table.name}`, and beside it the samples, a line for each "
            "run and test example. No texts are in them: `sample_id` is the digest of the test set and the example's place in it.",
            "",
            "- `evaluation_results` named `COLUMN/SUBSET/SEED` are single runs, and those named `COLUMN` the mean of all runs of the row.",
            f"- Interval: {METHOD}. MS: mean squares of the two-way table of the runs' scores, subsets x seeds.",
            "- `details` of a mean have its difference from the row `against`: the same formula on the differences of the runs of equal subset and seed.",
            "- `harness verify FOLDER` computes each of them again.",
            "",
            *left,
        ]
    )


# ------------------------------------------------------------------------------------------------------------ verifying


@dataclass
class Derived:
    """What came out of deriving the numbers of a folder again. `differing`: those that differ, a sentence each; `unchecked`: what could not be derived."""

    folder: Path
    runs: int = 0
    means: int = 0
    intervals: int = 0
    samples: int = 0
    differing: list[str] = field(default_factory=list)
    unchecked: dict[str, list[str]] = field(default_factory=dict)


def is_evaluations(path: Path) -> bool:
    return (path / "data").is_dir() and (path / README).is_file()


def derived_again(folder: Path) -> Derived:
    """Every score that samples give, and every mean, interval and difference that the scores of runs give. Raises UserError for a folder that is not of this form."""
    found = Derived(folder)
    bodies: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    paths = sorted(folder.glob("data/*/*/*/*.json"))
    if not paths:
        raise UserError(
            f"{folder}: has no file data/TABLE/ORGANIZATION/MODEL/ID.json; write it with 'harness publish --format {EVERY_EVAL_EVER}'."
        )
    for path in paths:
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            about = body["eval_library"]["additional_details"]
            results = {each["evaluation_result_id"]: each for each in body["evaluation_results"]}
            bodies[about["table"], about["size"], about["row"]] = results
            _check_samples(found, folder, path, body, results)
        except (ValueError, KeyError, TypeError, OSError, AttributeError) as error:
            raise UserError(f"{path}: is no evaluation that 'harness publish' wrote ({first_line(error)}).") from None
    for place, results in bodies.items():
        for name in (
            name for name, each in results.items() if "subset" not in each["score_details"].get("details", {})
        ):
            against = results[name]["score_details"]["details"].get("against")
            _check_mean(found, place, name, results, bodies.get((*place[:2], against)) if against else None)
    return found


def _scores(results: Mapping[str, Any], column: str) -> dict[tuple[int, int], float]:
    runs = [each["score_details"] for id, each in results.items() if id.startswith(f"{column}/")]
    return {(int(run["details"]["subset"]), int(run["details"]["seed"])): float(run["score"]) for run in runs}


def _check_mean(
    outcome: Derived,
    place: tuple[str, str, str],
    column: str,
    results: Mapping[str, Any],
    others: Mapping[str, Any] | None,
) -> None:
    written, scores = results[column]["score_details"], _scores(results, column)
    words = f"{place[2]}, size {place[1]}, {column}"
    subsets, seeds = ({pair[side] for pair in scores} for side in (0, 1))
    if not scores or len(scores) != len(subsets) * len(seeds):
        outcome.differing.append(f"{words}: its runs are no full grid of subsets and seeds")
        return
    derived = cell_details(scores)
    details = dict(written.get("details", {}))
    stated = {name: details.pop(name) for name in [*details] if name.startswith(("against", "difference"))}
    outcome.means += 1
    outcome.intervals += "uncertainty" in derived
    outcome.differing += [f"{words}: {each}" for each in differences({**written, "details": details}, derived)]
    if not stated:
        return
    if others is None:
        outcome.unchecked.setdefault("differences from a row that is not in the folder", []).append(words)
        return
    theirs = _scores(others, column)
    pairs = {pair: scores[pair] - theirs[pair] for pair in scores if pair in theirs}
    _check_difference(outcome, words, stated, pairs)


def _check_difference(
    outcome: Derived, words: str, stated: Mapping[str, str], pairs: Mapping[tuple[int, int], float]
) -> None:
    from harness.statistics.design import full_grid

    subsets, seeds = full_grid([*pairs])
    values = np.array([[pairs[s, r] for r in seeds] for s in subsets])
    interval = mean_interval(values) if values.size else None
    derived: dict[str, float] = {"difference": float(values.mean())} if values.size else {}
    derived |= {"difference_lower": interval.low, "difference_upper": interval.high} if interval else {}
    written = {
        name: float(stated[name]) for name in ("difference", "difference_lower", "difference_upper") if name in stated
    }
    outcome.intervals += interval is not None
    outcome.differing += [f"{words}, minus {stated['against']}: {each}" for each in differences(written, derived)]


def _check_samples(
    outcome: Derived, folder: Path, path: Path, body: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    """The scores of runs from their samples, and the file of samples against its checksum."""
    detail, runs = body.get("detailed_evaluation_results"), [id for id in results if id.count("/") == 2]
    outcome.runs += len(runs)
    by_run: dict[str, list[dict[str, Any]]] = {}
    if detail:
        content = (folder / detail["file_path"]).read_bytes()
        lines = content.splitlines()
        if hashlib.sha256(content).hexdigest() != detail["checksum"] or len(lines) != detail["total_rows"]:
            outcome.differing.append(f"{path}: its file of samples is not the one that it names by checksum")
        for line in lines:
            row = json.loads(line)
            by_run.setdefault(row["evaluation_result_id"], []).append(row)
    for id in runs:
        metric, rows = METRICS[results[id]["metric_config"]["metric_id"]], by_run.get(id)
        words = f"{path.parent.name}, {id}"
        if not rows:
            outcome.unchecked.setdefault("scores of single runs, which have no samples", []).append(words)
            continue
        outcome.samples += len(rows)
        derived = {"score": _score(metric.name, rows)}
        outcome.differing += [
            f"{words}: {each}" for each in differences({"score": results[id]["score_details"]["score"]}, derived)
        ]


def _score(metric: str, rows: Sequence[Mapping[str, Any]]) -> float:
    """The metric of samples in any order."""
    if "choices" in rows[0]["input"]:
        codes = {name: code for code, name in enumerate(rows[0]["input"]["choices"])}
        gold, predicted = (
            np.array([codes[row[side][part][0]] for row in rows])
            for side, part in (("input", "reference"), ("output", "raw"))
        )
        return METRICS[metric].compute(gold, predicted)
    if rows[0]["output"]["raw"]:
        gold, predicted = (
            np.array([float(row[side][part][0]) for row in rows], dtype=np.float32)
            for side, part in (("input", "reference"), ("output", "raw"))
        )
        return METRICS[metric].compute(gold, predicted)
    return float(np.mean([row["evaluation"]["score"] for row in rows]))
