"""Whether NVIDIA's device plugin is scheduled on a node, by what its chart asks for."""

from pathlib import Path
from typing import Any

import yaml

CHART: Any = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def scheduled(labels: dict[str, str], taint: str) -> bool:
    """Return whether a node with these labels and the taint of this key gets a pod of the plugin."""
    required = CHART["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = [term["matchExpressions"] for term in required["nodeSelectorTerms"]]
    fits = any(
        all(labels.get(expression["key"]) in expression["values"] for expression in term) for term in terms
    )
    return fits and any(toleration["key"] == taint for toleration in CHART["tolerations"])
