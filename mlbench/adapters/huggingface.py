"""A goal for transformers' Trainer: `Trainer(..., callbacks=[GoalCallback(run)])`."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments  # pyright: ignore[reportMissingImports]

from mlbench.launch.in_script import Measurement


class GoalCallback(TrainerCallback):
    """Notes every evaluation in a measurement, and ends the training once its goal is reached.

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
        """Tell the metric, which is alike on all ranks; another data set or prefix has other names."""
        if metrics and self._run.metric in metrics and self._run.validation(**metrics):
            control.should_training_stop = True
