"""Register MPI with torch.distributed: its YAML file names this module, and workers import it first.

torch reserves the name "mpi" for the backend of builds with MPI, so this backend's name in torch is "mpi4py".
"""

from torch.distributed import Backend

from mlbench.config import libraries
from mlbench.config.errors import UserError

TORCH_NAME = "mpi4py"

try:
    from mlbench.plugins.mpi.bootstrap import describe
    from mlbench.plugins.mpi.process_group import create
except (ImportError, RuntimeError) as error:  # RuntimeError if mpi4py finds no MPI library
    raise UserError(
        f"backend=mpi needs mpi4py and an MPI library, which a worker lacks: {str(error).splitlines()[0]}",
        hint=f"{libraries.command('mpi4py')} on every node",
    ) from error

Backend.register_backend(TORCH_NAME, create, extended_api=True, devices=["cpu", "cuda"])
__all__ = ["TORCH_NAME", "create", "describe"]
