"""Every task, every night: `python pipelines/suite.py run --study suite --baseline /results/2026-11-21`.

prepare data -> sweep -> report -> verdict. The exit code is 1 if a run failed, or if a point is shown to be
slower than the baseline's by more than `--limit`; a baseline is a folder of run folders.
"""

from typing import Any

import local_flow  # noqa: F401  (metaflow reads its settings when it is imported)
import stages
from metaflow.decorators import step
from metaflow.flowspec import FlowSpec
from metaflow.parameters import Parameter


class SuiteFlow(FlowSpec):
    """Measures all tasks and compares them with a baseline."""

    study: Any = Parameter("study", default="suite", help="a study of conf/study, or a begun one")
    baseline: Any = Parameter("baseline", default="", help="output_root of earlier runs; empty: none")
    limit: Any = Parameter("limit", default=0.05, help="share by which a point may become slower")

    @step
    def start(self):
        """Prepare the data sets."""
        stages.prepare(self.study)
        self.next(self.sweep)

    @step
    def sweep(self):
        """Measure what is missing."""
        self.unmeasured = stages.measure(self.study)
        self.next(self.report)

    @step
    def report(self):
        """Draw the figures, write the page, and bring the study into MLflow."""
        self.page = stages.publish(self.study, self.unmeasured)
        self.next(self.verdict)

    @step
    def verdict(self):
        """Compare with the baseline."""
        self.said, slower = stages.against(self.study, self.baseline, limit=self.limit)
        print(self.page, *self.said, sep="\n")
        if slower or self.unmeasured:
            raise SystemExit("\n".join([*slower, *(f"not measured: {one}" for one in self.unmeasured)]))
        self.next(self.end)

    @step
    def end(self):
        """Nothing failed and nothing became slower."""


if __name__ == "__main__":
    SuiteFlow()
