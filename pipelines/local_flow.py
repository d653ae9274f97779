"""Metaflow on this machine alone: import this module before metaflow.

Metaflow reads its settings when it is imported. With these it keeps everything below output_root/.metaflow,
reads no profile from the home folder, and talks to nobody. Where results and data lie is told by the
environment, because `resume` must find them before it knows the parameters of the run:
MLBENCH_OUTPUT_ROOT (default runs) and MLBENCH_DATA_ROOT (default data).
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

OUTPUT_ROOT = Path(os.environ.get("MLBENCH_OUTPUT_ROOT", "runs")).absolute()
DATA_ROOT = Path(os.environ.get("MLBENCH_DATA_ROOT", "data")).absolute()

TERMINAL = "MLBENCH_TERMINAL"  # environment variable: the terminal on which a step may show its progress
SHOW_CURSOR = "\x1b[?25h"  # ECMA-48 private mode 25

try:
    OUTPUT_ROOT.mkdir(parents=True, exist_ok=True)
except OSError as error:
    print(f"mlbench: cannot use MLBENCH_OUTPUT_ROOT={OUTPUT_ROOT}: {error.strerror}", file=sys.stderr)
    raise SystemExit(2) from error
os.environ |= {
    "METAFLOW_HOME": str(OUTPUT_ROOT / ".metaflow"),  # instead of ~/.metaflowconfig
    "METAFLOW_DATASTORE_SYSROOT_LOCAL": str(OUTPUT_ROOT),  # it adds .metaflow itself
    "METAFLOW_DEFAULT_DATASTORE": "local",
    "METAFLOW_DEFAULT_METADATA": "local",
    "METAFLOW_DEFAULT_EVENT_LOGGER": "nullSidecarLogger",
    "METAFLOW_DEFAULT_MONITOR": "nullSidecarMonitor",
    "METAFLOW_USER": os.environ.get("METAFLOW_USER", "mlbench"),  # it refuses to run as root otherwise
    # A step runs this Python, whatever is first in PATH.
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
}
if find_spec("metaflow") is None:
    print("mlbench: the flows need Metaflow (pip install 'mlbench-suite[pipelines]')", file=sys.stderr)
    raise SystemExit(2)


@contextmanager
def terminal() -> Iterator[None]:
    """Tell the steps of which terminal they are part, whose lines Metaflow reads through pipes."""
    if not sys.stderr.isatty():
        yield
        return
    os.environ[TERMINAL] = os.ttyname(sys.stderr.fileno())
    try:
        yield
    finally:
        sys.stderr.write(SHOW_CURSOR)  # a step that was killed has left it hidden
        sys.stderr.flush()
