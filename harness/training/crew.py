"""The workers that train one stage together: who does which rows, and how what they found comes together.

Knows torch.distributed and no Ray: whoever starts the processes (Ray Train, in cluster/) makes the process group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch.distributed


@dataclass(frozen=True)
class Crew:
    """One worker's place among `size`. All of a crew run the same calls in the same order."""

    rank: int = 0
    size: int = 1

    @classmethod
    def joined(cls) -> Self:
        """This process's place in the default process group; alone where there is none."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())
        return cls()


ALONE = Crew()
