"""The only place that imports ray: the session, the ledger actor, the pool of the bench, and Ray Train's wrapper.

Ray reads its environment as it is imported, and every module that imports it lies below this one: so it is set here."""

import os

os.environ.setdefault(
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
)  # else a local Ray listens on all of a machine's addresses
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "0")
os.environ.setdefault("RAY_ROTATION_MAX_BYTES", str(16 * 2**20))  # Ray's logs: 512 MB each, and of workers without end
os.environ.setdefault("RAY_ROTATION_BACKUP_COUNT", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
