"""`tune`: a space, its study, what the study would cost, the trials that are left, and what they found."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.cli.bench import agree, back_translated, default_preset, say_tracked, unread_plan, warn
from harness.cli.printing import print_lines, time_range
from harness.cli.request import read_tune
from harness.cli.study_report import report_study, scored_points
from harness.commands.prepare import read_named
from harness.commands.report import overlap_sentences
from harness.commands.study import Opened, PreparedStudy, Watcher, open_study, prepare_study, run_trials
from harness.commands.track import Tracking, check_trackers, study_projection
from harness.search.request import TuneRequest
from harness.search.space import resolve_space
from harness.search.study import History
from harness.tables.caption import counted
from harness.tables.estimate import estimated


def tune(args: argparse.Namespace) -> int:
    """Show the plan, run the trials that are left, print all points. 1 when no point can be the best."""
    request = read_tune(args)
    check_trackers(request.base)
    study = prepare_study(request)
    agree(args.yes, _announce(study), "--trials, --tasks, --sizes, --subsets or --seeds")
    if study.prepared.plan.untranslated:
        back_translated(study.prepared)
        study = prepare_study(study.request)  # what was translated has its identity now
    with open_study(study) as opened:
        if args.final_test:
            scored_points(opened.folder)  # a damaged file is named before anything is trained
        tracking = Tracking(request.base, opened.store.url, warn)
        if opened.proposals.remaining():
            run_trials(opened, tracking.watched_trials(_live))
        opened.mirror.sync(opened.proposals.history.entries)
        status = report_study(opened, args.format, args.final_test)
        say_tracked(tracking.finish(lambda: study_projection(opened)))
        return status


@contextmanager
def _live(opened: Opened, dashboard: str) -> Iterator[Watcher]:
    """The progress of a study on standard error."""
    from harness.cli.progress import TrialProgress

    space, trials = opened.points.space, opened.proposals.history.trials
    with TrialProgress(space.trials, len(opened.points.replicates), space.directions[0], trials, dashboard) as view:
        yield view.show


# ---------------------------------------------------------------------------------------------------------- the plan


def _announce(study: PreparedStudy) -> float:
    """Print the search space, the data that points are scored on and the remaining work. Returns an upper bound of its hours."""
    prepared, points, seed = study.prepared, study.points, study.request.seed
    space, base = points.space, points.base
    history = History(study.name, prepared.store, None)
    what = "; ".join(f"{p.path} {p.described()}" + _when(p.when) for p in space.parameters)
    design = f"{counted(len(base.subsets), 'subset')} x {counted(len(base.seeds), 'seed')}"
    sizes = ", ".join(f"N={size}" if size else "full size" for size in base.sizes)
    ended = sum(trial.state != "running" for trial in history.trials)
    default = ", ".join(f"{path}={value}" for path, value in space.defaults.items())
    stages, to_train, flops = study.work_left(history.entries.values())
    spent = prepared.hours_of(flops, to_train or 1)
    most = "" if space.sampler == "grid" else "at most "
    took = time_range(estimated(3600 * spent, prepared.calibration.spread))
    left = f"{most}{to_train:,} of {counted(stages, 'stage')}, {flops:.2g} FLOPs, about {took} on "
    left = f"{left}{counted(prepared.slots, 'slot')} of this machine" if to_train else "nothing"
    lines = [
        *_others(study),
        f"Study {study.name}: {space.mode} over {what}.",
        f"{counted(space.trials, 'point')}, sampler {space.sampler}, racing {space.racing}, seed {seed}; first the "
        f"default point, {default}.",
        f"Judged on dev {' and '.join(points.metrics)}: table {base.table.name}, row {base.rows[0].name}, preset "
        f"{base.preset}, {', '.join(base.tasks)}, {sizes}, {design} = {counted(len(points.replicates), 'replicate')} a point.",
        f"Encoder {base.encoder} ({prepared.plan.located.encoder.digest[:10]}), data: {prepared.plan.source}, "
        f"store {prepared.store.shown}.",
        *(f"Overlap: {sentence}." for sentence in overlap_sentences(prepared.plan)),
        f"Ended in earlier commands: {ended} of {counted(space.trials, 'point')}. To do: {left}.",
    ]
    print_lines(lines)
    return spent


def _when(conditions: Any) -> str:
    every = [f"{parent} is {' or '.join(map(str, values))}" for parent, values in conditions.items()]
    return f" where {' and '.join(every)}" if every else ""


def _others(study: PreparedStudy) -> list[str]:
    """The estimated cost of the other presets, where the request names none."""
    request, space = study.request, study.points.space
    if request.preset:
        return []

    def cost(preset: str) -> tuple[str, float]:
        other = resolve_space(space.space, TuneRequest(space.method, preset=preset, mode=space.mode))
        plan = unread_plan(read_named(request.bench(other, other.defaults)).resolve())
        hours = study.prepared.hours_of(other.trials * plan.flops, other.trials * len(plan.stages))
        return counted(other.trials, "point"), hours

    return [default_preset(space.preset, space.space.presets, cost)]
