"""End transformers' Trainer at a goal: `Trainer(..., callbacks=[GoalCallback(run)])`."""

from typing import Any

from mlbench.adapters.libraries import importing
from mlbench.launch.in_script import Measurement

with importing("transformers"):
    from transformers import (  # pyright: ignore[reportMissingImports]
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )


class GoalCallback(TrainerCallback):
    """Record every evaluation in a measurement, and end the training once its goal is reached.

    - run: of `with mlbench.measure(metric="eval_loss", ...) as run:`, around `trainer.train()`, after the
      Trainer was made, which makes the process group.
    """

    def __init__(self, run: Measurement) -> None:
        self._run = run

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Pass on the metric, which is equal on all ranks. Another data set or prefix has other names."""
        if metrics and self._run.metric in metrics and self._run.validation(**metrics):
            control.should_training_stop = True
