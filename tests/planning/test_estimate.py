"""Estimates of time are learned from the last stages: laws of pure functions, on simulated stages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.commands import prepare
from harness.commands.prepare import device_here
from harness.devices import cpu_name
from harness.planning import estimate
from harness.planning.estimate import Calibration, calibrate, hours
from harness.specs import Record


def ended(device: str, encoder: str, flops: float, seconds: float) -> Record:
    provenance = {"device": device, "encoder": encoder, "threads": 1}
    return Record("", "done", flops=flops, seconds=seconds, provenance=provenance)


def test_calibration_is_of_this_device_and_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "a processor"
    speeds = [
        ended(here, "a", 4e10, 2.0),
        ended(here, "a", 2e10, 1.0),
        ended(here, "b", 9e10, 1.0),
        ended("another", "a", 9e12, 1.0),
        ended(here, "a", 9e12, 0.1),  # too short to be a measurement
        ended(here, "a", 0.0, 5.0),
    ]
    found = calibrate(speeds, "a", here)
    assert found.flops == pytest.approx(2e10)
    monkeypatch.setattr(estimate, "_probe", lambda: 1e11)
    for none in ([], speeds[3:], [ended("another", "c", 1e12, 5.0)]):
        guess = calibrate(none, "c", here)
        assert guess.flops == pytest.approx(5e10)
        assert "guessed" in guess.known_by


def test_records_of_a_gpu_say_nothing_of_a_machine_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts may have one name, as virtual machines do: the device decides."""
    cpu, gpu = cpu_name(), "NVIDIA H100 80GB HBM3"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: gpu)
    for driver, of_use, expected in ((False, True, cpu), (True, False, cpu), (True, True, gpu)):
        monkeypatch.setattr(prepare, "GPU_DRIVERS", (tmp_path if driver else tmp_path / "none",))
        monkeypatch.setattr(torch.cuda, "is_available", lambda of_use=of_use: of_use)
        assert device_here(None) == device_here(0.5) == expected
        assert device_here(0.0) == cpu
    assert calibrate([ended(gpu, "a", 4e13, 2.0), ended(cpu, "a", 4e10, 2.0)], "a", cpu).flops == pytest.approx(2e10)


def test_the_last_stages_count_most() -> None:
    """Fifty slow ones of last week weigh less than ten fast ones of today."""
    here = "a processor"
    today, before = [ended(here, "a", 1e12, 10.0)] * 10, [ended(here, "a", 1e12, 80.0)] * 50
    assert calibrate(today + before, "a", here).flops > calibrate(before + today, "a", here).flops


def test_hours() -> None:
    known = Calibration(1e9, "")
    assert hours(3.6e12, known, 1, 10) == pytest.approx(1.0)
    assert hours(3.6e12, known, 4, 10) == pytest.approx(0.25)
    assert hours(3.6e12, known, 4, 2) == pytest.approx(0.5)  # no more slots are busy than there are stages
    assert hours(0.0, known, 4, 0) == 0.0
    assert 0 < hours(3.6e12, known, 0, 1000) <= 1.0
