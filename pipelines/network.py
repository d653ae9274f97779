"""At which bandwidth does which method win? `python pipelines/network.py run --study network`.

Sweeps bandwidth, delay, workers and sync strategies on emulated hosts (docs/measurements/communication.md).
Of its files, network.parquet has every cell, network.png the heat maps of time per step, time to the goal and
exposed communication, and the performance profiles; the lines that are printed say where strategies break
even and how well the alpha-beta model predicts a step.
"""

import sys
from typing import Any

import stages
from metaflow.parameters import Parameter
from study_flow import StudyFlow, main

STUDY = "network"


class NetworkFlow(StudyFlow):
    """Measures a study over emulated networks."""

    study: Any = Parameter("study", default=STUDY, help="a study of conf/study, or a begun one")

    def findings(self) -> list[str]:
        """Draw the cells, and say who wins where and how sure that is."""
        return stages.load(self.study).networks()


if __name__ == "__main__":
    sys.exit(main(NetworkFlow, study=STUDY))
