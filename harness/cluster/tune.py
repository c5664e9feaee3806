"""Ray Tune over a study: parallel trials in reused actors, each one point over its replicates."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune

from harness.cluster.proposals import Fatal, Proposals, scheduler_of
from harness.cluster.trial import Evaluator, HarnessTrial
from harness.errors import UserError
from harness.execution import Execution

NO_CPU = {"memory": 1.0}
"""One byte: the resources of a trial that only drives a worker group. It must take none that the ranks need."""

_ENVIRONMENT = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the command handles Ctrl-C: fit() would return as if the study had ended
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # files with results that the ledger has
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # a study resumes from its history
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # that folder is deleted at the end, and relative paths refer to the command's folder
}


def explore(
    proposals: Proposals,
    make_evaluator: Callable[[], Evaluator],
    *,
    study: str,
    folder: Path,
    execution: Execution,
    concurrent: int,
) -> None:
    """Run the remaining trials. `folder`: for Tune's own files, which are deleted at the end.

    Raises an error that ends the study (a worker group that does not start); an error of one trial stands in its row.
    """
    os.environ.update(_ENVIRONMENT)
    for logger in ("ray.tune", "ray.train", "ray._private"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="ray|optuna")
    shutil.rmtree(folder / study, ignore_errors=True)

    def name(trial: Any) -> str:
        return f"{study}_{trial.config['number']:05d}"

    try:
        tune.Tuner(
            tune.with_resources(
                tune.with_parameters(HarnessTrial, make_evaluator=make_evaluator), _resources(execution)
            ),
            tune_config=tune.TuneConfig(
                search_alg=proposals,
                scheduler=scheduler_of(proposals),
                num_samples=proposals.remaining(),
                max_concurrent_trials=concurrent,
                reuse_actors=True,
                trial_name_creator=name,
                trial_dirname_creator=name,
            ),
            run_config=tune.RunConfig(
                name=study,
                storage_path=str(folder.resolve()),
                verbose=0,
                stop=Fatal(proposals),
                failure_config=tune.FailureConfig(max_failures=2),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()
    except Exception as error:
        if proposals.fatal is None:
            _raise_user_error(error, folder)
            raise
    finally:
        shutil.rmtree(folder / study, ignore_errors=True)
    if proposals.fatal:
        raise proposals.fatal


def _raise_user_error(error: Exception, folder: Path) -> None:
    """Tune writes files of its own, and wraps their errors."""
    if isinstance(error, OSError) or "OSError" in str(error):
        cause = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
        raise UserError(
            f"Ray Tune cannot write below {folder} ({cause}); fix that and run the same command again: what was recorded "
            "is kept."
        ) from None


def _resources(execution: Execution) -> Any:
    """A trial's process takes no resources; its worker's stand in the same placement group, so that both start together. A worker
    group has a placement group of its own."""
    if execution.num_workers > 1:
        return tune.PlacementGroupFactory([NO_CPU])
    worker = {"CPU": execution.cpus_per_run}
    if execution.gpus_per_run > 0:
        worker["GPU"] = execution.gpus_per_run
    return tune.PlacementGroupFactory([{}, worker])
