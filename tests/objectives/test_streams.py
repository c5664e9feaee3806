"""Streams are functions of their names."""

from __future__ import annotations

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


def test_names_do_not_run_together() -> None:
    names: list[tuple[int, str, *tuple[int, ...]]] = [
        (1, "a"), (11, "a"), (1, "a", 1), (1, "a", 11), (1, "a", 1, 1), (1, "a,1"), (1, 'a",1'), (1, "a", 0), (-1, "a"),
    ]  # fmt: skip
    assert len({seed_of(*name) for name in names}) == len(names)
