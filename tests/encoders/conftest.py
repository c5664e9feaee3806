"""Tiny encoders, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder by model type. Tests that change one work on a copy."""
    root = tmp_path_factory.mktemp("encoders")
    return {kind: tiny.encoder_folder(root, kind) for kind in tiny.KINDS}


@pytest.fixture(scope="session")
def bert(folders: dict[str, Path]) -> Path:
    return folders["bert"]
