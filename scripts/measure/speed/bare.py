"""The bare training loop: one run in a process that does nothing else, no Ray, no record, no store.

python scripts/measure/speed/bare.py CASE.json SEEDS INDEX FOLDER      (started by scripts/measure/speed)
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from case import Case, Opened, ended

from harness.machine import KEEP_FREED, set_malloc
from harness.training.loop import train
from harness.training.result import Scoring


def main() -> None:
    torch.set_num_threads(1)
    set_malloc(KEEP_FREED)
    opened = Opened(Case.read(sys.argv[1]), Path(sys.argv[4]), int(sys.argv[2]))
    stage = opened.runs[int(sys.argv[3])]
    inputs, objective = opened.inputs(stage), opened.objective(stage)
    began = time.time()
    outcome = train(objective, inputs, stage.optim, stage.seed, scoring=Scoring.of(stage, ("accuracy",)))
    print(json.dumps({"began": began, "ended": time.time(), **ended(stage, outcome)}))


if __name__ == "__main__":
    main()
