"""Check what `network=` can emulate here, for `mlbench doctor`."""

from collections.abc import Iterator
from contextlib import closing

from mlbench.clusters.checks import Check, program
from mlbench.config.errors import UserError
from mlbench.plugins.emulation import kernel, namespace
from mlbench.plugins.emulation.links import TOOLS


def checks() -> Iterator[Check]:
    """Yield checks for the programs, the right to make namespaces, and netem in the kernel."""
    tools = [program(name, f"install {package}") for name, package in TOOLS.items()]
    yield from (check for check in tools if check.state != "here")
    try:
        host = namespace.create("probe")
    except UserError as error:
        yield Check("namespaces", "absent", error.message, error.hint)
        return
    with closing(host):
        yield Check("namespaces", "here", "network= emulates hosts and links")
        if all(check.state == "here" for check in tools):
            in_kernel = kernel.has_netem(host)
            links = "in this kernel" if in_kernel else "not in this kernel (links are emulated in user space)"
            yield Check("netem", "here" if in_kernel else "absent", links)
