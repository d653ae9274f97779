"""What a restart of any rank needs: tensors and plain values only, no pickled code."""

from typing import TYPE_CHECKING, Any

import torch

from mlbench.experiment.phases import PhaseTimes

if TYPE_CHECKING:
    from mlbench.training.loop import Run


def state(run: "Run", epoch: int) -> dict[str, Any]:
    """Return the state at the begin of `epoch`; every rank must call this.

    Ranks differ in what they measured and in their random numbers (dropout), so rank 0, whose state is the
    one that is kept, gathers both.
    """
    worker = run.worker
    measured = {"samples": run.samples, "phase_times": [vars(times) for times in run.phase_times]}
    return {
        "epoch": epoch,
        "step": run.step,
        "best": run.best,
        "started_at": run.timer.started_at,
        "validations": list(run.validations),
        "ranks": worker.gather(measured | {"random": _random_state(worker.device)}),
        "states": {name: part.state_dict() for name, part in _stateful(run).items()},
    }


def restore(run: "Run") -> int:
    """Load the checkpoint after a restart; return the epoch to go on with."""
    saved = run.worker.resume
    if saved is None:
        return 0
    for name, part in _stateful(run).items():
        part.load_state_dict(saved["states"][name])
    run.step, run.best = saved["step"], saved["best"]
    run.position = float(saved["epoch"])
    run.validations = list(saved["validations"])
    own = saved["ranks"][run.worker.rank]
    run.samples = own["samples"]
    run.phase_times = [PhaseTimes.from_plain(times) for times in own["phase_times"]]
    _set_random_state(run.worker.device, own["random"])
    return saved["epoch"]


def _stateful(run: "Run") -> dict[str, Any]:
    """Return by name what has a state that a checkpoint keeps."""
    parts = {"model": run.setup.model, "optimizer": run.setup.optimizer}
    if run.setup.scaler is not None:
        parts["scaler"] = run.setup.scaler
    return parts | run.setup.stateful


def _random_state(device: torch.device) -> dict[str, list[int]]:
    """Return torch's own random state on the host and the device, as bytes."""
    states = {"cpu": torch.get_rng_state().tolist()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device).tolist()
    return states


def _set_random_state(device: torch.device, states: dict[str, list[int]]) -> None:
    torch.set_rng_state(torch.tensor(states["cpu"], dtype=torch.uint8))
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(torch.tensor(states["cuda"], dtype=torch.uint8), device)
