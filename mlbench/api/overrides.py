"""Settings given as keyword arguments, as the `name=value` overrides of the commands."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mlbench.config.overrides import VERBATIM

PLAIN = re.compile(r"[\w./:+%-]+")  # text that Hydra's grammar reads without quotes


def from_settings(settings: Mapping[str, Any], *, several: bool = False) -> list[str]:
    """Return `name=value` words.

    Args:
        settings: by name; a mapping has the fields of a group: `{"task": {"epochs": 3}}` is task.epochs=3.
        several: whether a list or tuple gives several values to sweep over; otherwise it is one value.
    """
    words: list[str] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            words += from_settings(
                {f"{name}.{field}": inner for field, inner in value.items()}, several=several
            )
        elif several and isinstance(value, list | tuple):
            words.append(f"{name}={','.join(_text(name, choice) for choice in value)}")
        else:
            words.append(f"{name}={_text(name, value)}")
    return words


def _text(name: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{','.join(_text(name, item) for item in value)}]"
    text = str(value)
    if name in VERBATIM or PLAIN.fullmatch(text) or isinstance(value, int | float):
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
