"""Mutated inputs for the command's entry, in this process: no case may end in a traceback, a hang or a wrong exit status.

    python benchmarks/fuzz [--cases 5000] [--seed 0] [--kinds table,space,...] [--case NUMBER]

A case is a command line and the files that it names. The files begin as valid ones (the packaged tables and search spaces, and a small
table, task, point, encoder, corpus, data set, translation and runtime environment made here), and then change: values, keys and parts
of YAML and JSON by their structure, any file by its bytes. Nothing trains: what would start Ray ends the case. A case passes when

- the status is 0, 1 or 2, and 0 or 1 come without an error;
- status 2 comes with one message on standard error, which begins with 'harness: ' and has at most four lines;
- it takes less than 10 s of this process's time, and five minutes by the clock, and 4 GiB more than the process has;
- no FLOPs of a plan are negative, infinite or no number.

Cases are numbered; each depends on the seed and its number alone. `--case NUMBER` runs one again, shows its command and output, and
keeps its folder. Exit status 1 when a case failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import math
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HARNESS_OUTAGE_SECONDS": "0"}

from cases import KINDS, Case
from inputs import prepare

from harness import cli
from harness.yaml_files import packaged_files

CPU_SECONDS, WALL_SECONDS, MEMORY = 10.0, 300.0, 4 << 30


class StoppedError(BaseException):
    """Raised instead of starting Ray or a translator; it ends the case."""


class HangError(BaseException):
    """The case took too long."""


def no_training() -> None:
    bench, tune = (importlib.import_module(f"harness.cli.{name}") for name in ("bench", "tune"))

    def stop(*_: Any, **__: Any) -> Any:
        raise StoppedError

    for module, names in ((bench, ("train", "back_translated")), (tune, ("open_study", "back_translated"))):
        for name in names:
            if not hasattr(module, name):
                raise SystemExit(f"{module.__name__} has no {name}: training would not be stopped.")
            setattr(module, name, stop)
    sys.modules["harness.cluster.jobs"] = type("Jobs", (), {"Jobs": stop})  # type: ignore[assignment]


def late(number: int, _: Any) -> None:
    raise HangError("CPU time" if number == signal.SIGVTALRM else "time by the clock")


def run(case: Case, folder: Path, valid: Path) -> tuple[int | str | None, str, str]:
    """Run the case in `folder`. Returns its status (None: it raised), the fault ('' for none), and its output."""
    shutil.copytree(valid, folder, symlinks=True)
    for name, raw in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    before = os.getcwd()
    os.chdir(folder)
    out, err = io.StringIO(), io.StringIO()
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    status: int | str | None
    trouble = ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = cli.main(case.words)
    except SystemExit as error:
        status = error.code
    except StoppedError:
        status = 0
    except HangError as error:
        status, trouble = None, f"hang ({error}) at {place(error)}"
    except BaseException as error:
        status, trouble = None, f"{type(error).__name__}: {str(error)[:200]} at {place(error)}"
        err.write(traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.chdir(before)
    printed = out.getvalue() + err.getvalue()
    return status, trouble or verdict(status, out.getvalue(), err.getvalue()), printed


def verdict(status: int | str | None, out: str, err: str) -> str:
    if status not in (0, 1, 2):
        return f"status {status}"
    message = err[err.find("harness: ") :] if "harness: " in err else ""
    if (status == 2) != bool(message):
        return f"status {status} with {'a' if message else 'no'} message: {message[:200]}"
    if message.rstrip("\n").count("\n") > 3:
        return f"a message of {message.count(chr(10))} lines: {message[:200]}"
    if "this process may use is full" in err:
        return "memory"
    flops = re.search(r"stages, (\S+) FLOPs", out + err)
    if flops and not 0 <= float(flops[1]) < math.inf:
        return f"{flops[1]} FLOPs"
    return ""


def place(error: BaseException) -> str:
    """The innermost line of the harness, and the innermost line of all."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = next((f for f in reversed(frames) if f"{os.sep}harness{os.sep}" in f.filename), frames[-1])
    return " < ".join(dict.fromkeys(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in (ours, frames[-1])))


def case_of(seed: int, number: int, kinds: list[str], packaged: Any) -> tuple[str, Case]:
    rng = random.Random(f"{seed}/{number}")
    kind = kinds[number % len(kinds)]
    return kind, KINDS[kind](rng, packaged)


def plain_files(folder: str) -> list[Any]:
    from ruamel.yaml import YAML

    reader = YAML(typ="safe", pure=True)
    return [reader.load(path.read_text(encoding="utf-8")) for path in packaged_files(folder).values()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--case", type=int, help="run this one alone and show it")
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    signal.signal(signal.SIGVTALRM, late)
    signal.signal(signal.SIGALRM, late)
    sys.stdin = io.StringIO()
    no_training()
    packaged = [plain_files("benchmarks"), plain_files("search_spaces")]
    with tempfile.TemporaryDirectory(prefix="harness-fuzz-") as root:
        valid = Path(root) / "valid"
        valid.mkdir()
        prepare(valid)
        if args.case is not None:
            return show(args.seed, args.case, kinds, packaged, valid)
        resource.setrlimit(resource.RLIMIT_DATA, (mapped() + MEMORY, resource.RLIM_INFINITY))
        started, failed, ends = time.monotonic(), Counter[str](), Counter[str]()
        for number in range(args.cases):
            kind, case = case_of(args.seed, number, kinds, packaged)
            folder = Path(root) / "case"
            status, trouble, _ = run(case, folder, valid)
            shutil.rmtree(folder)
            ends[f"status {status}"] += 1
            if trouble:
                failed[re.sub(r"\d+", "N", trouble)[:80]] += 1
                print(
                    printable(f"case {number} ({kind}): harness {shlex.join(case.words)}: {trouble}"[:1000]), flush=True
                )
        print(f"{args.cases:,} cases ({', '.join(f'{n} with {end}' for end, n in sorted(ends.items()))}), seed {args.seed}, in "
              f"{time.monotonic() - started:.0f} s: {failed.total()} failed, {len(failed)} kinds.")  # fmt: skip
    return 1 if failed else 0


def mapped() -> int:
    """Bytes of address space, more than what the limit counts."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def show(seed: int, number: int, kinds: list[str], packaged: Any, valid: Path) -> int:
    kind, case = case_of(seed, number, kinds, packaged)
    folder = Path(tempfile.mkdtemp(prefix=f"harness-fuzz-{number}-")) / "case"
    _, trouble, printed = run(case, folder, valid)
    words = shlex.join(case.words)
    print(printable(f"case {number} ({kind}) in {folder}:\nharness {words}\n{printed}\n{trouble or 'passes'}"))
    return 1 if trouble else 0


def printable(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


if __name__ == "__main__":
    sys.exit(main())
