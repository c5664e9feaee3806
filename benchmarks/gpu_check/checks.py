"""Every check by its name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.gpu_check import numerics, processes, updates
from benchmarks.gpu_check.models import Setting, trained
from benchmarks.gpu_check.rows import Finding, SkippedError

Check = Callable[[], Finding]


def checks(setting: Setting) -> dict[str, Check]:
    """What is known soonest comes first: numbers, then processes, then times."""
    found: dict[str, Check] = {"float32 product": partial(numerics.product, setting)}
    for name in trained():
        found[f"losses {name}"] = partial(numerics.losses, setting, name)
    for kind in numerics.KINDS:
        found[f"packed {kind}"] = partial(numerics.packed, setting, kind)
    for name in numerics.SPLIT:
        found[f"micro-batches {name}"] = partial(numerics.micro_batches, setting, name)
    for precision in numerics.DROPOUT:
        found[f"dropout {precision}"] = partial(numerics.dropout, setting, precision)
    for name in numerics.COMPARED:
        for precision in ("bf16", "fp16"):
            found[f"{precision} {name}"] = partial(numerics.half, setting, name, precision)
    for name in numerics.COMPARED:
        for precision in ("fp32", "bf16"):
            found[f"repeated {name} {precision}"] = partial(numerics.repeated, setting, name, precision)
    found["process group of one"] = partial(numerics.group_of_one, setting)
    found["two runs on one GPU"] = partial(processes.two_runs, setting)
    found["worker group of one"] = partial(processes.worker_group, setting)
    found["out of memory"] = partial(processes.out_of_memory, setting)
    found["CUDA error"] = partial(processes.cuda_error, setting)
    for shape in setting.shapes:
        for name in updates.timed():
            for precision in ("fp32", "bf16"):
                found[f"update {name} {shape} {precision}"] = _timing(setting, name, shape, precision)
    return found


def _timing(setting: Setting, name: str, shape: str, precision: str) -> Check:
    if name == "mlm-512" and shape != setting.shapes[-1]:
        return partial(_skipped, "blocks of 512 tokens are timed with the largest shape")
    if name == "mlm-512" and not setting.cuda:
        return partial(_skipped, "needs a GPU: minutes per update on a CPU")
    return partial(updates.update, setting, name, shape, precision)


def _skipped(why: str) -> Finding:
    raise SkippedError(why)


def chosen(names: Mapping[str, Check], words: str) -> list[str]:
    """The names that begin with one of the comma-separated words; all of them for ''. Raises ValueError for a word that none
    begins with."""
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    for word in wanted:
        if not any(name.startswith(word) for name in names):
            raise ValueError(f"no check begins with '{word}': there are {', '.join(names)}")
    return [name for name in names if not wanted or any(name.startswith(word) for word in wanted)]
