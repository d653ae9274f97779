"""Registers MPI with torch.distributed: its YAML file names this module, and workers import it first.

torch keeps the name "mpi" for the backend that its own builds may have, so this one is "mpi4py" to torch.
"""

from torch.distributed import Backend

from mlbench.config.errors import UserError

TORCH_NAME = "mpi4py"

try:
    from mlbench.wings.mpi.bootstrap import describe
    from mlbench.wings.mpi.process_group import create
except (ImportError, RuntimeError) as error:  # the second where mpi4py finds no MPI library
    raise UserError(
        f"backend=mpi needs mpi4py and an MPI library, which a worker lacks: {str(error).splitlines()[0]}",
        hint="pip install 'mlbench-suite[mpi]' on every node",
    ) from error

Backend.register_backend(TORCH_NAME, create, extended_api=True, devices=["cpu", "cuda"])
__all__ = ["TORCH_NAME", "create", "describe"]
