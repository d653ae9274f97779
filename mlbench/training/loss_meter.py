"""A rank's losses between two validations, summed on the device that computed them."""

import torch

from mlbench.training.precision import LossScaler


class LossMeter:
    """Adds up this rank's losses since the last `reset`. `total`, `steps` and `mean` wait for the device.

    A sum of float32 depends on the order of its additions. `fold` decides it, at steps that the configuration
    determines. `total` and `mean` change nothing, as heartbeats call them at any time.
    """

    def __init__(self, device: torch.device) -> None:
        self._losses: list[torch.Tensor] = []  # of micro-batches, not in the sum yet: one addition for all
        self._sum = torch.zeros((), device=device)
        self._steps = 0
        self._skipped = torch.zeros((), device=device)  # steps whose loss is not in the sum
        self.add = self._losses.append  # takes a micro-batch's loss, detached, without Python calls in a step

    def end_step(self, scaler: LossScaler | None, micro_batches: int) -> None:
        """Count a step. Take back its loss if that is not finite and the loss scale skipped the step.

        Half precision overflows now and then, and the scale's rule mends it: no sign of divergence.
        """
        self._steps += 1
        if scaler is not None:
            loss = torch.stack(self._losses[-micro_batches:]).sum()
            lost = scaler.overflowed & ~loss.isfinite()
            self._losses[-micro_batches:] = [torch.where(lost, 0.0, loss)]
            self._skipped += lost

    def fold(self) -> None:
        """Add to the sum what is not in it yet."""
        if self._losses:
            self._sum += torch.stack(self._losses).sum()
            self._losses.clear()

    def total(self) -> float:
        """Return the sum of the losses."""
        rest = torch.stack(self._losses).sum() if self._losses else 0.0
        return (self._sum + rest).item()

    def steps(self) -> float:
        """Return the number of steps whose losses are in the sum."""
        return self._steps - self._skipped.item()

    def mean(self) -> float:
        """Return the mean loss of a step."""
        return self.total() / max(1.0, self.steps())

    def reset(self) -> None:
        """Begin again, after a validation."""
        self._losses.clear()
        self._sum.zero_()
        self._skipped.zero_()
        self._steps = 0
