"""Ray on this machine: a sweep's, or the one that `mlbench.cluster start` keeps, else one for this run.

A Ray that some other program started for itself is left alone: it would end with that program.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import ray

from mlbench.clusters import persistent
from mlbench.experiment import provenance
from mlbench.experiment.config import Experiment

LOOPBACK = "127.0.0.1"  # workers are on this machine, and so are their signs of life


@contextmanager
def join(experiment: Experiment) -> Iterator[str]:
    """Yield the loopback address; a Ray that was started here is stopped at the end."""
    if ray.is_initialized():  # a sweep or a test keeps one connection for many runs
        yield LOOPBACK
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    options: dict[str, Any] = {
        "logging_level": "INFO" if experiment.verbose else "CRITICAL",
        "log_to_driver": experiment.verbose,
    }
    address = persistent.address()
    before = set(persistent.children(psutil.Process()))
    if address:
        ray.init(address=address, **options)
    else:
        persistent.quiet()
        ray.init(
            address="local",
            include_dashboard=False,
            num_cpus=provenance.usable_cpus(),
            resources=persistent.DRIVER_RESOURCE,
            **options,
        )
    try:
        yield LOOPBACK
    finally:
        started = set() if address else set(persistent.children(psutil.Process())) - before
        ray.shutdown()
        # Ray's workers end when they miss their server, but now and then one of them hangs for ever (2.60).
        persistent.end(started)
