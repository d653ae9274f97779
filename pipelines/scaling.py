"""How many workers pay off, task by task: `python pipelines/scaling.py run --study scaling`.

prepare data -> sweep -> aggregate -> report. `python pipelines/scaling.py resume` goes on where a run was
stopped or killed; inside the sweep it goes on with the first trial that was not finished.
"""

from typing import Any

import local_flow  # noqa: F401  (metaflow reads its settings when it is imported)
import stages
from metaflow.decorators import step
from metaflow.flowspec import FlowSpec
from metaflow.parameters import Parameter


class ScalingFlow(FlowSpec):
    """Sweeps the tasks of a study over workers and reports speed-up, efficiency and price."""

    study: Any = Parameter("study", default="scaling", help="a study of conf/study, or a begun one")

    @step
    def start(self):
        """Prepare the data sets."""
        stages.prepare(self.study)
        self.next(self.sweep)

    @step
    def sweep(self):
        """Measure what is missing."""
        self.unmeasured = stages.measure(self.study)
        self.next(self.aggregate)

    @step
    def aggregate(self):
        """Put the runs of each point together."""
        self.rows = stages.rows(self.study)
        self.next(self.report)

    @step
    def report(self):
        """Draw the figures, write the page, and bring the study into MLflow."""
        self.page = stages.publish(self.study, self.unmeasured)
        self.next(self.end)

    @step
    def end(self):
        """Say where the report is and what it lacks."""
        print(*(f"not measured: {one}" for one in self.unmeasured), self.page, sep="\n")


if __name__ == "__main__":
    ScalingFlow()
