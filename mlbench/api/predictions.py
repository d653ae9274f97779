"""Predictions from Python: `mlbench.predict("published:gnmt", hardware="gcp_n1_t4")`."""

from pathlib import Path
from typing import Any

from mlbench.config import libraries, plugins


def predict(*names: str, output_root: str | Path = "runs", **settings: Any) -> list[dict[str, Any]]:
    """Predict time to accuracy and cost on more workers than were measured.

    Args:
        names: a study in output_root, the names of runs, or "published:TASK".
        output_root: the folder of the runs.
        settings: those of `mlbench predict`, e.g. task="gnmt", workers=[1, 2, 4], max_workers=64,
            hardware="gcp_n1_t4", network="25gbit,30us". Not hardware="all", deadline, budget and plot.

    Returns:
        One row a number of workers: `workers`, `time_s` and `cost_usd` with `value`, `low` and `high` of a
        95 % prediction interval, `speedup` and `communication_share`.

    Raises:
        UserError: an unknown setting, or runs to which no model can be fitted.
    """
    libraries.require("scipy", user="mlbench.predict()")
    texts = {
        name: ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in settings.items()
    }
    words = [f"{name}={text}" for name, text in (texts | {"output_root": str(output_root)}).items()]
    return plugins.command("predict").rows([*names, *words])
