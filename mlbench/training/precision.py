"""The precision of a run: autocast, a loss scale that is bounded and counted, no TF32 unasked."""

from typing import Any, NamedTuple

import torch

from mlbench.config.errors import UserError
from mlbench.config.experiment import Precision as Name

# Steps skipped in a row after which a run has diverged. The scale has then fallen through as many powers of
# two as fp16 has, 2^-24 to 2^15, so a scale that is too large is not the cause.
STUCK = 40


class Precision(NamedTuple):
    """What the loop needs. None and None is full precision."""

    autocast: torch.dtype | None
    scaler: "LossScaler | None"

    def metrics(self) -> dict[str, float]:
        """Return what a validation reports about the loss scale. Waits for the device."""
        return {} if self.scaler is None else {"skipped_steps": float(self.scaler.skipped_steps())}

    def clipped_step(self, optimizer: torch.optim.Optimizer, max_norm: float) -> None:
        """Shorten the gradient of all parameters together to `max_norm`, unscaled, and step."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        parameters = (weight for group in optimizer.param_groups for weight in group["params"])
        torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)
        if self.scaler is not None:
            self.scaler.step(optimizer)
        else:
            optimizer.step()


class LossScaler(torch.amp.GradScaler):
    """torch's dynamic loss scale with a largest value and a count of the steps it skipped.

    The scale doubles after `window` steps without overflow, up to `largest`. An overflow halves it and the
    step is skipped. Nothing here waits for the device but `skipped_steps`, `stuck` and `state_dict`.

    - overflowed: on the device, whether the last step was skipped.
    """

    def __init__(self, device: torch.device, *, first: float, window: int, largest: float | None) -> None:
        super().__init__(device.type, init_scale=first, growth_interval=window)
        self._largest = largest
        self._skipped = torch.zeros((), device=device)
        self._in_a_row = torch.zeros((), device=device)
        self.overflowed = torch.zeros((), dtype=torch.bool, device=device)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Halve, double or keep the scale after a step. The one of torch has no largest value."""
        assert self._scale is not None, "scale, then step, then update"
        before = self._scale.clone()
        super().update(new_scale)
        fell = (self._scale < before) | (self._scale == 0)  # from 0 it cannot fall
        self.overflowed = fell.squeeze()
        self._skipped += self.overflowed
        self._in_a_row = (self._in_a_row + 1) * self.overflowed
        if self._largest is not None:
            self._scale.clamp_(max=self._largest)

    def skipped_steps(self) -> int:
        """Return how many steps overflowed so far."""
        return int(self._skipped.item())

    def stuck(self) -> bool:
        """Return whether the last STUCK steps were all skipped, so that no smaller scale will help."""
        return self._in_a_row.item() >= STUCK

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers for a checkpoint."""
        counts = {"skipped": self.skipped_steps(), "in_a_row": self._in_a_row.item()}
        return {**super().state_dict(), **counts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the point at which `state_dict` was taken."""
        super().load_state_dict(state_dict)
        self._skipped.fill_(state_dict["skipped"])
        self._in_a_row.fill_(state_dict["in_a_row"])


def on_device(
    name: Name | None,
    device: torch.device,
    *,
    scale: float = 2.0**16,
    window: int = 2000,
    largest: float | None = None,
) -> Precision:
    """Return what a run in this precision needs on the device. TF32 is then on or off in this process.

    scale, window (steps) and largest are those of the loss scale, which only fp16 needs. The defaults are
    torch's. Raises UserError for what the device cannot compute.
    """
    cuda = device.type == "cuda"
    # Both came with Ampere: older GPUs emulate the one, and compute float32 if the other is requested.
    if cuda and name in ("bf16", "tf32") and not torch.cuda.is_bf16_supported(including_emulation=False):
        gpu = torch.cuda.get_device_name(device)
        raise UserError(f"{gpu} has no {name}", hint="task.precision=fp16 or fp32")
    if name == "tf32" or cuda:
        allow_tf32(name == "tf32")
    if name in ("fp32", "tf32", None):
        return Precision(None, None)
    if name == "fp16":
        return Precision(torch.float16, LossScaler(device, first=scale, window=window, largest=largest))
    return Precision(torch.bfloat16, None)


def require_lstm(name: Name | None, device: torch.device) -> None:
    """Raise UserError if this CPU computes no LSTM in the precision.

    Autocast hands LSTMs in bfloat16 to oneDNN, which has them for x86 CPUs with AVX-512 (torch 2.13).
    """
    if device.type != "cpu" or name != "bf16":
        return
    try:
        with torch.autocast(device.type, torch.bfloat16):
            torch.nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError as error:
        raise UserError("torch computes no LSTM in bf16 on this CPU", hint="task.precision=fp32") from error


def allow_tf32(allowed: bool) -> None:
    """Let this process compute float32 products in TF32, or not.

    TF32 has 10 of float32's 23 bits of mantissa. cuDNN uses it by default from Ampere on.
    """
    torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cuda.matmul.allow_tf32 = allowed


def fill_momentum(optimizer: torch.optim.SGD) -> None:
    """Begin momentum at 0.

    Else torch's fused SGD goes on from memory that it never wrote, if the first step overflows (2.13).
    """
    for group in optimizer.param_groups:
        for weight in group["params"] if group["momentum"] else ():
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
