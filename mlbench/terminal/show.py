"""Printing a result card: at the end of a run, for a run that stands for another, and for one of the past."""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mlbench.config.experiment import Experiment
from mlbench.record import format
from mlbench.record.record import Record
from mlbench.tasks import registry
from mlbench.terminal import full_card, next_steps, result_card
from mlbench.terminal.args import ignore_broken_pipe

PIPE_WIDTH = 320  # columns, where the output is not a terminal that has a width


def card(record: Record, *, folder: Path, where: str | None, tracking_uri: str) -> None:
    """Print the card of a run that has just ended; `where` is its id in MLflow, None if not reached."""
    below = next_steps.lacking(record, folder=folder, where=where, tracking_uri=tracking_uri)
    stored(record, folder=folder, tracking_uri=tracking_uri, below=below)


def sentence(text: str) -> None:
    """Print a sentence to stderr, in lines where that is a terminal."""
    console = Console(stderr=True)
    lines = result_card.wrapped(text, console.width) if console.is_terminal else [text]
    console.file.write("\n".join(lines) + "\n")
    console.file.flush()


def reused(record: Record, experiment: Experiment) -> None:
    """Print the card of a finished run that stands for the experiment, and how to measure again."""
    sentence = f"already measured at {record.started_at} with seed={record.seed}; force=true measures again"
    _write(Console(stderr=True), [Text(sentence)])
    folder = experiment.output_root.absolute() / record.run_id
    stored(record, folder=folder, tracking_uri=experiment.store)


def stored(
    record: Record, *, folder: Path, tracking_uri: str, full: bool = False, below: Iterable[str] = ()
) -> None:
    """Print the card of a run; `full`: everything that was measured. `below` has commands to copy."""
    console = Console()
    width = min(console.width, result_card.WIDEST) if console.is_terminal else result_card.WIDTH
    ascii_only = not console.is_terminal or console.options.ascii_only
    with ignore_broken_pipe():
        if full:
            lines = full_card.full(record, width)
            below = next_steps.stored(record, folder=folder, tracking_uri=tracking_uri)
        else:
            _print_table(record, console)
            lines = [Text(f"{label:18}{text}") for label, text in full_card.profile(record)]
            lines += result_card.short(
                record, folder=folder, width=width, tracking_uri=tracking_uri, ascii_only=ascii_only
            )
        _write(console, [*lines, *map(Text, below)])


def _print_table(record: Record, console: Console) -> None:
    """Print the table of a task that presents its own; no column of a file or pipe is cut."""
    report = registry.report(record.experiment.task.name)
    if report and record.table:
        rate = record.experiment.hardware.network_gbit_per_s
        wide = console if console.is_terminal else Console(width=PIPE_WIDTH)
        wide.print(report.terminal(record.table, network_gbit_per_s=rate))


def _write(console: Console, lines: Iterable[Text]) -> None:
    """Write each line as it is: no markup, nothing that stdout cannot encode, no command broken."""
    for line in lines:
        if console.is_terminal and not console.options.ascii_only:
            console.print(line, soft_wrap=True)
        else:
            console.file.write(format.printable(line.plain, console.encoding).rstrip() + "\n")
    console.file.flush()
