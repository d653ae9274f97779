"""Learning rates and batch sizes of task 2a: `python pipelines/tuning.py run --study tuning`.

Every setting is measured on a part of the training rows that is held out, so the test rows have no say in the
choice; the fastest to the goal wins, for each number of workers.
"""

import sys
from typing import Any

import stages
from metaflow.parameters import Parameter
from study_flow import StudyFlow, main

FIELDS = ("task.alpha", "task.batch_size")
STUDY = "tuning"


class TuningFlow(StudyFlow):
    """Measures a grid of settings and chooses by time to the goal."""

    study: Any = Parameter("study", default=STUDY, help="a study of conf/study, or a begun one")

    def findings(self) -> list[str]:
        """Return the fastest setting for each number of workers."""
        return stages.load(self.study).fastest(FIELDS)


if __name__ == "__main__":
    sys.exit(main(TuningFlow, study=STUDY))
