"""Averaged SGD from the epoch on in which validation stalls (NT-ASGD, Merity et al. 2017, algorithm 1)."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import get_swa_multi_avg_fn


class Averaging:
    """Begins to average the weights once validation has stalled. The average is then what is validated.

    The trigger is that of the authors' code. More than `patience` validations came before, and the loss is
    worse than the best of them without the latest `patience`. From the next step on, the mean of all weights
    since is kept. The weights that are trained, and their rate, go on as before. Every rank must see the same
    (global) losses, or their weights part.

    A worker averages what it holds: the model, or the part of it that `sync=fsdp` gives it.

    - average: the mean by parameter's name, None before the switch.
    - steps: whose weights are in it.
    """

    def __init__(self, model: nn.Module, *, patience: int) -> None:
        self.model = model
        self.patience = patience
        self.losses: list[float] = []
        self.average: dict[str, Tensor] | None = None
        self.steps = 0

    def after_step(self) -> None:
        """Take the weights of a step into the average, if there is one."""
        if self.average is not None:
            get_swa_multi_avg_fn()(list(self.average.values()), self._weights(), self.steps)
            self.steps += 1

    @contextmanager
    def validation_weights(self) -> Iterator[None]:
        """Give the model its average in this context. Before the switch, nothing changes."""
        if self.average is None:
            yield
            return
        weights = self._weights()
        own = [weight.clone() for weight in weights]
        _copy(self.average.values(), weights)
        try:
            yield
        finally:
            _copy(own, weights)

    def after_validation(self, metrics: Mapping[str, float]) -> None:
        """Look at a validation's loss, and start the average when it is time."""
        if self.average is not None:
            return
        loss, before = metrics["loss"], self.losses[: -self.patience]
        if before and loss > min(before):
            self._start()
        self.losses.append(loss)

    def _start(self) -> None:
        self.average = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}

    def _weights(self) -> list[Tensor]:
        return [weight.detach() for weight in self.model.parameters()]

    def state_dict(self) -> dict[str, Any]:
        """Return numbers and tensors for a checkpoint."""
        return {"losses": self.losses, "average": self.average, "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the moment of `state_dict`."""
        self.losses, self.steps = list(state["losses"]), state["steps"]
        if state["average"] is not None:
            self._start()
            assert self.average is not None
            _copy(state["average"].values(), self.average.values())


def _copy(sources: Iterable[Tensor], targets: Iterable[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
