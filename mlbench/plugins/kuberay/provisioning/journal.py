"""Keep the journal of each cluster: written before any creation, read by `down` and `reap` after a crash.

A journal is a file of JSON lines in $XDG_STATE_HOME/mlbench/clusters/NAME (~/.local/state without it). It has
the specification first, then every step before and after it ran, and the end once nothing is left.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlbench import clock
from mlbench.config.errors import ClusterError, UserError
from mlbench.plugins.kuberay.provisioning.spec import ClusterSpec, require_name

FILE = "journal.jsonl"


@dataclass(frozen=True)
class Journal:
    """One cluster's folder with its specification and its events, oldest first."""

    folder: Path
    spec: ClusterSpec
    events: tuple[dict[str, Any], ...]

    @property
    def state(self) -> str:
        """Return creating, up, deleting or gone. A killed command leaves creating or deleting."""
        return self._last["state"]

    @property
    def command(self) -> tuple[int, float | None]:
        """Return number and start (s since the boot) of the process that creates or deletes the cluster."""
        return self._last.get("command", (0, None))

    @property
    def _last(self) -> dict[str, Any]:
        return next((event for event in reversed(self.events) if "state" in event), {"state": "creating"})

    @property
    def ended(self) -> float | None:
        """Return when nothing was left (s since 1970), or None before."""
        return self.events[-1]["at"] if self.state == "gone" else None

    def append(self, **values: Any) -> None:
        """Add one line, which is on the disk when this returns."""
        _append(self.folder / FILE, values)


def root() -> Path:
    """Return the folder of all clusters' folders."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "mlbench" / "clusters"


def begin(spec: ClusterSpec, command: tuple[int, float | None] = (0, None)) -> Journal:
    """Write the first lines of a new cluster's journal. Raises UserError if one of that name exists."""
    folder = root() / spec.name
    path = folder / FILE
    if path.exists():
        before = load(spec.name)
        if before.state != "gone":
            raise ClusterError(
                f"a cluster {spec.name} exists already ({before.state})",
                hint=f"mlbench cluster down {spec.name} deletes it, name=OTHER makes another",
            )
        path.rename(folder / f"journal-{before.spec.id}.jsonl")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_suffix(".part")  # a file cut off by a crash is no journal
    part.unlink(missing_ok=True)
    _append(part, {"spec": spec.model_dump(mode="json")})
    _append(part, {"state": "creating", "command": command})
    part.rename(path)
    return load(spec.name)


def load(name: str) -> Journal:
    """Read the journal of one cluster. Raises UserError if it is missing or cannot be read."""
    path = root() / require_name(name) / FILE
    try:
        lines = path.read_text().splitlines()
        spec = ClusterSpec.model_validate(json.loads(lines[0])["spec"])
    except FileNotFoundError:
        names = ", ".join(journal.spec.name for journal in journals()[0]) or "none"
        raise ClusterError(
            f"no cluster {name} was made by this command", hint=f"existing clusters: {names}"
        ) from None
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise ClusterError(
            f"{path} cannot be read: {error}", hint="delete the cluster in its cloud"
        ) from error
    return Journal(path.parent, spec, tuple(_events(lines[1:])))


def journals() -> tuple[list[Journal], dict[str, UserError]]:
    """Return the journals of all clusters made here, and by name the errors of unreadable ones."""
    logs: list[Journal] = []
    faults: dict[str, UserError] = {}
    for path in sorted(root().glob(f"*/{FILE}")):
        try:
            logs.append(load(path.parent.name))
        except UserError as error:
            faults[path.parent.name] = error
    return logs, faults


def _events(lines: list[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with suppress(ValueError):  # a line cut off by a crash
            yield json.loads(line)


def _append(path: Path, values: dict[str, Any]) -> None:
    line = json.dumps({"at": clock.wall(), **values}) + "\n"
    if path.exists() and not path.read_bytes().endswith(b"\n"):  # the last one was cut off by a crash
        line = "\n" + line
    with path.open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
