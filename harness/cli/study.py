"""A study while a command holds it: opened under a lock, its trials run on Ray."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.cli.bench import Prepared, check_masks
from harness.cli.places import check_gpus, execution_of, storage_of, worker_setup_of
from harness.cli.texts import reader
from harness.errors import UserError
from harness.search.points import Points
from harness.search.space import ResolvedSpace
from harness.search.study import History, OptunaMirror, study_name
from harness.search.trials import Trial
from harness.store import Owner, Request, Store


@dataclass
class Opened:
    """A study that this process holds."""

    name: str
    args: argparse.Namespace
    points: Points
    prepared: Prepared
    owner: Owner
    store: Store
    mirror: OptunaMirror
    proposals: Any
    watchers: list[Any]


def as_bench(args: argparse.Namespace, space: ResolvedSpace, settings: tuple[str, ...]) -> argparse.Namespace:
    """The command line of the bench that runs one point."""
    subsets = args.subsets or (tuple(range(space.subsets)) if space.subsets else None)
    asked = vars(args) | {
        "table": space.table,
        "preset": space.table_preset,
        "methods": (space.row or space.method,),
        "with_file": None,
        "tasks": args.tasks or space.tasks,
        "sizes": args.sizes or space.sizes,
        "subsets": subsets,
        "seeds": args.seeds or space.seeds,
        "set": [*space.set, *args.set, *settings],
    }
    return argparse.Namespace(**asked)


@contextmanager
def open_study(args: argparse.Namespace, points: Points, prepared: Prepared) -> Iterator[Opened]:
    """The study of a command, which no other process may hold at the same time."""
    from harness.cluster.proposals import Proposals, search_of

    store, owner = Store(prepared.store.url), Owner.current()
    name = study_name(points.space, args.seed, points.identity(points.space.defaults))
    lock = f"study {name}"[-64:]
    if store.lease(lock, owner) == "held":
        raise UserError(f"The study {name} is run by another command now; wait for it, or take another --seed.")
    watchers: list[Any] = []
    try:
        mirror = OptunaMirror(points.space, name, store, points.metrics)
        history = History(name, store, mirror)
        mirror.sync(history.entries)

        def watch(kind: str, trial: Trial) -> None:
            for watcher in watchers:
                watcher(kind, trial)

        proposals = Proposals(points, history, search_of(points, args.seed), points.space.trials, watch, args.retry)
        yield Opened(name, args, points, prepared, owner, store, mirror, proposals, watchers)
    finally:
        store.release(owner)


def check_places(args: argparse.Namespace) -> None:
    """What this machine does not have is said before Ray starts; of another cluster its session tells."""
    check_gpus(args)
    if args.out:
        _check_folder(args.out)


def _check_folder(out: str) -> None:
    """Results are written when all is done: that they can be is asked before."""
    folder = Path(out).absolute()
    place = next(place for place in (folder, *folder.parents) if place.exists())
    if not place.is_dir():
        raise UserError(f"--out {out}: {place} is a file, not a folder; name another folder.")
    if not os.access(place, os.W_OK):
        raise UserError(f"--out {out}: {place} cannot be written; name another folder.")


def explore_rest(args: argparse.Namespace, opened: Opened) -> None:
    """Everything that needs ray and torch."""
    from harness.cli.progress import TrialProgress
    from harness.cluster.session import session
    from harness.encoders.tokens import Tokeniser

    points, prepared, store = opened.points, opened.prepared, opened.store
    plan, located = prepared.plan, prepared.plan.located
    assert located.folder is not None  # unresolved encoders were refused
    tokeniser = Tokeniser(located.folder)
    check_masks(prepared.items, tokeniser, located)
    metadata = {"study": opened.name, "space": points.space.space.name, "encoder": located.name}
    with session(execution_of(args, points.base), metadata) as (dashboard, settled):
        from harness.cluster.ledger import ledger_of
        from harness.cluster.trial import TrainingEvaluator, TrialContext
        from harness.cluster.tune import explore
        from harness.cluster.worker import TokenCache, answer, slots_of

        storage = storage_of(args, store)
        storage.probe()
        ledger = ledger_of(store, storage, opened.owner)
        token_cache = TokenCache(reader(plan, tokeniser, store))
        for stage in plan.stages.values():
            token_cache.references(stage)
        kept = [s.key for s in plan.stages.values() if s.parent and not s.selection]
        for key in kept:  # weights that the default point shares with others stay until the study ends
            answer(ledger.hold.remote(key, opened.owner.token))
        context = TrialContext(
            points,
            worker_setup_of(args, located, storage, settled),
            tokeniser.vocabulary,
            token_cache.made,
            ledger,
            opened.owner,
            settled,
            args.retry,
        )
        count, direction = len(points.replicates), points.space.directions[0]
        live = TrialProgress(points.space.trials, count, direction, opened.proposals.history.trials, dashboard)

        base = prepared.asked.request

        def remember(kind: str, trial: Trial) -> None:
            if kind == "started":
                runs = [run for runs in points.runs(trial.point) for run in runs]
                store.label(points.base.table.name, runs)
                settings = [*args.set, *points.space.settings(trial.point)]
                request = Request(base.table, {**base.values, "set": settings}, opened.name)
                store.keep_request(request, [stage.key for run in runs for stage in run.stage.chain])

        with live:
            opened.watchers += [live.show, remember]
            explore(
                opened.proposals,
                partial(TrainingEvaluator, context),
                study=opened.name,
                folder=store.artifacts.parent / "tune",
                execution=settled,
                concurrent=slots_of(settled),
            )
        for key in kept:
            answer(ledger.let_go.remote(key, opened.owner.token))
