"""Print runs: live progress, result card, cached and stored runs."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mlbench.config.experiment import Experiment
from mlbench.launch.output import Output
from mlbench.record import format, reader
from mlbench.record.record import Record
from mlbench.report import drawing_process
from mlbench.tasks import registry
from mlbench.terminal import full_card, next_steps, result_card, streams
from mlbench.terminal.args import say
from mlbench.terminal.live_view import RunView

PIPE_WIDTH = 320  # columns, if the output is not a terminal that has a width


class Terminal(Output):
    """Output of runs on stdout and stderr, and of their figures.

    - errors: whether the card of a run goes to stderr, as when stdout is a measured script's.
    """

    def __init__(self, *, errors: bool = False) -> None:
        self._errors = errors

    def display(self, experiment: Experiment, seed: int, *, command_started: float) -> RunView:
        return RunView(experiment, seed, command_started=command_started)

    def sentence(self, text: str) -> None:
        """Print a sentence to stderr, in lines if that is a terminal."""
        console = Console(stderr=True)
        lines = result_card.wrapped(text, console.width) if console.is_terminal else [text]
        console.file.write("\n".join(lines) + "\n")
        console.file.flush()

    def line(self, text: str, *, result: bool = False) -> None:
        say(text, file=None if result else sys.stderr)

    def card(self, record: Record, *, folder: Path, where: str | None, tracking_uri: str) -> None:
        """Print the result card. If that fails, warn, because the run has ended all the same."""
        try:
            below = next_steps.lacking(record, folder=folder, where=where, tracking_uri=tracking_uri)
            stored(record, folder=folder, tracking_uri=tracking_uri, below=below, errors=self._errors)
        except BrokenPipeError:
            raise  # its reader has seen enough
        except Exception as error:
            if not self._errors:
                streams.discard(sys.stdout)
            with suppress(OSError, ValueError):
                self.line(f"mlbench: cannot show the result card ({error}). The run is in {folder}")

    def reused(self, record: Record, experiment: Experiment) -> None:
        when = f"already measured at {record.started_at} with seed={record.seed}"
        _write(Console(stderr=True), [Text(f"{when}. force=true measures again")])
        folder = experiment.output_root.absolute() / record.run_id
        stored(record, folder=folder, tracking_uri=experiment.store)

    def figures(self, folder: Path) -> None:
        """Draw the figures of the run whose record is in the folder. Warn if the engine lacks memory.

        Raises RuntimeError if drawing fails in a way that another attempt may not, e.g. by a full disk.
        """
        if (why := drawing_process.draw(folder)) is not None:
            with suppress(OSError, ValueError):  # there is no reader any more
                run_id = reader.load(folder / "record.json").run_id
                self.sentence(f"mlbench: {run_id} has no figures in MLflow: {why}")


def stored(
    record: Record,
    *,
    folder: Path,
    tracking_uri: str,
    full: bool = False,
    below: Iterable[str] = (),
    errors: bool = False,
) -> None:
    """Print the card of a run (`full`: everything that was measured). `below` has commands to copy.

    errors: to stderr.
    """
    console = Console(stderr=errors)
    width = min(console.width, result_card.WIDEST) if console.is_terminal else result_card.WIDTH
    ascii_only = not console.is_terminal or console.options.ascii_only
    with streams.ignore_broken_pipe():
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
    """Print the table of a task that presents one. No column of a file or pipe is cut."""
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
