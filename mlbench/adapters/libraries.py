"""Import the adapters' libraries, or raise a sentence if one is missing or broken."""

from collections.abc import Iterator
from contextlib import contextmanager

from mlbench.clusters.torch_builds import torchvision_fault
from mlbench.config import libraries


@contextmanager
def importing(library: str) -> Iterator[None]:
    """Explain why a library cannot be imported in the block.

    Raises:
        ImportError: it is not installed, or the installed torchvision, which it imports, does not fit torch.
    """
    try:
        yield
    except (ImportError, OSError, RuntimeError) as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == library:
            way = libraries.command(library)
            raise ImportError(f"this adapter needs {library}, which is not installed ({way})") from None
        if fault := torchvision_fault():
            raise ImportError(
                f"{library} imports torchvision, and torchvision {fault[0]} ({fault[1]})"
            ) from error
        raise
