"""Report of a study: prints its table, and writes tables, plots and best.yaml into the study's folder."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.bench.point import Point as PointFile
from harness.bench.results import replicates
from harness.cli import EXIT_INCOMPLETE
from harness.cli.bench import prepare
from harness.cli.printing import print_lines, print_table
from harness.cli.study import Opened, as_bench
from harness.errors import UserError
from harness.search.marginals import marginal_tables
from harness.search.results import Study, best_point, best_yaml, budget, chosen, final_test
from harness.search.tables import points_table
from harness.search.trials import Trial
from harness.store import masked

FILES = {"md": "md", "csv": "csv", "latex": "tex", "json": "json"}
"""Formats of the tables, each with the suffix of its files."""


def study_of(opened: Opened) -> Study:
    points, space = opened.points, opened.points.space
    base, history = points.base, opened.proposals.history
    notes = [
        f"Each point was run as row {base.rows[0].name} of table {base.table.name}, protocol {base.table.protocol}, encoder "
        f"{base.encoder}, preset {base.preset}, data {opened.prepared.plan.source}: {', '.join(base.tasks)}, "
        f"{', '.join(f'N={size}' if size else 'full size' for size in base.sizes)}.",
        *([f"Changed from the table's own setting: {'; '.join(base.deviations)}."] if base.deviations else []),
        *space.space.notes,
        *([f"Proposals that repeated a point, at no cost: {len(history.repeated)}."] if history.repeated else []),
    ]
    return Study(
        name=opened.name,
        method=space.method,
        row=base.rows[0].name,
        paths=tuple(parameter.path for parameter in space.parameters),
        metrics=points.metrics,
        directions=space.directions,
        replicates=points.replicates,
        trials=history.trials,
        grid={p.path: p.choices for p in space.parameters} if space.mode == "grid" else None,
        default=space.defaults,
        mode=space.mode,
        sampler=space.sampler,
        racing=space.racing,
        seed=opened.args.seed,
        notes=tuple(notes),
    )


def report_study(args: argparse.Namespace, opened: Opened) -> int:
    """Print all points. Write tables, marginals, plots and best.yaml into the study's folder. Returns the exit status."""
    from harness.search.plots import save_plots

    study = study_of(opened)
    folder = Path(args.out) if args.out else opened.store.artifacts.parent / "studies" / opened.name
    best = best_point(study)
    # Every cell of a grid counts in the marginals, also where two cells are one computation.
    whole = replace(study, trials=(*study.trials, *opened.proposals.history.repeated))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for format, suffix in FILES.items():
            (folder / f"points.{suffix}").write_text(points_table(study, format), encoding="utf-8")
            if margins := marginal_tables(whole, format):
                (folder / f"marginals.{suffix}").write_text(margins, encoding="utf-8")
        if best is not None:
            (folder / "best.yaml").write_text(best_yaml(_best(opened, study, best)), encoding="utf-8")
        _, notes = save_plots(opened.mirror.study, folder, study.paths)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); name another folder with --out.") from None
    shown = points_table(study, args.format)
    if args.format == "text":
        print_table(shown + (f"\n{marginal_tables(whole, 'text')}" if study.grid else ""), sys.stdout)
    else:
        print(shown, end="")
    print_lines([*notes, f"Tables and plots: {folder}"])
    if best is None:
        print_lines(["There is no best point: no point has all its replicates done."])
        return EXIT_INCOMPLETE
    print(f"Next: harness bench --with {folder / 'best.yaml'}{_store_flag(args)}", file=sys.stderr)
    if args.final_test:
        where = sys.stdout if args.format in ("text", "md") else sys.stderr  # the other formats are read by programs
        print_lines(["", *_final_test(args, opened, study, best, folder)], where)
    return 0


def _store_flag(args: argparse.Namespace) -> str:
    return f" --store {masked(args.store)}" if args.store else ""


def _best(opened: Opened, study: Study, best: Trial) -> dict[str, Any]:
    points, overrides = opened.points, opened.points.overrides
    base = points.base
    target = {
        "table": points.space.table,
        "preset": base.preset,
        "row": base.rows[0].name,
        "tasks": list(opened.args.tasks or base.tasks),
        "sizes": list(base.sizes),
        "subsets": list(base.subsets),
        "seeds": list(base.seeds),
        "encoder": base.encoder,
        "data": overrides.data or "",
        "corpus": overrides.corpus or "",
        "translator": overrides.translator or "",
        "set": list(overrides.set),
    }
    kept = {key: value for key, value in target.items() if value not in ("", [])}
    point = {"method": points.space.method, "set": dict(best.point), "target": kept, "chosen": chosen(study)}
    PointFile.model_validate(point)
    return point


def _final_test(args: argparse.Namespace, opened: Opened, study: Study, best: Trial, folder: Path) -> list[str]:
    """Test scores of the chosen point and of the default point, computed from the recorded predictions."""
    first = (
        study.default_trial
        if study.default_trial is not best and study.default_trial and study.eligible(study.default_trial)
        else None
    )
    default = _test_scores(args, opened, study, first) if first else None
    result = final_test(best.values(), _test_scores(args, opened, study, best), study.replicates, default)
    path = folder / "final_test.json"
    earlier = json.loads(path.read_text()) if path.exists() else []
    mine = {"trial": best.number, "set": dict(best.point), **asdict(result)}
    others = [each for each in earlier if each["trial"] != best.number]
    path.write_text(json.dumps([*others, mine], indent=1), encoding="utf-8")
    lines = list(result.lines)
    if others:
        tried = ", ".join(str(each["trial"]) for each in others)
        lines.append(
            f"This study's test set was scored before, for trial {tried}: this score is one of {len(others) + 1}."
        )
    return [*lines, f"Budget: {budget(study).replicates} replicates on dev."]


def _test_scores(args: argparse.Namespace, opened: Opened, study: Study, trial: Trial) -> dict[str, list[float]]:
    """Test scores of a trial by column title, in the order of the study's replicates."""
    space = opened.points.space
    prepared = prepare(as_bench(args, space, space.settings(trial.point)), train=False)
    found = {(r.size, r.column, r.subset, r.seed): r.value for r in replicates(prepared.plan, opened.store)}
    base, test = prepared.resolved, {}
    for size in base.sizes:
        for name, column in base.columns.items():
            title = f"{column.title} ({column.metric})" + (f" N={size}" if len(base.sizes) > 1 else "")
            # A full training set has one subset, which counts in every replicate of its seed.
            places = [(subset if size else base.subsets[0], seed) for subset, seed in study.replicates]
            test[title] = [value for place in places if (value := found[size, name, *place]) is not None]
    return test
