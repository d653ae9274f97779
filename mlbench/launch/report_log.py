"""Writes what the ranks of a run report into its event log, whatever has started them."""

import gzip
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlbench.record import events
from mlbench.record.messages import Report

TRACES = "profile"  # what torch.profiler recorded: a folder in the run's folder


class ReportLog:
    """Appends each validation with every rank's times and the nodes' samples, or rank 0's result."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.started = False

    def append(self, ranks: Sequence[Any]) -> None:
        """Write what all ranks have reported at one point."""
        ranks = sorted(ranks, key=lambda message: message["rank"])
        if "result" in ranks[0]:
            events.append(self.path, "worker_result", ranks[0]["result"])
            return
        reports: Sequence[Report] = ranks
        started_at = reports[0]["started_at"]
        system = [sample for message in reports for sample in message["system"]]
        if not self.started:
            self.started = True
            host = reports[0].get("hostname")
            events.append(self.path, "run_start", started_at, kind="INTERVAL_START", hostname=host)
        for parts in zip(*(message["parts"] for message in reports), strict=True):
            events.append(
                self.path,
                "validation",
                parts[0]["validation"],
                started_at=started_at,
                unit=reports[0]["unit"],
                phase_times=[part["phase_times"] for part in parts],
                system=system,
            )
            system = []


def save_traces(message: Mapping[str, Any], folder: Path) -> None:
    """Write a rank's traces into the run's folder. A full disk costs the traces, not the run."""
    with suppress(OSError):
        for name, packed in message.get(TRACES, {}).items():
            beside = name.endswith(".log") or name.startswith("outputs/")
            target = folder / name if beside else folder / TRACES / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(gzip.decompress(packed))
