"""Where each millisecond of one stage goes: its wall time by kind of work, from torch's profiler, one thread.

    python scripts/measure/speed/where_time_goes.py [--encoder bert-tiny] [--task movies] [--method ft] [--steps 100] [--data FOLDER]

The stage is the method's own: fine-tuning of FT or SCL with its evaluations, post-training of the others.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch
from case import Case, Opened
from tabulate import tabulate
from torch.profiler import ProfilerActivity, profile

from harness.machine import KEEP_FREED, set_malloc
from harness.training.loop import train
from harness.training.result import Scoring

KINDS = {
    "linear layers": ("mkldnn::_linear_pointwise", "aten::addmm", "aten::mm", "mkldnn::_linear_backward"),
    "attention's products": ("aten::bmm", "aten::baddbmm", "aten::_scaled_dot_product_flash_attention"),
    "softmax": ("softmax",),
    "GELU": ("aten::gelu",),
    "dropout's draws": ("aten::random_", "aten::bernoulli_", "aten::ge"),
    "layer norm": ("layer_norm",),
    "optimizer, clipping": ("_fused_adamw_", "Optimizer", "_foreach", "linalg_vector_norm", "aten::stack"),
    "gathering and scattering": ("index", "aten::embedding", "scatter", "gather"),
    "fills and copies": ("aten::fill_", "aten::zero_", "aten::copy_", "aten::cat", "aten::clone"),
    "elementwise": ("aten::mul", "aten::add", "aten::sub", "aten::div", "aten::sum", "aten::where", "aten::tanh"),
    "our autograd functions, in Python": ("_OneDnn", "_Grouped", "_Dropped", "_Layer"),
}
"""Kinds of work by what their names contain; the first that fits."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    for name, default in (("encoder", "bert-tiny"), ("task", "movies"), ("method", "ft"), ("data", "")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--precision", default="fp32")
    args = parser.parse_args()
    torch.set_num_threads(1)
    set_malloc(KEEP_FREED)
    case = Case(args.encoder, args.task, args.steps, 5e-5, args.data, args.precision, args.method)
    with tempfile.TemporaryDirectory() as folder:
        opened = Opened(case, Path(folder))
        stage = opened.runs[0]
        stage = stage if args.method in ("ft", "scl") or stage.parent is None else stage.parent
        inputs = opened.inputs(stage)

        def run() -> float:
            objective = opened.objective(stage)
            started = time.perf_counter()
            train(objective, inputs, stage.optim, stage.seed, scoring=Scoring.of(stage, ("accuracy",)))
            return time.perf_counter() - started

        run()
        wall = run()
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            profiled = run()
    spent: dict[str, float] = defaultdict(float)
    for event in seen.key_averages():
        kind = next((k for k, signs in KINDS.items() if any(sign in event.key for sign in signs)), "other operators")
        spent[kind] += event.self_cpu_time_total / 1e6
    spent["Python between operators"] = profiled - sum(spent.values())
    lines = [
        (kind, 1000 * s * wall / profiled / case.steps, 100 * s / profiled)
        for kind, s in sorted(spent.items(), key=lambda each: -each[1])
    ]
    print(
        f"{case.name}, {stage.phase} of {args.method}: {wall:.2f} s, {1000 * wall / case.steps:.2f} ms an update, all in"
    )
    print(tabulate(lines, headers=("kind of work", "ms an update", "%"), floatfmt=".2f"))


if __name__ == "__main__":
    main()
