"""What the bench's own machinery costs a stage: N stages that train nothing, through the real pool, its worker processes,
Ray's transport, the ledger and a SQLite store, with the live view on.

    python benchmarks/scheduler.py [--stages 10000] [--slots 2]

Prints milliseconds a stage, the memory of driver, ledger and workers at a tenth of the way and at the end, the longest time
in which the view heard nothing, and how long another process waits for 100 statuses of the store meanwhile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from harness.cluster.session import session
from harness.encoders.tokens import Vocabulary
from harness.execution import Execution, WorkerSetup
from harness.kinds import Predictions
from harness.planning.work import Item
from harness.specs import Data, Encoder, Objective, Optim, Parent, Record, RowSet, Selection, Stage
from harness.storage import Storage
from harness.store import Store

TRAIN, DEV = RowSet("a" * 32, "none/train", 20, 20.0), RowSet("b" * 32, "none/dev", 5000, 20.0)
NAMES = {
    "Ledger": "ledger",
    "Idler": "workers",
    "ray::stage": "workers",
    "gcs_server": "gcs",
    "raylet/raylet": "raylet",
}
"""What stands in a process's title -> who it is."""
FAMILY = 20
"""Stages that start from one parent, as the fine-tunings of a post-training do."""


def items(count: int) -> list[Item]:
    """A plan of so many stages: parents, and the stages that start from them."""
    found: list[Item] = []
    for seed in range(count):
        encoder = Encoder("e" * 32, "none")
        if seed % FAMILY == 0:
            parent = Stage(Objective("mlm", 1, {"p_m": 0.15}), Data(TRAIN), Optim(1e-3, 8, 10), seed, encoder)
            found.append(Item(parent, f"parent {seed}", 2.0, (), True, False, 0))
            continue
        stage = Stage(
            Objective("cross_entropy", 1),
            Data(TRAIN, 2, 64, DEV),
            Optim(1e-5, 16, 10),
            seed,
            Parent(parent, "last"),
            Selection("accuracy", 50),
        )
        found.append(Item(stage, f"stage {seed}", 1.0, ("accuracy",), False, False, 0))
    return found


def nothing(item: Item, storage: Storage) -> Record:
    """The record of a stage that is not trained: predictions of 400 bytes to 40 kB, as of dev sets of 50 to 5,000 examples."""
    from harness.storage import weights_of

    stage = item.stage
    if item.keep_weights:
        storage.write(weights_of(stage.key), b"none")
    record = Record(stage.key, "done", flops=1e9, seconds=0.01, provenance={"host": "none", "encoder": "e" * 32})
    if stage.data.dev:
        rows = 50 * 10 ** (stage.seed % 3)
        random = np.random.default_rng(stage.seed)
        logits = random.standard_normal((rows, 2)).astype(np.float32)
        record.predictions = {stage.data.dev.digest: Predictions({"logits": logits}, random.integers(0, 2, rows))}
        record.dev_scores = {"accuracy": 0.5}
    return record


def start_worker(execution: Execution, setup: WorkerSetup, ledger: Any, name: str, /, **options: Any) -> Any:
    """A worker process that is one in everything but training."""
    import ray

    from harness.cluster.worker import WorkerProcess

    class Idler(WorkerProcess):
        def record(self, item: Item, *_: Any) -> Record:
            return nothing(item, self._setup.storage)

    kind: Any = ray.remote(Idler)
    return kind.options(num_cpus=execution.cpus_per_run, num_gpus=execution.gpus_per_run, **options).remote(
        setup, ledger, name
    )


def read(url: str, keys: list[str], end: Flag, pipe: Any) -> None:
    """Ask a store for statuses now and then until the end, as `harness report` does; sends the seconds of each."""
    store, spent = Store(url), []
    while not end.wait(0.2):
        started = time.perf_counter()
        store.statuses(keys)
        spent.append(time.perf_counter() - started)
    pipe.send(spent)


def used() -> dict[str, tuple[float, float]]:
    """(resident megabytes, seconds of a core) of this process and of Ray's processes below it, by name: the largest of
    equals, and their sum."""
    found: dict[str, tuple[float, float]] = {}
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            title = " ".join(process.cmdline())
            name = "driver" if process == me else next((n for sign, n in NAMES.items() if sign in title), "others")
            times = process.cpu_times()
            megabytes, seconds = found.get(name, (0.0, 0.0))
            resident = process.memory_info().rss / 2**20
            found[name] = max(megabytes, resident), seconds + times.user + times.system
        except psutil.Error:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--stages", type=int, default=10_000)
    parser.add_argument("--slots", type=int, default=2)
    own = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), own.stages, own.slots)


def measure(folder: Path, count: int, slots: int) -> None:
    from harness.cli.progress import StageProgress

    every = items(count)
    store = Store(f"sqlite:///{folder / 'harness.db'}")
    context = multiprocessing.get_context("spawn")
    end, (ours, theirs) = context.Event(), context.Pipe()
    keys = [item.stage.key for item in every[:: max(1, count // 100)]][:100]
    reader = context.Process(target=read, args=(store.url, keys, end, theirs), daemon=True)
    with session(Execution(slots=slots), {}) as (dashboard, settled):
        from harness.cluster.pool import Pool

        setup = WorkerSetup(folder, Storage(str(folder / "products")))
        empty: Any = (np.zeros(1, np.int32), np.zeros(1, np.int64))  # no worker reads it
        vocabularies = {item.stage.encoder.digest: Vocabulary(100, None, 0) for item in every}
        pool = Pool(store, setup, vocabularies, lambda *_: empty, settled, "nothing", start_worker)
        reader.start()
        dashboard.start()
        marks: list[tuple[int, dict[str, tuple[float, float]]]] = []
        gap, ended, heard, started = 0.0, 0, 0.0, 0.0
        with StageProgress(every, 0, dashboard.when_there) as live:
            for event in pool.run(every):
                now = time.perf_counter()
                started = started or now
                gap, heard = max(gap, now - (heard or now)), now
                live(event)
                ended += event.kind == "done"
                if event.kind == "done" and ended in (count // 10, count):
                    marks.append((ended, used()))
            wall = time.perf_counter() - started
        pool.close()
    end.set()
    reads = ours.recv()
    reader.join()
    print(f"{ended} of {count} stages done on {slots} slots, {len(store.statuses(keys))} of 100 asked keys recorded")
    print(f"{wall:.1f} s from the first start to the last end, {1000 * wall / count:.2f} ms a stage")
    for at, found in marks:
        print(f"memory after {at}: " + ", ".join(f"{name} {each[0]:.0f} MB" for name, each in sorted(found.items())))
    (first, before), (last, after) = marks
    spent = {name: after[name][1] - before.get(name, (0.0, 0.0))[1] for name in sorted(after)}
    each = ", ".join(f"{name} {1000 * value / (last - first):.2f}" for name, value in spent.items())
    print(f"of a core, between those two: {1000 * sum(spent.values()) / (last - first):.2f} ms a stage ({each})")
    print(f"longest time without an event for the view: {gap:.2f} s")
    print(
        f"100 statuses read beside it: median {1000 * statistics.median(reads):.1f} ms, longest {1000 * max(reads):.1f} ms"
    )


if __name__ == "__main__":
    main()
