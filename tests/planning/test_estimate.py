"""Estimates of time are learned from the last stages: laws of pure functions, on simulated stages."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from harness.commands import prepare
from harness.commands.prepare import device_here
from harness.devices import cpu_name
from harness.planning import estimate
from harness.planning.estimate import (
    Calibration,
    Timed,
    calibrate,
    hours,
    remaining,
)
from harness.specs import Record

Took = Callable[[Timed, float], float]
"""Seconds of a stage that begins at a moment."""


def simulated(stages: list[Timed], slots: int, took: Took) -> Iterator[tuple[int, float, float]]:
    """A bench of independent stages on `slots` slots: after each end how many have ended, what is estimated, and the truth."""
    waiting, ended = stages[::-1], list[Timed]()
    running: list[tuple[float, int, Timed, float]] = []
    moments: list[tuple[list[Timed], list[Timed], list[Timed], float]] = []
    now, count = 0.0, 0
    while waiting or running:
        while waiting and len(running) < slots:
            stage, count = waiting.pop(), count + 1
            heapq.heappush(running, (now + took(stage, now), count, stage, now))
        now, _, stage, began = heapq.heappop(running)
        ended.append(Timed(stage.cost, now - began))
        still = [Timed(each.cost, now - since) for _, _, each, since in running]
        moments.append((list(ended), still, waiting[::-1], now))
    for before, still, rest, at in moments[:-1]:
        found = remaining(before, still, rest, slots)
        assert found is not None
        yield len(before), found, now - at


def fine_tunings(count: int, seed: int = 0) -> list[Timed]:
    """Stages whose costs differ tenfold, the dearest first, as the pool starts them."""
    draw = random.Random(seed)
    return [Timed(1e12 * 10**power) for power in sorted((draw.random() for _ in range(count)), reverse=True)]


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_without_noise_it_is_exact_from_the_first_end(slots: int) -> None:
    for _, found, truth in simulated(fine_tunings(60), slots, lambda stage, _: stage.cost / 1e11):
        assert found == pytest.approx(truth, rel=0.05, abs=2.0)


def test_it_follows_a_machine_that_becomes_four_times_slower() -> None:
    """After a change of speed the estimate is soon within a third of the truth and stays there; a mean over all stages would
    not."""
    stages = [Timed(1e12)] * 80
    slow_from = 40 * 10.0
    found = {
        ended: each / truth
        for ended, each, truth in simulated(stages, 1, lambda s, now: s.cost / 1e11 * (4 if now >= slow_from else 1))
    }
    assert all(0.66 < ratio < 1.5 for ended, ratio in found.items() if ended >= 56)
    over_all = {
        ended: (40 * 10 + (ended - 40) * 40) / ended * (80 - ended) / ((80 - ended) * 40) for ended in range(41, 80)
    }
    assert all(abs(found[ended] - 1) < abs(over_all[ended] - 1) for ended in range(45, 80))


def test_slots_share_the_work_and_the_longest_stage_bounds_it() -> None:
    ended = [Timed(1e12, 10.0)]

    def seconds(slots: int, waiting: list[Timed], running: list[Timed] | None = None) -> float:
        found = remaining(ended, running or [], waiting, slots)
        assert found is not None
        return found

    eight = [Timed(1e12)] * 8
    assert [seconds(slots, eight) for slots in (1, 2, 4, 8, 100)] == pytest.approx([80, 40, 20, 10, 10])
    assert seconds(4, [*eight, Timed(1e13)]) == pytest.approx(100)
    # a part of a running stage is done; a late one is not taken for ended
    assert seconds(2, [], [Timed(1e12, 4.0)]) == pytest.approx(6)
    assert seconds(2, [], [Timed(1e12, 400.0)]) == pytest.approx(40)


def test_nothing_is_said_before_a_stage_ended_or_when_all_have() -> None:
    waiting = [Timed(1e12)]
    assert remaining([], [], waiting, 1) is None
    assert remaining([Timed(0.0, 5.0)], [], waiting, 1) is None  # an encoder whose FLOPs are not known
    assert remaining([Timed(1e12, 5.0)], [], [], 1) is None


# ------------------------------------------------------------------------------------------------- before it runs


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
