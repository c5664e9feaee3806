"""Randomness by name: every draw comes from a stream keyed by (seed, purpose, step), never from a shared generator.

Two methods that ask for the same stream see the same numbers, whatever else either of them drew before, in whatever
order or process. That is what makes rows comparable at equal seed: TAPT and CMLM mask view 0 alike, FT and SCL see the
same batches. This module does not import torch; for a torch generator use `generator.manual_seed(seed_of(...))`.
"""

from __future__ import annotations

import hashlib
import json
import operator

import numpy as np

_SCHEME = "harness-stream-1"  # changing the derivation below changes every number ever drawn: then change this too


def seed_of(seed: int, purpose: str, *step: int) -> int:
    """The integer in [0, 2**63) named by (seed, purpose, step).

    `purpose` says what is drawn ("mask-view-0", "order", ...), `step` counts within it (epoch, index, view, ...). The
    derivation is the BLAKE2b hash of a JSON list, so that no two different names run into the same text.
    """
    if not purpose:
        raise ValueError("A stream needs a purpose: give a non-empty name of what is drawn from it.")
    name = [_SCHEME, operator.index(seed), purpose, *(operator.index(number) for number in step)]
    text = json.dumps(name, ensure_ascii=True, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode("ascii"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(seed: int, purpose: str, *step: int) -> np.random.Generator:
    """A fresh numpy generator (Philox) keyed by `seed_of(seed, purpose, *step)`."""
    return np.random.Generator(np.random.Philox(key=seed_of(seed, purpose, *step)))
