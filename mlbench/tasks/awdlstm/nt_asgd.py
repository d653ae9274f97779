"""Averaged SGD from the epoch on in which validation stalls (NT-ASGD, Merity et al. 2017, algorithm 1)."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel


class Averaging:
    """Begins to average the weights once validation has stalled; the average is then what is validated.

    The trigger is that of the authors' code: more than `patience` validations came before, and the
    loss is worse than the best of them without the latest `patience`. From the next step on, the mean
    of all weights since is kept; the weights that are trained, and their rate, go on as before.
    Every rank must see the same (global) losses, or their weights part.
    """

    def __init__(self, model: nn.Module, *, patience: int) -> None:
        self.model = model
        self.patience = patience
        self.losses: list[float] = []
        self.average: AveragedModel | None = None

    def after_step(self) -> None:
        """Take the weights of a step into the average, if there is one."""
        if self.average is not None:
            self.average.update_parameters(self.model)

    def validated(self, model: nn.Module) -> nn.Module:
        """Return the model to validate: the average, or `model` before the switch."""
        return model if self.average is None else self.average.module

    def after_validation(self, metrics: Mapping[str, float]) -> None:
        """Look at a validation's loss, and start the average when it is time."""
        if self.average is not None:
            return
        loss, before = metrics["loss"], self.losses[: -self.patience]
        if before and loss > min(before):
            self._start()
        self.losses.append(loss)

    def _start(self) -> None:
        self.average = AveragedModel(self.model)
        self.average.eval()  # it is never trained, so it never drops anything

    def state_dict(self) -> dict[str, Any]:
        """Return numbers and tensors for a checkpoint."""
        average = None if self.average is None else self.average.state_dict()
        return {"losses": self.losses, "average": average}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.losses = list(state["losses"])
        if state["average"] is not None:
            self._start()
            assert self.average is not None
            self.average.load_state_dict(state["average"])
