"""What can only be known on a GPU: are numbers, processes and errors there as on a CPU, and how fast is an update?

    python benchmarks/gpu_check [--device cuda] [--only losses,packed] [--minutes 8] [--out FOLDER]

Prints a table with pass, fail or skipped for each check, writes it with everything measured as JSON, and exits with 1 when a
check failed. Needs no text, no encoder and no network; on a machine with several GPUs it takes the first. `--device cpu` runs
what has a meaning there. `pip install -e '.[speed]'` adds Hugging Face's Trainer to the timings. docs/gpu.md explains the table.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu_check.rows import Row, as_json, line_of, one_line, row_of, summary, table
from benchmarks.gpu_check.runner import BEGUN, ENDED, run_all

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "transformers", "accelerate", "ray", "numpy", "safetensors")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    made.add_argument("--only", default="", help="beginnings of the checks' names, separated by commas")
    made.add_argument("--minutes", type=float, default=8.0, help="checks that have not ended by then are skipped")
    made.add_argument("--out", type=Path, default=Path(".harness/gpu_check"))
    made.add_argument("--report", type=Path, help=argparse.SUPPRESS)  # in the process that runs the checks
    made.add_argument("--names", default="", help=argparse.SUPPRESS)
    return made


def setting_of(device: str, folder: Path) -> Any:
    """The sizes of the checks: on a CPU the timings are of bert-tiny alone, with few updates."""
    import torch

    from benchmarks.gpu_check.models import Setting

    made = Setting(torch.device(device), folder)
    if device == "cpu":
        made = replace(made, shape="tiny", repeated="tiny", shapes=("bert-tiny",), updates=5, warm=2)
    return made


def machine(device: str) -> dict[str, Any]:
    """What the table was measured on."""
    import torch

    seen: dict[str, Any] = {
        "at": time.strftime("%F %T %Z"),
        "host": platform.node(),
        "python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            seen[name] = version(name)
        except PackageNotFoundError:
            seen[name] = None
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        seen |= {"device": properties.name, "gibibytes": round(properties.total_memory / 2**30, 1)}
        seen |= {"cuda": torch.version.cuda, "capability": f"{properties.major}.{properties.minor}"}
    else:
        from harness.running import cpu_name

        seen |= {"device": cpu_name(), "threads": 1}
    described = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    try:
        seen["commit"] = subprocess.run(described, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        seen["commit"] = None
    return seen


def run_here(device: str, names: Sequence[str], report: Path) -> None:
    """Run these checks in this process; each is reported as it begins and as it ends."""
    import torch

    from benchmarks.gpu_check.checks import checks

    torch.set_float32_matmul_precision("highest")  # no TF32
    if device == "cpu":
        torch.set_num_threads(1)  # as a worker has
    with tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as folder:
        known = checks(setting_of(device, Path(folder)))
        for name in names:
            _append(report, BEGUN + name)
            row = row_of(name, known[name])
            _append(report, ENDED + line_of(row))
            if row.poisoned:
                break
            if device == "cuda":
                gc.collect()
                torch.cuda.empty_cache()


def _append(report: Path, line: str) -> None:
    with report.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def started(device: str, names: Sequence[str], report: Path, log: Path) -> subprocess.Popen[bytes]:
    """A process that runs these checks."""
    command = [sys.executable, str(Path(__file__).parent), "--device", device, "--report", str(report)]
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with log.open("ab") as file:
        return subprocess.Popen(
            [*command, "--names", ",".join(names)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(words)
    if arguments.report:
        run_here(arguments.device, arguments.names.split(","), arguments.report)
        return 0
    if arguments.device == "cuda":  # one GPU, also for the processes that are started here
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    import torch

    from benchmarks.gpu_check.checks import checks, chosen

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(
            f"torch {torch.__version__} sees no CUDA device; --device cpu runs the part that needs none.",
            file=sys.stderr,
        )
        return 2
    try:
        names = chosen(checks(setting_of(arguments.device, Path())), arguments.only)
    except ValueError as error:
        print(f"--only: {error}", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    seen, log = machine(arguments.device), arguments.out / "gpu_check.log"
    log.unlink(missing_ok=True)
    rows = run_all(
        names,
        lambda left, report, into: started(arguments.device, left, report, into),
        log,
        arguments.minutes,
        lambda row: print(table([row]).splitlines()[1], flush=True),
    )
    return finished(seen, rows, arguments.out)


def finished(seen: dict[str, Any], rows: Sequence[Row], folder: Path) -> int:
    """Print and write the table. Returns the exit status."""
    text = f"{one_line(seen)}\n\n{table(rows)}\n\n{summary(rows)}"
    (folder / "gpu_check.txt").write_text(text + "\n", encoding="utf-8")
    (folder / "gpu_check.json").write_text(as_json(seen, rows) + "\n", encoding="utf-8")
    print(f"\n{text}\nwritten: {folder}/gpu_check.txt, gpu_check.json, gpu_check.log")
    return int(any(row.status == "fail" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
