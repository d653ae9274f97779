"""A run without workers: the events that a driver and its controller write, with numbers chosen here."""

import json
from pathlib import Path
from typing import Any

import mlbench
from mlbench.clusters import node
from mlbench.config import compose, identity
from mlbench.record import cost, events, provenance
from mlbench.record.build_record import build_record
from mlbench.record.phases import PHASES
from mlbench.record.record import FINISHED, Record, RunEnd, RunStart, WorkerResult

BEGUN = 1_700_000_000.0  # s since 1970, when the command started
STARTED = BEGUN + 10.0  # the first access to data
EPOCH_S = 4.0  # s between two validations
UPDATES = 20  # updates between two validations
BATCH_S = {phase: 0.25 * (index + 1) / 8 for index, phase in enumerate(PHASES)}  # s an epoch, of rank 0


class Run:
    """A run on two workers in a folder of its own; all ranks but the first take twice as long in a phase."""

    def __init__(
        self, output_root: Path, *overrides: str, seed: int = 7, name: str = "run", epoch_s: float = EPOCH_S
    ) -> None:
        root = f"output_root={output_root}"
        self.experiment = compose.compose(["task=logreg", "workers=2", root, *overrides])
        self.folder = output_root / f"{name}-{seed:x}"
        self.folder.mkdir(parents=True)
        self.log = self.folder / events.NAME
        self.validations: list[dict[str, Any]] = []
        self.epoch_s = epoch_s
        start = RunStart(
            run_id=self.folder.name,
            key=identity.key(self.experiment),
            command=" ".join(["python -m mlbench.run", *overrides]),
            mlbench=mlbench.__version__,
            experiment=self.experiment,
            seed=seed,
            begun=BEGUN,
            deviations=list(self.experiment.deviations),
            software=provenance.software(),
        )
        self.start = start.model_dump(mode="json")
        events.append(self.log, "run_configuration", self.start)

    def validate(self, value: float, *, system: list[dict[str, Any]] | None = None) -> None:
        """Append the next validation, as the controller does."""
        epoch = len(self.validations) + 1
        target = self.experiment.target
        validation = {
            "epoch": float(epoch),
            "step": UPDATES * epoch,
            "elapsed": self.epoch_s * epoch,
            "wall": STARTED + self.epoch_s * epoch,
            "train_loss": 1.0 / epoch,
            "metrics": {self.experiment.task.metric: value, "loss": 2.0 / epoch},
            "goal_reached": target is not None and target.reached(value),
        }
        self.validations.append(validation)
        times = [phase_times(2.0 if rank else 1.0) for rank in range(self.experiment.workers)]
        for rank in times:
            rank["elapsed"] = validation["elapsed"]
            least = rank["seconds"] + rank["outside"]["validation"]
            if self.epoch_s < least:  # then everything in it is shorter
                rank["phases"] = {name: s * self.epoch_s / least for name, s in rank["phases"].items()}
                rank["seconds"] *= self.epoch_s / least
                rank["outside"]["validation"] *= self.epoch_s / least
            rank["outside"]["loading"] = self.epoch_s - min(least, self.epoch_s)
        metadata: dict[str, Any] = {"started_at": STARTED, "phase_times": times, "unit": "rows"}
        if system is not None:
            metadata["system"] = system
        events.append(self.log, "validation", validation, **metadata)

    def end(self, status: str, *, error: str | None = None, **more: Any) -> Record:
        """End the run as the driver does: `run_result`, record, `run_stop`. `more`: of WorkerResult."""
        back = status in FINISHED
        elapsed = self.validations[-1]["elapsed"] if self.validations else 0.0
        hardware, here = self.experiment.hardware, node.describe()
        shape = {"warnings": [], "usable_cpus": hardware.cpus or here.usable_cpus}
        nodes = [here.model_copy(update=shape)] * cost.nodes(hardware, self.experiment.workers)
        values = {"status": status, "sample_unit": "rows", "nodes": nodes} | more
        result = WorkerResult.model_validate(values) if back else None
        end = RunEnd(
            status=None if back else status,
            error=error,
            ended=STARTED + elapsed + 1.0,
            stamps={"connect_begin": BEGUN + 1.0, "connect_end": BEGUN + 5.0},
            result=result,
        )
        events.append(self.log, "run_result", end.model_dump(mode="json"))
        record = build_record(events.read(self.log))
        record.save(self.folder)
        events.append(self.log, "run_stop", {"status": record.status}, kind="INTERVAL_END")
        return record

    def seal(self) -> Record:
        """Give the log of the run, which has ended, its checksum; return the record, saved anew."""
        log = sealed(events.read(self.log))
        self.log.write_text("".join(json.dumps(event) + "\n" for event in log))
        record = build_record(log)
        record.save(self.folder)
        return record


def sealed(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the log with the checksum that its command would write."""
    for index, event in enumerate(log):
        if event["key"] == "run_result":
            event["metadata"] = events.checksum(log[:index], event["value"])
    return log


def phase_times(factor: float) -> dict[str, Any]:
    """Return what one rank measured between two validations, `factor` times as slow as rank 0."""
    inside = factor * sum(BATCH_S.values())
    return {
        "phases": {phase: factor * seconds for phase, seconds in BATCH_S.items()},
        "seconds": inside,
        "stamped_steps": UPDATES,
        "overlapped_communication": factor * 0.05,
        "outside": {"validation": 0.5, "loading": EPOCH_S - 0.5 - inside},
        "steps": UPDATES,
        "samples": UPDATES * 128,  # logreg's batch
        "step_s": {},
    }


def sample(wall: float, *, node: str | None = None) -> dict[str, Any]:
    """Return one system sample."""
    return {"wall": wall, "node": node, "cpu_utilization_percentage": 50.0}
