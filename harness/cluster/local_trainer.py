"""Ray Train around a stage's training function: local mode for one worker, which costs a third of a millisecond."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

from harness.training.result import TrainingResult


def launch(train_function: Callable[[], TrainingResult]) -> TrainingResult:
    """Run the training function under `TorchTrainer`. Returns its result; its own exceptions pass unchanged."""
    logging.getLogger("ray.train").setLevel(logging.ERROR)
    caught: list[Exception] = []

    def train_loop() -> TrainingResult | None:
        try:
            return train_function()
        except Exception as error:  # Ray Train would wrap it, and the record needs the stage's own reason
            caught.append(error)
            return None

    result = TorchTrainer(train_loop, scaling_config=ScalingConfig(num_workers=0)).fit()
    if caught:
        raise caught[0]
    outcome: TrainingResult = result.return_value
    return outcome
