"""Mutated inputs for the command's entry, in this process: no case ends in a traceback, a hang or a wrong exit status.

    pytest tests/cli/test_fuzz.py -m slow --fuzz-seed 3      # 200 cases of each kind

A case is a command line and a folder of valid inputs, of which one file that the command reads has changed: values, keys and parts of YAML and JSON
by their structure, any file by its bytes. Nothing trains: what would start Ray ends the case. A case passes when

- the status is 0, 1 or 2, and 0 or 1 come without an error;
- status 2 comes with one message on standard error, which begins with 'harness: ' and has at most four lines;
- it takes less than 10 s of this process's time, and five minutes by the clock, and 4 GiB more than the process has;
- no control character of a name and no password of a URL reaches standard error;
- no FLOPs of a plan are negative, infinite or no number.

Each case depends on the seed, its kind and its number alone. The failure names the folder of a case that fails, which is kept.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import random
import re
import resource
import shlex
import shutil
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz.cases import KINDS, case
from fuzz.inputs import prepare

from harness import cli, errors
from harness.wording import escaped
from harness.yaml_files import packaged_files

CPU_SECONDS, WALL_SECONDS, MEMORY = 10.0, 300.0, 4 << 30


class StoppedError(BaseException):
    """Raised instead of starting Ray or a translator; it ends the case."""


class HangError(BaseException):
    """The case took too long."""


def stop(*_: Any, **__: Any) -> Any:
    raise StoppedError


def late(number: int, _: Any) -> None:
    raise HangError("CPU time" if number == signal.SIGVTALRM else "time by the clock")


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with the valid inputs and the packaged tables, and the keys of its records."""
    folder = tmp_path_factory.mktemp("fuzz") / "valid"
    (folder / "benchmarks").mkdir(parents=True)
    for name, path in packaged_files("benchmarks").items():
        shutil.copy(path, folder / "benchmarks" / f"{name}.yaml")
    return folder, prepare(folder)


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing trains, nothing that is away is waited for, and time and memory have an end."""
    for place in ("train.train", "train.translate_texts", "study.translate_texts", "study.open_study", "trained.train"):
        monkeypatch.setattr(f"harness.commands.{place}", stop)
    monkeypatch.setattr(errors, "WAITS", ())
    monkeypatch.setenv("WANDB_MODE", "disabled")
    handlers = {number: signal.signal(number, late) for number in (signal.SIGVTALRM, signal.SIGALRM)}
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (mapped + MEMORY, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, limits)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cases", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_no_traceback_and_no_hang(
    kind: str, cases: int, valid: tuple[Path, list[str]], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder, keys = valid
    seed = request.config.getoption("--fuzz-seed")
    failed = []
    for number in range(cases):
        here = tmp_path / str(number)
        shutil.copytree(folder, here)
        words = case(random.Random(f"{seed}/{kind}/{number}"), kind, here, keys)
        if trouble := run(words, here):
            failed.append(f"{here}: harness {shlex.join(words)}: {trouble}")
        else:
            shutil.rmtree(here)
    assert not failed, "\n".join(failed).encode("ascii", "backslashreplace").decode()


def run(words: list[str], folder: Path) -> str:
    """Run the command in a folder. Returns what is wrong with its end, '' for nothing."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), io.StringIO()
    status: int | str | None
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = cli.main(words)
    except SystemExit as error:
        status = error.code
    except StoppedError:
        status = 0
    except HangError as error:
        return f"hang ({error}) at {place(error)}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]} at {place(error)}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return verdict(status, out.buffer.getvalue().decode("utf-8", "replace"), err.getvalue())


def verdict(status: int | str | None, out: str, err: str) -> str:
    if status not in (0, 1, 2):
        return f"status {status}"
    message = err[err.find("harness: ") :] if "harness: " in err else ""
    if (status == 2) != bool(message):
        return f"status {status} with {'a' if message else 'no'} message: {message[:200]}"
    if message.rstrip("\n").count("\n") > 3:
        return f"a message of {message.count(chr(10))} lines: {message[:200]}"
    if escaped(err, lines=True) != err or "hush" in err:
        return "raw control characters, or a password, on standard error"
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
