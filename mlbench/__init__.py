"""Reproducible benchmarks of distributed machine learning: time to accuracy, cost and speed-up.

Imports nothing heavy, so that `mlbench run --help` answers at once. docs/python.md shows
the functions, which are imported when they are used: `run`, `sweep` and `predict`; `load_runs`, `load_study`,
`summarize`, `answers`, `draw` and `compare` of finished runs; `load_published`, `load_published_curves` and
`predict_published` of published ones; `measure` and `synchronise` in a training loop of your own.
"""

import sys
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import Any

import mlbench.clock  # noqa: F401  # so that it sees when a command began

_HOMES = {
    "measure": "mlbench.measure",
    "synchronise": "mlbench.training.synchronise",
    "Record": "mlbench.record.record",
    "Study": "mlbench.api.studies",
    "load_study": "mlbench.api.studies",
}
_HOMES |= dict.fromkeys(("answers", "compare", "draw", "load_runs", "summarize"), "mlbench.report.notebook")
_PUBLISHED = ("load_published", "load_published_curves", "predict_published")
_HOMES |= dict.fromkeys(_PUBLISHED, "mlbench.api.published")
_ERRORS = ("UserError", "ConfigurationError", "DataError", "ClusterError", "ResultError")
_HOMES |= dict.fromkeys(_ERRORS, "mlbench.config.errors")
# Commands that can be called, too: the module of the function of that name.
_CALLED = {"run": "mlbench.api.runs", "sweep": "mlbench.api.studies", "predict": "mlbench.api.predictions"}
__all__ = [*_HOMES, *_CALLED, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]

# Results of one Major.Minor are comparable with each other (RULES.md, rule R9).
__version__ = "0.4.0.dev0"


class _Command(ModuleType):
    """The module of a command, which can be called as the function of its name."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self._function(*arguments, **settings)

    @property
    def __signature__(self) -> Signature:
        return signature(self._function)

    @property
    def _function(self) -> Any:
        name = self.__spec__.name.rpartition(".")[2] if self.__spec__ else ""
        return getattr(import_module(_CALLED[name]), name)


class _Package(ModuleType):
    """A package of which the import of a module of the same name hides no function."""

    def __getattr__(self, name: str) -> Any:
        if name in _CALLED:
            return import_module(f"{self.__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        function = getattr(import_module(_HOMES[name]), name)
        self.__dict__[name] = function
        return function

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType):  # as importlib sets a module
            if name in _CALLED:
                value.__class__ = _Command
            elif name in _HOMES:
                return
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
