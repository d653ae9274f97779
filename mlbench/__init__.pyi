# What a type checker sees of `mlbench`, whose names are imported when they are used.
from pathlib import Path
from types import ModuleType
from typing import Any

from mlbench.api.published import load_published as load_published
from mlbench.api.published import load_published_curves as load_published_curves
from mlbench.api.published import predict_published as predict_published
from mlbench.api.studies import Study as Study
from mlbench.api.studies import load_study as load_study
from mlbench.config.errors import ClusterError as ClusterError
from mlbench.config.errors import ConfigurationError as ConfigurationError
from mlbench.config.errors import DataError as DataError
from mlbench.config.errors import ResultError as ResultError
from mlbench.config.errors import UserError as UserError
from mlbench.measure import measure as measure
from mlbench.record.record import Record as Record
from mlbench.report.notebook import answers as answers
from mlbench.report.notebook import compare as compare
from mlbench.report.notebook import draw as draw
from mlbench.report.notebook import load_runs as load_runs
from mlbench.report.notebook import summarize as summarize
from mlbench.training.synchronise import synchronise as synchronise

__version__: str
__all__: list[str]

class _Run(ModuleType):
    def __call__(self, *overrides: str, **settings: Any) -> Record: ...

class _Sweep(ModuleType):
    def __call__(self, *overrides: str, **settings: Any) -> Study: ...

class _Predict(ModuleType):
    def __call__(
        self, *names: str, output_root: str | Path = "runs", **settings: Any
    ) -> list[dict[str, Any]]: ...

# The modules of the commands, which can be called: mlbench.api has the functions.
run: _Run
sweep: _Sweep
predict: _Predict
