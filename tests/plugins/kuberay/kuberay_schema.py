"""What an API server and KubeRay's operator refuse: our copy, for servers of the tests.

A RayJob or RayCluster passes three gates: the schema of its custom resource definition (here with unknown
fields refused, as `kubectl --validate=strict` does), the rules in CEL that stand in that schema, and the
operator's own rules, which neither has (kuberay_rules.py). The definitions are of KubeRay v1.7.0 (crd).
"""

import json
import lzma
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import cel
import jsonschema
import kuberay_rules

from mlbench.plugins.kuberay.pods import Object

KINDS = ("RayJob", "RayCluster")


def faults(item: Object) -> list[str]:
    """Return a sentence for every fault of a RayJob or RayCluster; objects of other kinds have none here."""
    if item["kind"] not in KINDS:
        return []
    schema = definition(item["kind"])
    sentences = [*structural_faults(item, schema), *cel_faults(item, schema)]
    return sentences or list(kuberay_rules.faults(item))  # the operator reads only what has the right form


@cache
def definition(kind: str) -> Object:
    """Return the OpenAPI schema of the kind's custom resource definition."""
    file = Path(__file__).parent / "crd" / f"{kind.lower()}.json.xz"
    return json.loads(lzma.decompress(file.read_bytes()))


def structural_faults(item: Object, schema: Object) -> Iterator[str]:
    """Yield what does not fit the schema, with its path."""
    for error in jsonschema.Draft202012Validator(_strict(schema)).iter_errors(item):
        yield f"{'.'.join(map(str, error.absolute_path)) or 'object'}: {error.message[:200]}"


def _strict(schema: Any) -> Any:
    """Return a structural schema of Kubernetes as a JSON schema that refuses unknown fields."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: value if key == "default" else _strict(value) for key, value in schema.items()}
    if strict.get("x-kubernetes-int-or-string"):
        strict.pop("type", None)
        strict.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    if strict.get("nullable") and "type" in strict:
        strict["type"] = [strict["type"], "null"]
    preserves = strict.get("x-kubernetes-preserve-unknown-fields")
    if strict.get("type") == "object" and "properties" in strict and not preserves:
        strict.setdefault("additionalProperties", False)
    return strict


def cel_faults(item: Any, schema: Object, path: str = "") -> Iterator[str]:
    """Yield the message of every rule (x-kubernetes-validations) that does not hold.

    Rules about `oldSelf` compare an update with what it changes; there is nothing to compare at a creation.
    """
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"] and cel.evaluate(rule["rule"], {"self": item}) is not True:
            yield f"{path or 'object'}: {rule['message']}"
    if isinstance(item, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, value in item.items():
            below = properties.get(name, others if isinstance(others, dict) else None)
            if isinstance(below, dict):
                yield from cel_faults(value, below, f"{path}.{name}".lstrip("."))
    elif isinstance(item, list) and isinstance(schema.get("items"), dict):
        for number, value in enumerate(item):
            yield from cel_faults(value, schema["items"], f"{path}.{number}")
