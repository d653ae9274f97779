"""Add a torch.distributed backend over MPI, which PyTorch's wheels lack."""

from contextlib import suppress

with suppress(ImportError):  # `backend` reports what is missing
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False  # the process group starts MPI, when all ranks do

# The settings of MPICH 5, and their variables (docs/communication.md).
VARIABLES = {"provider": "FI_PROVIDER", "algorithm": "MPIR_CVAR_IALLREDUCE_INTRA_ALGORITHM"}
ALGORITHMS = (
    *("sched_naive", "sched_smp", "sched_recursive_doubling", "sched_reduce_scatter_allgather"),
    *("tsp_ring", "tsp_tree", "tsp_recexch_single_buffer", "tsp_recexch_multiple_buffer"),
    "tsp_recexch_reduce_scatter_recexch_allgatherv",
)
