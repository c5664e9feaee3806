"""What a prepared table lacks, trained on Ray. Everything that needs ray and torch is imported inside the functions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from harness.commands.execution import check_machine, execution_of, storage_of, worker_setup_of
from harness.commands.prepare import Prepared, check_masks, prepare
from harness.commands.texts import reader, translate
from harness.store import Store

if TYPE_CHECKING:
    from harness.tables.lifecycle import Event

View = Callable[[Prepared, str], AbstractContextManager[Callable[["Event"], None]]]
"""How the progress of a table is shown, given the dashboard's address: a context in which each event is passed on."""
Counting = Callable[[str, int], AbstractContextManager[Callable[[int], Callable[[int, int], None]]]]
"""The same of back-translation, given the translator's name and the number of texts; see `translate`."""


def translated(prepared: Prepared, counting: Counting) -> tuple[Prepared, int]:
    """The table with its back-translations made, whose stages have their keys now, and how many came back empty."""
    rows = prepared.plan.untranslated
    if not rows:
        return prepared, 0
    assert prepared.translator is not None  # without it nothing waits to be translated
    with counting(prepared.translator.name, sum(map(len, rows))) as progress:
        empty = translate(rows, prepared.translator, Store(prepared.store.url), progress)
    return prepare(prepared.request, train=True), empty


def train(prepared: Prepared, view: View, *, remember: bool = True) -> None:
    """Train the stages that are left, and keep the request (`remember`). Raises UserError before Ray starts for what this machine lacks."""
    from harness.cluster.session import session
    from harness.encoders.tokens import Tokeniser

    request, resolved, plan = prepared.request, prepared.resolved, prepared.plan
    located = plan.located
    assert located.folder is not None  # unresolved encoders were refused
    tokeniser = Tokeniser(located.folder)
    check_masks(prepared.items, tokeniser, located)
    check_machine(request)
    name = resolved.table.name
    metadata = {"table": name, "preset": resolved.preset, "encoder": located.name, "runs": str(len(plan.runs))}
    prepared.store = Store(prepared.store.url)
    if remember:
        prepared.remember()
    storage = storage_of(request, prepared.store)
    storage.probe()
    with session(execution_of(request, resolved), metadata) as (dashboard, settled):
        from harness.cluster.pool import Pool

        setup = worker_setup_of(request, located, storage, settled)
        read = reader(plan, tokeniser, prepared.store)
        pool = Pool(prepared.store, setup, tokeniser.vocabulary, read, settled, name)
        try:
            with view(prepared, dashboard) as show:
                for event in pool.run(prepared.items):
                    show(event)
        finally:
            pool.close()
    prepared.statuses = prepared.store.statuses(plan.stages)
