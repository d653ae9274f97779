"""What a study over emulated networks shows: the entry point of `mlbench.findings`."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mlbench.analysis.bootstrap import median
from mlbench.analysis.points import points
from mlbench.plugins.emulation import networks
from mlbench.record import format
from mlbench.record.record import Record


def findings(records: Sequence[Record], folder: Path, *, about: str) -> list[str]:
    """Write and draw the cells of a study; return which strategy wins where, and the paths of the files."""
    from mlbench.plugins.emulation import charts  # Altair is for the chart alone

    cells = networks.cells(points(records))
    if not cells:
        return ["no run used an emulated network"]
    parquet, png = folder / "network.parquet", folder / "network.png"
    pq.write_table(pa.Table.from_pylist([charts.row(cell) for cell in cells]), parquet)
    charts.chart(cells, about=about).save(str(png), scale_factor=1.5)
    quantities: tuple[networks.Quantity, ...] = ("step_s", "time_to_accuracy")
    lines = [
        f"{quantity}: {break_even}"
        for quantity in quantities
        for break_even in networks.break_evens(cells, quantity)
    ]
    errors = [abs(cell.error) for cell in cells if cell.error is not None]
    if errors:
        lines.append(
            f"the alpha-beta model is off by {format.percent(median(errors))} in the median of {len(errors)} "
            f"cells, by {format.percent(max(errors))} at worst"
        )
    return [*lines, str(parquet), str(png)]
