"""Learning rates and batch sizes of task 2a: `python pipelines/tuning.py run --study tuning`.

prepare -> sweep -> choose -> report. Every setting is measured on a part of the training rows that is held
out, so the test rows have no say in the choice; the soonest to the goal wins, for each number of workers.
"""

from typing import Any

import local_flow  # noqa: F401  (metaflow reads its settings when it is imported)
import stages
from metaflow.decorators import step
from metaflow.flowspec import FlowSpec
from metaflow.parameters import Parameter

FIELDS = ("task.alpha", "task.batch_size")


class TuningFlow(FlowSpec):
    """Measures a grid of settings and chooses by time to the goal."""

    study: Any = Parameter("study", default="tuning", help="a study of conf/study, or a begun one")

    @step
    def start(self):
        """Prepare the data sets."""
        stages.prepare(self.study)
        self.next(self.sweep)

    @step
    def sweep(self):
        """Measure what is missing."""
        self.unmeasured = stages.measure(self.study)
        self.next(self.choose)

    @step
    def choose(self):
        """Find the soonest setting for each number of workers."""
        self.chosen = stages.soonest(self.study, FIELDS)
        self.next(self.report)

    @step
    def report(self):
        """Draw the figures, write the page, and bring the study into MLflow."""
        self.page = stages.publish(self.study, self.unmeasured)
        self.next(self.end)

    @step
    def end(self):
        """Say what was chosen."""
        print(*(f"not measured: {one}" for one in self.unmeasured), *self.chosen, self.page, sep="\n")


if __name__ == "__main__":
    TuningFlow()
