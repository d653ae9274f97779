"""What `compile=` needs of a machine."""

import os
import shutil

from mlbench.config.errors import UserError

# What inductor builds a CPU's kernels with, Triton a GPU's launchers: a variable, and programs without it.
COMPILERS = {"cpu": ("CXX", ("g++", "clang++"), "C++"), "cuda": ("CC", ("gcc", "clang"), "C")}


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
