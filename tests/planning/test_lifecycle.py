"""The life of stages: every stage ends once, whatever the cluster answers. No Ray and no clock: answers are made by hand or
drawn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from store.samples import stage

from harness.planning.lifecycle import (
    WORKER_DEATHS,
    DiscardWeights,
    Event,
    Lifecycle,
    Output,
    RecordFailure,
    ReleaseLease,
)
from harness.planning.work import Item
from harness.specs import Parent, Stage

HEAD, POST, LEAF = (
    replace(each, phase=phase)
    for each, phase in zip(stage().chain, ("mlm-head", "post-train", "fine-tune"), strict=True)
)
POST = replace(POST, init=Parent(HEAD, "last", ("encoder", "mlm_head")))
LEAVES = [replace(LEAF, seed=seed, init=Parent(POST)) for seed in range(3)]
ENDS = ("done", "failed", "diverged", "elsewhere")


def item(of: Stage, cost: float = 1.0, *, keep: bool = False, remake: bool = False) -> Item:
    return Item(of, f"{of.phase} {of.seed}", cost, (), keep, remake, 0)


def family(leaves: int = 2) -> list[Item]:
    """An MLM head, a post-training from it, and stages that fine-tune from that."""
    return [item(HEAD, keep=True), item(POST, keep=True), *(item(each) for each in LEAVES[:leaves])]


def kinds(outputs: Iterable[Output]) -> list[str]:
    return [each.kind if isinstance(each, Event) else type(each).__name__ for each in outputs]


def reasons(outputs: Iterable[Output]) -> list[str]:
    return [each.reason for each in outputs if isinstance(each, Event)]


def leased(life: Lifecycle, of: Stage) -> Item:
    upcoming, found = life.next_stage, life.next_item()
    assert upcoming
    assert upcoming.key == of.key
    assert found is not None
    assert found.stage.key == of.key
    return found


def running(life: Lifecycle, of: Stage) -> Item:
    found = leased(life, of)
    life.started(found)
    return found


def trained(life: Lifecycle, *stages: Stage) -> list[Output]:
    return [output for of in stages for output in life.finished(running(life, of), "done")]


def test_a_chain_from_its_root_to_its_leaves() -> None:
    life = Lifecycle(family())
    assert [life.state(of.key) for of in (HEAD, POST, *LEAVES)] == ["ready", "waiting", "waiting", "waiting", None]
    first = leased(life, HEAD)
    assert life.next_item() is None, "nothing else can start"
    assert kinds(life.started(first)) == ["started"]
    assert kinds(life.finished(first, "done")) == ["done"]
    assert kinds(trained(life, POST)) == ["done"], "the MLM head is shared: its weights stay"
    assert kinds(trained(life, LEAVES[0])) == ["done"]
    last = trained(life, LEAVES[1])
    assert last[1] == DiscardWeights(POST), "nobody starts from them any more"
    assert life.unfinished == 0


def test_the_most_expensive_stage_starts_first() -> None:
    life = Lifecycle([item(each, cost) for each, cost in zip(LEAVES, (1.0, 3.0, 2.0), strict=True)])
    order = []
    while (found := life.next_item()) is not None:
        order.append(found.cost)
    assert order == [3.0, 2.0, 1.0]


def test_a_stage_that_another_process_trains_is_asked_for_again() -> None:
    life = Lifecycle([item(HEAD)])
    assert kinds(life.held(leased(life, HEAD))) == ["waiting"]
    assert life.next_item() is None
    assert life.unfinished == 1
    life.ask_again()
    assert kinds(life.recorded(leased(life, HEAD), "done", weights=False)) == ["elsewhere"], "nobody needs its weights"
    assert life.unfinished == 0


@pytest.mark.parametrize("status", ["failed", "diverged"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_descendants_fail_with_their_ancestors_reason(status: str, where: str) -> None:
    life = Lifecycle(family())
    first = leased(life, HEAD)
    if where == "here":
        life.started(first)
        outputs = life.finished(first, status, "it broke")  # type: ignore[arg-type]
    else:
        outputs = life.recorded(first, status, weights=False)  # type: ignore[arg-type]
    assert kinds(outputs) == [status, "failed", "failed", "failed"]
    why = {"here": "it broke", "elsewhere": "recorded by another driver"}[where]
    assert reasons(outputs) == [why, *[f"its parent stage {HEAD.key[:10]} {status}: {why}"] * 3]
    assert life.unfinished == 0
    assert not any(isinstance(each, RecordFailure) for each in outputs), "what was not trained has no record"


def test_deaths_make_a_failed_record() -> None:
    life = Lifecycle(family(1))
    for count in range(1, WORKER_DEATHS):
        victim = running(life, HEAD)
        assert kinds(life.worker_lost(victim, f"death {count}")) == ["retried"]
    victim = running(life, HEAD)
    outputs = life.worker_lost(victim, "the last")
    assert outputs[0] == RecordFailure(victim, "the last")
    assert kinds(outputs[1:]) == ["failed"] * 3
    assert life.unfinished == 0


def test_a_death_with_its_node_does_not_count() -> None:
    life = Lifecycle([item(HEAD)])
    for _ in range(WORKER_DEATHS + 2):
        assert kinds(life.worker_lost(running(life, HEAD), "its node left", with_node=True)) == ["retried"]
    assert kinds(trained(life, HEAD)) == ["done"]


@pytest.mark.parametrize("status", ["done", "diverged"])
def test_a_record_that_was_committed_before_the_death_stands(status: str) -> None:
    life = Lifecycle([item(HEAD)])
    assert kinds(life.worker_lost(running(life, HEAD), "died", recorded=status)) == [status]  # type: ignore[arg-type]
    assert life.unfinished == 0


class TestRemakes:
    def deleted(self) -> tuple[Lifecycle, list[Output]]:
        """Both stages ended, then the weights that the leaf starts from were deleted."""
        life = Lifecycle(family(1))
        trained(life, HEAD, POST)
        outputs = life.weights_missing(leased(life, LEAVES[0]), "s3://here")
        return life, outputs

    def test_deleted_weights_are_made_again_and_the_stage_goes_on(self) -> None:
        life, outputs = self.deleted()
        assert kinds(outputs) == ["ReleaseLease", "notice"]
        assert f"the weights of stage {POST.key[:10]} (post-train) were deleted from s3://here" in reasons(outputs)[0]
        remake = leased(life, POST)
        assert (remake.remake, remake.keep_weights) == (True, True)
        assert life.started(remake) == life.finished(remake, "done") == [], "it is none of the plan's stages"
        assert kinds(trained(life, LEAVES[0])) == ["done", "DiscardWeights"]

    def test_of_several_children_they_are_made_once(self) -> None:
        life = Lifecycle(family(3))
        trained(life, HEAD, POST)
        said = [kinds(life.weights_missing(leased(life, each), "here")) for each in LEAVES]
        assert said == [["ReleaseLease", "notice"], ["ReleaseLease"], ["ReleaseLease"]]
        trained(life, POST)
        assert kinds(trained(life, *LEAVES)) == ["done", "done", "done", "DiscardWeights"]

    def test_their_own_parents_weights_too(self) -> None:
        life, _ = self.deleted()
        assert kinds(life.weights_missing(leased(life, POST), "here")) == ["ReleaseLease", "notice"]
        assert kinds(trained(life, HEAD, POST, LEAVES[0])) == ["done", "DiscardWeights"]

    def test_weights_that_are_there_again_are_not_made(self) -> None:
        life, _ = self.deleted()
        assert kinds(life.weights_found(leased(life, POST))) == ["ReleaseLease"]
        assert kinds(trained(life, LEAVES[0])) == ["done", "DiscardWeights"]

    def test_a_remake_never_writes_a_record(self) -> None:
        life, _ = self.deleted()
        for _ in range(WORKER_DEATHS - 1):
            assert life.worker_lost(running(life, POST), "died", recorded="done") == []
        victim = running(life, POST)
        outputs = life.worker_lost(victim, "died")
        assert kinds(outputs) == ["ReleaseLease", "failed"]
        assert reasons(outputs) == [f"its parent stage {POST.key[:10]} failed: died"], "the stage that needs them fails"
        assert life.unfinished == 0

    def test_a_stage_that_another_driver_recorded_without_its_weights(self) -> None:
        life = Lifecycle(family(1))
        first = leased(life, HEAD)
        assert life.recorded(first, "done", weights=False) == []
        again = running(life, HEAD)
        assert again.remake
        assert kinds(life.finished(again, "done")) == ["done"], "it is one of the plan's stages"
        assert life.state(POST.key) == "ready"


def test_transitions_that_a_state_does_not_admit_are_refused() -> None:
    life = Lifecycle([item(HEAD)])
    found = leased(life, HEAD)
    with pytest.raises(ValueError, match="is leasing: it cannot become ended"):
        life.finished(found, "done")
    with pytest.raises(ValueError, match="is no remake"):
        life.weights_found(found)
    life.recorded(found, "done", weights=True)
    for act in (life.started, life.held, lambda each: life.recorded(each, "done", weights=True)):
        with pytest.raises(ValueError, match="is ended"):
            act(found)


# ------------------------------------------------------------------------------------------------- drawn sequences


def forest(draw: random.Random) -> list[Item]:
    """Up to three families of two to four generations, some of whose roots were recorded before and are remade."""
    items = []
    for root in range(draw.randint(1, 3)):
        stages = [replace(HEAD, seed=root, phase=draw.choice(["mlm-head", "post-train"]))]
        for _ in range(draw.randint(1, 6)):
            parent = draw.choice(stages)
            phase = draw.choice(["post-train", "fine-tune"])
            stages.append(replace(LEAF, seed=len(stages) + 10 * root, init=Parent(parent), phase=phase))
        parents = {each.parent.key for each in stages if each.parent}
        remake = draw.random() < 0.3
        items += [
            item(each, draw.random(), keep=each.key in parents, remake=remake and each is stages[0]) for each in stages
        ]
    return items


def answer(draw: random.Random, life: Lifecycle, flying: list[Item], hostile: bool) -> list[Output]:
    """One drawn answer of the cluster. One that is not `hostile` lets every stage end."""
    wanted = life.next_item() if draw.random() < 0.6 else None
    if wanted is not None:
        choices = ["started", "started"]
        if hostile:
            choices += ["held", "weights_found"] if wanted.remake else ["held", "recorded"]
            choices += ["weights_missing"] if wanted.stage.parent else []
        match draw.choice(choices):
            case "held":
                return life.held(wanted)
            case "recorded":
                return life.recorded(
                    wanted, draw.choice(["done", "done", "failed", "diverged"]), weights=draw.random() < 0.5
                )
            case "weights_found":
                return life.weights_found(wanted)
            case "weights_missing":
                return life.weights_missing(wanted, "here")
        flying.append(wanted)
        return life.started(wanted)
    if flying and draw.random() < 0.8:
        ending = flying.pop(draw.randrange(len(flying)))
        if hostile and draw.random() < 0.5:
            recorded = draw.choice([None, None, None, "done"])
            return life.worker_lost(ending, "died", with_node=draw.random() < 0.3, recorded=recorded)
        status = draw.choice(["done", "done", "done", "failed"]) if hostile else "done"
        return life.finished(ending, status, "" if status == "done" else "it broke")
    life.ask_again()
    return []


def lives(seed: int) -> Iterator[tuple[Lifecycle, list[Item], list[Item], list[Output]]]:
    """After every answer: the stages, the items, those that run, and what followed from the answer."""
    draw = random.Random(seed)
    items, flying = forest(draw), []
    life = Lifecycle(items)
    for step in range(5000):
        outputs = answer(draw, life, flying, hostile=step < 200)
        yield life, items, flying, outputs
        if not life.unfinished:
            return
    raise AssertionError("the stages do not end")


@pytest.mark.parametrize("seed", range(100))
def test_laws_of_every_life(seed: int) -> None:
    ended: Counter[str] = Counter()
    failures: list[RecordFailure] = []
    discarded: list[str] = []
    for life, items, flying, outputs in lives(seed):
        for each in outputs:
            if isinstance(each, Event) and each.kind in ENDS:
                key = each.item.stage.key
                ended[key] += 1
                if each.kind == "failed":
                    assert each.reason
            elif isinstance(each, Event) and each.kind == "started":
                assert each.item.stage.key not in ended, "a settled stage is never trained"
            elif isinstance(each, RecordFailure):
                assert not each.item.remake
                assert each.item.deaths == WORKER_DEATHS
                failures.append(each)
            elif isinstance(each, ReleaseLease):
                assert life.state(each.item.stage.key) != "running"
            elif isinstance(each, DiscardWeights):
                discarded.append(each.stage.key)
                assert each.stage.phase != "mlm-head"
        assert life.count("running") == len(flying)
        assert life.count("leasing") == 0, "every answer settles the question"
        for each in items:
            state, parent = life.state(each.stage.key), each.stage.parent
            if state == "waiting":
                assert parent is not None
                assert life.state(parent.key) != "ended", "a stage waits for a parent that is under way"
        busy = sum(life.count(state) for state in ("ready", "held", "running"))
        assert busy or not life.unfinished, "something can always go on"
    assert ended == Counter(each.stage.key for each in items), "every stage ends, and once"
    assert len({each.item.stage.key for each in failures}) == len(failures)
    assert all(
        child.stage.key in ended for child in items if child.stage.parent and child.stage.parent.key in discarded
    )
