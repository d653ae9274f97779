"""Read NCCL's choice of network and algorithms from its log of one process.

The hardware of a node does not show it: /sys lists a host's adapters in every pod, and NCCL falls back to TCP
without an error. NCCL reads its variables once, at its first communicator, and then writes a line for every
collective. So the log is read after the first messages, and goes to /dev/null afterwards.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlbench.record import temporary_folder

VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
# Lines of NCCL 2.24 to 2.28 (src/init.cc, src/transport/*.cc, src/enqueue.cc) and of aws-ofi-nccl.
NETWORK = re.compile(r"(?:Using network|Assigned NET plugin) (.+?)(?: to comm)?\s*$", re.MULTILINE)
PROVIDER = re.compile(r"NET/OFI Selected provider is (\w+)", re.IGNORECASE)
CHANNEL = re.compile(r" via (NET/[^/\n]+|P2P|SHM)([^\n]*)")
ALL_REDUCE = re.compile(r"AllReduce: +(\d+) Bytes -> Algo (\w+)", re.IGNORECASE)


@contextmanager
def recorded(transport: dict[str, str]) -> Iterator[None]:
    """Put NCCL's choices for the communicator and the messages of the block into `transport`.

    If the user has set NCCL_DEBUG, the log belongs to the user and goes to the user's target.
    """
    if any(name in os.environ for name in VARIABLES):
        yield
        return
    with temporary_folder.folder() as folder:
        path = Path(folder) / "nccl.log"
        os.environ |= dict(zip(VARIABLES, ("INFO", "INIT,NET,TUNING", str(path)), strict=True))
        try:
            yield
        finally:
            for name in VARIABLES:
                os.environ.pop(name, None)
        with suppress(OSError):
            transport |= parse(path.read_text(errors="replace"))
            _silence(path)


def parse(text: str) -> dict[str, str]:
    """Return the contents of a log: network, provider, paths between ranks, all-reduce algorithms by bytes.

    Rank 0 alone writes the algorithms.
    """
    found: dict[str, str] = {}
    for name, pattern in (("network", NETWORK), ("provider", PROVIDER)):
        if matches := pattern.findall(text):
            found[name] = matches[-1]
    paths = {kind + ("/GDRDMA" if "GDRDMA" in rest else "") for kind, rest in CHANNEL.findall(text)}
    chosen = {int(size): name.upper() for size, name in ALL_REDUCE.findall(text)}
    algorithms = [f"{name} ({size} B)" for size, name in sorted(chosen.items())]
    lists = {"paths": sorted(paths), "algorithms": algorithms}
    return found | {name: ", ".join(values) for name, values in lists.items() if values}


def _silence(path: Path) -> None:
    """Turn NCCL's open log file into /dev/null: a line for every collective would fill the disk."""
    with open(os.devnull, "w") as nowhere:
        for each in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                if os.readlink(each) == str(path.resolve()):
                    os.dup2(nowhere.fileno(), int(each.name))
