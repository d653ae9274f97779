"""Printing a result card: at the end of a run, for a run that stands for another, and for one of the past."""

from pathlib import Path

from rich.console import Console
from rich.text import Text

from mlbench.experiment import format
from mlbench.experiment.config import Experiment
from mlbench.experiment.record import Record
from mlbench.tasks import registry
from mlbench.terminal import next_steps, result_card, summary_card
from mlbench.terminal.args import ignore_broken_pipe

PIPE_WIDTH = 160  # columns of a table where stdout is not a terminal


def card(record: Record, *, folder: Path, where: str | None, tracking_uri: str) -> None:
    """Print the card of a run that has just ended; `where` is its id in MLflow, None if not reached."""
    lacking = next_steps.lacking(record, folder=folder, where=where, tracking_uri=tracking_uri)
    _print(record, folder=folder, tracking_uri=tracking_uri, below=lacking)


def reused(record: Record, experiment: Experiment) -> None:
    """Print the card of a finished run that stands for the experiment, and how to measure again."""
    _write(
        Console(stderr=True),
        [f"already measured at {record.started_at} with seed={record.seed}; force=true measures again"],
    )
    folder = experiment.output_root.absolute() / record.run_id
    _print(record, folder=folder, tracking_uri=experiment.store)


def stored(record: Record, *, folder: Path, tracking_uri: str, full: bool = False) -> None:
    """Print the card of a run of the past; `full`: everything that was measured."""
    if not full:
        _print(record, folder=folder, tracking_uri=tracking_uri)
        return
    console = Console()
    with ignore_broken_pipe():
        if console.is_terminal and not console.options.ascii_only:
            console.print(result_card.panel(record, width=console.width))
        else:
            _write(console, [result_card.plain(record)])
        below = next_steps.stored(record, folder=folder, tracking_uri=tracking_uri)
        _write(console, [f"{label + ':' if label else '':16}{text}" for label, text in below])


def _print(record: Record, *, folder: Path, tracking_uri: str, below: list[str] | None = None) -> None:
    console = Console()
    with ignore_broken_pipe():
        _print_table(record, console)
        ascii_only = not console.is_terminal or console.options.ascii_only
        width = min(console.width, result_card.WIDEST) if console.is_terminal else result_card.WIDTH
        card = summary_card.lines(
            record, folder=folder, width=width, tracking_uri=tracking_uri, ascii_only=ascii_only
        )
        if console.is_terminal:
            for line in card:
                console.print(line, soft_wrap=True)
        else:
            _write(console, [line.plain for line in card])
        _write(console, below or [])


def _print_table(record: Record, console: Console) -> None:
    """Print the table of a task that presents its own; no column of a file or pipe is cut."""
    report = registry.report(record.experiment.task.name)
    if report and record.table:
        rate = record.experiment.hardware.network_gbit_per_s
        wide = console if console.is_terminal else Console(width=PIPE_WIDTH)
        wide.print(report.terminal(record.table, network_gbit_per_s=rate))


def _write(console: Console, lines: list[str] | list[Text]) -> None:
    """Write text as it is: no markup, and no line broken that someone may want to copy."""
    for text in lines:
        for line in str(text).splitlines():
            console.file.write(format.printable(line, console.encoding).rstrip() + "\n")
    console.file.flush()
