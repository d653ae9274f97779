"""What a restart of any rank needs: tensors and plain values only, no pickled code."""

from typing import TYPE_CHECKING, Any

import torch

from mlbench.record.phases import PhaseTimes

if TYPE_CHECKING:
    from mlbench.training.loop import Run


def state(run: "Run", epoch: int) -> dict[str, Any]:
    """Return the state at the begin of `epoch`; every rank must call this.

    Ranks differ in what they measured and in their random numbers (dropout), so rank 0, whose state is the
    one that is kept, gathers both.
    """
    worker = run.worker
    measured = {"samples": run.samples, "phase_times": [times.plain() for times in run.phase_times]}
    return {
        "epoch": epoch,
        "step": run.step,
        "best": run.best,
        "started_at": run.timer.started_at,
        "elapsed": run.timer.elapsed(),
        "clocks": run.clocks,
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


def start_clock(run: "Run") -> dict[str, float]:
    """Start the timer, after a restart as of the first start; return that moment on every host's clock.

    Wall clocks of two hosts are not compared: a host that took part before knows on its monotonic clock when
    the run started, and its offset from rank 0's is measured. Where no such host is left, rank 0's wall clock
    decides, but never for less time than the checkpoint had seen.
    """
    worker, timer, offset = run.worker, run.timer, run.clock_offset.estimates[-1].offset
    saved = worker.resume
    if saved is None:
        timer.start()
    else:
        here = saved["clocks"].get(timer.clock_id)
        candidates = worker.gather(None if here is None else here + offset)
        started = next((each for each in candidates if each is not None), None)
        if started is None:
            spent = max(saved["elapsed"], timer.wall() - saved["started_at"])
            started = worker.gather(timer.now() + offset - spent)[0]
        timer.start(started=started - offset, started_at=saved["started_at"])
    started = worker.gather(timer.started)[0]
    return dict(worker.gather([timer.clock_id, started - offset]))


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
