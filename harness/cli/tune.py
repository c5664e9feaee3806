"""`tune`: a space, its study, what the study would cost, the trials that are left, and what they found: tables, plots, best.yaml and a
page in the study's folder."""

from __future__ import annotations

import argparse
import shlex
import sys

from harness.cli import EXIT_INCOMPLETE
from harness.cli.progress import confirm, show
from harness.cli.request import preset_line, read_tune
from harness.cli.terminal import duration, print_lines, print_view, printable, say
from harness.commands.recorded import tune_command
from harness.commands.study import PreparedStudy, prepare_study, searched
from harness.errors import masked
from harness.paths import replace_file
from harness.scores import hardware
from harness.views.notes import encoder_sentences, overlap_sentences
from harness.views.study import BEST_FILE, best_yaml, pictures, screen, study_page, study_view
from harness.wording import counted


def tune(args: argparse.Namespace) -> int:
    """Show the plan, run the trials that are left, print all points. 1 when no point can be the best, and where the same command has more to do.
    With `args.plan` the plan alone."""
    request = read_tune(args)
    if args.plan:
        print_lines(_plan_lines(prepare_study(request, train=False))[0])
        return 0

    def agree(study: PreparedStudy) -> None:
        lines, hours = _plan_lines(study)
        say(*lines)
        confirm(args.yes, hours, "--trials, --tasks, --sizes, --subsets or --seeds")

    with searched(request, show, say, agree) as (opened, trackers):
        status = _report(opened, args.format)
        if opened.stopped and (left := opened.remaining):
            status = EXIT_INCOMPLETE
            say(f"Ended because {opened.stopped}: {counted(left, 'point')} left at most; the same command goes on.")
        if opened.failed:
            status = EXIT_INCOMPLETE
            say(f"Replicates of {counted(opened.failed, 'point')} failed; the same command tries them again.")
        say(*trackers.finish())
        return status


# ---------------------------------------------------------------------------------------------------------- the plan


def _plan_lines(study: PreparedStudy) -> tuple[list[str], float]:
    """The search space, the data that points are scored on and the remaining work, with its hours."""
    prepared, points, plan = study.prepared, study.points, study.plan()
    space = points.space
    what = "; ".join(f"{path} {drawn.described()}" for path, drawn in space.parameters.items())
    subsets, seeds = (len({*each}) for each in zip(*points.replicates, strict=True))
    default = ", ".join(f"{path}={value}" for path, value in space.defaults.items())
    left = "nothing"
    if plan.to_train:
        as_default = "" if space.sampler == "grid" else ", if new points cost what the default one does"
        left = (
            f"{plan.to_train:,} of {counted(plan.stages, 'stage')}, {plan.flops:.2g} FLOPs, about {duration(plan.hours)} on "
            f"{counted(prepared.slots, 'slot')} of this machine{as_default}"
        )
    lines = [
        *preset_line(study.request.preset, space.preset, space.presets),
        f"Study {study.name}: {space.mode} over {what}.",
        f"{counted(space.trials, 'point')}, sampler {space.sampler}, racing {space.racing}, seed {study.request.seed}; first the "
        f"default point, {default}.",
        study.notes[0],
        f"Judged on dev {points.metric}: {counted(subsets, 'subset')} x {counted(seeds, 'seed')} = "
        f"{counted(len(points.replicates), 'replicate')} a point. Store: {prepared.store.shown}.",
        *overlap_sentences(prepared.plan),
        *encoder_sentences(prepared.plan),
        f"Ended in earlier commands: {plan.ended} of {counted(space.trials, 'point')}. To do: {left}.",
    ]
    return lines, plan.hours


# -------------------------------------------------------------------------------------------------------- the results


def _report(study: PreparedStudy, format: str) -> int:
    """Print the points. Write tables, margins, pictures, best.yaml and the page into the study's folder. Returns the exit status."""
    folder, view = study.folder, study_view(study)
    folder.mkdir(parents=True, exist_ok=True)
    for kind, suffix in {"md": "md", "csv": "csv", "latex": "tex", "json": "json"}.items():
        replace_file(folder / f"points.{suffix}", view.written(kind))
    best, again = "", [tune_command(study.request)]
    if study.best:
        best = best_yaml(study.best_point())
        again.append(_bench_command(study))
        replace_file(folder / BEST_FILE, best)
    drawn, notes = pictures(study, study.optuna)
    for picture in drawn:
        replace_file(folder / f"{picture.name}.png", picture.written("png"))
    keys = {key for keys in view.frame["keys"] for key in keys.split(",")}
    machines = hardware(study.prepared.store.records(keys).values())
    replace_file(folder / "report.html", study_page(study, best, drawn, notes, machines, again))
    if format == "text":
        print_view(screen(study))
    else:
        print(view.written(format), end="")
    say(*notes, f"Tables and plots, all of them in report.html: {folder}")
    if not study.best:
        return EXIT_INCOMPLETE
    method, files, rows = study.points.space.method, study.request.base.methods, study.points.base.table.rows
    row = study.points.base.rows[0].name
    tuned = row if row in {each.name for each in rows} else method
    methods = "" if method == "ft" else f" --methods {shlex.quote(f'ft,{files[0] if files else tuned}')}"
    print(printable(f"Next: {_bench_command(study, methods)}"), file=sys.stderr)
    return 0


def _bench_command(study: PreparedStudy, methods: str = "") -> str:
    """The bench of the best point."""
    store = study.request.base.store
    kept = f" --store {masked(store)}" if store else ""
    return f"harness bench --with {shlex.quote(str(study.folder / BEST_FILE))}{methods}{kept}"
