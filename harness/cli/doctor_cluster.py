"""`doctor --cluster`: a live cluster, judged from the facts of its nodes; a finding is one sentence with the fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from harness.errors import UserError
from harness.wording import counted, listed

if TYPE_CHECKING:
    from harness.cluster.inspection import Group, Inspection, NodeFacts

GIB = 2**30
CLOCK_SECONDS, CLOCK_LIMIT = 5.0, 60.0
"""A clock further off than the first is a note, one further off than the second an error: a lease in SQLite lives 180 s, a bucket refuses at 900."""
FULL = 0.95
"""The share of its disk from which on Ray refuses to spill objects."""
SLOW_BYTES, SLOW_START_SECONDS = 50e6, 30.0
"""A sum over the nodes slower than this (half of gigabit Ethernet), and a process that starts slower than this, are worth a note."""


class Check(NamedTuple):
    """One line of the report. `ok`: True (fine), None (worth knowing; nothing fails for it) or False (needed and missing:
    exit status 1). `fix` says what to do, and is empty where there is nothing to do."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""


def cluster_checks(address: str, storage: str) -> list[Check]:
    """Join a cluster and check it; `storage`: as `Storage.named`. Raises UserError where no cluster answers."""
    from harness.cluster.inspection import inspect
    from harness.cluster.session import session
    from harness.execution import Execution
    from harness.storage import Storage

    place = Storage.named(storage)
    with session(Execution(address), {"doctor": "cluster"}):
        try:
            place.probe()
            found = inspect(place)
        except UserError as error:
            text, _, fix = str(error).partition("; ")
            return [Check("storage", False, text, fix)]
    return list(judged(found, place.shown))


def judged(inspection: Inspection, storage: str) -> Iterator[Check]:
    """The report of an inspection."""
    silent = [node for node in inspection.nodes if node.problem]
    nodes = [node for node in inspection.nodes if not node.problem]
    text = f"{counted(len(nodes), 'node')}: {', '.join(node.name for node in nodes) or 'none'}"
    if silent:
        text = "; ".join(f"{node.name} {node.problem}" for node in silent)
        yield Check(
            "nodes",
            False,
            text,
            "try again where the node is busy; else install the same harness there, restart its Ray or remove it from the cluster",
        )
    else:
        yield Check("nodes", True, text)
    if not nodes:
        return
    yield _versions(nodes)
    yield from _storage(nodes, storage)
    yield _clocks(nodes)
    yield _disks(nodes)
    yield _gpus(nodes)
    yield _group(inspection.group)
    yield _starts(nodes)


def _versions(nodes: list[NodeFacts]) -> Check:
    """Against those of the first node."""
    first = nodes[0].versions or {}
    others = [
        f"{node.name} has {name} {value or 'not installed'}, {nodes[0].name} {first.get(name) or 'not installed'}"
        for node in nodes[1:]
        for name, value in (node.versions or {}).items()
        if value != first.get(name)
    ]
    if others:
        fix = "install the same versions on every node (`pip install -c constraints.txt .` from one checkout, or one image)"
        return Check("versions", False, "; ".join(others), fix)
    return Check("versions", True, ", ".join(f"{name} {value}" for name, value in first.items()))


def _storage(nodes: list[NodeFacts], shown: str) -> Iterator[Check]:
    failed = [node for node in nodes if node.storage]
    for node in failed:
        text, _, fix = node.storage.partition("; ")
        yield Check("storage", False, f"the node {node.name} {text}", fix.rstrip("."))
    if not failed:
        yield Check(
            "storage", True, f"{shown} can be written and read on {'every node' if len(nodes) > 1 else 'the node'}"
        )


def _clocks(nodes: list[NodeFacts]) -> Check:
    def off(node: NodeFacts) -> float:  # for certain
        return max(0.0, abs(node.clock) - node.clock_error)

    wrong = [node for node in nodes if off(node) > CLOCK_SECONDS]
    if wrong:
        text = "; ".join(f"the clock of {node.name} is {node.clock:+.1f} s from this machine's" for node in wrong)
        limit = max(map(off, wrong)) > CLOCK_LIMIT
        return Check("clocks", False if limit else None, text, "synchronise the clocks, for instance by NTP")
    return Check(
        "clocks", True, f"within {max(abs(node.clock) + node.clock_error for node in nodes):.2f} s of this machine's"
    )


def _disks(nodes: list[NodeFacts]) -> Check:
    full = [node for node in nodes if node.free < 0.5 * GIB or node.free < (1 - FULL) * node.total]
    least = min(nodes, key=lambda node: node.free)
    if full:
        text = "; ".join(
            f"{node.name} has {node.free / GIB:.1f} of {node.total / GIB:.0f} GB free at {node.folder}" for node in full
        )
        fix = "free some space there, or start Ray with --temp-dir on a larger disk: from 95 % on it keeps no objects on disk"
        return Check("ray's folder", False, text, fix)
    return Check("ray's folder", True, f"{least.free / GIB:.1f} GB free or more ({least.name}: {least.folder})")


def _gpus(nodes: list[NodeFacts]) -> Check:
    unused = [node for node in nodes if node.ray_gpus > len(node.torch_gpus)]
    hidden = [node for node in nodes if node.ray_gpus < len(node.torch_gpus)]
    names = sorted({name for node in nodes for name in node.torch_gpus})
    if unused:
        text = "; ".join(
            f"{node.name} offers {node.ray_gpus:g} GPUs, of which torch sees {len(node.torch_gpus)}" for node in unused
        )
        return Check(
            "GPUs", False, text, "install the driver and a torch for CUDA there, or start Ray with the right --num-gpus"
        )
    if hidden:
        text = "; ".join(
            f"torch sees {len(node.torch_gpus)} GPUs on {node.name}, Ray {node.ray_gpus:g}" for node in hidden
        )
        return Check("GPUs", None, text, "start Ray there without --num-gpus, or with their number")
    if len(names) > 1:
        fix = "they round differently, and training can amplify that; for bit-identical stages use nodes of one kind"
        return Check("GPUs", None, f"of several kinds: {listed(names)}", fix)
    count = sum(node.ray_gpus for node in nodes)
    return Check("GPUs", True, f"{count:g} x {names[0]}" if names else "none on any node")


def _group(group: Group | None) -> Check:
    name = "process group"
    if group is None:
        return Check(name, True, "one node: nothing to connect")
    if group.problem:
        fix = "open all ports between the nodes; where a node has several networks, set GLOO_SOCKET_IFNAME before `ray start`"
        return Check(name, False, f"the {group.size} nodes form none ({group.problem.rstrip('.')})", fix)
    text = f"{group.size} nodes (gloo): {group.seconds * 1000:.1f} ms for a sum, {group.bytes_per_second / 1e6:,.0f} MB/s a node"
    if group.bytes_per_second < SLOW_BYTES:
        return Check(
            name, None, text, "keep --num-workers within one node: groups over nodes will wait for the network"
        )
    return Check(name, True, text)


def _starts(nodes: list[NodeFacts]) -> Check:
    name = "stage starts"
    busy = [node.name for node in nodes if node.start_seconds is None]
    if busy:
        return Check(
            name,
            None,
            f"no room for a run on {listed(busy)}",
            "wait until other commands have ended, or start Ray with more CPUs",
        )
    slowest = max(nodes, key=lambda node: node.start_seconds or 0.0)
    text = f"a process can train {slowest.start_seconds:.1f} s after it was asked for, or sooner ({slowest.name})"
    if (slowest.start_seconds or 0.0) > SLOW_START_SECONDS:
        return Check(
            name, None, text, "put Python and its packages on a local disk of each node, not on a network file system"
        )
    return Check(name, True, text)
