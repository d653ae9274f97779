"""Task 0 over backends and message sizes: `python pipelines/backends.py run --study backends`.

The tables of all runs are joined: backends.parquet has every row, backends.png the medians and
bandwidths over the size; both go into MLflow with the report.
"""

import sys
from typing import Any

import stages
from metaflow.parameters import Parameter
from study_flow import StudyFlow, main

STUDY = "backends"


class BackendsFlow(StudyFlow):
    """Sweeps the collectives over backends and workers."""

    study: Any = Parameter("study", default=STUDY, help="a study of conf/study, or a begun one")

    def findings(self) -> list[str]:
        """Join the tables of all runs, draw them, and say where they are."""
        return stages.load(self.study).join_tables("allreduce", files="backends")


if __name__ == "__main__":
    sys.exit(main(BackendsFlow, study=STUDY))
