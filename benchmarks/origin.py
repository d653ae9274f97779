"""Where the numbers of a table come from."""

from collections.abc import Sequence
from pathlib import Path

import torch

from mlbench.clock import iso, wall
from mlbench.clusters import node
from mlbench.record import provenance

ROOT = Path(__file__).parents[1]


def origin(script: str, arguments: Sequence[str], *details: str) -> str:
    """Return machine, details, version, commit, day and command in one line, to stand above a table."""
    machine, git = node.describe(), provenance.git(ROOT)
    commit = f"{git.sha[:7]}{' with changes' if git.dirty else ''}" if git else "unknown"
    parts = [f"{machine.cpu_model}, {machine.usable_cpus} CPUs", *details, f"torch {torch.__version__}"]
    command = " ".join(["python", str(Path(script).relative_to(ROOT)), *arguments])
    return f"{', '.join(parts)}, commit {commit}, {iso(wall())[:10]}: `{command}`"
