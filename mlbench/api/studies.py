"""Many runs from Python: `mlbench.sweep(task="resnet20", workers=[1, 2, 4])`."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mlbench.api import overrides as words_of
from mlbench.api.logged import LoggedSweep
from mlbench.config import libraries, plugins
from mlbench.launch import signals
from mlbench.record import study
from mlbench.record.record import Record
from mlbench.studies import findings, preview, session, spec
from mlbench.terminal import live_view, sweep_view

if TYPE_CHECKING:
    from mlbench.report import grouping


class Study:
    """A study of several points: what it measures, its runs, and its answer."""

    def __init__(self, words: Sequence[str]) -> None:
        self.spec = spec.read(words)
        self._groups: list[grouping.Group] | None = None

    def __repr__(self) -> str:
        return f"<study {self.name}: {len(self.records)} runs, {len(self.unmeasured)} trials unmeasured>"

    @cached_property
    def _result(self) -> session.StudyResult:
        return session.load_results(self.spec)

    @property
    def name(self) -> str:
        """The name of the study."""
        return self.spec.name

    @property
    def folder(self) -> Path:
        """output_root/studies/NAME."""
        return self._result.folder

    @property
    def records(self) -> list[Record]:
        """The records of the finished and failed runs."""
        return self._result.records

    @property
    def unmeasured(self) -> list[str]:
        """A sentence for each trial without a result."""
        return self._result.unmeasured

    @property
    def notes(self) -> list[str]:
        """What went wrong beside the runs, e.g. that MLflow could not be reached."""
        return self._result.notes

    @property
    def report(self) -> Path:
        """The page that `publish` writes."""
        return self.folder / study.REPORT / "report.html"

    def check(self) -> None:
        """Raise UserError for every mistake that can be found before anything runs."""
        session.extended_plan(self.spec, self._result.study, spec.compose_points(self.spec))

    def preview(self) -> tuple[list[str], bool]:
        """Return the plan with an estimate of time and money, and whether points of it are refused."""
        return preview.sweep(self.spec)

    def configurations(self) -> list[str]:
        """Return the resolved configurations of all points as YAML documents."""
        return list(preview.configurations(self.spec))

    def prepare(self) -> None:
        """Make the data sets of all points, official ones too."""
        session.prepare(self.spec)

    def measure(self, *, terminal: TextIO | None = None) -> None:
        """Measure what is missing, and publish nothing.

        Kills this process if the environment variable MLBENCH_PARENT names a process, and that ends.

        Args:
            terminal: where progress is drawn; None: it goes to the logger `mlbench`.

        Raises:
            UserError: a mistake in the settings; no run has started.
            KeyboardInterrupt: the sweep was interrupted; `records` has what is finished.
        """
        signals.exit_with_parent()
        self._groups = None
        view = (
            LoggedSweep
            if terminal is None
            else partial(sweep_view.SweepView, console=live_view.console(terminal))
        )
        self._result = session.measure(self.spec, view=view)
        if self._result.interrupted:
            raise KeyboardInterrupt(self.name)

    def publish(self) -> None:
        """Write the report, and bring the study with it into MLflow."""
        if self.records:
            session.publish(self._result, self.groups())

    def groups(self) -> "list[grouping.Group]":
        """Return the points that may be compared with each other. Their bootstraps take seconds."""
        if self._groups is None:
            libraries.require(*libraries.DRAWING, user="the answer of a study")
            self._groups = session.compared(self._result)
        return self._groups

    def rows(self) -> list[dict[str, Any]]:
        """Return medians and 95 % intervals, one row a point (docs/statistics.md)."""
        groups = self.groups()
        from mlbench.report import aggregates

        return aggregates.rows(groups)

    def answer(self) -> str:
        """Return in sentences which point is the fastest and the cheapest, and how sure that is."""
        return sweep_view.answer(self.groups())

    def fastest(self, fields: Sequence[str]) -> list[str]:
        """Return a line for each number of workers: the values of the fields with the least time to goal."""
        return findings.fastest(self.records, fields)

    def strategies(self) -> str:
        """Return a Markdown table of what each sync strategy sends, its steps and its time to the goal."""
        return findings.strategies(self.records)

    def networks(self) -> list[str]:
        """Write and draw the cells over emulated networks; return who wins where, and the files."""
        return plugins.network_findings().findings(self.records, self._report_folder(), about=self.name)

    def join_tables(self, task: str, *, files: str) -> list[str]:
        """Join the tables of a task's runs as files.parquet and files.png; return their paths, if any."""
        return findings.join_tables(self.records, task, self._report_folder() / files, about=self.name)

    def compare_with(self, baseline: str | Path, *, limit: float = 0.05) -> tuple[list[str], list[str]]:
        """Return what a comparison with earlier runs shows, and which of it are regressions.

        Args:
            baseline: an output_root; its study of the same name, or else all of its runs, are compared.
            limit: the share by which a point may become slower.

        Raises:
            UserError: the baseline has no finished run.
        """
        return findings.compare_with(self.name, self.records, Path(baseline), limit=limit)

    def _report_folder(self) -> Path:
        folder = self.folder / study.REPORT
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def load_study(name: str, **settings: Any) -> Study:
    """Return a study of conf/study, or a begun one, with the runs that it has so far.

    Args:
        name: of the study.
        settings: those of `mlbench sweep`, e.g. output_root="runs", max_usd=5.

    Raises:
        UserError: there is no such study, or a setting is wrong.
    """
    return Study([f"study={name}", *words_of.from_settings(settings, several=True)])


def sweep(*overrides: str, **settings: Any) -> Study:
    """Measure every point of a grid several times in random order, write its report, and return the study.

    The same call resumes a study that was interrupted, and repeats nothing that is finished. Progress goes to
    the logger `mlbench`.

    Args:
        overrides: words as of the command, e.g. "workers=1,2,4".
        settings: the same by name; a list has several values, e.g. workers=[1, 2, 4]. Those of the sweep
            itself are repeats, study, max_usd, max_time, question and extend.

    Returns:
        The study, also if trials failed: `unmeasured` lists them.

    Raises:
        UserError: a mistake in the settings; no run has started.
        KeyboardInterrupt: the sweep was interrupted.
    """
    measured = Study([*overrides, *words_of.from_settings(settings, several=True)])
    measured.measure()
    measured.publish()
    return measured
