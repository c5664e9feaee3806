"""The progress of a bench: what runs, and how much is left. No Ray: events are made by hand."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from cli.command import Terminal
from store.samples import stage

from harness.cli import progress
from harness.cli.progress import StageProgress
from harness.planning.work import Event, Item
from harness.training.result import Speed

Clock = Callable[[float], None]


def items(count: int) -> list[Item]:
    name = "FT/toy/n20/subset0/seed{}".format
    return [Item(stage(seed), name(seed), 1e12, ("accuracy",), False, False, 0) for seed in range(count)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def test_the_time_left_is_learned(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """40 stages of 60 s, two at a time, announced as 30 s in all; how far a long one is counts too."""
    every = items(40)
    with StageProgress(every, 3, "", 30 / 3600) as view:
        for pair in range(0, 20, 2):
            for item in every[pair : pair + 2]:
                view(Event("started", item))
            clock(60)
            if not pair:
                view(Event("notice", every[0], "a node joined"))
                assert "0/40 stages: 0 done, 2 running, 3 done before, about 30 s in all;" in capsys.readouterr().err
            for item in every[pair : pair + 2]:
                view(Event("done", item))
        assert "about 9 min left" in view.state(), "twenty stages of a minute, two at a time, since the first ended"
        view(Event("started", every[20]))
        clock(11)
        view(Event("running", every[20], running=Speed(1_200, 250_000, 248800 / 7200, 12_345.6, 0.0)))
        assert capsys.readouterr().err.endswith(
            "; FT/toy/n20/subset0/seed20 (update 1,200 of 250,000, 12,346 tokens/s, about 2.0 h left)\n"
        )
        view(Event("failed", every[20], reason="it broke"))
        assert view.running() == ""
    said = capsys.readouterr().err
    assert "failed: FT/toy/n20/subset0/seed20: it broke\n" in said
    assert said.splitlines()[-1].startswith("21/40 stages in 10 min: 20 done, 0 running, 3 done before, 1 failed")


def test_a_terminal_names_what_runs(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    screen: io.StringIO = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    every = items(3)
    with StageProgress(every, 0, "") as view:
        for item in every:
            view(Event("started", item))
        view._bar.refresh()
        assert " 0 done, 3 running; FT/toy/n20/subset0/seed0" in screen.getvalue()
        for item in every:
            view(Event("done", item))
    assert "3/3 stages in 1 s: 3 done, 0 running" in screen.getvalue()
