"""Grids of experiments: `name=value,value` words in Hydra's syntax, multiplied out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product

from mlbench.config.errors import UserError
from mlbench.config.identity import role
from mlbench.config.overrides import SEARCH_PATH, VERBATIM, quoted, shortened
from mlbench.record.study import SEEDS

OUTPUT = ("study", "verbose", SEARCH_PATH)  # with locations and operation, the same for all runs of a sweep
ONE_VALUE = (*OUTPUT, "cluster", "division")
MOST = 1000  # points, and seeds of one. A mistyped range plans no study of a lifetime


@dataclass(frozen=True)
class Grid:
    """The measurements that the words describe.

    - parameters: the words of every measured field, in the order given. Most have one.
    - output_settings: the words by name that place the results, on which no measurement depends.
    - seeds: given ones. None if each repeat draws a seed.
    """

    parameters: dict[str, list[str]]
    output_settings: dict[str, str]
    seeds: tuple[int, ...] | None

    @property
    def points(self) -> list[tuple[str, ...]]:
        """Return the words of every point, the last axis fastest."""
        return list(product(*self.parameters.values()))

    @property
    def swept(self) -> list[str]:
        """Return the names that take several values."""
        return [name for name, overrides in self.parameters.items() if len(overrides) > 1]


def parse(overrides: Sequence[str]) -> Grid:
    """Read words such as workers=1,2,4 or workers=range(1,5). UserError lists every fault."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import ChoiceSweep
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    parameters: dict[str, list[str]] = {}
    output_settings: dict[str, str] = {}
    seeds: list[str] | None = None
    faults: list[str] = []
    for word in overrides:
        try:
            override = parser.parse_override(quoted(word))
            name = override.key_or_group
            swept = override.is_sweep_override()
            texts = override.sweep_string_iterator() if swept else word.split("=", 1)[1:]
            values = list(islice(texts, MOST + 1))
            if isinstance(choice := override.value(), ChoiceSweep) and name in VERBATIM:
                values = [str(getattr(value, "text", value)) for value in choice.list]  # without quotes
        except (HydraException, IndexError, RecursionError, ValueError):  # ValueError: range(1,5,0)
            faults.append(f"{shortened(word)!r} is not of the form name=value or name=value,value")
            continue
        if not values:
            faults.append(f"{word!r} names no value")
        elif len(values) > MOST:
            faults.append(f"{word!r} names more than {MOST:,} values")
        elif len(set(values)) < len(values):
            faults.append(f"{word!r} names a value twice")
        elif name == "seed":
            seeds = values
        elif name in parameters or name in output_settings:
            faults.append(f"{name} is given twice: write {name}=value,value")
        elif swept and (name in ONE_VALUE or role(name) != "identity"):
            faults.append(f"{word!r}: a sweep takes one {name}")
        elif name in OUTPUT or role(name) in ("location", "operation"):
            output_settings[name] = word
        else:
            parameters[name] = [f"{name}={value}" for value in values]
    if seeds is not None and not all(seed.isdecimal() and int(seed) < SEEDS for seed in seeds):
        faults.append(f"seed={','.join(seeds)}: a seed is a whole number from 0 to {SEEDS - 1}")
        seeds = None
    if (points := math.prod(map(len, parameters.values()))) > MOST:
        faults.append(f"the grid has {points:,} points, more than {MOST:,}")
    if faults:
        raise UserError("; ".join(faults), hint="e.g. workers=1,2,4 or workers=range(1,5)")
    return Grid(parameters, output_settings, None if seeds is None else tuple(map(int, seeds)))
