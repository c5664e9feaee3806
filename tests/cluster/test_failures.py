"""A stage that diverges or fails is a record with its reason; the others finish, and the exit status says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cluster.conftest import Bench, Ended, Undisturbed
from cluster.driver import BENCH, STAGES, kept

from harness.store import Store

DIVERGING = f"{BENCH} --set cmlm.contrast=simclr --set cmlm.temperature=1e-300".replace("31,42", "31,42,53").replace(
    "tapt", "cmlm"
)


def cells(ended: Ended) -> dict[str, dict[str, Any]]:
    return {cell["row"]: cell for cell in ended.table["cells"] if cell["column"] == "movies"}


def reasons(folder: Path, keys: set[str]) -> dict[str, str]:
    records = Store(f"sqlite:///{folder / '.harness' / 'harness.db'}").records(keys)
    return {key: record.reason for key, record in records.items()}


def test_a_diverged_parent(bench: Bench, undisturbed: Undisturbed, copied: Path) -> None:
    """At this temperature CMLM's post-training overflows; FT and SCL have no such stage, and get a third seed here."""
    first = bench(copied, f"{DIVERGING} --slots 1", status=1)
    found = kept(copied)
    new = {key: each for key, each in found.items() if key not in undisturbed.records}
    assert {key: found[key] for key in undisturbed.records} == undisturbed.records
    diverged = {key for key, each in new.items() if each.status == "diverged"}
    assert len(diverged) == 3
    assert sorted(each.status for each in new.values()) == ["diverged"] * 3 + ["done"] * 2
    assert all("is not finite at step" in reason for reason in reasons(copied, diverged).values())

    cell = cells(first)
    assert [(cell[row]["done"], cell[row]["expected"]) for row in ("FT", "SCL", "CMLM")] == [(3, 3), (3, 3), (0, 3)]
    assert cell["CMLM"]["value"] is None
    assert any("diverged" in note and "not finite" in note for note in first.table["footnotes"])
    assert first.err.count("diverged: post-train of CMLM/") + first.err.count("diverged: CMLM/") == 3
    children = [line for line in first.err.splitlines() if line.startswith("failed: CMLM/movies")]
    assert len(children) == 3
    assert all("its parent stage" in line and "diverged" in line for line in children)

    # The same command again: final, so nothing is trained and the table is the same.
    again = bench(copied, DIVERGING, status=1)
    assert again.table == first.table
    assert "Ray dashboard" not in again.err
    assert "3 blocked because the stage before diverged (--retry trains both)" in again.err
    assert kept(copied) == found

    retried = bench(copied, f"{DIVERGING} --retry --slots 1", status=1)
    assert retried.table == first.table
    after = kept(copied)
    assert {after[key].attempt for key in diverged} == {2}
    assert {key: each for key, each in after.items() if key not in diverged} == {
        key: each for key, each in found.items() if key not in diverged
    }


def test_a_failed_stage_is_tried_again_by_the_next_command(
    bench: Bench, undisturbed: Undisturbed, copied: Path
) -> None:
    """The MLM head's weights are half a file: the first stage that starts from them fails, says so and deletes them, so that
    the next command makes them again."""
    line = BENCH.replace("31,42", "31,42,53").replace("ft,scl,tapt", "ft,tapt")
    (weights,) = (copied / ".harness" / "products").iterdir()
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    first = bench(copied, f"{line} --slots 1", status=1)
    found = kept(copied)
    (failed,) = (key for key in found if found[key].status == "failed")
    assert failed not in undisturbed.records
    assert "were damaged" in reasons(copied, {failed})[failed]
    assert sorted((cell["done"], cell["expected"]) for cell in cells(first).values()) == [(2, 3), (3, 3)]
    assert any("were damaged" in note for note in first.table["footnotes"])
    assert not weights.exists()

    again = bench(copied, f"{line} --slots 1")
    assert weights.read_bytes() == whole, "bit-identical"
    assert [(cell["done"], cell["expected"]) for cell in cells(again).values()] == [(3, 3)] * 2
    after = kept(copied)
    assert (after[failed].status, after[failed].attempt) == ("done", 2)
    assert {key: after[key] for key in found if key != failed} == {key: found[key] for key in found if key != failed}
    assert len(after) == STAGES + 3
