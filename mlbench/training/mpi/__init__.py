"""A torch.distributed backend over MPI: PyTorch's own wheels are built without one."""

from contextlib import suppress

with suppress(ImportError):  # `backend` says what is missing
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False  # the process group starts MPI, when all ranks do
