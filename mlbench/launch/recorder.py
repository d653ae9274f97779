"""Write folder, log and record of a run whose ranks report their training to a collector, without Ray."""

import math
import platform
import secrets
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlbench import clock
from mlbench.clusters.energy_counters import EnergyMeter
from mlbench.clusters.machine_lock import MachineLock
from mlbench.clusters.monitor import CpuUse, NodeMonitor, own_processes
from mlbench.config import compose
from mlbench.config.credentials import without_credentials
from mlbench.config.experiment import Experiment
from mlbench.launch import execute, worker_process
from mlbench.launch.output import Output
from mlbench.record import events, node_types
from mlbench.record.record import Node, Record, RunEnd, WorkerResult
from mlbench.script import summary
from mlbench.script.collector import Collector
from mlbench.tracking import client, uploader

GOAL_S = 10.0  # s that a script has, from its first step on, to set its goal


class HostMonitor:
    """Watches this host from now on: its CPUs and GPUs, and the energy that they take."""

    def __init__(self) -> None:
        self.meter, self._use = EnergyMeter(), CpuUse(own=own_processes)
        self.monitor = NodeMonitor(meter=self.meter).__enter__()
        self.energy_j: dict[str, float] = {}

    def described(self) -> Node:
        """Return what it is and what was seen on it."""
        seen = {"interference": self._use.interference(), "gpu_use": self.monitor.gpu_use()}
        return worker_process.described().model_copy(update=seen | {"energy_j": self.energy_j})


class Recorder:
    """Watches this host from now on, and writes one run. Its folder begins when all ranks have made a step.

    If no metric is known then, it waits up to GOAL_S for the script to name one.

    - command: as the record names it. overrides: as of `mlbench.run`.
    - begun: when the command started, s since 1970. lock: this machine's.
    - live: whether MLflow gets new events during the run. False if this process trains.
    - folder: of the run, None until it begins.
    """

    def __init__(
        self,
        command: Sequence[str],
        overrides: Sequence[str],
        experiment: Experiment,
        collector: Collector,
        *,
        begun: float,
        lock: MachineLock | None,
        output: Output,
        live: bool = True,
    ) -> None:
        self.experiment, self.collector = experiment, collector
        self.folder: Path | None = None
        self._command, self._overrides, self._begun = command, overrides, begun
        self._lock, self._output, self._started = lock, output, clock.wall()
        self._live, self._written = live, 0  # intervals
        artifacts = experiment.output_root.absolute() / client.ARTIFACTS
        self._store = client.preload(experiment.store, artifacts=artifacts)
        self._host = HostMonitor()

    def take(self, *, final: bool) -> None:
        """Write the intervals that have ended into the log."""
        collector = self.collector
        collector.take(final=final)
        untold = collector.metric == "none" and not collector.intervals
        waits = not collector.started or untold and clock.wall() < collector.started_at + GOAL_S
        if self.folder is None and not waits:
            self.folder = self._begin()
        for validation, times in self.collector.intervals[self._written :]:
            assert self.folder is not None
            events.append(
                self.folder / events.NAME,
                "validation",
                validation,
                started_at=self.collector.started_at,
                unit=summary.UNIT,
                phase_times=[each.plain() for each in times],
                system=self._host.monitor.drain(),
            )
            self._written += 1

    def stop(self) -> None:
        """Stop to listen and to watch this host."""
        self.collector.close()
        self._host.monitor.__exit__()

    def drain(self, timeout_s: float) -> None:
        """Write what the ranks, which have `timeout_s` for it, report at their end."""
        self.collector.drain(timeout_s)
        self.take(final=True)
        self._host.energy_j = self._host.meter.read()

    def finish(self, status: str | None, error: str | None, *, log: bytes | None = None) -> Record | None:
        """Write the record and show it. None if nothing was trained.

        - status: of a run that did not end well, else None. error: why. log: what the command has printed.
        """
        if self.folder is None:
            return None
        if log is not None:
            with suppress(OSError):
                (self.folder / "output.log").write_bytes(log)
        if self.collector.log:
            with suppress(OSError):
                (self.folder / "probe.log").write_text("\n".join(self.collector.log))
        nodes = self._nodes()
        end = RunEnd(
            status=status,
            error=error,
            ended=clock.wall(),
            stamps={"connect_begin": self._started},
            hostname=platform.node(),
            oversubscribed=any(map(self._oversubscribed, nodes)),
            machine_shared=self._lock is not None and self._lock.shared,
            result=None if status else self._result(nodes),
        )
        record = execute.conclude(self.folder, end)
        if not self._live:
            self._mlflow.start()
        aborted = record.status == "interrupted"
        where = self._mlflow.finish(wait=execute.ABORT_STORE_WAIT_S if aborted else execute.STORE_WAIT_S)
        self._output.card(record, folder=self.folder, where=where, tracking_uri=self.experiment.store)
        return record

    def _begin(self) -> Path:
        """Make the run's folder, with the begin of its log."""
        about = self.collector.settle()
        update: dict[str, Any] = {"workers": self.collector.world}
        if about["goal"] and self.experiment.task.metric == "none":  # the script names its goal
            own = {"metric": about["goal"]["metric"], "direction": about["goal"]["direction"]}
            update["task"] = self.experiment.task.model_copy(update=own)
            if self.experiment.goal == "official" and about["goal"]["target"] is not None:
                update["goal"] = float(about["goal"]["target"])
        named = about["backend"] in compose.choices("backend")  # unlike cpu:gloo,cuda:nccl, or no word
        backend = about["backend"] if named else "nccl" if about["device"] == "cuda" else "gloo"
        if backend != self.experiment.backend.name:
            chosen = compose.compose(
                ["task=script", "launcher=command", f"backend={backend}", *self._overrides]
            )
            update["backend"] = chosen.backend
        experiment = self.experiment.model_copy(update=update)
        seed = secrets.randbelow(2**31) if experiment.seed is None else experiment.seed
        experiment, seed = execute.resolved(experiment)
        folder = execute.new_folder(experiment, seed, self._begun)
        start = execute.run_start(experiment, folder, seed=seed, begun=self._begun, overrides=self._overrides)
        start = start.model_copy(update={"command": without_credentials(shlex.join(self._command))})
        if self._store is not None:
            client.place(self._store, experiment.store)
        draw = self._output.figures
        self._mlflow = uploader.MlflowUploader(folder, experiment.store, draw=draw, yields=False)
        events.append(folder / events.NAME, "run_configuration", start.model_dump(mode="json"))
        started = self.collector.started_at
        events.append(folder / events.NAME, "run_start", started, kind="INTERVAL_START")
        if self._live:
            self._mlflow.start()
        self.experiment = experiment
        return folder

    def _result(self, nodes: list[Node]) -> WorkerResult:
        """Return what a run's workers report at their end."""
        status = "goal_reached" if self.collector.reached else "goal_not_reached"
        flops = summary.flop_count(self.collector)
        return WorkerResult(
            status=status if self.experiment.target else "completed",
            sample_unit=summary.UNIT,
            flops_per_sample=flops.flops_per_sample,
            flops_lacking=flops.lacking,
            peak=node_types.peak(self.experiment, nodes, flops.precision, flops.devices),
            peak_memory_bytes=self.collector.peak_bytes,
            nodes=nodes,
            started_at=self.collector.started_at,
        )

    def _nodes(self) -> list[Node]:
        """Return the hosts of the ranks, rank 0's first. This process has watched only this host."""
        hosts: dict[str, list[dict[str, Any]]] = {}
        for _, rank in sorted(self.collector.ranks.items()):
            hosts.setdefault(rank.about["host"], []).append(rank.about)
        nodes = [self._node(host, ranks, alone=len(hosts) == 1) for host, ranks in hosts.items()]
        first = {"warnings": [*nodes[0].warnings, *summary.coverage(self.collector)["warnings"]]}
        return [nodes[0].model_copy(update=first), *nodes[1:]]

    def _node(self, host: str, ranks: list[dict[str, Any]], *, alone: bool) -> Node:
        """Return a host with what was seen there. Another host is as its first rank described it.

        The energy of a part of the hosts is not the run's, so it is kept if the host is `alone`.
        """
        update: dict[str, Any] = {"threads_per_worker": ranks[0]["threads"]}
        if host == platform.node():
            return self._host.described().model_copy(update=update | ({} if alone else {"energy_j": {}}))
        node = self.collector.hosts[host]
        cpus = len({cpu for rank in ranks for cpu in rank["cpus"]})  # srun binds each rank to some
        warnings = [f"{host}: its energy and other processes were not measured"]
        if node is None:
            warnings.append(f"{host}: its hardware was not described")
            node = Node(hostname=host, usable_cpus=cpus)
        usable = max(1, math.floor(min(cpus, node.cpu_quota or math.inf)))
        update |= {"affinity_cpus": cpus, "usable_cpus": usable, "warnings": [*node.warnings, *warnings]}
        return node.model_copy(update=update)

    def _oversubscribed(self, node: Node) -> bool:
        """Return whether a host's ranks compute with more threads than it has CPUs."""
        ranks = self.collector.ranks.values()
        threads = sum(rank.about["threads"] for rank in ranks if rank.about["host"] == node.hostname)
        return threads > node.usable_cpus
