from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import postgresql
import pytest

from harness.store import Store


@pytest.fixture(scope="session")
def empty_databases() -> Iterator[Iterator[str]]:
    with postgresql.empty_databases() as urls:
        yield urls


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'folder' / 'harness.db'}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def url(request: pytest.FixtureRequest) -> str:
    """Of an empty database of each kind: the laws are the same for both."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("file_url"))
    return str(next(request.getfixturevalue("empty_databases")))


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = Store(url)
    yield made
    made._engine.dispose()


@pytest.fixture
def file_store(file_url: str) -> Store:
    return Store(file_url)
