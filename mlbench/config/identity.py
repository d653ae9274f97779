"""The role of every configuration field, and the key under which equal measurements are found again.

`IDENTITY` is the only list of what decides a measurement. Keys, reuse, studies, points, comparison and
selection all read the roles here.
"""

import hashlib
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import metadata
from typing import Any, Literal, Protocol

import mlbench
from mlbench.config.errors import comparable

Role = Literal["identity", "location", "presentation", "operation"]

# What decides a measurement. Two runs that agree here measured the same thing.
IDENTITY = (
    "task.*",
    "workers",
    "launcher",
    "scale",
    "goal",
    "framework",
    "framework.*",
    "compile",
    "backend.name",
    "backend.device",
    "backend.module",
    "backend.interface",
    "backend.sockets",
    "backend.threads",
    "backend.provider",
    "backend.algorithm",
    "sync.*",
    "cluster.name",
    "network.*",
    "hardware.cpus",
    "hardware.gpus",
    "hardware.gpu_model",
    "hardware.workers_per_node",
    "hardware.threads_per_worker",
    "hardware.numa_binding",
    "phase_timing",
    "profile",
)
# Fields that came later, with the value that older runs had without them. It is in no key.
ADDED = {"hardware.numa_binding": "none"}
# Paths of data, results and the cluster.
LOCATION = ("task.cwd", "task.command", "data_root", "output_root", "tracking_uri", "cluster.*")
# Labels, and prices and peaks by which a result is judged. They are computed again whenever a result is
# shown.
PRESENTATION = (
    "study",
    "verbose",
    "division",
    "division.*",
    "hardware.name",
    "hardware.description",
    "hardware.network_gbit_per_s",
    "hardware.network_us",
    "hardware.node_link_gbit_per_s",
    "hardware.node_link_us",
    "hardware.gpu_power_w",
    "hardware.gpu_resource",
    "hardware.capability",
    "hardware.memory_gib",
    "hardware.machine",
    "hardware.machine.*",
    "hardware.price",
    "hardware.price.*",
    "hardware.peak",
    "hardware.peak.*",
    "hardware.grid",
    "hardware.grid.*",
)
# How a run is carried out. A run that succeeds measures the same with any of them.
OPERATION = ("seed", "force", "max_failures", "backend.timeout_s", "cluster.oversubscribe")

RUNS_AS = "cluster.runs_as"  # the field of clusters to which whole runs are submitted


class KeyFields(Protocol):
    """What `key` needs of an Experiment, whose module imports this one."""

    def plain(self) -> dict[str, Any]: ...


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values under dotted names, e.g. {"task": {"lr": 1}} as {"task.lr": 1}."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            result |= flatten(value, f"{prefix}{name}.")
        else:
            result[prefix + name] = value
    return result


def listed(field: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a dotted field matches one of the patterns, e.g. "hardware.*"."""
    return any(fnmatchcase(field, pattern) for pattern in patterns)


@cache  # records of many runs have the same fields
def role(field: str) -> Role:
    """Return the role of a dotted field. A field in no list decides a measurement: it separates runs."""
    if listed(field, IDENTITY) and field not in LOCATION:
        return "identity"
    if listed(field, OPERATION):
        return "operation"
    if listed(field, LOCATION):
        return "location"
    return "presentation" if listed(field, PRESENTATION) else "identity"


def identity(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration that decide a measurement, under dotted names.

    A run that is submitted to a cluster has the name of the cluster that it runs as there.
    """
    fields = flatten(values)
    decisive = {
        name: value
        for name, value in fields.items()
        if role(name) == "identity" and (name not in ADDED or value != ADDED[name])
    }
    return decisive | ({"cluster.name": fields[RUNS_AS]} if RUNS_AS in fields else {})


def key(experiment: KeyFields, framework_version: str | None = None) -> str:
    """Return the hash under which equal measurements are found again.

    It covers the identity fields, the framework with its version (by default the installed one), and
    Major.Minor of this mlbench.
    """
    fields = identity(experiment.plain())
    framework = fields["framework"]
    values = fields | {
        "framework": f"{framework} {framework_version or version(framework)}",
        "mlbench": comparable(mlbench.__version__),
    }
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


@cache  # reading a package's metadata takes milliseconds, and every key has the framework's version
def version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
