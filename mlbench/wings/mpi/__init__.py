"""A torch.distributed backend over MPI: PyTorch's own wheels are built without one."""

from contextlib import suppress

with suppress(ImportError):  # `backend` says what is missing
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False  # the process group starts MPI, when all ranks do

# What MPICH 5 takes, and where it reads it (docs/measurements/communication.md).
VARIABLES = {"provider": "FI_PROVIDER", "algorithm": "MPIR_CVAR_IALLREDUCE_INTRA_ALGORITHM"}
ALGORITHMS = (
    *("sched_naive", "sched_smp", "sched_recursive_doubling", "sched_reduce_scatter_allgather"),
    *("tsp_ring", "tsp_tree", "tsp_recexch_single_buffer", "tsp_recexch_multiple_buffer"),
    "tsp_recexch_reduce_scatter_recexch_allgatherv",
)
