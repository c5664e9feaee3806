from __future__ import annotations

from pathlib import Path

import pytest

from harness.tasks.sources import TextSource, open_source


@pytest.fixture(scope="session")
def glue(glue_dir: Path) -> TextSource:
    """The real GLUE files, loaded once a session."""
    return open_source(glue_dir)


@pytest.fixture(scope="session")
def packages(packaged: dict[str, Path]) -> TextSource:
    """The packaged tasks."""
    return open_source(None)
