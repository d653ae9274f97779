"""How many workers pay off, task by task: `python pipelines/scaling.py run --study scaling`."""

import sys
from typing import Any

import stages
from metaflow.parameters import Parameter
from study_flow import StudyFlow, main

STUDY = "scaling"


class ScalingFlow(StudyFlow):
    """Sweeps the tasks of a study over workers and reports speed-up, efficiency and price."""

    study: Any = Parameter("study", default=STUDY, help="a study of conf/study, or a begun one")

    def findings(self) -> list[str]:
        """Keep the aggregates as an artifact of the flow; the report says what they mean."""
        self.rows = stages.load(self.study).rows()
        return []


if __name__ == "__main__":
    sys.exit(main(ScalingFlow, study=STUDY))
