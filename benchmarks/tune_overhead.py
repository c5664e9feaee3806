"""Overhead of Ray Tune, Optuna and the study's records for each trial: N trials that train nothing, through the code of
`harness tune` (proposals, duplicates, history, Optuna's tables, racing), in warm actors.

    python benchmarks/tune_overhead.py [--trials 500] [--racing none]

Prints seconds a trial: wall time of the study without Ray's start, divided by the number of trials.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from functools import partial
from pathlib import Path

from harness.cli.parser import build_parser
from harness.cli.request import read_tune
from harness.cluster.session import session
from harness.commands.study import open_study, prepare_study
from harness.execution import Execution
from harness.search.trials import Point, ReplicateOutcome


class Nothing:
    """An evaluator whose replicates take no time. The score depends on the point, so that the sampler has something to learn."""

    def __init__(self, replicates: int) -> None:
        self.replicates = replicates

    def begin(self, number: int, point: Point) -> None:
        self._score = 1.0 / (1.0 + abs(float(point["alpha"]) - 0.3))

    def outcome(self, index: int) -> ReplicateOutcome:
        return ReplicateOutcome((self._score + 0.01 * index,))

    def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--racing", default="none")
    parser.add_argument("--sampler", default="tpe")
    parser.add_argument("--slots", type=int, default=2)
    own = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = f"tune cmlm --preset quick --subsets 0 --seeds 31 --search --trials {own.trials} --racing {own.racing}"
        text += f" --sampler {own.sampler} --store sqlite:///{folder}/harness.db --slots {own.slots}"
        study = prepare_study(read_tune(build_parser().parse_args(text.split())))
        with open_study(study) as opened, session(Execution(slots=own.slots), {}) as (dashboard, settled):
            dashboard.start()
            from harness.cluster.ledger import StopRequests
            from harness.cluster.tune import explore

            started = time.perf_counter()
            explore(
                opened.proposals,
                partial(Nothing, len(study.points.replicates)),
                study=opened.name,
                folder=Path(folder) / "tune",
                execution=settled,
                concurrent=own.slots,
                stop_requests=StopRequests(None),
            )
            spent = time.perf_counter() - started
            trials = opened.proposals.history.trials
    done = sum(trial.state == "complete" for trial in trials)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"trials {len(trials)} ({done} complete), sampler {own.sampler}, racing {own.racing}, {own.slots} slots")
    print(f"{spent:.1f} s, {spent / len(trials):.4f} s a trial; driver's peak memory {memory:.0f} MiB")


if __name__ == "__main__":
    main()
