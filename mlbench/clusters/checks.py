"""What this machine can run, one check a row: for `python -m mlbench.doctor` and packages that add to it."""

import shutil
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Check:
    """Something that a run needs, or may need.

    - state: "here"; "absent", and what needs it is another matter; "fault": no run works before it is mended.
    - detail: what there is, e.g. a version. way: how to get what is absent or to mend a fault.
    """

    name: str
    state: Literal["here", "absent", "fault"]
    detail: str
    way: str = ""


def program(name: str, way: str) -> Check:
    """Return whether a program is on the PATH."""
    path = shutil.which(name)
    return Check(name, "here", path) if path else Check(name, "absent", "not on the PATH", way)
