"""Measure Lightning's `Trainer.fit`: `Trainer(..., callbacks=[MeasureCallback("val_loss", goal=0.1)])`."""

from collections.abc import Sequence
from contextlib import ExitStack

import mlbench
from mlbench.adapters.libraries import importing
from mlbench.config.goal import Direction

with importing("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer  # pyright: ignore[reportMissingImports]
    from lightning.pytorch.utilities.exceptions import SIGTERMException  # pyright: ignore[reportMissingImports]


class MeasureCallback(Callback):
    """Measure `fit`, and end it once a validation reaches the goal.

    - metric: a name that the module logs at validation, with sync_dist=True if there are several ranks.
    - goal, direction, overrides: as of `mlbench.measure`.
    """

    def __init__(
        self,
        metric: str,
        goal: float | None = None,
        *,
        direction: Direction = "max",
        overrides: Sequence[str] = (),
    ) -> None:
        self._run = mlbench.measure(metric, goal, direction=direction, overrides=overrides)
        self._fit = ExitStack()  # empty before and after a fit

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin, as the process group exists now."""
        self._fit.enter_context(self._run)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pass on the metric, but not of the check before the training or of `trainer.validate`."""
        value = trainer.callback_metrics.get(self._run.metric)
        if value is None or trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if self._run.validation(**{self._run.metric: value.item()}):
            trainer.should_stop = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the record and print the card."""
        self._fit.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write why the fit failed. SIGTERM interrupts it as Ctrl-C does."""
        error = KeyboardInterrupt() if isinstance(exception, SIGTERMException) else exception
        self._fit.__exit__(type(error), error, error.__traceback__)
