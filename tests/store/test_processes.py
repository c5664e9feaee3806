"""The laws hold between real processes, and when one is killed at any moment."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from store import samples

from harness.store import Owner, Store

OWN = multiprocessing.get_context("spawn")
"""Whose processes are children of this one."""
READY = multiprocessing.get_context("forkserver")
"""Whose processes begin where another has imported the store, which takes half a second."""
READY.set_forkserver_preload(["harness.store"])
KEY = "a" * 32


@contextmanager
def process(context: Any, target: Any, *arguments: Any) -> Iterator[tuple[BaseProcess, Any]]:
    """A process of its own and the end of its pipe; killed at the end."""
    here, there = context.Pipe()
    made = context.Process(target=target, args=(*arguments, there), daemon=True)
    made.start()
    there.close()
    try:
        yield made, here
    finally:
        made.kill()
        made.join()


@contextmanager
def several(count: int, target: Any, *arguments: Any) -> Iterator[list[Any]]:
    """The pipes of `count` processes that share a barrier."""
    barrier = READY.Barrier(count)
    with ExitStack() as stack:
        yield [stack.enter_context(process(READY, target, *arguments, barrier))[1] for _ in range(count)]


def received(pipe: Any) -> Any:
    assert pipe.poll(60), "the other process said nothing"
    return pipe.recv()


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
def test_the_lease_of_a_killed_process_is_free_at_once(store: Store, url: str, reaped: bool) -> None:
    """Also while the dead process is a zombie, whose exit status nobody has read."""
    with process(OWN, samples.hold, url, KEY) as (holder, pipe):
        assert received(pipe) == "granted"
        me = Owner.current()
        assert store.lease(KEY, me) == "held"
        assert store.others_alive(me)
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)
        if reaped:
            holder.join()
        else:
            os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        assert not store.others_alive(me)
        assert store.lease(KEY, me) == "granted"


def test_processes_with_the_same_work_write_one_record_each(url: str) -> None:
    """In a store that is not there yet: they make it together."""
    seeds = list(range(20))
    with several(3, samples.work_off, url, seeds) as pipes:
        written = [received(pipe) for pipe in pipes]
    owners = [[seed for seed, ours in each.items() if ours] for each in written]
    assert sorted(seed for each in owners for seed in each) == seeds
    assert all(all(each.values()) for each in written), "a commit under a live lease is not refused"
    store, stages = Store(url), [samples.stage(seed) for seed in seeds]
    assert set(store.statuses([s.key for s in stages]).values()) == {("done", 1)}
    assert not store.others_alive(Owner.current())
    assert store.integrity() == "ok"


def test_killed_in_the_middle_of_commits_nothing_that_was_said_is_lost(store: Store, url: str) -> None:
    """Many processes, each killed at a random moment: every commit that was answered is there, whole."""
    rounds = 12 if store.path else 4
    moments = random.Random(7)
    answered: set[int] = set()
    for round_ in range(rounds):
        with process(READY, samples.commit_until_killed, url, round_ * 100_000) as (writer, pipe):
            answered.add(received(pipe))
            writer.join(moments.uniform(0.0, 0.15))
            writer.kill()
            writer.join()
            while pipe.poll(0):
                try:
                    answered.add(pipe.recv())
                except EOFError:
                    break
        assert store.integrity() == "ok"
    me = Owner.current()
    assert not store.others_alive(me)
    for seed in answered:
        of = samples.stage(seed)
        assert samples.same(store.records([of.key], predictions=True)[of.key], samples.record(of))
    unfinished = [samples.stage(max(s for s in answered if s // 100_000 == r) + 1) for r in range(rounds)]
    for of in unfinished:
        # Killed before, within or after its commit: either all of it is there or the stage is free to be trained.
        found = store.records([of.key], predictions=True)
        if found:
            assert samples.same(found[of.key], samples.record(of))
        else:
            assert store.lease(of.key, me) == "granted"
