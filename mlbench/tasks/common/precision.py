"""Mixed precision as a recipe declares it: autocast, and a loss scale that is bounded and counted."""

from typing import Any, Literal, NamedTuple

import torch

from mlbench.errors import UserError

Name = Literal["fp16", "bf16", "fp32"]


class Precision(NamedTuple):
    """What the loop needs; None and None is full precision."""

    autocast: torch.dtype | None
    scaler: "LossScaler | None"


class LossScaler(torch.amp.GradScaler):
    """torch's dynamic loss scale with a largest value and a count of the updates it skipped.

    The scale doubles after `window` updates without overflow, up to `largest`; an overflow halves it and
    the update is skipped. Nothing here waits for the device but `skipped_updates` and `state_dict`.
    """

    def __init__(self, device: torch.device, *, first: float, window: int, largest: float | None) -> None:
        super().__init__(device.type, init_scale=first, growth_interval=window)
        self._largest = largest
        self._skipped = torch.zeros((), device=device)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Halve, double or keep the scale after an update; torch's own knows no largest."""
        assert self._scale is not None, "scale, then step, then update"
        before = self._scale.clone()
        super().update(new_scale)
        self._skipped += self._scale.squeeze() < before.squeeze()
        if self._largest is not None:
            self._scale.clamp_(max=self._largest)

    def skipped_updates(self) -> int:
        """Return how many updates overflowed so far."""
        return int(self._skipped.item())

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers for a checkpoint."""
        return {**super().state_dict(), "skipped": self.skipped_updates()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(state_dict)
        self._skipped.fill_(state_dict["skipped"])


def on_device(
    name: Name, device: torch.device, *, scale: float, window: int, largest: float | None
) -> Precision:
    """Return the recipe's precision on a GPU, and float32 on a CPU whatever the recipe says.

    scale, window (updates) and largest are those of the loss scale, which only fp16 needs. Raises
    UserError for bf16 on a GPU without it.
    """
    if name == "fp32" or device.type == "cpu":
        return Precision(None, None)
    if name == "fp16":
        return Precision(torch.float16, LossScaler(device, first=scale, window=window, largest=largest))
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UserError(f"{torch.cuda.get_device_name(device)} has no bf16", hint="task.precision=fp16")
    return Precision(torch.bfloat16, None)
