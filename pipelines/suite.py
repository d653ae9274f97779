"""Every task, every night: `python pipelines/suite.py run --study suite --baseline /results/2026-11-21`.

The exit code is 1 if a run failed, if a point is shown to be slower than the baseline's by more than
`--limit`, if it no longer reaches its goal, or if a point of the baseline has no like tonight. A baseline is
the output_root of an earlier night: its study of the same name, or else all of its run folders.
"""

import sys
from typing import Any

import stages
from metaflow.decorators import step
from metaflow.parameters import Parameter
from study_flow import StudyFlow, main

STUDY = "suite"
BASELINE = ""  # none
LIMIT = 0.05  # share by which a point may become slower


class SuiteFlow(StudyFlow):
    """Measures all tasks and compares them with a baseline."""

    study: Any = Parameter("study", default=STUDY, help="a study of conf/study, or a begun one")
    baseline: Any = Parameter("baseline", default=BASELINE, help="output_root of earlier runs; empty: none")
    limit: Any = Parameter("limit", default=LIMIT, help="share by which a point may become slower")

    def findings(self) -> list[str]:
        """Compare with the baseline."""
        self.regressions: list[str] = []
        if not self.baseline:
            return []
        notes, self.regressions = stages.load(self.study).compare_with(self.baseline, limit=self.limit)
        return notes

    @step
    def end(self):
        """Say what the night showed; fail if a run did, or if a point became worse."""
        stages.close([self.answer, *self.lines, *self.regressions, *self.lacking()])
        if self.regressions or self.unmeasured:
            raise SystemExit("a point became worse or was not measured")


if __name__ == "__main__":
    sys.exit(main(SuiteFlow, study=STUDY, baseline=BASELINE, limit=LIMIT))
