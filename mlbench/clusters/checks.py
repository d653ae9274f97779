"""Check this machine, one check a row: for `mlbench doctor` and packages that add to it."""

import shutil
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Check:
    """Something that a run needs, or may need.

    - state: "here"; "absent" or "broken", which only some programs
      need; "fault", with which no run works.
    - detail: the finding, e.g. a version.
    - way: how to install an absent part or to fix a fault.
    """

    name: str
    state: Literal["here", "absent", "broken", "fault"]
    detail: str
    way: str = ""


def program(name: str, way: str) -> Check:
    """Return whether a program is on the PATH."""
    path = shutil.which(name)
    return Check(name, "here", path) if path else Check(name, "absent", "not on the PATH", way)
