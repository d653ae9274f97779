"""Prices of a public catalogue, checked before they go into the user's price file.

The format is that of SkyPilot's catalogues (skypilot-org/skypilot-catalog, catalogs/v8/{aws,gcp}/vms.csv):
a row a machine type, accelerator and zone. Their rows of some GPUs have held other products' prices, so what
is implausible is refused.
"""

import csv
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlbench import clock
from mlbench.config import compose, price_file
from mlbench.config.errors import UserError
from mlbench.config.experiment import Hardware, Price

COLUMNS = {"InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region"}
PLAUSIBLE = 3.0  # times that a price may differ from the shipped one; list prices have not moved further
ACCELERATORS = {  # the catalogue's names of GKE's accelerators
    "nvidia-tesla-t4": "T4", "nvidia-tesla-p4": "P4", "nvidia-tesla-v100": "V100",
    "nvidia-tesla-a100": "A100", "nvidia-h100-80gb": "H100", "nvidia-l4": "L4",
}  # fmt: skip


@dataclass(frozen=True)
class Import:
    """What a catalogue gave: prices by profile, and a sentence for each that was refused."""

    prices: dict[str, Price]
    refused: list[str]


def read(file: Path, provider: str) -> Import:
    """Return the prices of all profiles of a provider that the catalogue has and that are plausible.

    Raises UserError for a file of another format and for one without a price of any profile.
    """
    try:
        with file.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    missing = COLUMNS - (rows[0].keys() if rows else set())
    if missing:
        raise UserError(
            f"{file} lacks the columns {', '.join(sorted(missing))}", hint="SkyPilot's vms.csv has them"
        )
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    prices, refused = {}, []
    for name in compose.choices("hardware"):
        profile = compose.hardware(name)
        if profile.machine is None or profile.machine.provider != provider or name.startswith("mlbench_"):
            continue  # the published runs' prices are dated on purpose
        try:
            usd = _price(profile, rows)
            if usd is None:
                continue
            on_demand, spot = usd
            _check(profile, on_demand, spot)
            prices[name] = Price(
                usd_per_hour=on_demand,
                usd_per_hour_spot=spot,
                date=clock.iso(clock.wall())[:10],
                source=f"catalogue {file.name} ({digest}), {profile.machine.place}, day of the import",
            )
        except ValueError as error:
            refused.append(f"{name}: {error}")
    if not prices and not refused:
        raise UserError(f"{file} has no price of a profile of {provider}", hint="is provider= right?")
    return Import(prices, refused)


def rows() -> list[list[str]]:
    """Return name, USD/h on demand and spot, date and source of every profile with a price."""
    own, listed = price_file.read(), []
    for name in compose.choices("hardware"):
        price = compose.hardware(name).price
        if price is not None:
            spot = "-" if price.usd_per_hour_spot is None else f"{price.usd_per_hour_spot:g}"
            where = "price file" if name in own else "shipped"
            listed.append([name, f"{price.usd_per_hour:g}", spot, price.date, where, price.source])
    return listed


def _price(profile: Hardware, rows: list[dict[str, str]]) -> tuple[float, float | None] | None:
    """Return USD/h on demand and spot of a node, None where the catalogue lacks it.

    A machine of Google's and its GPUs have rows of their own, which are added. Of several zones' spot prices
    the highest counts.
    """
    machine = profile.machine
    assert machine is not None
    parts = [[row for row in _at(machine.place, rows) if row["InstanceType"] == machine.type]]
    if machine.provider == "gke":
        parts[0] = [row for row in parts[0] if not row["AcceleratorName"]]
    if machine.accelerator:
        gpu = ACCELERATORS[machine.accelerator]
        parts.append(
            [
                row
                for row in _at(machine.place, rows)
                if row["AcceleratorName"] == gpu
                and not row["InstanceType"]
                and _number(row["AcceleratorCount"]) == profile.gpus
            ]
        )
    if not all(parts):
        return None
    on_demand = sum(max(_number(row["Price"]) for row in part) for part in parts)
    if any(not row["SpotPrice"] for part in parts for row in part):
        return on_demand, None
    return on_demand, sum(max(_number(row["SpotPrice"]) for row in part) for part in parts)


def _at(place: str, rows: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Yield the rows of a region, or of a zone's region."""
    yield from (row for row in rows if place == row["Region"] or place.rpartition("-")[0] == row["Region"])


def _check(profile: Hardware, on_demand: float, spot: float | None) -> None:
    """Raise ValueError, with the reason, for a price that cannot be one."""
    if on_demand <= 0 or (spot is not None and spot <= 0):
        raise ValueError("a price that is not above 0")
    if spot is not None and spot > on_demand:
        raise ValueError(f"spot {spot:g} is above on demand {on_demand:g}")
    if profile.price is not None:
        shipped = profile.price.usd_per_hour
        if not shipped / PLAUSIBLE <= on_demand <= shipped * PLAUSIBLE:
            raise ValueError(
                f"{on_demand:g} is more than {PLAUSIBLE:g} times off {shipped:g} of {profile.price.date}"
            )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
