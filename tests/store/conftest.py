from __future__ import annotations

from pathlib import Path

import pytest

from harness.store import Store


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'folder' / 'harness.db'}"


@pytest.fixture
def store(url: str) -> Store:
    return Store(url)
