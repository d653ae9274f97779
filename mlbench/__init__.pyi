# What a type checker sees of `mlbench`, whose names are imported when they are used.
from mlbench.measure import measure as measure
from mlbench.report.notebook import answers as answers
from mlbench.report.notebook import compare as compare
from mlbench.report.notebook import draw as draw
from mlbench.report.notebook import load_runs as load_runs
from mlbench.report.notebook import summarize as summarize
from mlbench.training.synchronise import synchronise as synchronise

__version__: str
