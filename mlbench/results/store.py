"""Verbs that keep output_root and MLflow in order: delete, sync, verify, mlflow."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from mlbench.analysis import run_index
from mlbench.config import libraries
from mlbench.config.errors import UserError
from mlbench.launch import signals
from mlbench.record import format, reader, run_folders, study
from mlbench.results.command import COMMAND, TRACKING_URI, store_of, total
from mlbench.terminal import selection
from mlbench.terminal.args import (
    FAILED,
    JSON,
    OK,
    OUTPUT_ROOT,
    Args,
    flag,
    say,
    warn,
)
from mlbench.tracking import ui


@COMMAND.verb(
    "delete",
    "FILTER ...",
    settings=OUTPUT_ROOT | TRACKING_URI,
    options=JSON | flag("--yes", "delete without confirmation"),
)
def _delete(args: Args) -> int:
    """Delete the folders of the selected runs and their runs in MLflow, after asking.
    A run in progress is refused. MLflow keeps deleted runs until `mlflow gc`.

    examples:
      mlbench results delete resnet20-w4-1c9
      mlbench results delete status=failed --yes
    """
    from mlbench.tracking import importer

    broken = run_folders.damaged(args.output_root, args.arguments[0]) if len(args.arguments) == 1 else None
    if broken is not None:
        runs = [(broken.name, store_of(args))]
    else:
        runs = [(record.run_id, store_of(args, record)) for record in selection.records(args)]
    if not args.options.yes:
        count = format.counted(len(runs), "run")
        for name, _ in runs:
            warn(name)
        if not sys.stdin.isatty():
            raise UserError(f"deleting {count} needs your confirmation", hint="--yes confirms")
        print(f"delete {count} from {args.output_root} and MLflow? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("no run was deleted")
            return OK
    outcomes = []
    for name, uri in runs:
        in_mlflow = importer.delete(args.output_root / name, uri)
        outcomes.append({"run": name, "outcome": "deleted", "mlflow": in_mlflow})
        if not args.json:
            say(f"{name}: deleted" + ("" if in_mlflow else " (it was not in MLflow)"))
    total(args, outcomes, ("deleted",))
    return OK


@COMMAND.verb("sync", settings=OUTPUT_ROOT | TRACKING_URI, options=JSON)
def _sync(args: Args) -> int:
    """Upload every run that is not complete in MLflow, each once.

    examples:
      mlbench results sync
      mlbench results sync tracking_uri=http://mlflow:5000
    """
    libraries.require("mlflow", user="mlbench results sync")
    from mlbench.report import mlflow_study
    from mlbench.terminal import show
    from mlbench.tracking import sync

    uri = args.settings["tracking_uri"] or None
    outcomes = []
    usable, _ = run_index.entries(selection.output_root(args))
    for result in sync.sync_runs(args.output_root, uri, usable=usable, draw=show.Terminal().figures):
        outcomes.append(vars(result))
        if not args.json and result.outcome != "present":
            say(f"{result.run_id}: {result.outcome}" + (f": {result.why}" if result.why else ""))
    studies = dict(sync.sync_studies(args.output_root, uri, summarize=mlflow_study.summary))
    for name, why in studies.items():
        if why or not args.json:
            outcome = f"failed: {why}" if why else "written"
            (warn if why else say)(f"study {name}: {outcome}")
    if outcomes or args.json:
        total(args, outcomes, sync.OUTCOMES)
    elif not studies:
        warn(selection.nothing_found(args))
    return (
        FAILED if any(studies.values()) or any(outcome["outcome"] == "failed" for outcome in outcomes) else OK
    )


@COMMAND.verb("verify", "[FILTER ...]", settings=OUTPUT_ROOT, options=JSON)
def _verify(args: Args) -> int:
    """Derive each record from its run's event log again, and print which agree,
    which differ and in what, and which have no log.

    examples:
      mlbench results verify
      mlbench results verify study:scaling
    """
    runs, complaints = run_index.entries(selection.output_root(args))
    names = selection.names(args, runs, args.arguments)
    if not names and (args.arguments or not complaints):
        raise UserError(selection.nothing_found(args, args.arguments))
    outcomes = []
    for name in names:
        outcome, why = reader.verdict(args.output_root / name)
        outcomes.append({"run": name, "outcome": outcome, "why": why})
        if not args.json:
            say(f"{name}: {outcome}" + (f": {why}" if why else ""))
    for complaint in complaints:  # their origin is unknown, whatever was selected
        warn(complaint)
    total(args, outcomes, reader.VERDICTS)
    good = not complaints and all(outcome["outcome"] == reader.VERDICTS[0] for outcome in outcomes)
    return OK if good else FAILED


@COMMAND.verb(
    "mlflow",
    "[RUN]",
    settings=OUTPUT_ROOT | TRACKING_URI | {"port": ("", f"of the server (default: {ui.PORT})")},
)
def _mlflow(args: Args) -> int:
    """Open the runs in MLflow. Prints the address of a table with status, time to
    accuracy, cost, workers and throughput, or that of a run or study:NAME. A store
    without a server is served on this machine until Ctrl-C.

    examples:
      mlbench results mlflow
      mlbench results mlflow last
      mlbench results mlflow study:scaling port=5001
    """
    libraries.require("mlflow", user="mlbench results mlflow")
    from mlbench.tracking import parent_runs, sync

    uri, run_id = store_of(args), ""
    for word in args.arguments[:1]:
        name = word.removeprefix("study:")
        if name == word:
            run_id = run_folders.folder(args.output_root, word).name
        else:
            plan = study.load(study.folder(args.output_root, name))
            if plan is None:
                run_folders.study(args.output_root, name)  # UserError if there is none
            run_id = parent_runs.run_id(plan, name)
    upload = run_folders.results_command("sync", args.output_root)
    upload += " tracking_uri=..." if args.settings["tracking_uri"] else ""
    ids = sync.location(uri, run_id, upload=upload)
    address, command = ui.server(uri, *ids, port_text=args.settings["port"])
    if command:
        return _serve(command, address)
    say(address)
    return OK


def _serve(command: Sequence[str], address: str) -> int:
    """Run a server until Ctrl-C. Its processes do not get that, as each would print a traceback."""
    server = None
    try:
        with signals.interruptible():
            with signals.deferred():
                quiet = {"PYTHONWARNINGS": "ignore", **os.environ}  # deprecations within MLflow
                server = subprocess.Popen(command, process_group=0, env=quiet)
            say(address)
            return FAILED if server.wait() else OK
    except KeyboardInterrupt:
        return OK
    finally:
        if server is not None:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            server.wait()
