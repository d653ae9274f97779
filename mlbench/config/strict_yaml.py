"""YAML loader that rejects duplicate keys, of which yaml.safe_load would take the last."""

from collections.abc import Hashable
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names: set[str] = set()
        for name in (name for name, _ in node.value if isinstance(name, yaml.ScalarNode)):
            if name.value in names:
                problem = f"{name.value} is repeated"
                raise yaml.constructor.ConstructorError(None, None, problem, name.start_mark)
            names.add(name.value)
        return super().construct_mapping(node, deep)


def load(text: str | bytes) -> Any:
    """Return what YAML from outside holds. Raises yaml.YAMLError if it is invalid or has duplicate keys."""
    return yaml.load(text, _Loader)
