"""Report of a study: prints its table, and writes tables, plots, best.yaml and a page into the study's folder."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.cli import EXIT_INCOMPLETE
from harness.cli.printing import print_lines, print_table
from harness.commands.stored import tune_command
from harness.commands.study import Opened, runs_recorded, study_of
from harness.errors import UserError, first_line
from harness.paths import replace_file
from harness.search.marginals import marginal_tables
from harness.search.results import Study, best_point, best_yaml, budget, chosen, final_test
from harness.search.tables import points_table
from harness.search.trials import Trial
from harness.store import masked
from harness.tables.point import PointFile
from harness.tables.request import LABELLED

FILES = {"md": "md", "csv": "csv", "latex": "tex", "json": "json"}
"""Formats of the tables, each with the suffix of its files."""
FINAL_TEST, PAGE = "final_test.json", "report.html"


def report_study(opened: Opened, format: str, test: bool) -> int:
    """Print all points. Write tables, marginals, plots, best.yaml and the page into the study's folder. Returns the exit status."""
    study = study_of(opened)
    folder = opened.folder
    best = best_point(study)
    # Every cell of a grid counts in the marginals, also where two cells are one computation.
    whole = replace(study, trials=(*study.trials, *opened.proposals.history.repeated))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind, suffix in FILES.items():
            (folder / f"points.{suffix}").write_text(points_table(study, kind), encoding="utf-8")
            if margins := marginal_tables(whole, kind):
                (folder / f"marginals.{suffix}").write_text(margins, encoding="utf-8")
        best_text = best_yaml(_best(opened, study, best)) if best is not None else ""
        if best_text:
            (folder / "best.yaml").write_text(best_text, encoding="utf-8")
        tested = _final_test(opened, study, best, folder) if test and best is not None else []
        notes = _page(opened, whole, best, best_text)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); name another folder with --out.") from None
    shown = points_table(study, format)
    if format == "text":
        print_table(shown + (f"\n{marginal_tables(whole, 'text')}" if study.grid else ""), sys.stdout)
    else:
        print(shown, end="")
    print_lines([*notes, f"Tables and plots: {folder}; all of them on one page: {folder / PAGE}"])
    if best is None:
        print_lines(["There is no best point: no point has all its replicates done."])
        return EXIT_INCOMPLETE
    print(f"Next: harness bench --with {folder / 'best.yaml'}{_store_flag(opened)}", file=sys.stderr)
    if test:
        where = sys.stdout if format in ("text", "md") else sys.stderr  # the other formats are read by programs
        print_lines(["", *tested], where)
    return 0


def _page(opened: Opened, whole: Study, best: Trial | None, best_text: str) -> list[str]:
    """Write the plots and the page. Returns why plots are missing."""
    from harness.pages.layout import Picture
    from harness.pages.study_page import StudyResults, plot_of, study_page
    from harness.search.plots import save_plots

    study, folder = study_of(opened), opened.folder
    plots: list[Picture] = []
    _, notes = save_plots(
        opened.mirror.study, folder, study.paths, lambda name, figure: plots.append(plot_of(study, name, figure))
    )
    scored = [each.get("lines", []) for each in scored_points(folder) if best and each["trial"] == best.number]
    keys, records = runs_recorded(opened)
    commands = [tune_command(opened.study.request)]
    if best:
        commands.append(f"harness bench --with {shlex.quote(str(folder / 'best.yaml'))}{_store_flag(opened)}")
    found = StudyResults(
        study, whole, best_text, [line for lines in scored for line in lines], plots, notes, keys, records, commands
    )
    replace_file(folder / PAGE, study_page(found).encode())
    return notes


def _store_flag(opened: Opened) -> str:
    store = opened.study.request.base.store
    return f" --store {masked(store)}" if store else ""


def _best(opened: Opened, study: Study, best: Trial) -> dict[str, Any]:
    points, request = opened.points, opened.points.request
    base = points.base
    target = {
        "table": points.space.table,
        "preset": base.preset,
        "row": base.rows[0].name,
        "tasks": list(opened.study.request.base.tasks or base.tasks),
        "sizes": list(base.sizes),
        "subsets": list(base.subsets),
        "seeds": list(base.seeds),
        **{name: getattr(opened.study.request.base, name) for name in ("protocol", *LABELLED)},
        "encoder": base.encoder,
        "data": request.data or "",
        "corpus": request.corpus or "",
        "translator": request.translator or "",
        "set": [override.text for override in request.overrides],
    }
    kept = {key: value for key, value in target.items() if value not in ("", [], None)}
    point = {"method": points.space.method, "set": dict(best.point), "target": kept, "chosen": chosen(study)}
    PointFile.model_validate(point)
    return point


def scored_points(folder: Path) -> list[dict[str, Any]]:
    """The points of a study whose test score was computed, from its folder. Raises UserError where the file is damaged."""
    path = folder / FINAL_TEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, list) or not all(isinstance(each, dict) and "trial" in each for each in found):
            raise ValueError("not a list of trials")
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise UserError(
            f"{path}: is damaged ({first_line(error)}); it lists the trials whose test score was computed, so restore a copy, "
            "or delete it to begin a new list."
        ) from None
    return found


def _final_test(opened: Opened, study: Study, best: Trial, folder: Path) -> list[str]:
    """The chosen point's test scores, beside the default point's, from the predictions that their runs kept."""
    first = (
        study.default_trial
        if study.default_trial is not best and study.default_trial and study.eligible(study.default_trial)
        else None
    )
    default = opened.test_scores(first) if first else None
    result = final_test(best.values(), opened.test_scores(best), study.replicates, default)
    mine = {"trial": best.number, "set": dict(best.point), **asdict(result)}
    others = [each for each in scored_points(folder) if each["trial"] != best.number]
    (folder / FINAL_TEST).write_text(json.dumps([*others, mine], indent=1), encoding="utf-8")
    lines = list(result.lines)
    if others:
        tried = ", ".join(str(each["trial"]) for each in others)
        lines.append(
            f"This study's test set was scored before, for trial {tried}: this score is one of {len(others) + 1}."
        )
    return [*lines, f"Budget: {budget(study).replicates} replicates on dev."]
