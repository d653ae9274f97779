"""Makes the folder of wheels with which benchmarks/gpu.py runs on a machine without a network.

    python benchmarks/gpu_wheels.py [--python 3.12] [FOLDER]     default: build/gpu-wheels

That machine has torch, numpy, pyarrow and pytest; this adds what mlbench imports beyond them, for Linux on
x86-64. What is published as a source archive alone is built here, and is pure Python. Exit code 1 if the
folder is larger than MOST_BYTES.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 20_000_000
LOCKED = ROOT / "requirements.lock"  # the versions that everything else is tested with
PACKAGES = (
    *("pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection"),
    *("hydra-core", "omegaconf", "pyyaml", "packaging", "filelock", "psutil"),
    *("pillow", "nvidia-ml-py"),
    *("pytest-xdist", "execnet", "hypothesis", "sortedcontainers"),  # of the tests marked gpu
)
WHEELS = Path(os.environ.get("MLBENCH_GPU_WHEELS", ROOT / "build/gpu-wheels"))
NEEDED = ("pydantic", "hydra")  # without which nothing of mlbench starts
SOURCES = ("antlr4-python3-runtime",)  # of hydra-core; published as a source archive alone


def main(arguments: Sequence[str]) -> int:
    """Fill the folder; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", default="3.12", help="of the machine with the GPU (default: 3.12)")
    parser.add_argument("folder", nargs="?", type=Path, default=WHEELS)
    options = parser.parse_args(arguments)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as built:
        sources = [pinned(package) for package in SOURCES]
        subprocess.run([*pip, "wheel", "--no-deps", "-w", built, *sources], check=True)
        for wheel in Path(built).iterdir():
            (options.folder / wheel.name).write_bytes(wheel.read_bytes())
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "-d", str(options.folder)]
    command += [f"--platform=manylinux{name}_x86_64" for name in ("_2_17", "_2_28", "2014")]
    command += [f"--python-version={options.python}", *map(pinned, PACKAGES)]
    subprocess.run(command, check=True)
    size = sum(wheel.stat().st_size for wheel in options.folder.glob("*.whl"))
    print(f"{len([*options.folder.glob('*.whl')])} wheels of {size / 1e6:.1f} MB in {options.folder}")
    return int(size > MOST_BYTES)


def unpacked() -> list[str]:
    """Return the folder with what this Python lacks, extracted; nothing if it lacks nothing."""
    if all(importlib.util.find_spec(name) for name in NEEDED):
        return []
    for wheel in sorted(WHEELS.glob("*.whl")):  # an extension module cannot be imported from an archive
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(WHEELS / "unpacked")
    return [str(WHEELS / "unpacked")]


def pinned(package: str) -> str:
    """Return the requirement with the version that requirements.lock has; without one, the newest."""
    for line in LOCKED.read_text().splitlines():
        name, equal, rest = line.partition("==")
        if equal and name.split("[")[0].lower().replace("_", "-") == package:
            return f"{package}=={rest.split()[0]}"
    return package


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
