"""The user's prices, which override those of conf/hardware: one YAML file, by profile.

docs/clusters.md shows one. $MLBENCH_PRICES names the file. By default it is mlbench/prices.yaml in
$XDG_CONFIG_HOME (~/.config).
"""

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from mlbench.config import strict_yaml
from mlbench.config.errors import ConfigurationError, first_line
from mlbench.config.experiment import Price

PRICES = TypeAdapter(dict[str, Price])
HINT = "every price needs usd_per_hour, date and source, and may have usd_per_hour_spot"


def path() -> Path:
    """Return the file's path, whether or not it exists."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Path(os.environ.get("MLBENCH_PRICES") or config / "mlbench" / "prices.yaml")


def read() -> dict[str, Price]:
    """Return the user's prices by profile, {} without a file. Raises UserError for an invalid one."""
    file = path()
    if not file.exists():
        if os.environ.get("MLBENCH_PRICES"):
            raise ConfigurationError(f"MLBENCH_PRICES={file} does not exist", hint="name a file, or unset it")
        return {}
    try:
        return PRICES.validate_python(strict_yaml.load(file.read_text()) or {})
    except ValidationError as error:
        raise ConfigurationError(f"{file} is not a price file: {_fault(error)}", hint=HINT) from error
    except (OSError, ValueError, yaml.YAMLError) as error:  # a folder, another encoding
        raise ConfigurationError(f"{file} is not a price file: {first_line(error)}", hint=HINT) from error


def create() -> None:
    """Make an empty price file if $MLBENCH_PRICES names one that does not exist yet."""
    path().parent.mkdir(parents=True, exist_ok=True)
    path().touch()


def write(values: dict[str, dict[str, Any]]) -> Path:
    """Set the user's prices of these profiles, by the names of their fields. Return the file.

    Raises UserError if one is not valid. The file is written again, without its comments.
    """
    try:
        prices = read() | PRICES.validate_python(values)
    except ValidationError as error:
        raise ConfigurationError(_fault(error), hint=HINT) from error
    file = path()
    part = file.with_suffix(".part")
    part.write_text(yaml.safe_dump(PRICES.dump_python(prices), sort_keys=False))
    part.replace(file)
    return file


def _fault(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
