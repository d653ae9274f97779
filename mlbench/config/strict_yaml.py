"""YAML in which a name that stands twice is a mistake; yaml.safe_load would take the last one."""

from collections.abc import Hashable
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names: set[str] = set()
        for name in (name for name, _ in node.value if isinstance(name, yaml.ScalarNode)):
            if name.value in names:
                problem = f"{name.value} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, name.start_mark)
            names.add(name.value)
        return super().construct_mapping(node, deep)


def load(text: str | bytes) -> Any:
    """Return what YAML from outside holds; yaml.YAMLError where it is none, or says something twice."""
    return yaml.load(text, _Loader)
