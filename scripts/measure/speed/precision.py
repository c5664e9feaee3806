"""What bf16 does to accuracy: the same replicates fine-tuned in fp32 and in bf16, compared pair by pair.

    python scripts/measure/speed/precision.py [--encoder bert-tiny] [--task movies] [--size 100] [--steps 200] [--data FOLDER]

Prints the mean and standard deviation of both, the mean of their paired differences over subsets (seeds of one subset are not
independent evidence) with its standard error, and how many predictions differ.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from harness.cli.request import read_words
from harness.commands.prepare import prepare
from harness.store import Store
from harness.tasks.metrics import score

SUBSETS, SEEDS = (0, 1, 2, 3, 4), (31, 42, 53)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    for name, default in (("encoder", "bert-tiny"), ("task", "movies"), ("method", "ft"), ("data", "")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=5e-4)
    args = parser.parse_args()
    shared = (
        f"bench --table few_shot --preset quick --encoder {args.encoder} --tasks {args.task} --methods {args.method}"
    )
    shared += f" --sizes {args.size} --subsets {','.join(map(str, SUBSETS))} --seeds {','.join(map(str, SEEDS))} --yes"
    shared += f" --set mlm_head.steps=0 --set fine_tune.steps={args.steps} --set fine_tune.lr={args.lr}"
    shared += f" --data {args.data}" if args.data else ""
    scores, classes = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'harness.db'}"
        for precision in ("fp32", "bf16"):
            words = [*shared.split(), "--set", f"fine_tune.precision={precision}", "--store", store]
            subprocess.run([sys.executable, "-m", "harness", *words], check=True, capture_output=True)
            runs = prepare(read_words(words), train=False).plan.runs
            records = Store(store).records([run.stage.key for run in runs], predictions=True)
            found = [(run, records[run.stage.key].predictions[run.stage.data.tests[0].digest]) for run in runs]
            classes[precision] = np.stack([tested.logits.argmax(axis=1) for _, tested in found])
            accuracy = {(run.subset, run.seed): score("accuracy", p) for run, p in found}
            scores[precision] = 100 * np.array([[accuracy[subset, seed] for seed in SEEDS] for subset in SUBSETS])
    print(
        f"{args.method}, {args.encoder}, {args.task}, N = {args.size}, {args.steps} updates, {scores['fp32'].size} replicates"
    )
    for precision, each in scores.items():
        print(f"{precision}: test accuracy {each.mean():.2f} ± {each.std(ddof=1):.2f}")
    differences = scores["bf16"] - scores["fp32"]
    by_subset = differences.mean(axis=1)
    error = by_subset.std(ddof=1) / np.sqrt(len(by_subset))
    print(
        f"bf16 - fp32: {by_subset.mean():+.2f} ± {error:.2f} (standard error over {len(by_subset)} subsets), single "
        f"replicates {differences.min():+.2f} to {differences.max():+.2f}"
    )
    print(f"predictions that differ: {100 * (classes['fp32'] != classes['bf16']).mean():.1f} %")


if __name__ == "__main__":
    main()
