"""The only place that imports ray: the session, the ledger actor, the pool of the bench, and Ray Train's wrapper.

Ray reads its environment as it is imported, and every module that imports it lies below this one: so it is set here, and again where a
session begins, since a caller's environment is as before after each call."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def set_environment() -> None:
    """What Ray and its processes read, where the user has not set it."""
    for name, value in {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else a local Ray listens on all of a machine's addresses
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
        "RAY_ROTATION_MAX_BYTES": str(16 * 2**20),  # Ray's logs: 512 MB each, and of workers without end
        "RAY_ROTATION_BACKUP_COUNT": "1",
        "TOKENIZERS_PARALLELISM": "true",
    }.items():
        os.environ.setdefault(name, value)


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set `values` meanwhile, also for the processes that are started; afterwards these variables are as before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})


@contextmanager
def log_level(level: int, *names: str) -> Iterator[None]:
    """Set the level of these loggers meanwhile."""
    before = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in before:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, was in before.items():
            logger.setLevel(was)


set_environment()
