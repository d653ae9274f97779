"""What this machine can run and what is missing: `mlbench doctor`."""

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

import mlbench
from mlbench.clusters import node, persistent, reaper, torch_builds
from mlbench.clusters.checks import Check
from mlbench.config import plugins
from mlbench.datasets import arrow
from mlbench.record import format
from mlbench.terminal.args import FAILED, JSON, OK, Args, Command, run_command, say

PACKAGE = "mlbench-suite"
LEAST_FREE = 10**8  # bytes; logreg's mini data take 20 MB, a store of MLflow 4.5 MB (du, 2026-11-28)
REAP = "mlbench cluster reap ends and removes them"
COMMAND = Command("doctor", empty=True)
main = partial(run_command, COMMAND)


@COMMAND.verb(
    "",
    "",
    settings={"data_root": ("data", "prepared data sets"), "output_root": ("runs", "the folder of the runs")},
    options=JSON,
)
def _doctor(args: Args) -> int:
    """Print what this machine can run, and how to get what is missing. Nothing is
    changed. Exit code 1: something is wrong that every run needs.

    examples:
      mlbench doctor
      mlbench doctor data_root=/data --json
    """
    results = list(checks(Path(args.settings["data_root"]), args.output_root))
    if args.json:
        print(json.dumps([asdict(check) for check in results], indent=2))
    else:
        width = max(len(check.name) for check in results)
        marks = {"here": " ", "absent": "-", "broken": "!", "fault": "!"}
        for check in results:
            say(f"{marks[check.state]} {check.name:{width}}  {check.detail}")
            if check.way:
                say(f"  {'':{width}}  -> {check.way}")
    return FAILED if any(check.state == "fault" for check in results) else OK


def checks(data_root: Path, output_root: Path) -> Iterator[Check]:
    """Yield the checks of mlbench itself, then those of the installed packages."""
    yield Check("Python", "here", f"{platform.python_version()}, {sys.executable}")
    yield from _packages()
    yield from _torch()
    if fault := torch_builds.torchvision_fault():
        yield Check("torchvision", "broken", *fault)  # Lightning and the Trainer need it, no run
    yield Check("CPUs", "here", f"{node.usable_cpus()} that this process may use")
    yield _ray()
    yield from _folders(data_root, output_root)
    yield _left()
    for module in plugins.checks():
        yield from module.checks()


def _packages() -> Iterator[Check]:
    """Compare the installed versions with those that mlbench's metadata require."""
    try:
        listed = [Requirement(line) for line in metadata.requires(PACKAGE) or ()]
    except metadata.PackageNotFoundError:
        yield Check("mlbench", "fault", "runs from a folder and is not installed", "pip install -e .")
        return
    here, installed = f"{mlbench.__version__}, {Path(__file__).parent}", metadata.version(PACKAGE)
    if installed == mlbench.__version__:
        yield Check("mlbench", "here", here)
    else:  # its plugins, too, are those of that version
        yield Check("mlbench", "fault", f"{here} (pip has {installed})", "run pip install -e . again")
    base = [requirement for requirement in listed if _applies(requirement)]
    wrong = [text for requirement in base if (text := _differs(requirement))]
    way = f"pip install --upgrade {PACKAGE}, or from a checkout -r requirements.txt"
    description = ", ".join(wrong) or f"all {len(base)} as required"
    yield Check("packages", "fault" if wrong else "here", description, way if wrong else "")
    for extra in metadata.metadata(PACKAGE).get_all("Provides-Extra") or ():
        own = [each for each in listed if each not in base and _applies(each, extra)]
        lacking = [text for requirement in own if (text := _differs(requirement))]
        if lacking:
            yield Check(f"extra {extra}", "absent", ", ".join(lacking), f"pip install '{PACKAGE}[{extra}]'")


def _applies(requirement: Requirement, extra: str = "") -> bool:
    """Return whether this Python needs a package, for mlbench or for one of its extras."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _differs(requirement: Requirement) -> str:
    """Return what is wrong with a required package, or an empty text if nothing is."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    fits = requirement.specifier.contains(version, prereleases=True)
    return "" if fits else f"{requirement.name} is {version}, not {requirement.specifier}"


def _torch() -> Iterator[Check]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Check("torch", "fault", f"cannot be imported: {error}", "pip install torch")
        return
    cuda = torch.version.cuda
    build = f"built for CUDA {cuda}" if cuda else "built for CPUs alone"
    yield Check("torch", "here", f"{torch.__version__}, {build}")
    gpus, reason = node.gpus()
    if gpus and not torch.cuda.is_available():
        way = "the build of torch for its CUDA, from pytorch.org, or a newer driver"
        yield Check("GPUs", "fault", f"{len(gpus)} x {gpus[0].name}, which this torch cannot use", way)
    elif gpus:
        yield Check("GPUs", "here", f"{len(gpus)} x {gpus[0].name}, driver {gpus[0].driver}")
    else:
        description = reason or "none with an NVIDIA driver"
        yield Check("GPUs", "absent", description, "backend=nccl needs them, gloo does not")
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        from torch.cuda import nccl

        version = ".".join(map(str, nccl.version())) if torch.cuda.is_available() else "built in"
        yield Check("NCCL", "here", version)
    else:
        yield Check("NCCL", "absent", "not in this torch", "the build of torch for CUDA (gloo needs none)")


def _ray() -> Check:
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return Check("Ray", "fault", "not installed", "pip install 'ray[default,train,tune]'")
    address = persistent.address()
    return Check(
        "Ray", "here", f"{version}, {f'kept running at {address}' if address else 'none kept running'}"
    )


def _folders(data_root: Path, output_root: Path) -> Iterator[Check]:
    for name, root in (("data_root", data_root), ("output_root", output_root)):
        folder = next(path for path in (root.absolute(), *root.absolute().parents) if path.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            yield Check(name, "fault", f"{root} cannot be written", f"give another {name}=")
            continue
        free = shutil.disk_usage(folder).free
        said = f"{root}, {format.with_prefix(free, 'B')} free"
        if free < LEAST_FREE:
            yield Check(name, "fault", said, f"free some space, or give another {name}=")
        else:
            yield Check(name, "here", said)
    names = sorted(path.parent.name for path in data_root.glob(f"[!.]*/{arrow.MANIFEST}"))
    if names:
        yield Check("data sets", "here", ", ".join(names))
    else:
        way = "a mini run prepares its own, mlbench data prepare task=NAME scale=official the full set"
        yield Check("data sets", "absent", f"none in {data_root}", way)
    store = output_root / "mlflow.db"
    yield Check(
        "MLflow", "here", f"{metadata.version('mlflow')}, {store if store.exists() else 'no store yet'}"
    )


def _left() -> Check:
    left = reaper.remains()
    if not left:
        return Check("killed runs", "here", "no leftovers found")
    return Check("killed runs", "fault", f"have left {', '.join(left)}", REAP)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
