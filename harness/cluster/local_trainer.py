"""Ray Train around a stage's training function: local mode for one worker, which costs a third of a millisecond."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

from harness.training.result import TrainingResult


def launch(train_function: Callable[[], TrainingResult]) -> TrainingResult:
    """Run the training function under `TorchTrainer` and hand its result back; its own exceptions come through."""
    logging.getLogger("ray.train").setLevel(logging.ERROR)
    caught: list[Exception] = []

    def train_loop() -> TrainingResult | None:
        try:
            return train_function()
        except Exception as error:  # Ray Train would wrap it; the stage's own reason must reach its record
            caught.append(error)
            return None

    result = TorchTrainer(train_loop, scaling_config=ScalingConfig(num_workers=0)).fit()
    if caught:
        raise caught[0]
    outcome: TrainingResult = result.return_value
    return outcome
