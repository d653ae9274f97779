"""Start MPI without mpirun: the ranks of a torch process group become those of MPI's world.

MPICH requests its rank and the other ranks' addresses from the process that started it, in lines of text over
a socket: the PMI-1 wire protocol (MPICH, src/pmi/src/pmi_wire.c). Here a thread of each rank answers. It
keeps the values that ranks exchange in the store through which torch's ranks meet. So there is no ssh, and no
port besides the store's.
"""

import ctypes
import os
import re
import socket
import threading
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from mpi4py import MPI

KEY_BYTES, VALUE_BYTES = 64, 1024  # PMI-1's usual limits (MPICH, src/pm/hydra)
PROVIDER = "tcp"  # libfabric's provider by default: it works everywhere
SHARED_MEMORY = re.compile(r"/dev/shm/mpich_shm_\S+")
ANSWERS = {  # PMI-1's answers to the requests that always have the same one
    "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_maxes": f"cmd=maxes kvsname_max=256 keylen_max={KEY_BYTES} vallen_max={VALUE_BYTES} rc=0",
    "get_my_kvsname": "cmd=my_kvsname kvsname=world rc=0",
    "get_appnum": "cmd=appnum appnum=0 rc=0",
    "barrier_in": "cmd=barrier_out rc=0",
    "finalize": "cmd=finalize_ack rc=0",
}


def start(store: Any, rank: int, size: int) -> None:
    """Make this process rank `rank` of an MPI world of `size`. Every rank must call this, with one store.

    Raises RuntimeError if MPI has been started before with another rank or size, or does not start.
    """
    if not MPI.Is_initialized():
        _choose_transport()
        ours, theirs = socket.socketpair()
        serving = threading.Thread(target=_serve, args=(ours, store, rank, size), name="pmi", daemon=True)
        serving.start()
        variables = {"PMI_FD": str(theirs.detach()), "PMI_RANK": str(rank), "PMI_SIZE": str(size)}
        os.environ |= variables
        _init()
        for name in variables:  # or a program that this process starts would act as a rank
            del os.environ[name]
        MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
        MPI.COMM_WORLD.Barrier()
        # All ranks have mapped the shared memory. Without its names a killed rank leaves none.
        for path in set(SHARED_MEMORY.findall(Path("/proc/self/maps").read_text())):
            Path(path).unlink(missing_ok=True)
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (rank, size):
        raise RuntimeError(
            f"this process is rank {world.rank} of {world.size} in MPI, not rank {rank} of {size}"
        )


def _init() -> None:
    """Call MPI_Init_thread without Python's lock, which mpi4py holds in its call while the thread answers."""
    provided = ctypes.c_int()
    if _library().MPI_Init_thread(None, None, MPI.THREAD_MULTIPLE, ctypes.byref(provided)) != MPI.SUCCESS:
        raise RuntimeError("MPI did not start")
    if provided.value < MPI.THREAD_MULTIPLE:
        raise RuntimeError(f"{describe()['library']} was built without MPI_THREAD_MULTIPLE")


def _library() -> ctypes.CDLL:
    """Return the MPI library that mpi4py has loaded."""
    with open("/proc/self/maps") as maps:
        paths = [line.split(maxsplit=5)[-1].strip() for line in maps if "/libmpi" in line]
    return ctypes.CDLL(paths[0])


def _choose_transport() -> None:
    """Make MPI's traffic between hosts use one provider and gloo's interface.

    Settings of MPICH, libfabric or UCX in the user's environment stay.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    ucx = os.environ.get("MPIR_CVAR_CH4_NETMOD") == "ucx"
    chosen = {} if ucx else {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": PROVIDER}
    if interface:
        chosen |= {"UCX_NET_DEVICES" if ucx else "FI_TCP_IFACE": interface}
    for name, value in chosen.items():
        os.environ.setdefault(name, value)


def describe() -> dict[str, str]:
    """Return the MPI library, its transport between hosts, and its treatment of a GPU's buffers."""
    provider = os.environ.get("FI_PROVIDER", PROVIDER)
    ucx = os.environ.get("MPIR_CVAR_CH4_NETMOD") == "ucx"
    interface = os.environ.get("UCX_NET_DEVICES" if ucx else "FI_TCP_IFACE", "")
    return {
        "library": " ".join(re.split(r"[\s,]+", MPI.Get_library_version())[:3]).replace(" Version:", ""),
        "provider": "ucx" if ucx else f"ofi {provider}",
        "gpu_buffers": "direct" if cuda_aware() else "staged",
        **({"interface": interface} if interface else {}),
    }


def cuda_aware() -> bool:
    """Return whether this MPI takes addresses on a GPU (MPICH's and Open MPI's MPIX_Query_cuda_support)."""
    with suppress(AttributeError):
        return bool(_library().MPIX_Query_cuda_support())
    return False


def _serve(connection: socket.socket, store: Any, rank: int, size: int) -> None:
    """Answer one rank's PMI-1 requests until it ends. A failing store ends the connection."""
    barriers = 0
    with connection, connection.makefile("rwb", buffering=0) as lines:
        store.set(f"pmi/host/{rank}", _host())
        while line := lines.readline():
            request = dict(word.split("=", 1) for word in line.decode().split() if "=" in word)
            command = request.pop("cmd", "")
            try:
                if command == "barrier_in":
                    barriers += 1
                    if store.add(f"pmi/barrier/{barriers}", 1) == size:
                        store.set(f"pmi/passed/{barriers}", "1")
                    store.wait([f"pmi/passed/{barriers}"])
                answer = _answer(command, request, store, size)
            except RuntimeError:  # torch.distributed.DistError: the store is gone, or a rank did not come
                return
            lines.write(f"{answer}\n".encode())


def _answer(command: str, request: dict[str, str], store: Any, size: int) -> str:
    """Return PMI-1's answer to one request."""
    match command:
        case "get_universe_size":
            return f"cmd=universe_size size={size} rc=0"
        case "put":
            store.set(f"pmi/key/{request['key']}", request["value"])
            return "cmd=put_result rc=0 msg=success"
        case "get":
            key = f"pmi/key/{request['key']}"
            if request["key"] == "PMI_process_mapping":
                value = process_mapping([store.get(f"pmi/host/{rank}").decode() for rank in range(size)])
            elif store.check([key]):
                value = store.get(key).decode()
            else:  # no rank has put it
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            return f"cmd=get_result rc=0 msg=success value={value}"
    return ANSWERS.get(command, f"cmd={command}_result rc=-1")


def _host() -> str:
    """Return a text that is equal for processes that share memory and a network."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text().strip() if boot.exists() else socket.gethostname()
    network = os.stat("/proc/self/ns/net").st_ino if Path("/proc/self/ns/net").exists() else 0
    memory = os.stat("/dev/shm").st_dev if Path("/dev/shm").exists() else 0
    return f"{machine}/{network}/{memory}"


def process_mapping(hosts: list[str]) -> str:
    """Return PMI's description of which ranks share a host: blocks (first host, hosts, ranks on each).

    E.g. hosts a, a, b give (vector,(0,1,2),(1,1,1)).
    """
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    blocks = [(numbers[host], len(list(ranks))) for host, ranks in groupby(hosts)]
    return f"(vector,{','.join(f'({number},1,{ranks})' for number, ranks in blocks)})"
