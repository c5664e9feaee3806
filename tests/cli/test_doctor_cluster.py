"""What `doctor --cluster` says of the facts of nodes: one line each, with the fix; tests/cluster/test_nodes.py asks real nodes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from harness.cli.doctor_cluster import GIB, Check, judged
from harness.cluster.inspection import Group, Inspection, NodeFacts

GOOD = NodeFacts(
    "a (10.0.0.1, 01234567)",
    versions={"torch": "2.13.0", "harness": "0.1 (abc)"},
    clock_error=0.001,
    folder="/tmp/ray",
    free=50 * GIB,
    total=100 * GIB,
    ray_gpus=1.0,
    torch_gpus=("NVIDIA A10G",),
    start_seconds=5.0,
)
GROUP = Group(2, 0.001, 1e9)


def lines(group: Group | None = GROUP, **second: Any) -> dict[str, Check]:
    """The report of a good node and one that differs from it."""
    other = replace(GOOD, name="b (10.0.0.2, 89abcdef)", **second)
    return {check.name: check for check in judged(Inspection((GOOD, other), group), "s3://weights/x")}


def test_a_good_cluster_needs_nothing() -> None:
    found = lines()
    assert {check.ok for check in found.values()} == {True}
    assert not [check for check in found.values() if check.fix]
    assert found["GPUs"].found == "2 x NVIDIA A10G"


@pytest.mark.parametrize(
    ("second", "name", "ok", "said"),
    [
        ({"versions": {"torch": "2.12.0", "harness": "0.1 (abc)"}}, "versions", False, "has torch 2.12.0, a .* 2.13.0"),
        ({"versions": {"torch": "2.13.0", "harness": "0.1 (abd)"}}, "versions", False, r"has harness 0.1 \(abd\), a"),
        (
            {"storage": "cannot use the storage. It is full; free some."},
            "storage",
            False,
            "b .* cannot use the storage",
        ),
        ({"clock": -7.0}, "clocks", None, r"the clock of b .* is -7\.0 s from this machine's"),
        ({"clock": 7200.0}, "clocks", False, r"\+7200\.0 s"),
        ({"clock": 30.0, "clock_error": 29.0}, "clocks", True, "within 59.00 s"),
        ({"free": GIB // 4}, "ray's folder", False, "b .* has 0.2 of 100 GB free at /tmp/ray"),
        ({"free": 4 * GIB}, "ray's folder", False, "b .* has 4.0 of 100 GB free"),
        ({"torch_gpus": ()}, "GPUs", False, "b .* offers 1 GPUs, of which torch sees 0"),
        ({"ray_gpus": 0.0}, "GPUs", None, "torch sees 1 GPUs on b .*, Ray 0"),
        ({"torch_gpus": ("NVIDIA H100",)}, "GPUs", None, "several kinds: NVIDIA A10G and NVIDIA H100"),
        ({"group": Group(2, problem="timed out")}, "process group", False, r"the 2 nodes form none \(timed out\)"),
        ({"group": Group(2, 0.1, 1e6)}, "process group", None, "1 MB/s a node"),
        ({"group": None}, "process group", True, "one node"),
        ({"start_seconds": None}, "stage starts", None, "no room for a run on b"),
        ({"start_seconds": 90.0}, "stage starts", None, r"90\.0 s after"),
        ({"problem": "did not answer within 60 s"}, "nodes", False, r"b .* did not answer within 60 s"),
    ],
)
def test_each_finding_names_the_node_and_the_fix(second: dict[str, Any], name: str, ok: bool | None, said: str) -> None:
    check = lines(**second)[name]
    assert check.ok is ok
    assert bool(check.fix) == (ok is not True)
    assert re.search(said, check.found), check.found
