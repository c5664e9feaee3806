"""Which kernels torch may use in training: those of a CUDA device are asked for alone there, and no longer than it trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.training.forward_backward import repeatable_kernels


def _settings() -> tuple[Any, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cuda.cudnn_sdp_enabled(),
    )


def test_a_cpu_changes_nothing() -> None:
    before = _settings()
    with repeatable_kernels(torch.device("cpu")):
        assert _settings() == before


@pytest.mark.parametrize("warns", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_what_was_set_before_stands_again(own: bool, warns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    torch.use_deterministic_algorithms(own, warn_only=warns)
    try:
        before = _settings()
        with pytest.raises(RuntimeError, match="an error of the stage"):
            _fail()
        assert _settings() == before
    finally:
        torch.use_deterministic_algorithms(False)


def _fail() -> None:
    with repeatable_kernels(torch.device("cuda")):
        assert _settings() == (True, False, False, False)
        raise RuntimeError("an error of the stage")
