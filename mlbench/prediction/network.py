"""A network that was stated or measured, in place of the one that the runs used."""

import re
from dataclasses import dataclass
from typing import Any

from mlbench.experiment.errors import UserError

BITS = 8  # a byte
PATTERN = re.compile(r"(?P<rate>\d+(?:\.\d+)?)gbit,(?P<latency>\d+(?:\.\d+)?)us", re.IGNORECASE)


@dataclass(frozen=True)
class Network:
    """What a message costs: seconds each, and seconds a byte; at line rate unless it was measured."""

    name: str
    latency_s: float
    s_per_byte: float
    measured: bool

    @property
    def gbit_per_s(self) -> float:
        return BITS / self.s_per_byte / 1e9


def stated(word: str) -> Network:
    """Return the network of words such as 10gbit,50us: line rate, and latency of a message one way."""
    found = PATTERN.fullmatch(word)
    if not found or float(found["rate"]) == 0:
        raise UserError(
            f"network={word} is not a network",
            hint="write line rate and latency of a message, as in network=10gbit,50us, "
            "or the name of a run of task allreduce",
        )
    rate = float(found["rate"]) * 1e9 / BITS
    return Network(word, float(found["latency"]) * 1e-6, 1 / rate, measured=False)


def of_table(name: str, table: list[dict[str, Any]]) -> Network:
    """Return the network that a run of task allreduce measured: its line through all_reduce of float32."""
    wanted = {"kind": "fit", "collective": "all_reduce", "dtype": "float32"}
    rows = [row for row in table if wanted.items() <= row.items()]  # other tasks have other tables
    if not rows or not rows[0]["beta_s_per_byte"]:
        raise UserError(
            f"run {name!r} measured no bandwidth of all_reduce", hint="python -m mlbench.run task=allreduce"
        )
    line, workers = rows[0], rows[0]["workers"]
    hops, volume = 2 * (workers - 1), 2 * (workers - 1) / workers  # a ring's, as in mlbench.prediction.model
    return Network(name, line["alpha_s"] / hops, line["beta_s_per_byte"] / volume, measured=True)
