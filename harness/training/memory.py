"""How a process that trains holds its memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST = 2**31 - 1
_AT_ONCE = 2**26


def keep_freed_memory() -> None:
    """Let glibc keep the memory that this process frees, for its next allocations.

    By default it gives large blocks back to the kernel at once. A training loop allocates the same activations and gradients at every
    update, and the kernel zeroes and maps each of their pages anew: a tenth of a run's time on a virtual machine (docs/LOG.md).
    """
    with suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGEST)
        mallopt(_M_TRIM_THRESHOLD, _LARGEST)
        mallopt(_M_TOP_PAD, _AT_ONCE)
