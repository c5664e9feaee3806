"""Where weights lie: one place that every worker sees, by a local path or a URI. No torch, no ray, no database in here."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Storage:
    """Files by name under one place. Small, and picklable: a worker on another node opens it again by its URI."""

    uri: str

    def exists(self, name: str) -> bool:
        return self._path(name).exists()

    def read(self, name: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        return self._path(name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Whole or not at all: nobody reads half a file, whoever is killed."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Nothing happens where there is none."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return Path(self.uri) / name


def weights_of(key: str) -> str:
    """The name of a stage's weights."""
    return f"{key}.safetensors"


def checkpoint_of(key: str) -> str:
    """The name of what a stage goes on from when it was interrupted."""
    return f"{key}.checkpoint.safetensors"
