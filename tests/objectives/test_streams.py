"""Streams are functions of their names."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import numpy as np
import pytest

from harness.streams import seed_of, stream

# Frozen: if one of these changes, every recorded run means something else.
GOLDEN = [
    ((0, "mask-view-0"), 6344608065209738494, 17830858510842145421),
    ((42, "order", 3), 4782999666772011953, 8685992313064288734),
    ((-1, "crop", 1, 2), 2087196000714637253, 12768491537410800919),
]


@pytest.mark.parametrize(("name", "seed", "first"), GOLDEN)
def test_golden(name: tuple[int, str], seed: int, first: int) -> None:
    assert seed_of(*name) == seed
    assert stream(*name).bit_generator.random_raw() == first


def test_range_and_no_collision() -> None:
    names = list(product(range(-5, 20), ("mask", "order", "mask-0", "é"), range(20)))
    seeds = {seed_of(seed, purpose, step) for seed, purpose, step in names}
    assert len(seeds) == len(names)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62  # all 63 bits are used


def test_names_do_not_run_together() -> None:
    names: list[tuple[int, str, *tuple[int, ...]]] = [
        (1, "a"), (11, "a"), (1, "a", 1), (1, "a", 11), (1, "a", 1, 1), (1, "a,1"), (1, 'a",1'), (1, "a", 0), (-1, "a"),
    ]  # fmt: skip
    assert len({seed_of(*name) for name in names}) == len(names)


def test_order_of_calls_does_not_matter() -> None:
    forward = {step: stream(7, "mask", step).random(5).tolist() for step in range(4)}
    stream(7, "order").random(1000)
    np.random.random(10)
    backward = {step: stream(7, "mask", step).random(5).tolist() for step in reversed(range(4))}
    assert forward == backward


def test_streams_share_no_state() -> None:
    one, two = stream(7, "mask"), stream(7, "mask")
    first = one.random(3).tolist()
    one.random(100)
    assert two.random(3).tolist() == first


def test_different_names_are_uncorrelated() -> None:
    streams = [stream(0, "mask"), stream(1, "mask"), stream(0, "order"), stream(0, "mask", 1)]
    correlations = np.asarray(np.corrcoef([generator.random(20_000) for generator in streams]))
    assert (np.abs(correlations[np.triu_indices(4, 1)]) < 4 / np.sqrt(20_000)).all()


def test_numpy_integers_name_the_same_stream() -> None:
    assert seed_of(np.int64(3), "mask", np.int32(2)) == seed_of(3, "mask", 2)  # type: ignore[arg-type]


def test_bad_names() -> None:
    with pytest.raises(ValueError, match="purpose"):
        seed_of(0, "")
    with pytest.raises(TypeError):
        seed_of(0.5, "mask")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        seed_of(0, "mask", 1.0)  # type: ignore[arg-type]


def test_same_in_another_process_without_torch() -> None:
    code = "import sys, harness.streams as s; print(s.seed_of(42, 'order', 3), 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == [str(GOLDEN[1][1]), "False"]
