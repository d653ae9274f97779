"""One run on a cluster that takes whole runs: submit it, show it, collect its event log, and clean up.

The command that measures runs in the cluster. Here its events are copied, as they come, into a folder like
that of a local run. Record, card, MLflow and later commands find the same files as after a local run.
"""

import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mlbench import clock
from mlbench.clusters import connection
from mlbench.clusters.submission import ClusterJob, SubmissionLost
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.launch import execute as local
from mlbench.launch import signals
from mlbench.launch.output import Display, Output
from mlbench.record import events, stream
from mlbench.record.build_record import build_record, lost_end
from mlbench.record.record import Record
from mlbench.record.run_folders import RUN_ID
from mlbench.tracking import uploader

FILE = re.compile(r"rank_\d+\.log|outputs/rank_\d+/[^\0]+")  # what a pod may write into the run's folder


@dataclass(frozen=True)
class SubmitSettings:
    """How a run is submitted, followed (`attach` to a name), repeated if preempted, and what ends with it."""

    detach: bool = False
    attach: str = ""
    retries: int = 0
    down_after: str = ""

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> "SubmitSettings":
        """Read the settings of the command line. Raises UserError for invalid ones."""
        if settings["detach"] not in ("true", "false"):
            raise UserError(f"detach={settings['detach']} must be true or false")
        if not settings["retries"].isdigit():
            raise UserError(f"retries={settings['retries']} must be a whole number of at least 0")
        if settings["down_after"] not in ("", "run"):
            raise UserError(f"down_after={settings['down_after']}: must be 'run'", hint="or remove it")
        submission = cls(
            settings["detach"] == "true", settings["attach"], int(settings["retries"]), settings["down_after"]
        )
        if submission.detach and submission.down_after:
            raise UserError("down_after=run needs a command that follows the run", hint="leave out detach=")
        given = {name: value for name, value in vars(submission).items() if name != "down_after"}
        conflicts = [f"{name}={settings[name]}" for name, value in given.items() if value]
        if len(conflicts) > 1:
            hint = "only a command that submits a run and follows it can start it again: keep one of them"
            raise UserError(f"{' and '.join(conflicts)} cannot be used together", hint=hint)
        return submission


def takes(cluster: str) -> bool:
    """Return whether a cluster takes whole runs."""
    return hasattr(connection.load(cluster), "submit")


def execute(
    experiment: Experiment,
    *,
    begun: float,
    overrides: Sequence[str],
    settings: SubmitSettings,
    output: Output | None = None,
) -> Record | None:
    """Submit the run and follow it to its record. None for one that was detached.

    `output`: (default: none) shows the run, and draws its figures.
    """
    output = output or Output()
    module = connection.load(experiment.cluster.name)
    if settings.attach:
        submission: ClusterJob = module.attach(experiment.cluster, settings.attach)
        fields = {name: getattr(experiment, name) for name in ("output_root", "tracking_uri")}
        fields["output_root"] = fields["output_root"].absolute()
        experiment = submission.experiment.model_copy(update=fields)
        with closing(Copy(experiment, output)) as copy:
            record = _followed(copy, submission, begun=begun, overrides=submission.arguments)
        _conclude(module, submission.experiment, settings, output)
        return record
    cached = local.reused(experiment, output)
    if cached is not None:
        return cached
    experiment, seed = local.resolved(experiment)
    for attempt in range(settings.retries + 1):
        submission = module.submit(experiment, overrides, seed=seed)
        if settings.detach:
            output.line(submission.name, result=True)
            output.line(f"mlbench: the run continues, {_attach(submission, experiment)} follows it")
            _conclude(module, experiment, settings, output)
            return None
        with closing(Copy(experiment, output)) as copy:
            record = _followed(copy, submission, begun=begun, overrides=overrides)
        if record.status != "preempted" or attempt == settings.retries:
            break
        output.line(f"mlbench: retry {attempt + 1} of {settings.retries}")
        begun = clock.wall()
    _conclude(module, experiment, settings, output)
    return record


def _conclude(module: ModuleType, experiment: Experiment, settings: SubmitSettings, output: Output) -> None:
    """Delete the cluster after its run if the settings demand it, else print what still costs.

    A failure here is printed, and changes no result.
    """
    try:
        if settings.down_after:
            module.down(experiment, output.line)
        elif not experiment.study and (remains := module.remains(experiment)):
            output.line(f"mlbench: {remains}")
    except UserError as error:
        output.line(f"mlbench: {error}")


class Copy:
    """The folder into which a run's event log is copied, and from there to MLflow."""

    def __init__(self, experiment: Experiment, output: Output) -> None:
        self.folder: Path | None = None
        self.stop: dict[str, Any] | None = None  # the last event, which waits for the record
        self.count = 0  # of events
        self.experiment, self.output = experiment, output
        self._mlflow: uploader.MlflowUploader | None = None

    @property
    def log(self) -> Path:
        assert self.folder is not None
        return self.folder / events.NAME

    def add(self, event: dict[str, Any]) -> None:
        """Copy an event. The first one names the folder."""
        if self.folder is None:
            if event["key"] != "run_configuration":
                raise SubmissionLost("the event log does not begin with the run's configuration")
            run_id = str(event["value"]["run_id"])
            if not RUN_ID.fullmatch(run_id):  # whatever the pod prints is read, and the folder is replaced
                raise SubmissionLost(f"{run_id[:80]!r} is not a run name")
            self._open(self.experiment.output_root / run_id)
            events.copy(self.log, event)
            self._start(event["value"])
        elif event["key"] == "run_stop":
            self.stop = event
        else:
            events.copy(self.log, event)
        self.count += 1

    def save(self, name: str, content: str) -> None:
        """Write a file of the run's. One that is no rank's log or output, or cannot be read, is left out."""
        if self.folder is None or not FILE.fullmatch(name) or ".." in name.split("/"):
            return
        target = self.folder / name
        with suppress(OSError, ValueError):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(stream.unpack(content))

    def begin(self, folder: Path, start: dict[str, Any]) -> None:
        """Take the folder of a run that began nowhere else."""
        self._open(folder)
        events.append(self.log, "run_configuration", start)
        self._start(start)

    def conclude(self, value: dict[str, Any], end: tuple[str, str] | None) -> Record:
        """Complete the log and the folder of a run that has ended. Show its record, and return it.

        value: of the event "submission". end: status and why, if the log has none.
        """
        assert self.folder is not None
        events.append(self.log, "submission", value)
        log = events.read(self.log)
        if not any(event["key"] == "run_result" for event in log):
            status, error = end or ("failed", "its event log has no end")
            last = lost_end(log[:-1], error, status=status).model_copy(update={"hostname": platform.node()})
            if len(log) <= 2:  # it never trained
                last = last.model_copy(update={"ended": clock.wall()})
            events.append(self.log, "run_result", last.model_dump(mode="json"))
        record = build_record(events.read(self.log))
        record.save(self.folder)
        if self.stop is not None and self.stop["value"]["status"] == record.status:
            events.copy(self.log, self.stop)
        else:
            events.append(self.log, "run_stop", {"status": record.status}, kind="INTERVAL_END")
        aborting = record.status == "interrupted"
        where = self.finish(wait=local.ABORT_STORE_WAIT_S if aborting else local.STORE_WAIT_S)
        self.output.card(record, folder=self.folder, where=where, tracking_uri=self.experiment.store)
        return record

    def finish(self, *, wait: float) -> str | None:
        """Wait for MLflow. Return its id of the run, or None if it was not reached."""
        mlflow, self._mlflow = self._mlflow, None
        return mlflow.finish(wait=wait) if mlflow else None

    def close(self) -> None:
        """Write no more, so that another command may follow the run into its folder."""
        self.finish(wait=0)

    def _open(self, folder: Path) -> None:
        if folder.exists():  # of a command that followed this run before
            try:
                os.close(uploader.lock(folder))
            except BlockingIOError as error:
                raise SubmissionLost(
                    f"another command follows this run into {folder}", goes_on=True
                ) from error
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def _start(self, start: dict[str, Any]) -> None:
        assert self.folder is not None
        local.tell_run(self.experiment, start)
        self._mlflow = uploader.MlflowUploader(self.folder, self.experiment.store, draw=self.output.figures)
        self._mlflow.start()


def _followed(copy: Copy, submission: ClusterJob, *, begun: float, overrides: Sequence[str]) -> Record:
    """Show a run and copy its log until it has ended. Delete it. Return its record.

    A run whose log was not read to its end is not deleted: the cluster has the only whole copy.
    """
    experiment, output = copy.experiment, copy.output
    view = output.display(experiment, submission.seed, command_started=begun)
    end: tuple[str, str] | None = None  # status and why, if the log has none
    preempted: str | None = None
    try:
        with signals.interruptible(), view:
            view.say(f"submitted as {submission.name}")
            try:
                _take(submission.messages(), copy, view)
            except KeyboardInterrupt:
                end = "interrupted", local.STOPPED
                _take(submission.last_messages(), copy, view)
    except SubmissionLost as lost:
        end = "preempted" if lost.preempted else "failed", str(lost)
        preempted = str(lost) if lost.preempted else None
        if lost.goes_on:
            raise UserError(str(lost), hint=_attach(submission, experiment)) from lost
    except BaseException:  # another Ctrl-C, a full disk
        output.line(f"mlbench: not deleted, {_attach(submission, experiment)} follows it")
        raise
    described = submission.description()
    _delete(submission, output)
    if copy.folder is None:
        folder = local.new_folder(experiment, submission.seed, begun)
        start = local.run_start(experiment, folder, seed=submission.seed, begun=begun, overrides=overrides)
        copy.begin(folder, start.model_dump(mode="json"))
    value = described | {"command": local.command(overrides), "preempted": preempted}
    return copy.conclude(value, end)


def _attach(submission: ClusterJob, experiment: Experiment) -> str:
    return f"mlbench run cluster={experiment.cluster.name} attach={submission.name}"


def _take(messages: Iterator[dict[str, Any]], copy: Copy, view: Display) -> None:
    """Show the messages of a run and copy its events."""
    for message in messages:
        _show(message, view)
        if "file" in message:
            copy.save(str(message["file"]), str(message.get("content")))
        elif message.get("number") == copy.count:
            copy.add(message["event"])


def _show(message: dict[str, Any], view: Display) -> None:
    if "activity" in message:
        view.say(message["activity"])
    elif "connected" in message:
        view.connected(message["connected"].get("threads"), message["connected"].get("oversubscribed"))
    elif "heartbeat" in message:
        view.heartbeat(message["heartbeat"])
    elif "event" in message:
        view.event(message["event"])


def _delete(submission: ClusterJob, output: Output) -> None:
    """Delete the run. A failed deletion is printed, and changes no result."""
    try:
        with signals.interruptible():
            submission.delete()
    except (SubmissionLost, KeyboardInterrupt) as error:
        output.line(f"mlbench: {submission.name} may still exist: {error}")
