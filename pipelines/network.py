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
        return networks(self.study)


def networks(name: str) -> list[str]:
    """Write a study's cells over emulated networks and draw them; return what they say."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from mlbench.analysis.bootstrap import median
    from mlbench.analysis.points import points
    from mlbench.record import format, study
    from mlbench.wings.emulation import charts as network
    from mlbench.wings.emulation import networks as analysis

    result = stages.load_results(name, [])
    cells = analysis.cells(points(result.records))
    if not cells:
        return ["nothing was measured on an emulated network"]
    folder = result.folder / study.REPORT
    folder.mkdir(exist_ok=True)
    parquet, png = folder / "network.parquet", folder / "network.png"
    pq.write_table(pa.Table.from_pylist([network.row(cell) for cell in cells]), parquet)
    png.write_bytes(network.png(cells, about=name))
    quantities: tuple[analysis.Quantity, ...] = ("step_s", "time_to_accuracy")
    lines = [
        f"{quantity}: {break_even}"
        for quantity in quantities
        for break_even in analysis.break_evens(cells, quantity)
    ]
    errors = [abs(cell.error) for cell in cells if cell.error is not None]
    if errors:
        lines.append(
            f"the alpha-beta model is off by {format.percent(median(errors))} in the median of {len(errors)} "
            f"cells, by {format.percent(max(errors))} at worst"
        )
    return [*lines, str(parquet), str(png)]


if __name__ == "__main__":
    sys.exit(main(NetworkFlow, study=STUDY))
