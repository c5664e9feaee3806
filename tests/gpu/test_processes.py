"""The harness's own processes, on Ray and a GPU: two runs on one GPU, a run that needs more memory than there is, and an
error of CUDA.

On a CPU the same code runs with no GPU per run, and the two faults are raised instead of provoked.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from family_encoders import encoder_folder, sentences, write_task
from gpu.models import BATCH, Setting, inputs_of, trained, vocabulary_of

from harness.specs import Data, Encoder, Optim, Record, RowSet, Selection, Stage
from harness.storage import Storage

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.ray, pytest.mark.slow]
Measured = Callable[..., None]


# ------------------------------------------------------------------------------------------- two runs on one GPU


def test_two_runs_at_a_time(setting: Setting, measured: Measured) -> None:
    """`harness bench` with two runs at a time on one GPU: all are recorded, on that GPU, and two overlap in time."""
    folder, rows = setting.folder / "bench", sentences(400)
    folder.mkdir()
    write_task(folder, rows)
    encoder = encoder_folder(folder, "bert", [text for text, _ in rows])
    seeds, share = range(1, 7), 0.5 if setting.cuda else 0.0
    line = f"-m harness bench --table few_shot --preset quick --tasks reviews.yaml --encoder {encoder} --methods ft "
    line += f"--sizes 20 --subsets 0 --seeds {','.join(map(str, seeds))} --slots 2 --gpus-per-run {share:g} "
    line += f"--set fine_tune.steps=300 --set max_length=80 --store sqlite:///{folder}/harness.db --yes --format json"
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *line.split()],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    from harness.store import Store

    store = Store(f"sqlite:///{folder}/harness.db")
    keys = list(dict.fromkeys(result["key"] for result in json.loads(done.stdout)["results"]))
    records = list(store.records(keys).values())
    spans = sorted((record.provenance["started_at"], record.seconds) for record in records)
    overlaps = sum(before[0] + before[1] > after[0] for before, after in itertools.pairwise(spans))
    measured({"records": len(records), "overlaps": overlaps})
    assert len(records) == len(seeds)
    assert_device(setting, *records)
    assert overlaps, "no two runs overlap in time"


def assert_device(setting: Setting, *records: Record) -> None:
    """On a GPU: they were trained on it."""
    if setting.cuda:
        assert {record.provenance.get("device") for record in records} == {torch.cuda.get_device_name(setting.device)}


# ------------------------------------------------------------------------------------------------ faults of a device


def test_out_of_memory(setting: Setting, measured: Measured) -> None:
    """A run that needs more memory than its process may take is recorded as failed with the reason, its process is replaced, and
    the next run is trained."""

    def limit(cuda: bool = setting.cuda) -> None:
        import torch

        if not cuda:
            raise torch.OutOfMemoryError("CUDA out of memory. (raised, not provoked)")
        # Of the whole memory, a mebibyte: less than one block of torch's allocator.
        torch.cuda.set_per_process_memory_fraction(2**20 / torch.cuda.get_device_properties(0).total_memory)

    events, (failed, after) = _with_fault(setting, measured, [_stage(1), _stage(2)], limit)
    assert (failed.status, after.status) == ("failed", "done"), after.reason
    assert failed.reason.startswith("out of memory: ")
    assert setting.cuda or [event.kind for event in events] == ["started", "failed", "started", "done"]


def test_a_cuda_error(setting: Setting, measured: Measured) -> None:
    """An error of CUDA, permanent in its process: the process is replaced, and its run is trained by the next one."""

    def spoil(cuda: bool = setting.cuda) -> None:
        import torch

        if not cuda:
            raise RuntimeError("CUDA error: device-side assert triggered (raised, not provoked)")
        four = torch.zeros(4, device="cuda")
        four[torch.tensor([9], device="cuda")].sum().item()  # no such element: an assertion in the kernel

    events, (record,) = _with_fault(setting, measured, [_stage(3)], spoil)
    assert any("CUDA error" in event.reason for event in events if event.kind == "retried")
    assert setting.cuda or [event.kind for event in events] == ["started", "retried", "started", "done"]
    assert record.status == "done", record.reason


def _stage(seed: int) -> Stage:
    """A fine-tuning stage of random rows."""
    rows, dev = RowSet(f"{seed:032x}", "made/train", 4 * BATCH, 100.0), RowSet("d" * 32, "made/dev", 4 * BATCH, 100.0)
    optim = Optim(1e-3, BATCH, 10, schedule="constant", dropout=0.0)
    encoder = Encoder("made", "made")
    return Stage(trained()["ft"].spec, Data(rows, 2, 128, dev), optim, seed, encoder, Selection("accuracy", 5))


def _with_fault(
    setting: Setting, measured: Measured, stages: Sequence[Stage], fault: Callable[[], None]
) -> tuple[list[Any], list[Record]]:
    """Train stages one at a time through the real pool, the first one first, in two workers of which the first runs `fault` before it trains.
    Returns the events without notices, which a busy machine gives, and the records."""
    from harness.cluster.session import session  # before ray: it makes Ray listen on loopback only
    from harness.planning.request import Request
    from harness.planning.work import Item
    from harness.storage import WorkerSetup
    from harness.store import Store

    started: list[Any] = []

    def start(request: Any, setup: Any, ledger: Any, **options: Any) -> Any:
        import ray

        from harness.cluster.worker import WorkerProcess

        class Faulty(WorkerProcess):
            def __init__(self, *given: Any) -> None:
                super().__init__(*given)
                from harness import running

                place: Any = running
                whole = place.train

                def faulty(*given: Any, **options: Any) -> Any:
                    fault()
                    return whole(*given, **options)

                place.train = faulty

        kind: Any = ray.remote(WorkerProcess if started else Faulty)
        started.append(kind)
        options |= {"num_cpus": request.cpus_per_run, "num_gpus": request.gpus_per_run}
        return kind.options(**options).remote(setup, ledger, request)

    config, inputs = setting.config, inputs_of(trained()["ft"], setting.config)
    items = [
        Item(stage, f"stage {number}", float(len(stages) - number), ("accuracy",), False, False, 0)
        for number, stage in enumerate(stages)
    ]
    store = Store(f"sqlite:///{setting.folder}/harness.db")
    setup = WorkerSetup({"made": (setting.folder, config)}, Storage(str(setting.folder / "products")))
    with (
        session(Request(slots=1, gpus_per_run=1.0 if setting.cuda else 0.0)) as (_, settled),
        pytest.MonkeyPatch.context() as patched,
    ):
        from harness.cluster import pool as pools

        patched.setattr(pools, "start_worker", start)
        vocabularies = {stage.encoder.digest: vocabulary_of(config) for stage in stages}
        pool = pools.Pool(store, setup, vocabularies, lambda *_: (inputs.train, inputs.labels), settled, "faults")
        events = [event for event in pool.run(items) if event.kind != "notice"]
        pool.close()
    found = store.records([stage.key for stage in stages])
    records = [found[stage.key] for stage in stages]
    measured(
        {"events": ", ".join(event.kind for event in events), "reasons": "; ".join(event.reason for event in events)}
    )
    assert len(started) == 2, "the process is replaced"
    assert_device(setting, records[-1])
    return events, records
