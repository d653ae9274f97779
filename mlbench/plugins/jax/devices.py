"""Provide the workers' devices to jax, one a worker, all on one axis, and wrap jax's private names.

Workers meet at jax's coordination service, which rank 0 runs at the address of torch's store. Gradients go
over gloo on CPUs and over NCCL on GPUs. torch's process group remains for everything except training: clocks,
metrics, reports.
"""

import os
import socket
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from jax._src import distributed, xla_bridge
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]  (a C++ module without a stub)

from mlbench.launch.process_group import INTERFACES
from mlbench.training.worker import Worker

AXIS = "data"  # of the mesh: a worker's part of a global batch
START_TIMEOUT_S = 300  # s for all workers to meet


def mesh(worker: Worker) -> Mesh:
    """Return the mesh of the workers' devices in the order of ranks. Every rank must call this.

    jax joins its workers at the first call in a process and cannot leave them again.
    """
    jax.config.update("jax_platforms", "cuda" if worker.backend == "nccl" else "cpu")
    # By default jax multiplies float32 in TF32 on a GPU that can (jax.lax.Precision).
    jax.config.update("jax_default_matmul_precision", "float32")
    jax.config.update("jax_enable_compilation_cache", False)  # all compilation is on the clock (rule R16)
    os.environ.setdefault("NPROC", str(torch.get_num_threads()))  # the threads of XLA's CPU client
    if worker.world_size > 1 and not jax.distributed.is_initialized():
        _join(worker)
    devices = jax.devices() if worker.world_size > 1 else jax.local_devices()[:1]
    return Mesh(np.array(devices), (AXIS,))


def sharded(array: np.ndarray, over: Mesh) -> jax.Array:
    """Return the global array of which `array` is this rank's part along the first axis."""
    sharding = NamedSharding(over, PartitionSpec(AXIS))
    shape = (array.shape[0] * over.size, *array.shape[1:])
    return jax.make_array_from_single_device_arrays(shape, sharding, [_own(array)])


def replicated(array: Any, over: Mesh) -> jax.Array:
    """Return the global array of which every rank has a whole copy."""
    array = np.asarray(array)
    sharding = NamedSharding(over, PartitionSpec())
    return jax.make_array_from_single_device_arrays(array.shape, sharding, [_own(array)])


def local(array: jax.Array) -> jax.Array:
    """Return this rank's part of a global array, on its device."""
    return array.addressable_data(0)


def _own(array: np.ndarray) -> jax.Array:
    return jax.device_put(array, jax.local_devices()[0])


def _join(worker: Worker) -> None:
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    address = worker.gather(f"{host}:{_free_port(host)}" if worker.rank == 0 else None)[0]
    jax.distributed.initialize(
        address,
        worker.world_size,
        worker.rank,
        local_device_ids=[worker.local_rank] if worker.backend == "nccl" else None,
        cluster_detection_method="deactivate",
        initialization_timeout=START_TIMEOUT_S,
        coordinator_bind_address=address,  # jax's default is all interfaces
    )
    # jax's gloo uses the address of this host's name, which on many hosts is that of loopback.
    interface = os.environ.get(INTERFACES[0], "").partition(",")[0] or None
    connect = partial(_jax.make_gloo_tcp_collectives, interface=interface)
    collectives = connect(distributed_client=distributed.global_state.client)
    client = partial(xla_bridge.make_cpu_client, collectives)
    xla_bridge.register_backend_factory("cpu", client, fail_quietly=False)


def _free_port(host: str) -> int:
    """Return a port that was free a moment ago: jax takes no open socket."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
