"""The stages of a command: each ends once, whatever the cluster answers. No Ray: the ledger is a store in this process, and
training writes what it would."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cluster.in_process import LedgerHere, ask
from store.samples import record, same, stage

from harness.cluster.stages import WORKER_DEATHS, Stages
from harness.planning.work import Ended, Event, Item
from harness.specs import Parent, Stage
from harness.storage import Storage, weights_of
from harness.store import Owner, Store

HEAD, POST, LEAF = (
    replace(each, phase=phase)
    for each, phase in zip(stage().chain, ("mlm-head", "post-train", "fine-tune"), strict=True)
)
POST = replace(POST, init=Parent(HEAD, "last", ("encoder", "mlm_head")))
LEAVES = [replace(LEAF, seed=seed, init=Parent(POST)) for seed in range(3)]


def item(of: Stage, cost: float = 1.0, *, keep: bool = False, remake: bool = False) -> Item:
    return Item(of, f"{of.phase} {of.seed}", cost, (), keep, remake, 0)


def family(leaves: int = 2) -> list[Item]:
    """An MLM head, a post-training from it, and stages that fine-tune from that."""
    return [item(HEAD, keep=True), item(POST, keep=True), *(item(each) for each in LEAVES[:leaves])]


@dataclass
class Command:
    """Its stages, in a store that other commands may share. `events`: what happened; `trained`: in which order, `committed` as done."""

    stages: Stages
    store: Store
    storage: Storage
    owner: Owner
    events: list[Event] = field(default_factory=list)
    trained: list[Stage] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)

    def next(self) -> Item | None:
        found = self.stages.next()
        self.events += self.stages.events()
        return found

    def end(self, of: Item, status: Any = "done", reason: str = "") -> list[str]:
        """How a worker returned, after it did what it does. Returns the kinds of what happened."""
        self.trained.append(of.stage)
        if status == "done":
            for name in of.stored:
                self.storage.write(name, b"weights")
        if status in ("done", "failed", "diverged"):
            if of.remake:
                self.store.release(self.owner, of.stage.key)
            elif not self.store.commit(of.stage, replace(record(of.stage, status), reason=reason), self.owner):
                status = "elsewhere"
            elif status == "done":
                self.committed.append(of.stage.key)
        self.stages.ended(of, Ended(status, reason))
        new = self.stages.events()
        self.events += new
        return [event.kind for event in new]

    def train(self, *stages: Stage) -> None:
        for of in stages:
            found = self.next()
            assert found is not None
            assert found.stage.key == of.key
            self.end(found)

    def finish(self) -> None:
        while found := self.next():
            self.end(found)

    def said(self, *kinds: str) -> list[str]:
        return [event.reason for event in self.events if event.kind in kinds]

    def ends(self) -> dict[str, str]:
        ended = [(event.item.stage.key, event.kind) for event in self.events if event.ended]
        assert len(dict(ended)) == len(ended), "each ends once"
        return dict(ended)


Begin = Callable[..., Command]


@pytest.fixture
def begin(tmp_path: Path) -> Begin:
    """Begins a command over items in the one store."""

    def command(items: list[Item], keep_weights: bool = False) -> Command:
        storage, owner = Storage(str(tmp_path / "weights")), Owner.current()
        ledger = LedgerHere(f"sqlite:///{tmp_path / 'harness.db'}", owner)
        stages = Stages(items, lambda *asked: ask(ledger, *asked), storage, keep_weights)
        return Command(stages, Store(f"sqlite:///{tmp_path / 'harness.db'}"), storage, owner)

    return command


@pytest.mark.parametrize("kept", ["", "asked for", "another command lives"])
def test_a_chain_from_its_root_to_its_leaves(begin: Begin, kept: str) -> None:
    command = begin(family(), keep_weights=kept == "asked for")
    if kept == "another command lives":
        command.store.lease("a" * 32, Owner.current())
    first = command.next()
    assert first is not None
    assert command.next() is None, "nothing else can start"
    command.end(first)
    command.train(POST, LEAVES[0])
    assert command.storage.exists(weights_of(POST.key))
    command.train(LEAVES[1])
    assert command.storage.exists(weights_of(POST.key)) == bool(kept), "nobody starts from them any more"
    assert command.storage.exists(weights_of(HEAD.key)), "the MLM head is shared"
    assert not command.stages.open
    assert [event.kind for event in command.events] == ["started", "done"] * 4


def test_the_most_expensive_stage_of_the_lowest_turn_starts_first(begin: Begin) -> None:
    roots = [replace(HEAD, seed=seed) for seed in range(4)]
    command = begin(
        [replace(item(of, cost), turn=cost > 8) for of, cost in zip(roots, (1.0, 3.0, 2.0, 9.0), strict=True)]
    )
    assert [found.cost for found in iter(command.next, None)] == [3.0, 2.0, 1.0, 9.0]


@pytest.mark.parametrize("status", ["failed", "diverged"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_descendants_fail_with_their_ancestors_reason(begin: Begin, status: str, where: str) -> None:
    command = begin(family())
    if where == "elsewhere":
        other = begin(family())
        found = other.next()
        assert found
        assert command.next() is None
        other.end(found, status, "it broke")
        command.stages.ask_again()
        assert command.next() is None
    else:
        found = command.next()
        assert found
        command.end(found, status, "it broke")
    why = {"here": "it broke", "elsewhere": "recorded by another driver"}[where]
    assert [*command.ends().values()] == [status, "failed", "failed", "failed"]
    assert command.said("failed", "diverged") == [why, *[f"its parent stage {HEAD.key[:10]} {status}: {why}"] * 3]
    assert set(command.store.statuses([HEAD.key, POST.key, *(each.key for each in LEAVES)])) == {HEAD.key}


def test_deaths_make_a_failed_record_and_nodes_that_leave_do_not(begin: Begin) -> None:
    command = begin([item(HEAD)])
    for status in ("left", "stopped", *["died"] * WORKER_DEATHS):
        found = command.next()
        assert found
        command.end(found, status, "no memory")
    assert command.ends() == {HEAD.key: "failed"}
    died = [f"no memory, {count} of {WORKER_DEATHS} times" for count in range(1, WORKER_DEATHS + 1)]
    assert command.said("retried", "failed") == ["no memory", "no memory", *died]
    (failed,) = command.store.records([HEAD.key]).values()
    assert (failed.status, failed.reason) == ("failed", died[-1])


@pytest.mark.parametrize("status", ["done", "diverged"])
def test_a_record_that_was_committed_before_the_death_stands(begin: Begin, status: Any) -> None:
    command = begin([item(HEAD)])
    found = command.next()
    assert found
    command.store.commit(HEAD, record(HEAD, status), command.owner)
    assert command.end(found, "died", "it died") == [status]


def test_a_lease_that_was_lost_while_its_stage_was_trained(begin: Begin) -> None:
    """The record of the command that has the lease is waited for."""
    command, other = begin([item(HEAD)]), begin([item(HEAD)])
    found = command.next()
    assert found
    command.store.release(command.owner)
    theirs = other.next()
    assert theirs
    assert command.end(found) == []
    command.stages.ask_again()
    assert command.next() is None
    assert command.stages.open
    other.end(theirs)
    command.stages.ask_again()
    assert command.next() is None
    assert command.ends() == {HEAD.key: "elsewhere"}
    assert same(command.store.records([HEAD.key], predictions=True)[HEAD.key], record(HEAD))


class TestRemakes:
    @pytest.fixture
    def command(self, begin: Begin) -> Command:
        """Both parents ended, then the weights that three leaves start from were deleted."""
        command = begin(family(3))
        command.train(HEAD, POST)
        command.storage.delete(weights_of(POST.key))
        return command

    def test_deleted_weights_are_made_again_once(self, command: Command) -> None:
        command.finish()
        assert command.trained == [HEAD, POST, POST, *LEAVES]
        (said,) = command.said("notice")
        assert f"the weights of stage {POST.key[:10]} (post-train) were deleted from {command.storage.shown}" in said
        assert Counter(command.ends().values()) == {"done": 5}, "what is remade is none of the plan's stages"
        assert {attempt for _, attempt in command.store.statuses(command.ends()).values()} == {1}
        assert not command.storage.exists(weights_of(POST.key))

    def test_weights_after_several_updates_are_made_together(self, begin: Begin) -> None:
        """And no later update: a parent of ten that two leaves start from after its third and fifth."""
        command = begin([item(replace(LEAF, init=Parent(POST, step))) for step in (3, 5)])
        command.storage.write(weights_of(HEAD.key), b"weights")
        found = command.next()
        assert found is not None
        assert (found.stage, found.remake, found.save_at, found.keep_weights) == (POST, True, (3, 5), False)
        assert found.until == 5
        assert command.end(found) == []
        command.finish()
        assert len(command.trained) == 3

    def test_weights_that_another_command_made_meanwhile(self, command: Command, begin: Begin) -> None:
        other = begin([])
        assert other.store.lease(POST.key, other.owner, remake=True) == "granted"
        assert command.next() is None
        command.storage.write(weights_of(POST.key), b"weights")
        other.store.release(other.owner)
        command.stages.ask_again()
        command.finish()
        assert command.trained == [HEAD, POST, *LEAVES]

    @pytest.mark.parametrize("status", ["failed", "died"])
    def test_a_remake_that_fails_leaves_the_record_alone(self, command: Command, status: Any) -> None:
        while found := command.next():
            command.end(found, status, "no room")
        assert len(command.trained) == 2 + (WORKER_DEATHS if status == "died" else 1)
        assert set(command.store.statuses([POST.key, *(each.key for each in LEAVES)]).values()) == {("done", 1)}
        why = f"its parent stage {POST.key[:10]} failed: no room"
        assert len([reason for reason in command.said("failed") if reason.startswith(why)]) == len(LEAVES)


# ------------------------------------------------------------------------------------------------- drawn sequences


def forest(draw: random.Random) -> list[Item]:
    """Up to three families of two to four generations."""
    items = []
    for root in range(draw.randint(1, 3)):
        stages = [replace(HEAD, seed=root, phase=draw.choice(["mlm-head", "post-train"]))]
        for _ in range(draw.randint(1, 6)):
            parent, phase = draw.choice(stages), draw.choice(["post-train", "fine-tune"])
            stages.append(replace(LEAF, seed=len(stages) + 10 * root, init=Parent(parent), phase=phase))
        parents = {each.parent.key for each in stages if each.parent}
        items += [item(each, draw.random(), keep=each.key in parents) for each in stages]
    return items


@pytest.mark.parametrize("seed", range(10))
def test_laws_of_every_life(begin: Begin, seed: int) -> None:
    """Two commands over the same stages, whose workers die, whose nodes leave, and whose weights are deleted."""
    draw = random.Random(seed)
    whole = forest(draw)
    commands = [begin([replace(each) for each in whole]) for _ in range(2)]
    running: list[list[Item]] = [[], []]
    for step in range(2000):
        number = draw.randrange(2)
        command, at_work, hostile = commands[number], running[number], step < 100
        if draw.random() < 0.5 and (found := command.next()):
            assert found.remake or found.stage.key not in command.ends(), "a settled stage is never trained"
            at_work.append(found)
        elif at_work:
            status = draw.choice(["done", "done", "failed", "died", "left"]) if hostile else "done"
            command.end(at_work.pop(draw.randrange(len(at_work))), status, "it broke" * (status != "done"))
        else:
            command.stages.ask_again()
        if hostile and draw.random() < 0.1:
            command.storage.delete(weights_of(draw.choice(whole).stage.key))
        if not (commands[0].stages.open or commands[1].stages.open):
            break
    records = commands[0].store.statuses(each.stage.key for each in whole)
    for command in commands:
        ends = command.ends()
        assert set(ends) == {each.stage.key for each in whole}, "every stage ends"
        assert all(reason for reason in command.said("failed"))
        done = {key for key, kind in ends.items() if kind in ("done", "elsewhere")}
        assert {records[key][0] for key in done} <= {"done"}
    commits = Counter(key for command in commands for key in command.committed)
    assert set(commits.values()) <= {1}, "nothing is recorded as done twice"
