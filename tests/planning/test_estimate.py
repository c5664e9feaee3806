"""Estimates of time are learned from the last stages: laws of pure functions, on simulated stages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.commands import prepare
from harness.commands.prepare import calibrate, device_here
from harness.machine import cpu_name
from harness.specs import Record

HERE = "a processor"


def ended(device: str, encoder: str, flops: float, seconds: float) -> Record:
    return Record("", "done", flops=flops, seconds=seconds, provenance={"device": device, "encoder": encoder})


def test_calibration_is_of_the_last_stages_of_this_device_and_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [ended(HERE, "b", 9e10, 1.0), ended("another", "a", 9e12, 1.0)]
    others += [ended(HERE, "a", 9e12, 0.1), ended(HERE, "a", 0.0, 5.0)]  # too short to be a measurement, and no FLOPs
    found = calibrate([ended(HERE, "a", 4e10, 2.0), ended(HERE, "a", 2e10, 1.0), *others], {"a"}, HERE)
    assert found.flops == pytest.approx(2e10)
    monkeypatch.setattr(prepare, "_probe", lambda: 1e11)
    for none in ([], others):
        guess = calibrate(none, {"c"}, HERE)
        assert guess.flops == pytest.approx(5e10)
        assert "guessed" in guess.known_by
    today, before = [ended(HERE, "a", 1e12, 10.0)] * 10, [ended(HERE, "a", 1e12, 80.0)] * 50
    assert calibrate(today + before, {"a"}, HERE).flops > calibrate(before + today, {"a"}, HERE).flops


def test_the_device_here_is_a_gpu_only_where_one_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts may have one name, as virtual machines do: the device decides."""
    cpu, gpu = cpu_name(), "NVIDIA H100 80GB HBM3"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: gpu)
    for driver, of_use, expected in ((False, True, cpu), (True, False, cpu), (True, True, gpu)):
        monkeypatch.setattr(prepare, "GPU_DRIVERS", (tmp_path if driver else tmp_path / "none",))
        monkeypatch.setattr(torch.cuda, "is_available", lambda of_use=of_use: of_use)
        assert device_here(None) == device_here(0.5) == expected
        assert device_here(0.0) == cpu
