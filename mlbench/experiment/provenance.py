"""Where a result comes from: the node, the software, the command, and what may have disturbed it.

Everything is read when asked and returned as JSON types; what cannot be read is None, never a guess.
"""

import hashlib
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mlbench
from mlbench.experiment import plugins

CHECKOUT = Path(mlbench.__file__).resolve().parent.parent
ROOT = Path("/")  # tests give another one, with /proc and /sys of their own
UNLIMITED = 2**60  # bytes; version 1 control groups say "no limit" with a number near 2^63
# Everything that mlbench imports itself; a test compares the list with the code.
PACKAGES = (
    "altair",
    "filelock",
    "hydra-core",
    "Jinja2",
    "mlflow",
    "numpy",
    "nvidia-ml-py",
    "omegaconf",
    "pandas",
    "pillow",
    "psutil",
    "pyarrow",
    "pydantic",
    "PyYAML",
    "ray",
    "rich",
    "sacrebleu",
    "sacremoses",
    "scikit-learn",
    "scipy",
    "tokenizers",
    "torch",
    "torchvision",
    "vl-convert-python",
)
# The variables that change speed or results. No others are recorded: they may hold secrets.
ENVIRONMENT = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "DNNL_*",
    "GLOO_*",
    "GOMP_*",
    "KMP_*",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MALLOC_*",
    "MKL_*",
    "NCCL_*",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_*",
    "ONEDNN_*",
    "OPENBLAS_*",
    "PYTHONHASHSEED",
    "PYTHONPATH",
    "PYTORCH_*ALLOC_CONF",
    "TORCH_ALLOW_TF32_*",
    "TORCH_NCCL_*",
)


def node() -> dict[str, Any]:
    """Return this machine's shape as this process sees it; sizes in bytes.

    `usable_cpus` is what affinity and control groups leave of the logical CPUs, at least 1.
    `warnings` leaves out the load, because the run itself makes one.
    """
    import psutil

    gpus, gpu_error = _gpus()
    quota, memory_limit = _cgroup_limits()
    return {
        "hostname": platform.node(),
        "os": _os_name(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "cpu_model": _cpu_model(),
        "physical_cpus": psutil.cpu_count(logical=False),
        "logical_cpus": psutil.cpu_count(),
        "affinity_cpus": _affinity_cpus(),
        "cpu_quota": quota,
        "usable_cpus": usable_cpus(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_limit_bytes": memory_limit,
        "gpus": gpus,
        "gpu_error": gpu_error,
        **_cuda_versions(bool(gpus)),
        "environment": environment(),
        "warnings": warnings(before_run=False),
    }


def software() -> dict[str, Any]:
    """Return versions, the state of the checkout, the command and the settings of this process."""
    return {
        "mlbench": mlbench.__version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "git": git(CHECKOUT),
        "sources": sources(),
        "command": shlex.join(without_credentials(word) for word in sys.orig_argv),
        "environment": environment(),
    }


@cache
def sources() -> str:
    """Return the SHA-256 of mlbench's Python files and configuration as they lie on disk."""
    digest = hashlib.sha256()
    for root, pattern in ((Path(mlbench.__file__).parent, "*.py"), (plugins.own_conf(), "*.yaml")):
        for path in sorted(root.rglob(pattern)):
            digest.update(f"{root.name}/{path.relative_to(root)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def environment() -> dict[str, str]:
    """Return the environment variables that change speed or results, without credentials."""
    return {
        name: _without_secret(name, value)
        for name, value in sorted(os.environ.items())
        if any(fnmatchcase(name, pattern) for pattern in ENVIRONMENT)
    }


# What settings look like: numbers, words, lists and name:value pairs; GPU-8932f937-d72c-... is one, too.
_SETTING = re.compile(r"[\w^.,:;=+{}() -]{0,200}")
_RANDOM = re.compile(r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{16,}")  # letters and digits, as keys have
_SECRET_NAME = re.compile(r"(?i)token|secret|passw|pwd|credential|api_?key|auth")


def _without_secret(name: str, value: str) -> str:
    """Return a variable's value, paths by their last part; *** for what is no setting or may be a secret."""
    plain = re.sub(r"[^\s:,;=]*/(?=[^/\s:,;=]+)", "", value)
    is_secret = _SECRET_NAME.search(name) or _SECRET_NAME.search(plain) or _RANDOM.search(plain)
    return "***" if is_secret or "://" in value or not _SETTING.fullmatch(plain) else plain


def git(checkout: Path) -> dict[str, Any] | None:
    """Return the commit and whether files differ from it (untracked ones count).

    None where `checkout` is not the top of a git work tree with a commit, or git is missing.
    """
    # Without the variables that a hook sets, and without a lock that would disturb a commit.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    clean["GIT_OPTIONAL_LOCKS"] = "0"

    def ask(*words: str) -> str:
        command = ["git", "-C", str(checkout), *words]
        return subprocess.run(
            command, env=clean, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    try:
        top, sha = ask("rev-parse", "--show-toplevel", "HEAD").splitlines()
        if Path(top).resolve() != checkout.resolve():
            return None
        return {"sha": sha, "dirty": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def usable_cpus() -> int:
    """Return the CPUs that affinity and control groups leave to this process, rounded down."""
    quota, _ = _cgroup_limits()
    return max(1, math.floor(min(_affinity_cpus(), quota or math.inf)))


def warnings(*, before_run: bool) -> list[str]:
    """Return one sentence for each thing on this machine that makes times vary.

    The load average counts only `before_run`; afterwards the run itself is most of it.
    """
    found = []
    cpu = ROOT / "sys/devices/system/cpu"
    governors = {_text(path) for path in cpu.glob("cpu[0-9]*/cpufreq/scaling_governor")}
    slow = sorted(name for name in governors - {"performance"} if name)
    if slow:
        found.append(f"the CPU frequency governor is {', '.join(slow)}, not performance")
    if _text(cpu / "intel_pstate/no_turbo") == "0" or _text(cpu / "cpufreq/boost") == "1":
        found.append("turbo is on: the clock frequency depends on temperature and on other cores")
    if _text(cpu / "smt/active") == "1":
        found.append("SMT is on: two logical CPUs share a core")
    load, cpus = os.getloadavg()[0], usable_cpus()
    if before_run and load > cpus:
        found.append(f"the load average was {load:.1f} on {cpus} CPUs before the run began")
    return found


# All up to the last @ before the first slash; or, where a password has a slash in it, up to the @
# after that. A port, which is digits to the next slash, is no password.
_USERINFO = re.compile(r"(?<=://)(?:[^\s/]*@|[^\s/@:]*:(?!\d+(?:/|$))[^\s@]*@)")
_SECRET = re.compile(
    r"(?i)([?&;#][\w.-]*(?:token|secret|passw|pwd|signature|credential|key|sig)[\w.-]*=)[^&\s#]+"
)


# Addresses without a scheme (user:password@host), settings of a connection (password=...), and headers.
_BARE_USERINFO = re.compile(r"(?<![\w:/@.-])[\w.+-]+:[^\s:@/]+@(?=[\w.-]+)")
_PAIR = re.compile(
    r"(?i)(\b(?:password|passwd|pwd|secret|api[_-]?key|access[_-]?token)\s*[=:]\s*)[^\s&;,'\"]+"
)
_BEARER = re.compile(r"(?i)(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}")


def without_credentials(text: str) -> str:
    """Return `text` with user names and passwords cut out of addresses, and secret parameters as ***."""
    text = _SECRET.sub(r"\1***", _USERINFO.sub("", text))
    return _BEARER.sub(r"\1***", _PAIR.sub(r"\1***", _BARE_USERINFO.sub("", text)))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _cpu_model() -> str | None:
    """Return the model's name; processors without one in /proc/cpuinfo (ARM) give None."""
    for line in (_text(ROOT / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return None


def _affinity_cpus() -> int:
    return len(os.sched_getaffinity(0))


def _gpus() -> tuple[list[dict[str, Any]], str | None]:
    """Return all NVIDIA GPUs of the machine, and why there are none although the tool is there."""
    if shutil.which("nvidia-smi") is None:
        return [], None
    fields = "name,memory.total,driver_version"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    rows = [[part.strip() for part in line.split(",")] for line in answer.stdout.splitlines()]
    if answer.returncode or any(len(row) != 3 for row in rows):
        return [], (answer.stdout + answer.stderr).strip() or f"exit code {answer.returncode}"
    return [
        {
            "name": name,
            "memory_bytes": int(mebibytes) * 2**20 if mebibytes.isdigit() else None,
            "driver": driver,
        }
        for name, mebibytes, driver in rows
    ], None


def _cuda_versions(has_gpus: bool) -> dict[str, str | None]:
    """Return what torch was built with; torch is imported only where it matters."""
    if not has_gpus:
        return {"cuda": None, "nccl": None}
    import torch
    from torch.cuda import nccl

    if torch.version.cuda is None or not torch.distributed.is_nccl_available():
        return {"cuda": torch.version.cuda, "nccl": None}
    return {"cuda": torch.version.cuda, "nccl": ".".join(map(str, nccl.version()))}


def _cgroup_limits() -> tuple[float | None, int | None]:
    """Return the CPU quota in CPUs and the memory limit in bytes, the tightest on the way up.

    Both versions of control groups, Linux: Documentation/admin-guide/cgroup-{v1,v2}.
    """
    quotas: list[float] = []
    limits: list[int] = []
    for line in (_text(ROOT / "proc/self/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        if not names:  # version 2
            for folder in _upwards(ROOT / "sys/fs/cgroup", path):
                quota, _, period = (_text(folder / "cpu.max") or "max").partition(" ")
                quotas += [] if quota == "max" else [int(quota) / int(period)]
                limit = _text(folder / "memory.max") or "max"
                limits += [] if limit == "max" else [int(limit)]
        if "cpu" in names.split(","):
            for folder in _upwards(ROOT / "sys/fs/cgroup/cpu", path):
                quota = int(_text(folder / "cpu.cfs_quota_us") or -1)
                period = int(_text(folder / "cpu.cfs_period_us") or 1)
                quotas += [] if quota < 0 else [quota / period]
        if "memory" in names.split(","):
            for folder in _upwards(ROOT / "sys/fs/cgroup/memory", path):
                limit = int(_text(folder / "memory.limit_in_bytes") or UNLIMITED)
                limits += [] if limit >= UNLIMITED else [limit]
    return min(quotas, default=None), min(limits, default=None)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield the group's folder and those above it; inside a container only the mount may exist."""
    folder = mount / path.lstrip("/")
    while folder != mount:
        yield folder
        folder = folder.parent
    yield mount


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
