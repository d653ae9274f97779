"""What sync strategies send, and their time to the goal: `python pipelines/sync.py run --study sync`."""

import sys
from typing import Any

import stages
from metaflow.parameters import Parameter
from study_flow import StudyFlow, main

STUDY = "sync"


class SyncFlow(StudyFlow):
    """Sweeps sync strategies over networks and tabulates bytes, steps and time with 95 % intervals."""

    study: Any = Parameter("study", default=STUDY, help="a study of conf/study, or a begun one")

    def findings(self) -> list[str]:
        """Write the table as Markdown beside the report."""
        study = stages.load(self.study)
        self.table = study.strategies()
        path = study.report.with_name("sync.md")
        path.parent.mkdir(exist_ok=True)
        path.write_text(self.table)
        return [str(path)]


if __name__ == "__main__":
    sys.exit(main(SyncFlow, study=STUDY))
