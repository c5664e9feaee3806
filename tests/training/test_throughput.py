"""The speed of a stage is that of its training alone, and changes none of its numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny

from harness.training import loop, result
from harness.training.result import Speed, Stopwatch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(result, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_pauses_do_not_count(clock: list[float]) -> None:
    watch = Stopwatch(10)
    assert watch.speed(0) is None
    for step in range(1, 5):
        watch.start()
        clock[0] += 2.0
        watch.count(100, 1e6)
        if step % 2 == 0:
            watch.stop()
            clock[0] += 50.0  # an evaluation
    speed = watch.speed(4)
    assert speed == Speed(4, 10, updates=0.5, tokens=50.0, flops=5e5)
    assert speed.seconds_left == 12.0


def test_a_record_names_it(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens without padding of each row that was trained on; and the loop reports its updates on the way."""
    monkeypatch.setattr(result, "REPORT_SECONDS", 0.0)
    stage, inputs = tiny.post_training(bert, steps=6, batch_size=20)
    watches: list[Stopwatch] = []
    monkeypatch.setattr(loop, "Stopwatch", lambda steps: watches.append(Stopwatch(steps)) or watches[-1])
    reports: list[Speed] = []
    setup = tiny.worker_setup(bert, tmp_path)
    record = tiny.record_of(stage, inputs, setup, keep_weights=False, report_speed=reports.append)
    (watch,) = watches
    assert (watch.updates, watch.tokens) == (6, 6 * len(inputs.train.tokens.ids))
    assert watch.flops == record.flops, "nothing is evaluated here"
    assert [each.step for each in reports] == [1, 2, 3, 4, 5, 6]
    assert record.provenance["tokens_per_second"] == pytest.approx(watch.tokens / watch.seconds, rel=0.1)
    assert record.provenance["flops_per_second"] > 0
