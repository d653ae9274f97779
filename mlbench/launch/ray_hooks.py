"""What runs inside Ray Train's processes: the set-up of the process group, and the event log's writer."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.train import UserCallback
from ray.train.backend import Backend, BackendConfig

from mlbench import clock
from mlbench.launch.process_group import Rendezvous, choose_interface, import_backend, join, leave, listen
from mlbench.launch.report_log import ReportLog, save_traces
from mlbench.record import events

START_TIMEOUT_S = 300.0  # s. Importing torch took 100 s on 2 CPUs with a load of 45
LEAVE_TIMEOUT_S = 5.0  # s, for a rank that does not end its process group


@dataclass
class ProcessGroupConfig(BackendConfig):
    """How the workers' process group is made.

    - backend: torch's name of it. timeout_s: how long a collective may take.
    - module: a Python module that registers the backend, imported on every worker first.
    - interface: the network interface of all workers. None: the one by which each reaches the head.
    - sockets: connections of gloo between two workers. variables: what its library reads, by name.
    - start_timeout_s: how long the workers may take to import torch and to meet.
    - log: the event log, which gets the stamps of these steps. epoch: what its wall clock counts from.
    """

    backend: str
    timeout_s: float
    module: str | None = None
    interface: str | None = None
    sockets: int | None = None
    variables: dict[str, str] = field(default_factory=dict)
    start_timeout_s: float = START_TIMEOUT_S
    log: str | None = None
    epoch: clock.ClockEpoch = field(default_factory=clock.epoch)

    @property
    def backend_cls(self) -> type[Backend]:
        """Return what Ray calls when the workers are there, and before they go."""
        return ProcessGroupBackend


class ProcessGroupBackend(Backend):
    """Makes the process group and ends it, from the controller."""

    share_cuda_visible_devices = True  # NCCL reaches the other GPUs of a node only if it sees them

    def on_start(self, worker_group: Any, backend_config: ProcessGroupConfig) -> None:
        """Make the process group. Every step has a deadline, for a worker may be frozen."""
        config = backend_config
        clock.adopt(config.epoch)
        begin = clock.wall()
        limit = config.start_timeout_s
        importing = worker_group.execute_async(import_backend, config.module, config.variables)
        hosts = [worker.metadata.hostname for worker in worker_group.get_workers()]
        logs = await_ranks(importing, "import torch", limit, hosts)
        imported = clock.wall()
        head = ray.get_runtime_context().gcs_address.rpartition(":")[0].strip("[]")
        choosing = worker_group.execute_async(choose_interface, head, config.interface, config.sockets)
        addresses = await_ranks(choosing, "name its network interface", limit, hosts)
        listening = [worker_group.execute_single_async(0, listen, addresses[0])]
        (port,) = await_ranks(listening, "open a port", limit, hosts)
        meeting = Rendezvous(addresses[0], port, limit)
        size = len(worker_group)
        group = {"backend": config.backend, "world_size": size, "timeout_s": config.timeout_s}
        group |= {"module": config.module}
        joining = [
            worker_group.execute_single_async(rank, join, meeting, rank, **group) for rank in range(size)
        ]
        await_ranks(joining, "join the process group", limit + 1, hosts)  # waiting ranks log why
        stamps = {"backend_begin": begin, "imports_end": imported, "group_end": clock.wall()}
        if config.log is not None:
            events.append(Path(config.log), "startup", stamps, hostname=platform.node(), logs=logs)

    def on_shutdown(self, worker_group: Any, backend_config: ProcessGroupConfig) -> None:
        """End the process group. Ray ends the workers next, also those that did not answer."""
        ray.wait(worker_group.execute_async(leave), num_returns=len(worker_group), timeout=LEAVE_TIMEOUT_S)


def await_ranks(results: Sequence[Any], what: str, timeout_s: float, hosts: Sequence[str]) -> list[Any]:
    """Return every rank's result. RuntimeError names the ranks that have none after `timeout_s`.

    - hosts: the names of the ranks' nodes.
    """
    done, missing = ray.wait(list(results), num_returns=len(results), timeout=timeout_s)
    if missing:
        try:
            ray.get(done)  # the cause, if another rank has failed
        except RayTaskError as error:
            raise error.as_instanceof_cause() from error
        ranks = ", ".join(f"{rank} ({hosts[rank]})" for rank in sorted(map(results.index, missing)))
        raise RuntimeError(f"rank {ranks} did not {what} within {timeout_s:g} s: frozen, or not reachable")
    return ray.get(list(results))


class EventLogCallback(UserCallback):
    """Appends validations and restarts to the event log. Lives in the controller, on the driver's machine."""

    def __init__(self, path: Path) -> None:
        self.reports = ReportLog(path)
        self.restarts = 0

    def after_report(self, run_context: Any, metrics: list[Any], checkpoint: Any) -> None:
        """Write each validation with every rank's times and the nodes' samples, or rank 0's result."""
        for message in metrics:
            save_traces(message, self.reports.path.parent)
        self.reports.append(metrics)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Write which ranks failed. Ray decides whether the run goes on."""
        self.restarts += 1
        failures = {str(rank): str(error)[-2000:] for rank, error in worker_exceptions.items()}
        events.append(self.reports.path, "worker_failure", failures, count=self.restarts)
