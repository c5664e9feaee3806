"""How and where runs are executed. Never hashed: nothing in here changes a number or a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.storage import Storage


@dataclass(frozen=True)
class WorkerSetup:
    """Where a worker runs stages: encoders, the storage of weights, and the device.

    `encoders`: by digest the folder and, of one that begins with random weights, its configuration; the folder then holds its tokenizer only.
    `micro_batch`: sequences that go through the encoder at once (0: a worker's whole share of the batch).
    `checkpoint_seconds`: a stage keeps what it would go on from this often (0: never).
    `storage_mark`, `code`: what a node of a cluster must find in the storage, and as its harness. `files`: references to the files of encoders, by
    digest, for a node without them.
    """

    encoders: Mapping[str, tuple[Path, dict[str, Any] | None]]
    storage: Storage
    device: str = "cpu"
    micro_batch: int = 0
    checkpoint_seconds: float = 0.0
    storage_mark: str = ""
    code: str = ""
    files: Mapping[str, Any] = field(default_factory=dict)
