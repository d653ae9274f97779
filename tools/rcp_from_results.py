"""Write the tasks' reference convergence points from the tables of docs/measurements/results.md.

    PYTHONPATH=. python tools/rcp_from_results.py TASK ...

Name the tasks whose tables were measured with the recipe and data of today: a table does not tell. The tables
have mini scale. tests/tasks/test_rcp.py fails where a shipped rcp.json is not what its table makes.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from mlbench.analysis import rcp
from mlbench.config import compose
from mlbench.config.experiment import TrainingConfig
from mlbench.tasks.rcp import benchmark, fields

ROOT = Path(__file__).parents[1]
SECTION = re.compile(
    r"### (?P<task>\w+), (?P<scale>\w+), goal \w+ .= (?P<goal>[\d.]+)\n.*?(?=\n### |\n<!-- seeds:end)",
    re.DOTALL,
)
WHERE = re.compile(
    r"(?P<workers>\d+) workers with .*? on (?P<cpu>.*?); "
    r"(?P<code>(?:mlbench|commit) [\w.]+), .*?(?P<day>\d{4}-\d\d-\d\d)"
)
RUN = re.compile(r"\| \d+ \| (?P<status>\w+) \| (?P<epochs>[\d.]+) \|")


def references() -> dict[str, dict[str, Any]]:
    """Return the contents of rcp.json by task."""
    contents: dict[str, dict[str, Any]] = {}
    for section in SECTION.finditer((ROOT / "docs" / "measurements" / "results.md").read_text()):
        task, scale = section["task"], section["scale"]
        where = WHERE.search(section[0])
        assert where is not None, task
        workers = int(where["workers"])
        experiment = compose.compose(
            [
                f"task={task}",
                f"scale={scale}",
                f"workers={workers}",
                f"goal={section['goal']}",
                "division=open",
            ]
        )
        assert isinstance(experiment.task, TrainingConfig)
        runs = RUN.findall(section[0])
        plain = experiment.plain()
        values = fields(experiment.task, plain, workers=workers)
        name = benchmark(plain)
        contents.setdefault(task, {})[f"{name}_ref_{values['global_batch_size']}"] = rcp.record(
            name,
            [float(epochs) for status, epochs in runs if status == "goal_reached"],
            hyperparameters=values,
            missed=sum(status != "goal_reached" for status, _ in runs),
            when=f"{where['code']}, {where['day']}",
            platform=f"{workers} workers on {where['cpu']}",
        )
    return contents


def main() -> None:
    for task in sys.argv[1:]:
        points = references()[task]
        path = ROOT / "mlbench" / "tasks" / task / "rcp.json"
        path.write_text(json.dumps(points, indent=2) + "\n")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
