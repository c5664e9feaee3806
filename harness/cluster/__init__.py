"""The only place that imports ray: the session, the ledger actor, the pool of the bench, and Ray Train's wrapper.

Ray reads its environment as it is imported, and every module that imports it lies below this one: so it is set here, and again where a
session begins, since a caller's environment is as before after each call."""

import os


def set_environment() -> None:
    """What Ray, Train, Tune and their processes read, where the user has not set it."""
    for name, value in {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else a local Ray listens on all of a machine's addresses
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_ROTATION_MAX_BYTES": str(16 * 2**20),  # Ray's logs: 512 MB each, and of workers without end
        "RAY_ROTATION_BACKUP_COUNT": "1",
        "TOKENIZERS_PARALLELISM": "true",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths refer to the command's folder; Tune's is deleted at the end
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # default 2: how soon a dead rank is noticed
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "120",  # default 600
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # the pool hears of nodes that leave, and the ranks ask the ledger
        "RAY_TRAIN_METRICS_ENABLED": "0",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the command handles Ctrl-C: fit() would return as if the study had ended
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # files with results that the ledger has
        "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # a study resumes from its history
        "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
        "TUNE_WARN_THRESHOLD_S": "60",
        "RAY_AIR_NEW_OUTPUT": "0",
    }.items():
        os.environ.setdefault(name, value)


set_environment()
