"""Every task, every night: `python pipelines/suite.py run --study suite --baseline /results/2026-11-21`.

The exit code is 1 if a run failed, or if a point is shown to be slower than the baseline's by more than
`--limit`; a baseline is a folder of run folders.
"""

from typing import Any

import stages
from metaflow.decorators import step
from metaflow.parameters import Parameter
from study_flow import StudyFlow


class SuiteFlow(StudyFlow):
    """Measures all tasks and compares them with a baseline."""

    study: Any = Parameter("study", default="suite", help="a study of conf/study, or a begun one")
    baseline: Any = Parameter("baseline", default="", help="output_root of earlier runs; empty: none")
    limit: Any = Parameter("limit", default=0.05, help="share by which a point may become slower")

    def findings(self) -> list[str]:
        """Compare with the baseline."""
        said, self.slower = stages.against(self.study, self.baseline, limit=self.limit)
        return said

    @step
    def end(self):
        """Say what the night showed; fail if a run did, or if a point became slower."""
        print(self.page, *self.found, sep="\n")
        if self.slower or self.unmeasured:
            raise SystemExit("\n".join([*self.slower, *(f"not measured: {one}" for one in self.unmeasured)]))


if __name__ == "__main__":
    SuiteFlow()
