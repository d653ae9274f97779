"""Check for an MPI library on this machine, for `mlbench doctor`."""

from collections.abc import Iterator

from mlbench.clusters.checks import Check
from mlbench.config import libraries
from mlbench.config.errors import first_line


def checks() -> Iterator[Check]:
    """Yield the library that `backend=mpi` would use, without starting MPI."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, OSError, RuntimeError) as error:
        yield Check("MPI", "absent", first_line(error), f"backend=mpi: {libraries.command('mpi4py')}")
        return
    yield Check("MPI", "here", " ".join(MPI.Get_library_version().split(",")[0].split()[:3]))
