"""Ray Tune over a study: parallel trials in reused actors, each one point over its replicates, with the workers and the ledger of the
bench. Of the stages of a run what is recorded is taken as it is, the rest is trained under a lease of the trial's process."""

from __future__ import annotations

import logging
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import ray
from ray import tune

from harness.cluster.ledger import ask
from harness.cluster.proposals import Proposals
from harness.cluster.stages import Stages
from harness.cluster.worker import TokenCache, resources_of, result_of, slots_of, start_worker, submit
from harness.encoders.tokens import Vocabulary
from harness.errors import StoppedError, UserError, first_line
from harness.machine import end_with_parent
from harness.methods import read_methods
from harness.planning.request import Request
from harness.planning.runs import Plan
from harness.planning.work import Ended, Item, work
from harness.search.points import Points
from harness.specs import Run
from harness.storage import WorkerSetup

LOSSES = 100
"""How often a trial starts again: as its process trains nothing, what ends it is a node that leaves."""
NO_CPU = {"memory": 1.0}
"""One byte: the resources of a trial that only drives a worker group. It must take none that the ranks need."""


def explore(proposals: Proposals, request: Request, **parameters: Any) -> None:
    """Run the trials of a study, until its proposals end it. `parameters`: the others of `HarnessTrial`.

    Raises an error that ends the study (a worker group that does not start); an error of one trial stands in its row.
    """
    for logger in ("ray.tune", "ray.train", "ray._private"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="ray|optuna")
    handler = signal.getsignal(signal.SIGUSR1)
    # A trial's process takes no resources; its worker's stand in the same placement group, so that both start together. A worker group has its own.
    bundles = [NO_CPU] if request.num_workers > 1 else [{}, resources_of(request)]
    trial = tune.with_parameters(HarnessTrial, request=request, **parameters)
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Tune writes files that nobody reads
            tune.Tuner(
                tune.with_resources(trial, tune.PlacementGroupFactory(bundles)),
                tune_config=tune.TuneConfig(
                    search_alg=proposals,
                    num_samples=-1,  # until there is no further point
                    max_concurrent_trials=slots_of(request),
                    reuse_actors=True,
                ),
                run_config=tune.RunConfig(
                    storage_path=folder,
                    verbose=0,
                    stop=proposals,
                    failure_config=tune.FailureConfig(max_failures=LOSSES),
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                ),
            ).fit()
    except Exception:
        if proposals.fatal is None:
            raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, handler)  # Tune sets its own
    if proposals.fatal:
        raise proposals.fatal


# -------------------------------------------------------------------------------------------------------------- trials


class HarnessTrial(tune.Trainable):
    """`step` trains the next replicate, each a run along its chains, by a worker in the trial's placement group, and reports how many have ended. An
    actor serves one trial after another with the same worker; a new one starts after its death. `references`: to tokens, as of `TokenCache`;
    `retry`: diverged stages of earlier commands are trained again."""

    _worker: Any

    def setup(
        self,
        config: dict[str, Any],
        points: Points,
        worker_setup: WorkerSetup,
        vocabulary: Vocabulary,
        references: Mapping[tuple[Any, ...], Any],
        ledger: Any,
        request: Request,
        retry: bool,
    ) -> None:
        end_with_parent()
        for name in points.request.methods or ():
            read_methods(name)  # as the command that sent them has
        self._points, self._setup, self._vocabulary, self._request = points, worker_setup, vocabulary, request
        self._token_cache, self._ledger = TokenCache(made=references), ledger
        self._worker, self._retry = None, retry
        self.reset_config(config)

    def __repr__(self) -> str:
        return "harness-trial"

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._number, self._runs = new_config["number"], self._points.runs(new_config["point"])
        self._ended, self._failed = 0, dict[str, str]()
        return True

    def step(self) -> dict[str, Any]:
        try:
            self._replicate(self._runs[self._ended])
        except StoppedError:
            raise
        except Exception as error:  # a failed trial does not stop the study; a cluster that cannot run any trial does
            fatal = isinstance(error, UserError)
            reason = str(error) if fatal else f"{type(error).__name__}: {first_line(error)}"
            return {"error": reason, "fatal": fatal}
        self._ended += 1
        return {"ended": self._ended, "failed": self._failed}

    def _replicate(self, runs: Sequence[Run]) -> None:
        """Train what is not recorded of a replicate. A stage that fails without a record could not be made: the weights that it starts from are gone."""
        points, storage = self._points, self._setup.storage
        statuses, ended = self._ask("ended", [stage.key for run in runs for stage in run.stage.chain])
        broken = {key for key in ended & statuses.keys() if statuses[key][0] != "done"}
        left = tuple(run for run in runs if broken.isdisjoint(stage.key for stage in run.stage.chain))
        plan = Plan(points.base, points.table_data, left)
        items, _ = work(plan, statuses, cache(storage.exists), self._retry)
        for item in items:
            item.name = f"trial {self._number}: {item.name}"
        stages = Stages(items, self._ask, storage, keep_weights=True)
        while stages.open:
            if next_one := stages.next():
                stages.ended(next_one, self._train(next_one))
            else:
                time.sleep(0.5)  # another process trains the stage
                stages.ask_again()
        self._failed |= {event.item.stage.key: event.reason for event in stages.events() if event.kind == "failed"}

    def _ask(self, method: str, *arguments: Any) -> Any:
        return ask(self._ledger, method, *arguments, *([self._number] if method == "lease" else []))

    def _train(self, item: Item) -> Ended:
        if self._worker is None:
            self._worker = start_worker(self._request, self._setup, self._ledger)
        found = result_of(submit(self._worker, item, self._vocabulary, self._token_cache))
        if found.status in ("stopped", "left", "died"):
            self.cleanup()
        if found.status == "stopped":  # Tune starts the trial again elsewhere, where the study goes on
            raise StoppedError(found.reason)
        return found

    def cleanup(self) -> None:
        if self._worker is not None:
            ray.kill(self._worker)
            self._worker = None
