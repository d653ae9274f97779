"""Record the code that made a result: versions, sources, checkout, and environment without secrets.

Everything is read at the time of the call. What cannot be read is None, never a guess.
"""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import mlbench
from mlbench.config import plugins
from mlbench.config.credentials import setting, without_credentials
from mlbench.config.identity import listed, version
from mlbench.record import startup_code
from mlbench.record.record import Git, Software

CHECKOUT = Path(mlbench.__file__).resolve().parent.parent
# Everything that mlbench itself imports. A test compares the list with the code.
PACKAGES = (
    "altair",
    "filelock",
    "hydra-core",
    "jax",
    "jaxlib",
    "Jinja2",
    "mlflow",
    "mpi4py",
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
# What no measurement depends on: it shows, stores and compares what was measured. All else decides numbers; a
# test holds this list against the imports of the workers.
PRESENTATION = (
    "analysis",
    "contract",
    "report",
    "terminal",
    "tracking",
    "plugins",  # those that decide numbers are among `plugins.packages`, as other packages are
    "__main__.py",
    "cluster.py",
    "data.py",
    "predict.py",
    "results",
)
# The variables that change speed, results or a calibration. No others are recorded: they may hold secrets.
ENVIRONMENT = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_*",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "CUDNN_*",
    "DNNL_*",
    "FI_*",
    "GLOO_*",
    "GOMP_*",
    "KMP_*",
    "GLIBC_TUNABLES",
    "JAX_*",
    "LD_*",
    "MALLOC_*",
    "MKL_*",
    "MLBENCH_*",
    "MPICH_*",
    "MPIR_CVAR_*",
    "NCCL_*",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_*",
    "ONEDNN_*",
    "OPENBLAS_*",
    "PYTHON*",
    "PYTORCH_*ALLOC_CONF",
    "RAY_*HOOK*",
    "RAY_*SETUP_FUNCTION*",
    "RAY_preload_python_modules",
    "TORCHDYNAMO_*",
    "TORCHINDUCTOR_*",
    "TORCH_*",
    "TRITON_*",
    "UCX_*",
    "XLA_*",
)
# Those of them that mlbench's commands, a local cluster and an import of scikit-learn set.
OWN = ("GLOO_SOCKET_IFNAME", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "MLBENCH_*", "PYTHON*")


def software() -> Software:
    """Return versions, the state of the checkout, the command and the settings of this process."""
    return Software(
        mlbench=mlbench.__version__,
        python=platform.python_version(),
        packages={name: version(name) for name in PACKAGES},
        git=git(CHECKOUT),
        sources=sources(),
        code=code(),
        command=shlex.join(without_credentials(sys.orig_argv)),
        environment=environment(),
        startup_code=startup_code.files(),
    )


@cache
def sources() -> str:
    """Return the SHA-256 of mlbench's Python files and configuration as they lie on disk."""
    package = Path(mlbench.__file__).parent
    roots = (package, "*.py"), (plugins.own_conf(), "*.yaml"), (package / "plugins", "*.yaml")
    return _hashed(file for root, pattern in roots for file in _files(root, pattern))


@cache
def code() -> str:
    """Return the SHA-256 of the Python files that decide a measurement, those of plugins among them.

    Configuration is not in it: a run's key has the resolved values.
    """
    roots = Path(mlbench.__file__).parent, *plugins.packages()
    files = [(name, path) for root in roots for name, path in _files(root, "*.py")]
    beside = tuple(f"{mlbench.__name__}/{name}/" for name in PRESENTATION)
    return _hashed((name, path) for name, path in files if not f"{name}/".startswith(beside))


def _files(root: Path, pattern: str) -> list[tuple[str, Path]]:
    """Return the files of a folder, or the one that `root` is, by their names from `root` on."""
    paths = sorted(root.rglob(pattern)) if root.is_dir() else [root]
    return [(f"{root.name}/{path.relative_to(root)}", path) for path in paths]


def _hashed(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, path in files:
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def environment() -> dict[str, str]:
    """Return the environment variables that change speed or results, without credentials."""
    return {
        name: setting(name, value) for name, value in sorted(os.environ.items()) if listed(name, ENVIRONMENT)
    }


def settings(software: Software) -> dict[str, str]:
    """Return the variables that a user set to choose how a run computes."""
    return {name: value for name, value in software.environment.items() if not listed(name, OWN)}


def git(checkout: Path, *, within: bool = False) -> Git | None:
    """Return the commit and whether files differ from it (untracked ones, too; within: only those of Python).

    None if `checkout` is not the top of a git work tree with a commit, or within: in one, or git is missing.
    """
    # Without the variables that a hook sets, and without a lock that would disturb a commit.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    clean["GIT_OPTIONAL_LOCKS"] = "0"

    def ask(*arguments: str) -> str:
        command = ["git", "-C", str(checkout), *arguments]
        return subprocess.check_output(command, env=clean, stderr=subprocess.DEVNULL, text=True, timeout=60)

    try:
        top, sha = ask("rev-parse", "--show-toplevel", "HEAD").splitlines()
        if not within and Path(top).resolve() != checkout.resolve():
            return None
        if not within:
            return Git(sha=sha, dirty=bool(ask("status", "--porcelain")))
        changed = ask("status", "--porcelain", "--untracked-files=no")
        # A script writes its results where it lies, but what it runs may be new.
        changed += ask("ls-files", "--others", "--exclude-standard", "--", "*.py")
        return Git(sha=sha, dirty=bool(changed))
    except (OSError, subprocess.SubprocessError):
        return None
