"""What is wrong with a set of machines: which of them, or which link, is slow or loses packets.

Here is what `python -m mlbench.cluster check` takes and says; `machines` measures.
"""

import os
from typing import Any

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.record.format import with_prefix

SETTINGS = {
    "rank": ("", "this machine's number, from 0; default: $RANK or $SLURM_PROCID"),
    "machines": ("", "how many there are; default: $WORLD_SIZE or $SLURM_NTASKS"),
    "address": ("", "where machine 0 is reached by the others; default: $MASTER_ADDR"),
    "port": ("29500", "on which machine 0 listens"),
    "hardware": ("", "a profile of conf/hardware with the links' rate; default: what most machines reach"),
    "minutes": ("10", "at most; with many machines not every pair is measured"),
}
VARIABLES = {
    "rank": ("RANK", "SLURM_PROCID"),
    "machines": ("WORLD_SIZE", "SLURM_NTASKS"),
    "address": ("MASTER_ADDR",),
}


def measured(settings: dict[str, str]) -> dict[str, Any]:
    """Measure as the settings say, which SETTINGS lists; UserError where they do not say enough."""
    given = {name: settings[name] or _variable(name) for name in VARIABLES}
    rank, machines, port = (_number(name, (settings | given)[name]) for name in ("rank", "machines", "port"))
    if not 0 <= rank < machines or machines < 2:
        raise UserError(
            f"rank={rank} machines={machines}: there is nothing to compare",
            hint="give rank= from 0 and machines= of at least 2",
        )
    minutes = float(_number("minutes", settings["minutes"]))
    expected = _expected(settings["hardware"])
    from mlbench.launch.check.machines import check  # it imports torch

    return check(rank, machines, given["address"], port, minutes=minutes, expected_bytes_per_s=expected)


def _variable(name: str) -> str:
    value = next((os.environ[variable] for variable in VARIABLES[name] if variable in os.environ), "")
    if not value:
        raise UserError(
            f"check does not know its {name}", hint=f"give {name}=, or start it by torchrun or srun"
        )
    return value


def _number(name: str, text: str) -> int:
    if not text.isdigit():
        raise UserError(f"{name}={text} is no whole number", hint=f"e.g. {name}=4")
    return int(text)


def _expected(hardware: str) -> float | None:
    """Return the rate of a profile's links, B/s; None without a profile."""
    if not hardware:
        return None
    rate = compose([f"hardware={hardware}"]).hardware.network_gbit_per_s
    if rate is None:
        raise UserError(f"hardware={hardware} states no rate of its network", hint="leave hardware= out")
    return rate * 1e9 / 8


def text(result: dict[str, Any]) -> str:
    """Return the verdict for people."""
    rates = [8 * pair["bytes_per_s"] for pair in result["pairs"]]
    lines = [
        f"{len(result['machines'])} machines, {len(rates)} links both ways: "
        f"{with_prefix(min(rates), 'bit/s')} to {with_prefix(max(rates), 'bit/s')}, "
        f"all-reduce at {with_prefix(result['ring_busbw_bytes_per_s'], 'B/s')} of bus bandwidth"
    ]
    return "\n".join([*lines, *(result["faults"] or ["nothing is slow and no packet is lost"])])
