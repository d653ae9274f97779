"""How the workers find each other: one network interface, and torch's store on that interface alone.

torch's rendezvous (env://, tcp://) makes a store that listens on all interfaces without a token. Here rank 0
binds a socket to the one address by which it reaches the cluster, and gives it to the store.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

from mlbench.config import plugins
from mlbench.config.errors import UserError
from mlbench.config.experiment import Backend
from mlbench.launch import flight_recorder
from mlbench.launch.heartbeat import family

# The variables in which NCCL reads a backend's fields (docs/communication.md).
VARIABLES = {
    "nccl": {
        "sockets": "NCCL_NSOCKS_PERTHREAD",
        "threads": "NCCL_SOCKET_NTHREADS",
        "algorithm": "NCCL_ALGO",
    },
}
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # what gloo and NCCL read
_listening: list[socket.socket] = []  # rank 0's, from `listen` to `join`
_stores: list[Any] = []  # this process's client of the store, once it has joined


@dataclass(frozen=True)
class Rendezvous:
    """The address of rank 0's store, and how long the ranks have to meet there."""

    host: str
    port: int
    start_timeout_s: float


def environment(backend: Backend) -> dict[str, str]:
    """Return the variables that hand a backend's fields to its library. Fields that are null set none."""
    variables = VARIABLES.get(backend.name) or getattr(plugins.library(backend.name), "VARIABLES", {})
    fields = {name: getattr(backend, field) for field, name in variables.items()}
    if fields.get("NCCL_ALGO"):  # a bare name is for every collective, and NCCL has no broadcast by a tree
        fields["NCCL_ALGO"] = f"allreduce:{fields['NCCL_ALGO']}"
    return {name: str(value) for name, value in fields.items() if value is not None}


def import_backend(module: str | None, variables: Mapping[str, str] | None = None) -> str:
    """Import torch.distributed and the module that registers the backend. Return this process's log path.

    `variables` are put into the environment before.
    """
    import torch.distributed  # noqa: F401  (the import is the point)

    os.environ |= variables or {}
    if module is not None:
        try:
            import_module(module)
        except ImportError as error:
            raise UserError(
                f"backend.module={module} cannot be imported on a worker: {error}",
                hint="install its package on every node",
            ) from error
    log = os.path.realpath("/dev/fd/2")
    if os.path.isfile(log):
        for name, value in flight_recorder.variables(log).items():
            os.environ.setdefault(name, value)
    return f"{log} on {socket.gethostname()}"


def describe(module: str | None) -> dict[str, str]:
    """Return what a backend's module reports about its transport. Empty for torch's backends."""
    return getattr(import_module(module), "describe", dict)() if module is not None else {}


def choose_interface(head: str, wanted: str | None = None, sockets: int | None = None) -> str:
    """Make the backend use one interface on this worker. Return its address.

    It is `wanted`, or what the user's environment names, or the one by which this worker reaches the
    cluster's head. Raises UserError if there is no such interface or it has no address. gloo opens as many
    connections to another worker as `sockets` names, by default one, each with two threads.
    """
    import psutil

    addresses = {
        name: [entry.address.partition("%")[0] for entry in entries if entry.family == family(head)]
        for name, entries in psutil.net_if_addrs().items()
    }
    choice = wanted or os.environ.get(INTERFACES[0])
    if choice is not None:
        if not addresses.get(choice):
            names = ", ".join(sorted(name for name, each in addresses.items() if each))
            raise UserError(
                f"{socket.gethostname()} has no network interface {choice!r} with an "
                f"{'IPv6' if ':' in head else 'IPv4'} address",
                hint=f"choose one of {names} with backend.interface=",
            )
        interface, address = choice, addresses[choice][0]
    else:
        with socket.socket(family(head), socket.SOCK_DGRAM) as probe:
            probe.connect((head, 9))  # sends nothing
            address = probe.getsockname()[0]
        interface = next((name for name, each in addresses.items() if address in each), None)
    if interface is not None:
        os.environ[INTERFACES[0]] = ",".join([interface] * (sockets or 1))
        if wanted or INTERFACES[1] not in os.environ:  # the run's setting overrides what a site exports
            os.environ[INTERFACES[1]] = f"={interface}"  # =: this name, not all that begin so
    return address


def listen(address: str, port: int = 0) -> int:
    """Open rank 0's socket on this address alone. Return its port, with 0 a free one."""
    server = socket.create_server((address, port), family=family(address), backlog=1024)
    _listening[:] = [server]
    return server.getsockname()[1]


def join(
    meeting: Rendezvous,
    rank: int,
    *,
    backend: str,
    world_size: int,
    timeout_s: float,
    module: str | None = None,
) -> None:
    """Make the default process group. Every rank must call this, and rank 0 have called `listen`."""
    from torch._C._distributed_c10d import TCPStore  # the same class, exported for type checkers

    os.environ |= {"MASTER_ADDR": meeting.host, "MASTER_PORT": str(meeting.port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    store = TCPStore(
        meeting.host,
        meeting.port,
        world_size=world_size,
        is_master=rank == 0,
        timeout=timedelta(seconds=meeting.start_timeout_s),
        master_listen_fd=_listening.pop().detach() if rank == 0 else None,
    )
    init(store, rank, world_size, backend=backend, timeout_s=timeout_s, module=module)


def init(
    store: Any, rank: int, world_size: int, *, backend: str, timeout_s: float, module: str | None
) -> None:
    """Make the default process group of ranks that have a store in common."""
    import torch.distributed as dist

    _stores[:] = [store]
    dist.init_process_group(
        backend if module is None else getattr(import_module(module), "TORCH_NAME", backend),
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )


def leave() -> None:
    """End the default process group, if there is one. Its library closes its connections."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def set_key(key: str) -> None:
    """Signal to all ranks that something has happened here."""
    for store in _stores:
        store.set(key, "1")


def await_keys(keys: Sequence[str], timeout_s: float) -> None:
    """Wait until every key was set by some rank, for `timeout_s` at most.

    Unlike a barrier this has a separate time limit, and ranks that are late fail nothing.
    """
    for store in _stores:
        with suppress(RuntimeError):  # torch.distributed.DistStoreError
            store.wait(list(keys), timedelta(seconds=timeout_s))
