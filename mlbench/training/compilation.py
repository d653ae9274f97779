"""What `compile=` needs of a machine, and where it compiles to."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlbench.config.errors import UserError
from mlbench.record import temporary_folder

# What inductor builds a CPU's kernels with, Triton a GPU's launchers: a variable, and programs without it.
COMPILERS = {"cpu": ("CXX", ("g++", "clang++"), "C++"), "cuda": ("CC", ("gcc", "clang"), "C")}
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@contextmanager
def cold(compile: Any) -> Iterator[None]:
    """Have the block compile, if it does, into an empty folder that is removed with it.

    What an earlier run left in the user's own folder would not be compiled on the clock (rule R16).
    """
    if compile is None:
        yield
        return
    with temporary_folder.folder() as folder:
        os.environ |= dict.fromkeys(CACHES, str(folder))
        yield


def require(compile: str | None, device: str) -> None:
    """Raise UserError where inductor would compile and this machine has no compiler for it."""
    if compile != "inductor":
        return
    variable, programs, language = COMPILERS[device]
    given = os.environ.get(variable)
    if not any(map(shutil.which, [given] if given else programs)):
        raise UserError(
            f"compile=inductor needs a {language} compiler, and {given or ' or '.join(programs)} is not here",
            hint=f"apt-get install g++, name another in {variable}, or say compile=aot_eager",
        )
