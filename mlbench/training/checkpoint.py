"""What a restart of any rank needs: tensors and plain values only, no pickled code."""

from typing import Any

import torch

from mlbench.record.phases import PhaseTimes
from mlbench.training.reporter import Reporter
from mlbench.training.worker import State, Worker


def state(
    parts: dict[str, Any], worker: Worker, reporter: Reporter, *, epoch: int, step: int, samples: int
) -> State:
    """Return the state at the start of `epoch`, of `parts` by name. Every rank must call this.

    Ranks differ in what they measured and in their random numbers (dropout), so rank 0, whose state is the
    one that is kept, gathers both.
    """
    measured = {"samples": samples, "phase_times": [times.plain() for times in reporter.phase_times]}
    return {
        "epoch": epoch,
        "step": step,
        "started_at": worker.timer.started_at,
        "elapsed": worker.timer.elapsed(),
        "clocks": reporter.clocks,
        "validations": list(reporter.validations),
        "ranks": worker.gather(measured | {"random": _random_state(worker.device)}),
        "states": {name: part.state_dict() for name, part in parts.items()},
    }


def restore(parts: dict[str, Any], worker: Worker, reporter: Reporter) -> tuple[int, int, int]:
    """Load the checkpoint after a restart. Return the epoch to go on with, and the steps and samples made."""
    saved = worker.resume
    if saved is None:
        return 0, 0, 0
    for name, part in parts.items():
        part.load_state_dict(saved["states"][name])
    own = saved["ranks"][worker.rank]
    reporter.validations = list(saved["validations"])
    reporter.phase_times = [PhaseTimes.from_plain(times) for times in own["phase_times"]]
    _set_random_state(worker.device, own["random"])
    worker.resume = {name: value for name, value in saved.items() if name != "states"}  # a model's memory
    return saved["epoch"], saved["step"], own["samples"]


def _random_state(device: torch.device) -> dict[str, list[int]]:
    """Return torch's random state on the host and the device, as bytes."""
    states = {"cpu": torch.get_rng_state().tolist()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device).tolist()
    return states


def _set_random_state(device: torch.device, states: dict[str, list[int]]) -> None:
    torch.set_rng_state(torch.tensor(states["cpu"], dtype=torch.uint8))
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(torch.tensor(states["cuda"], dtype=torch.uint8), device)
