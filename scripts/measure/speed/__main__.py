"""Is the harness faster than what one would use instead? Whole few-shot runs and their parts, by turns on one machine.

    python scripts/measure/speed [--data GLUE_FOLDER] [--rounds 3] [--only bert-tiny/movies] [--out FOLDER]

Needs `pip install -e '.[speed]'` (accelerate, for Hugging Face's Trainer). Prints a table, the parts and the goals, and writes
them with a picture and everything measured as JSON, machine and versions included. Interrupted, the same command resumes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from case import EVERY, Case, Opened
from report import BASELINE, DYNAMIC, goals, parts_table, picture, table
from variants import Variant, bare, bf16, cores, harness_bench, trainer

from harness import __version__
from harness.machine import cpu_name
from harness.specs import Record
from harness.store import Owner, Store

HERE = Path(__file__).parent
ALL: dict[str, Variant] = {
    BASELINE: trainer("max_length", 1),
    DYNAMIC: trainer("dynamic", 1),
    f"{DYNAMIC}, a process a core": trainer("dynamic", cores()),
    "bare loop": bare,
    "harness bench": harness_bench,
    "harness bench, bf16": bf16(harness_bench),
}
LONG = tuple(name for name in ALL if name not in (f"{DYNAMIC}, a process a core", "harness bench, bf16"))
"""For tasks whose texts fill 128 tokens: there is little padding to save, and a round is long."""
CASES = (
    (Case("bert-tiny", "movies", 200, 5e-4, bench_runs=7), tuple(ALL)),
    (Case("minilm", "movies", 20, 5e-5), tuple(ALL)),
    (Case("bert-tiny", "boolq", 20, 5e-4), LONG),
    (Case("minilm", "boolq", 5, 5e-5), LONG),
)
GLUE_CASES = (
    (Case("bert-tiny", "sst2", 300, 5e-4, bench_runs=7), tuple(ALL)),
    (Case("minilm", "sst2", 60, 5e-5), tuple(ALL)),
    (Case("bert-tiny", "rte", 100, 5e-4), LONG),
    (Case("minilm", "rte", 20, 5e-5), LONG),
)


def timed(case: Case, variants: tuple[str, ...], rounds: int) -> dict[str, Any]:
    """Every way of a case once a round, each round beginning with another one."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        opened = Opened(case, Path(place))
        for number in range(rounds):
            each: dict[str, Any] = {}
            shift = number % len(variants)
            for name in (*variants[shift:], *variants[:shift]):
                with tempfile.TemporaryDirectory() as folder:
                    each[name] = asdict(ALL[name](opened, Path(folder)))
                said = each[name]
                print(
                    f"{case.name}, round {number + 1}: {name}: {said['inside'] / said['runs']:.2f} s a run", flush=True
                )
                ended = {(e["steps"], e["evaluations"]) for e in said["ended"]}
                assert ended == {(case.steps, -(-case.steps // EVERY))}, f"not the same work: {ended}"
            found.append({name: each[name] for name in variants})
        lengths = opened.mean_tokens
    return {"name": case.name, "case": asdict(case), "mean_tokens": lengths, "rounds": found}


def script(name: str, case: Case, *words: Any, threads: int = 0) -> Any:
    """What one of our scripts printed last, with a folder of its own as its last word."""
    with tempfile.TemporaryDirectory() as folder:
        path = case.write(Path(folder) / "case.json")
        command = [sys.executable, str(HERE / name), str(path), *map(str, words), folder]
        environment = dict(os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {}))
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def commands(repeats: int) -> Mapping[str, tuple[float, list[float]]]:
    """Seconds of whole commands: `--help`, and the plan of 10,000 runs against a store that holds them all."""
    subsets, seeds = "0,1,2,3,4", ",".join(map(str, range(200)))
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "harness.db"
        plan = (
            f"plan --table few_shot --preset quick --methods ft,scl,mlm,tapt,cmlm --subsets {subsets} --seeds {seeds}"
        )
        plan += f" --store sqlite:///{database}"
        from harness.cli.request import read_words
        from harness.commands.prepare import prepare

        prepared = prepare(read_words(plan.split()), train=False)
        assert len(prepared.plan.runs) == 10_000, len(prepared.plan.runs)
        store, owner = Store(f"sqlite:///{database}"), Owner.current()
        for stage in prepared.plan.stages.values():
            store.lease(stage.key, owner)
            store.commit(
                stage, Record(stage.key, "done", provenance={"host": "", "encoder": ""}, seconds=1, flops=1), owner
            )
        return {
            "harness --help": (0.3, [_seconds("--help") for _ in range(repeats)]),
            "a plan of 10,000 runs, made and checked": (2.0, [_planning(plan) for _ in range(repeats)]),
            "harness plan of 10,000 runs, the whole command": (2.0, [_seconds(plan) for _ in range(repeats)]),
        }


def _seconds(words: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "harness", *words.split()], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


PLANNING = """
import sys, time
from harness.cli.request import read_words
from harness.commands.prepare import prepare
started = time.perf_counter()
prepare(read_words(sys.argv[1:]), train=False)
print(time.perf_counter() - started)
"""


def _planning(words: str) -> float:
    """Seconds in a fresh process, after its imports."""
    command = [sys.executable, "-c", PLANNING, *words.split()]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _code() -> str:
    """Digest of the harness's own files."""
    files = sorted((HERE.parents[2] / "harness").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def machine() -> dict[str, Any]:
    packages = ("torch", "transformers", "accelerate", "datasets", "ray", "numpy")
    seen = {
        "device": cpu_name(),
        "cores": cores(),
        "load_at_start": os.getloadavg()[0],
        "at": time.strftime("%F %T"),
        "harness": __version__,
        "code": _code(),
    }
    return seen | {"versions": {name: version(name) for name in packages}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--data", default="", help="a folder of GLUE: SST-2 and RTE are timed too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", default="", help="cases by ENCODER/TASK, separated by commas; 'none': parts and goals only"
    )
    parser.add_argument("--out", type=Path, default=Path(".harness/speed"))
    args = parser.parse_args()
    if not all(map(find_spec, ("accelerate", "datasets"))):
        raise SystemExit(
            "Hugging Face's Trainer needs accelerate and datasets: pip install -c constraints.txt -e '.[speed]'"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    glue = tuple((replace(case, data=args.data), ways) for case, ways in GLUE_CASES) if args.data else ()
    every = {f"{case.encoder}/{case.task}": (case, ways) for case, ways in (*CASES, *glue)}
    wanted = args.only.split(",") if args.only else list(every)
    if unknown := [name for name in wanted if name not in every and name != "none"]:
        raise SystemExit(f"--only: no case {unknown[0]}; there are {', '.join(every)}.")
    tiny, mini = CASES[0][0], CASES[1][0]
    few_shot = {"bert-tiny": (replace(tiny, steps=700), 7), "minilm": (replace(mini, steps=100), 4)}
    found: dict[str, Any] = {"machine": machine(), "cases": []}
    if (args.out / "speed.json").exists():
        here, found = found["machine"], json.loads((args.out / "speed.json").read_text(encoding="utf-8"))
        if any(here[key] != found["machine"].get(key) for key in ("device", "cores", "code", "versions")):
            raise SystemExit(
                f"{args.out}/speed.json was measured on another machine, or with other code or versions: give another --out."
            )
        print(f"going on with {args.out}/speed.json of {found['machine']['at']}: what it has is not timed again")
    for key, measure in (
        ("commands", lambda: commands(5)),
        ("overhead", lambda: {n: script("overhead.py", case, runs, 1) for n, (case, runs) in few_shot.items()}),
        ("many_runs", lambda: script("overhead.py", replace(tiny, steps=5), 500, cores())),
        ("parts", lambda: {case.encoder: script("parts.py", case, 3, threads=1) for case in (tiny, mini)}),
    ):
        found[key] = found.get(key) or measure()
    there = {json.dumps(each["case"], sort_keys=True) for each in found["cases"]}
    _write(found, args.out)
    for name in wanted:
        if name != "none" and json.dumps(asdict(every[name][0]), sort_keys=True) not in there:
            found["cases"].append(timed(*every[name], args.rounds))
            _write(found, args.out)
    print(f"\n{(args.out / 'speed.txt').read_text(encoding='utf-8')}")
    print(f"written: {args.out}/speed.json, speed.txt, speed.png")


def _write(found: dict[str, Any], folder: Path) -> None:
    """What is known so far."""
    (folder / "speed.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    text = "\n\n".join((table(found), parts_table(found), _overheads(found), goals(found)))
    (folder / "speed.txt").write_text(text + "\n", encoding="utf-8")
    if found["cases"]:
        picture(found, folder / "speed.png")


def _overheads(found: dict[str, Any]) -> str:
    lines = [
        f"{name}: {each['loop_seconds_a_run']:.2f} s a run in the loop, {each['in_run_milliseconds']:.1f} ms of it outside, "
        f"{each['between_runs_milliseconds']:.1f} ms between runs: {each['overhead']:.2%} overhead"
        for name, each in found["overhead"].items()
    ]
    many = found["many_runs"]
    memory = "; ".join(
        f"after {n}: " + ", ".join(f"{k} {v:.0f}" for k, v in sorted(m.items())) for n, m in many["memory"]
    )
    lines.append(f"{many['runs']} runs on {many['slots']} slots, megabytes: {memory}")
    shown = "; ".join(", ".join(f"{each:.0f}" for each in worker) for worker in many["worker_megabytes"])
    lines.append(f"its workers, resident megabytes after a tenth, half and all of their runs: {shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
