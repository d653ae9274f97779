"""The programs that make clusters, for `python -m mlbench.doctor`."""

from collections.abc import Iterator

from mlbench.clusters.checks import Check, program
from mlbench.wings.kuberay.provisioning.lifecycle import TOOLS


def checks() -> Iterator[Check]:
    """Yield each program of `python -m mlbench.cluster`."""
    for name, page in TOOLS.items():
        yield program(name, page)
