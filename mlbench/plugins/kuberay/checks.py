"""Check the programs that make clusters, for `mlbench doctor`."""

from collections.abc import Iterator

from mlbench.clusters.checks import Check, program
from mlbench.plugins.kuberay.provisioning.lifecycle import TOOLS


def checks() -> Iterator[Check]:
    """Yield each program of `mlbench cluster`."""
    for name, page in TOOLS.items():
        yield program(name, page)
