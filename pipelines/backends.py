"""Task 0 over backends and message sizes: `python pipelines/backends.py run --study backends`.

prepare -> sweep -> aggregate -> report. The tables of all runs are joined: backends.parquet has every row,
backends.png the medians and bandwidths over the size.
"""

from typing import Any

import local_flow  # noqa: F401  (metaflow reads its settings when it is imported)
import stages
from metaflow.decorators import step
from metaflow.flowspec import FlowSpec
from metaflow.parameters import Parameter


class BackendsFlow(FlowSpec):
    """Sweeps the collectives over backends and workers."""

    study: Any = Parameter("study", default="backends", help="a study of conf/study, or a begun one")

    @step
    def start(self):
        """See that everything can be measured."""
        stages.prepare(self.study)
        self.next(self.sweep)

    @step
    def sweep(self):
        """Measure what is missing."""
        self.unmeasured = stages.measure(self.study)
        self.next(self.aggregate)

    @step
    def aggregate(self):
        """Join the tables of all runs, and draw them."""
        self.files = stages.join_tables(self.study, "allreduce", files="backends")
        self.next(self.report)

    @step
    def report(self):
        """Write the page, and bring the study with its files into MLflow."""
        self.page = stages.publish(self.study, self.unmeasured)
        self.next(self.end)

    @step
    def end(self):
        """Say where the results are and what they lack."""
        print(*(f"not measured: {one}" for one in self.unmeasured), *self.files, self.page, sep="\n")


if __name__ == "__main__":
    BackendsFlow()
