"""Studies small enough to be run as real commands, and what they leave in their store and folder."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import psutil

from harness.cli.request import read_words
from harness.commands.prepare import prepare
from harness.planning.point import PointFile
from harness.yaml_files import load_yaml

SPACE = """
name: little
method: cmlm
table: few_shot
tasks: [movies]
sizes: [20]
subsets: 2
seeds: [31]
racing: none
defaults: {alpha: 0.5, p_c: 0.7}
grid:
  alpha: [0.1, 0.5]
  p_c: [0.7]
presets:
  quick: {description: for tests}
"""
TINY = "--set max_length=16 --set mlm_head.steps=2 --set fine_tune.steps=24 --set post_train.steps=12"
GRID = f"tune cmlm --space space.yaml --grid --slots 2 --out grid {TINY}"
BENCH = (
    f"bench --table few_shot --preset quick --methods cmlm --tasks movies --sizes 20 --subsets 0,1 --seeds 31 {TINY}"
)
"""What both are judged by, as a bench."""
POINTS = [{"alpha": alpha, "p_c": p_c} for alpha in (0.1, 0.5) for p_c in (0.7,)]
NOISE = ("Traceback", "WARNING", "Warning", "INFO", "(raylet)", "pid=", "[I 2", "local mode", "Trainable")


def space_in(folder: Path) -> Path:
    (folder / "space.yaml").write_text(SPACE, encoding="utf-8")
    return folder


def table(folder: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((folder / "points.json").read_text())
    return body


def best(folder: Path) -> dict[str, Any]:
    return dict(load_yaml(folder / "best.yaml", PointFile).set)


def keys_of_bench(point: dict[str, Any]) -> set[str]:
    """Keys of all stages that `bench --set` would train for a point; nothing is trained."""
    settings = [word for path, value in point.items() for word in ("--set", f"cmlm.{path}={value}")]
    return set(prepare(read_words([*BENCH.split(), *settings]), train=False).plan.stages)


def leases(folder: Path) -> int:
    """How many are alive. One that was granted in the instant of an interruption may stay: it is free once its owner has ended."""
    connection = sqlite3.connect(folder / ".harness" / "harness.db")
    owners = connection.execute("SELECT pid FROM leases").fetchall()
    connection.close()
    return sum(psutil.pid_exists(pid) for (pid,) in owners)


def weights(folder: Path) -> set[str]:
    """Keys of the stages whose weights are kept."""
    return {path.name.partition(".")[0] for path in (folder / ".harness" / "products").iterdir()}


def roots(folder: Path) -> set[str]:
    """Keys of the recorded stages that start from no other."""
    connection = sqlite3.connect(folder / ".harness" / "harness.db")
    stages = dict(connection.execute("SELECT key, stage FROM records"))
    connection.close()
    return {key for key, stage in stages.items() if "stage" not in json.loads(stage)["init"]}
