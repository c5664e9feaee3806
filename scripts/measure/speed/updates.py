"""What an update costs in each row of table k_shot: CPU seconds on one thread, with the batch and the length of its laptop preset.

    python scripts/measure/speed/updates.py [--encoder bert-tiny] [--task sst2] [--updates 20] [--data FOLDER]

CPU time changes less than wall time beside other work. Evaluations are not counted; an evaluation of a prompt with demonstrations reads
each example as often as it draws them (`draws`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from case import Case, Opened
from tabulate import tabulate

from harness.machine import KEEP_FREED, set_malloc
from harness.training.loop import Inputs, train

ROWS = ("FT", "w/o demonstrations", "Prompt")


class KShot(Case):  # type: ignore[misc]
    """The rows of table k_shot on its first split."""

    def command(self, store: Path, seeds: int) -> list[str]:
        words = f"bench --table k_shot --preset laptop --encoder {self.encoder} --tasks {self.task} --subsets 1"
        words += f" --set mlm_head.steps=0 --store sqlite:///{store} --yes" + (
            f" --data {self.data}" if self.data else ""
        )
        return [*words.split(), "--methods", ",".join(ROWS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    for name, default in (("encoder", "bert-tiny"), ("task", "sst2"), ("data", "")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--updates", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    set_malloc(KEEP_FREED)
    case = KShot(args.encoder, args.task, args.updates, 0.0, args.data)
    lines: list[tuple[str, int, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        opened = Opened(case, Path(folder))
        for run in opened.plan.runs:
            inputs, optim = opened.inputs(run.stage), run.stage.optim
            objective = opened.objective(run.stage)
            alone = Inputs(inputs.train, inputs.labels, {})
            for updates in (3, args.updates):  # the first ones fill caches
                started = time.process_time()
                train(objective, alone, replace(optim, steps=updates), run.stage.seed)
                spent = 1000 * (time.process_time() - started) / updates
            lines.append((run.row, optim.batch_size, spent, spent / lines[0][2] if lines else 1.0))
    print(f"{case.name}, {args.updates} updates, one thread")
    print(tabulate(lines, headers=("row", "batch", "CPU ms an update", "of the first row's"), floatfmt=".2f"))


if __name__ == "__main__":
    main()
