"""What the flows of studies have in common: prepare data -> sweep -> aggregate -> report.

`resume` goes on where a run was stopped or killed; inside the sweep, with the first trial that was not
finished.
"""

from typing import Any

import local_flow  # noqa: F401  (metaflow reads its settings when it is imported)
import stages
from metaflow.decorators import step
from metaflow.flowspec import FlowSpec


class StudyFlow(FlowSpec):
    """Measures a study and reports it; a flow says in `findings` what it makes of the runs."""

    study: Any  # a Parameter of each flow, with the study that it is for as default

    def findings(self) -> list[str]:
        """Compute what this flow is for; return lines for its user."""
        raise NotImplementedError

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
        """Put the runs together."""
        self.lines = self.findings()
        self.next(self.report)

    @step
    def report(self):
        """Draw the figures, write the page, and bring the study into MLflow."""
        self.page = stages.publish(self.study, self.unmeasured)
        self.next(self.end)

    @step
    def end(self):
        """Print the findings, where the report is, and what it lacks."""
        print(*(f"not measured: {one}" for one in self.unmeasured), *self.lines, self.page, sep="\n")
