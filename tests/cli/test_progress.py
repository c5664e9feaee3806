"""The progress of a bench: what runs, and how much is left. No Ray: events are made by hand."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from store.samples import stage

from harness.cli import progress
from harness.cli.progress import StageProgress
from harness.planning.work import Event, Item
from harness.training.result import Speed

Clock = Callable[[float], None]


def items(count: int) -> list[Item]:
    return [
        Item(stage(seed), f"FT/toy/n20/subset0/seed{seed}", 1e12, ("accuracy",), False, False, 0)
        for seed in range(count)
    ]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_the_time_left_is_learned(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """40 stages of 60 s, two at a time, announced as 30 s in all."""
    every = items(40)
    with StageProgress(every, 3, "", 30 / 3600, slots=2) as view:
        for pair in range(0, 20, 2):
            for item in every[pair : pair + 2]:
                view(Event("started", item))
            if not pair:
                clock(11)
                view(Event("notice", every[0], "a node joined"))
                assert "0/40 stages: 0 done, 2 running, 3 done before, about 30 s in all" in lines(capsys)
                clock(49)
            else:
                clock(60)
            for item in every[pair : pair + 2]:
                view(Event("done", item))
    said = [line for line in lines(capsys) if "left" in line]
    assert "about 10 min left" in said[-1], "twenty stages of a minute, two at a time"


def test_a_terminal_names_what_runs(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    every = items(3)
    with StageProgress(every, 0, "") as view:
        for item in every:
            view(Event("started", item))
        assert view._bar is not None
        view._bar.refresh()
        assert " 0 done, 3 running; FT/toy/n20/subset0/seed0" in screen.getvalue()
        for item in every:
            view(Event("done", item))
    assert "3/3 stages in 0:00: 3 done, 0 running" in screen.getvalue()


def test_a_long_stage_says_how_far_it_is(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    (item,) = items(1)
    with StageProgress([item], 0, "", slots=1) as view:
        view(Event("started", item))
        clock(11)
        view(Event("running", item, running=Speed(1_200, 250_000, 248800 / 7200, 12_345.6, 0.0)))
        assert lines(capsys)[-1] == (
            "0/1 stages: 0 done, 1 running; FT/toy/n20/subset0/seed0 (update 1,200 of 250,000, 12,346 tokens/s, "
            "about 2.0 h left)"
        )
        view(Event("running", item, running=Speed(1_300, 250_000, 248700 / 3600, 12_345.6, 0.0)))
        assert view.running().endswith("(update 1,300 of 250,000, 12,346 tokens/s, about 1.0 h left)")
        view(Event("done", item))
        assert view.running() == ""
