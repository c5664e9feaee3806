"""`tune`: a space, its study, what the study would cost, the trials that are left, and what they found."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from harness.bench.caption import counted
from harness.bench.estimate import estimated
from harness.bench.plan import Translation, make_plan
from harness.bench.table import EXCLUSIVE, PHASES
from harness.cli.asked import ask
from harness.cli.bench import Prepared, agree, overlap_sentences, prepare
from harness.cli.printing import magnitude, print_lines, time_range
from harness.cli.study import as_bench, check_places, explore_rest, open_study
from harness.cli.study_report import report_study
from harness.cli.texts import translate
from harness.encoders import locate
from harness.errors import UserError
from harness.methods import METHODS, methods_named
from harness.search.points import Points
from harness.search.space import ResolvedSpace, check_method, check_metrics, load_space, resolve_space, space_names
from harness.search.study import Entry, History, check_sampler, study_name, unfinished
from harness.specs import SHARED_PHASES, Stage
from harness.store import Store
from harness.tasks import TASKS


def tune(args: argparse.Namespace) -> int:
    """Show the plan, run the trials that are left, print all points. 1 when no point can be the best."""
    prepared, points = prepare_study(args)
    left = _announce(args, prepared, points)
    agree(args.yes, left, "--trials, --tasks, --sizes, --subsets or --seeds")
    if prepared.plan.untranslated:
        assert prepared.translator is not None  # without it nothing waits to be translated
        translate(prepared.plan.untranslated, prepared.translator, Store(prepared.store.url))
        prepared, points = prepare_study(args)  # what was translated has its identity now
    with open_study(args, points, prepared) as opened:
        if opened.proposals.remaining():
            explore_rest(args, opened)
        opened.mirror.sync(opened.proposals.history.entries)
        return report_study(args, opened)


# ------------------------------------------------------------------------------------------------------------ reading


def space_of(args: argparse.Namespace) -> ResolvedSpace:
    method = args.method.lower()
    if method in space_names() and not set(method.split("+")) <= METHODS.keys():
        other = load_space(method).method
        raise UserError(f"tune {method}: is a space and no method; take harness tune {other} --space {method}.")
    methods_named(method, "tune")
    if not args.space and method not in space_names():
        raise UserError(f"tune {method}: no packaged space varies this method; write one and name it with --space.")
    named = args.space or method
    space = load_space(named)
    check_method(space, args.method, f"--space {named}")
    return resolve_space(
        space,
        preset=args.preset,
        mode="grid" if args.grid else "search" if args.search else None,
        sampler=args.sampler,
        racing=args.racing,
        trials=args.trials,
        metrics=args.metric,
    )


def prepare_study(args: argparse.Namespace) -> tuple[Prepared, Points]:
    """The default point as a bench would run it, which reads and checks all data, and what makes runs of other points."""
    check_places(args)
    space = space_of(args)
    check_sampler(space.sampler, len(space.directions))
    asked = as_bench(args, space, space.settings(space.defaults))
    _refuse_twice(args, space)
    prepared = prepare(asked, train=True)
    if prepared.plan.skipped:
        row, task, reason = prepared.plan.skipped[0]
        raise UserError(f"{row}{' on ' + task if task else ''} cannot be tuned: {reason}.")
    overrides = replace(prepared.asked.overrides, set=(*space.set, *args.set))
    tasks = {name: found.task for name, found in prepared.plan.tasks.items()}
    check_metrics(space, tasks, "--metric" if args.metric else f"space {space.space.name}, metric")
    base = prepared.asked.table.resolve(prepared.resolved.preset, overrides, tasks)
    return prepared, Points(space, base, overrides, tasks, prepared.plan.table_data)


def _refuse_twice(args: argparse.Namespace, space: ResolvedSpace) -> None:
    """`--set` of what the space varies would be overridden at every point, and so would the other field of an exclusive pair,
    such as steps where the space varies epochs."""
    varied = {p.path: p.choices[0] if p.choices else p.low for p in space.parameters}
    keys = {text.partition("=")[0] for text in space.settings(varied)}
    for text in args.set:
        key = text.partition("=")[0].strip()
        group, _, name = key.partition(".")
        phases = PHASES[:2] if group == "optim" else (group,)
        same = next((other for pair in EXCLUSIVE if name in pair for other in pair if other != name), name)
        of_pair = [f"{phase}.{same}" for phase in phases if f"{phase}.{same}" in keys]
        what = f"the {space.mode} of {space.space.name} varies"
        if key in keys or any(f"{phase}.{name}" in keys for phase in phases):
            raise UserError(f"--set {text}: {what} {key} itself; leave one of them out.")
        if of_pair:
            raise UserError(
                f"--set {text}: {what} {of_pair[0]}, which replaces {name}; leave {key} out, or tune over a space of your own "
                f"without {of_pair[0]}."
            )


# ---------------------------------------------------------------------------------------------------------- the plan


def _announce(args: argparse.Namespace, prepared: Prepared, points: Points) -> float:
    """Say in lines what varies, what it is judged by and what is left to do; the hours that this takes at the most."""
    space, base = points.space, points.base
    name = study_name(space, args.seed, points.identity(space.defaults))
    history = History(name, prepared.store, None)
    what = "; ".join(f"{p.path} {p.described()}" + _when(p.when) for p in space.parameters)
    design = f"{counted(len(base.subsets), 'subset')} x {counted(len(base.seeds), 'seed')}"
    sizes = ", ".join(f"N={size}" if size else "full size" for size in base.sizes)
    ended = sum(trial.state != "running" for trial in history.trials)
    default = ", ".join(f"{path}={value}" for path, value in space.defaults.items())
    stages, to_train, flops = work_left(points, prepared, history.entries.values(), args.retry)
    spent = prepared.hours_of(flops, to_train or 1)
    most = "" if space.sampler == "grid" else "at most "
    took = time_range(estimated(3600 * spent, prepared.calibration.spread))
    left = f"{most}{to_train:,} of {counted(stages, 'stage')}, {flops:.2g} FLOPs, about {took} on "
    left = f"{left}{counted(prepared.slots, 'slot')} of this machine" if to_train else "nothing"
    lines = [
        *_others(args, space, prepared),
        f"Study {name}: {space.mode} over {what}.",
        f"{counted(space.trials, 'point')}, sampler {space.sampler}, racing {space.racing}, seed {args.seed}; first the "
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


def work_left(
    points: Points, prepared: Prepared, entries: Iterable[Entry], retry: bool = False
) -> tuple[int, int, float]:
    """Distinct stages of the study, how many of them are still to be trained, and their FLOPs. Exact for a grid; for a search
    the default point stands for those that are not proposed yet, and no point is dropped: an upper bound."""
    space = points.space
    known = [entry for entry in entries if entry.same_as is None]
    ended = [dict(entry.trial.point) for entry in known if not unfinished(entry, retry)]
    rest = [dict(entry.trial.point) for entry in known if unfinished(entry, retry)]
    if space.sampler == "grid":
        rest = [point for point in space.grid_points() if point not in ended]
    elif not known:
        rest = [space.defaults]
    every, left = _stages(points, [*ended, *rest]), _stages(points, rest)
    statuses = prepared.store.statuses(left)
    again = ("failed", "diverged") if retry else ("failed",)
    to_train = [stage for key, stage in left.items() if statuses.get(key, ("failed", 0))[0] in again]
    flops = sum(prepared.plan.stage_flops(stage) for stage in to_train)
    if space.sampler == "grid":
        return len(every), len(to_train), flops
    own = [stage for stage in _stages(points, [space.defaults]).values() if stage.phase not in SHARED_PHASES]
    new = max(0, space.trials - max(1, len(known)))
    flops += new * sum(prepared.plan.stage_flops(stage) for stage in own)
    return len(every) + len(own) * new, len(to_train) + len(own) * new, flops


def _stages(points: Points, some: Iterable[Mapping[str, Any]]) -> dict[str, Stage]:
    """The stages of points by key; a point that cannot be run has none, and stands in the table as failed."""
    found: dict[str, Stage] = {}
    for point in some:
        with suppress(UserError):
            found |= {s.key: s for runs in points.runs(point) for run in runs for s in run.stage.chain}
    return found


def _others(args: argparse.Namespace, space: ResolvedSpace, prepared: Prepared) -> list[str]:
    """What the other presets would cost here, said when none was asked for."""
    if args.preset:
        return []
    costs = []
    for name in space.space.presets:
        if name == space.preset:
            continue
        try:
            other = resolve_space(space.space, preset=name, mode=space.mode)
            asked = ask(as_bench(args, other, other.settings(other.defaults)))
            table = asked.table.resolve(other.table_preset, asked.overrides, {**TASKS, **asked.user_tasks})
            plan = make_plan(table, None, locate(table.encoder), translation=Translation())
        except UserError:
            continue
        flops = other.trials * sum(plan.stage_flops(stage) for stage in plan.stages.values())
        spent = prepared.hours_of(flops, len(plan.stages) * other.trials)
        costs.append(f"{name} ({counted(other.trials, 'point')}, {magnitude(spent)} on this machine)")
    others = f" Others: {', '.join(costs)}; choose one with --preset NAME." if costs else ""
    return [f"Preset {space.preset}, the default.{others}"]
