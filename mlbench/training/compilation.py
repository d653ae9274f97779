"""What `compile=` needs of a machine, and its output folders."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlbench.config.errors import UserError
from mlbench.record import temporary_folder

# What inductor builds a CPU's kernels with, Triton a GPU's launchers: a variable, and programs without it.
COMPILERS = {"cpu": ("CXX", ("g++", "clang++"), "C++"), "cuda": ("CC", ("gcc", "clang"), "C")}
OPTIONS: dict[str, dict[str, str] | None] = {  # of torch.compile. None: it is not called
    "inductor": {"backend": "inductor"},
    "max_autotune": {"mode": "max-autotune-no-cudagraphs"},
    "graphs": None,
    "inductor_graphs": {"backend": "inductor"},
}
INDUCTOR = ("inductor", "max_autotune", "inductor_graphs")
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@contextmanager
def cold(compile: Any) -> Iterator[None]:
    """Have the block compile, if it does, into an empty folder that is removed with it.

    What an earlier run left in the user's folder would not be compiled on the clock (rule R16).
    """
    if compile is None:
        yield
        return
    with temporary_folder.folder() as folder:
        os.environ |= dict.fromkeys(CACHES, str(folder))
        yield


def options(compile: Any) -> dict[str, Any] | None:
    """Return torch.compile's arguments for a value of `compile=`, or a backend. None: it is not called."""
    return None if compile is None else OPTIONS.get(compile, {"backend": compile})


def require(compile: str | None, device: str) -> None:
    """Raise UserError if inductor would compile and this machine has no compiler for it."""
    if compile not in INDUCTOR:
        return
    variable, programs, language = COMPILERS[device]
    given = os.environ.get(variable)
    if not any(map(shutil.which, [given] if given else programs)):
        missing = given or " or ".join(programs)
        raise UserError(
            f"compile={compile} needs a {language} compiler, and {missing} is not installed",
            hint=f"apt-get install g++, name another in {variable}, or use compile=aot_eager",
        )
