"""The entry point of a worker's process: imports torch, then runs the script that Ray names.

In a process that connects to Ray first, torch's small operations are slower (docs/performance.md). Ray runs
this file with the script and its arguments, where it would run Python with them.
"""

import os
import runpy
import shlex
import sys
from contextlib import suppress


def command() -> str:
    """Return the command of a worker on a machine that has this process's files, quoted for a shell."""
    return shlex.join([sys.executable, os.path.abspath(__file__)])


if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = os.path.dirname(sys.argv[0])
    with suppress(ImportError):  # the worker says it when it needs it
        import torch  # noqa: F401  (the import is the point)
    runpy.run_path(sys.argv[0], run_name="__main__")
