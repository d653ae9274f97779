"""Optional libraries: which extra of mlbench-suite installs each, and the error if one is missing."""

from importlib.util import find_spec

from mlbench.config.errors import ConfigurationError, UserError

PACKAGE = "mlbench-suite"
# By the name that is imported. pyproject.toml has the versions.
EXTRAS = {
    "ray": "ray",
    "mlflow": "mlflow",
    "altair": "report",
    "vl_convert": "report",
    "jinja2": "report",
    "scipy": "report",
    "sacrebleu": "text",
    "sacremoses": "text",
    "tokenizers": "text",
    "sklearn": "image",
    "PIL": "image",
    "safetensors": "score",
    "pynvml": "gpu",
    "kubernetes": "kubernetes",
    "pathspec": "kubernetes",
    "jax": "jax",
    "mpi4py": "mpi",
    "metaflow": "pipelines",
    "transformers": "adapters",
    "accelerate": "adapters",
    "lightning": "adapters",
    "pandas": "notebooks",
    "pytest": "contract",
}
DISTRIBUTIONS = {
    "PIL": "pillow",
    "jinja2": "Jinja2",
    "pynvml": "nvidia-ml-py",
    "sklearn": "scikit-learn",
    "vl_convert": "vl-convert-python",
}
DRAWING = ("altair", "vl_convert", "jinja2", "scipy")  # charts, pages and statistics of several runs


def require(*modules: str, user: str, hint: str = "") -> None:
    """Raise UserError if an optional library is missing.

    Args:
        modules: names that are imported, keys of EXTRAS.
        user: the option, command or function that needs them.
        hint: another way out.
    """
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        raise _error(missing, user, hint)


def is_installed(module: str) -> bool:
    """Return whether a library can be found. It is not imported."""
    return find_spec(module) is not None


def from_import_error(error: ImportError, user: str) -> UserError | None:
    """Return the error to show for a failed import, or None if the missing module is in no extra."""
    module = (error.name or "").partition(".")[0]
    installed = module not in EXTRAS or is_installed(module)
    return None if installed else _error([module], user, "")


def command(*modules: str) -> str:
    """Return the command that installs libraries, e.g. `pip install 'mlbench-suite[ray,mlflow]'`."""
    extras = dict.fromkeys(EXTRAS[module] for module in modules)
    return f"pip install '{PACKAGE}[{','.join(extras)}]'"


def _error(missing: list[str], user: str, hint: str) -> UserError:
    names = ", ".join(DISTRIBUTIONS.get(module, module) for module in missing)
    verb = "is" if len(missing) == 1 else "are"
    ways = [command(*missing), hint] if hint else [command(*missing)]
    return ConfigurationError(f"{user} needs {names}, which {verb} not installed", hint=", or ".join(ways))
