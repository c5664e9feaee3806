"""Stages, records and processes for the tests of `harness.store`. Functions that run in a process of their own live here."""

from __future__ import annotations

import time
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np

from harness.kinds import Predictions
from harness.specs import Data, Encoder, Objective, Optim, Parent, Record, RowSet, Run, Selection, Stage, Status
from harness.store import Owner, Store

DEV, TEST = RowSet("d" * 32, "toy/dev", 4, 50.5), RowSet("7" * 32, "toy/test", 3, 40.0)


def stage(seed: int = 0) -> Stage:
    """A leaf of a chain of three."""
    mlm, texts = Objective("mlm", 1, {"p_m": 0.15}), RowSet("a" * 32, "toy/texts", 20, 51.25)
    cmlm = Objective("cmlm", 1, {"alpha": 0.5, "mlm": True, "contrast": "simsiam", "num_views": 2})
    encoder, optim = Encoder("e" * 32, "tiny"), Optim(2e-5, 16, 20, precision="bf16")
    first = Stage(mlm, Data(RowSet("c" * 32)), Optim(1e-3, 8, 10), 0, encoder, None, "warm-up")
    start = Parent(first, "last", ("encoder", "mlm_head"))
    second = Stage(cmlm, Data(texts, max_length=64), Optim(1e-5, 8, 10), seed, start, None, "post-train")
    data, end = Data(RowSet("b" * 32, "toy/train", 20, 51.25), 2, 64, DEV, (TEST,)), Parent(second, "selected")
    return Stage(Objective("cross_entropy", 1), data, optim, seed, end, Selection("accuracy", 50), "fine-tune")


def record(of: Stage, status: Status = "done", mark: float = 0.0) -> Record:
    """A full record; `mark` makes its numbers tell it from another record of the same stage."""
    odd = np.array([1 / 3, -0.0, np.finfo(np.float32).tiny / 4, np.float32(1e38)], dtype=np.float32)
    logits = np.stack([odd + np.float32(mark), np.array([np.nan, np.inf, -np.inf, 1e-45], dtype=np.float32)], axis=1)
    return Record(
        of.key,
        status,
        "" if status == "done" else "it broke",
        selected_step=20,
        tied=1,
        dev_scores={"accuracy": 1 / 3},
        histogram=[3, 1],
        history=[
            {"step": 20, "loss": 0.1 + 0.2, "curve": {"loss": [[10, 0.4]], "dev": []}, "dev": {"accuracy": 1 / 3}}
        ],
        flops=1e12 + mark,
        seconds=2.5,
        provenance={"device": "a processor", "encoder": of.encoder.digest, "threads": 1},
        predictions={
            DEV.digest: Predictions({"logits": logits}, np.array([0, 1, 1, 0])),
            TEST.digest: Predictions({"logits": logits[:3]}, np.array([0.5, 1.5, 2.5], dtype=np.float32)),
        },
    )


def run(of: Stage, row: str = "FT") -> Run:
    return Run(of, row, "ft", "toy", 20, 0, of.seed)


def committed(store: Store, of: Stage, status: Status = "done", mark: float = 0.0, *, seen: int = 0) -> bool:
    """Lease and commit as a new owner."""
    owner = Owner.current()
    assert store.lease(of.key, owner, seen_attempt=seen) == "granted"
    return store.commit(of, record(of, status, mark), owner)


# ---------------------------------------------------------------- run in processes of their own


def hold(url: str, key: str, pipe: Connection) -> None:
    """Take a lease, report it, and wait to be killed."""
    pipe.send(Store(url).lease(key, Owner.current()))
    time.sleep(600)


def work_off(url: str, seeds: list[int], barrier: Barrier, pipe: Connection) -> None:
    """As a driver: lease every stage in turn and commit the granted ones. Sends how often each commit was written."""
    store, owner = Store(url), Owner.current()
    barrier.wait(60)
    written: dict[int, bool] = {}
    for seed in seeds:
        of = stage(seed)
        if store.lease(of.key, owner) == "granted":
            written[seed] = store.commit(of, record(of, mark=owner.pid), owner)
    pipe.send(written)


def commit_until_killed(url: str, first: int, pipe: Connection) -> None:
    """Commit one stage after another, and report each after its commit."""
    store, owner = Store(url), Owner.current()
    for seed in range(first, first + 100_000):
        of = stage(seed)
        assert store.lease(of.key, owner) == "granted"
        assert store.commit(of, record(of), owner)
        pipe.send(seed)


def same(left: Record, right: Record) -> bool:
    """Bit-identical, predictions and their types included."""

    def told(of: Record) -> tuple[Record, dict[str, Any]]:
        arrays = {key: {**each.arrays, "gold": each.gold} for key, each in of.predictions.items()}
        named = {(key, name): array for key, named in arrays.items() for name, array in named.items()}
        return replace(of, predictions={}), {k: (a.dtype, a.shape, a.tobytes()) for k, a in named.items()}

    return told(left) == told(right)
