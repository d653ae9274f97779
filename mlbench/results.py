"""Finished runs: what was measured in output_root, and how it compares."""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from mlbench.analysis import run_index, select
from mlbench.config.errors import UserError, suggest
from mlbench.config.store_uri import default_store
from mlbench.record import format, reader, run_folders, study
from mlbench.record.record import Record
from mlbench.terminal import run_table
from mlbench.terminal.args import (
    FAILED,
    JSON,
    NO_VERDICT,
    OK,
    OUTPUT_ROOT,
    USER_ERROR,
    Args,
    Command,
    check_overrides,
    flag,
    percentage,
    run_command,
    say,
    warn,
)
from mlbench.tracking import ui

MLFLOW_ID = "[0-9a-f]{32}"
FILE_SUFFIX = r"(?i)\.(html?|zip|gz|tgz|tar|bz2|xz|zst|7z|csv|json|parquet|pdf|png|svg|md|txt|tex)"


TRACKING_URI = {"tracking_uri": ("", "any MLflow tracking URI; default: the SQLite file in output_root")}
WITH_DISTURBED = flag("--with-disturbed", "count runs, too, beside which their machine did something else")
FILTERS = (
    ("task=resnet20 workers=1,2", "values as on the command line; a comma means or"),
    ("status=goal_reached", "also source=, key=, recipe=, seed=, eligible="),
    ("source=mlbench", "measured here; source=imported, source=copied: elsewhere"),
    ("key:01ab", "the beginning of a configuration's key"),
    ("study:scaling", "the runs of a study; study:a,b of two"),
    ("w4-1c9", "any part of a run's name"),
    ("last", "the newest of those that all other filters select"),
)
EXIT_CODES = (
    ("0", "done"),
    (
        "1",
        "a run could not be uploaded or does not follow from its log, a submission was refused, "
        "score: no goal, or --fail-if-slower",
    ),
    ("2", "a mistake in the command, no run is selected, or an archive was refused"),
    ("3", "--fail-if-slower where a pair has no verdict"),
)
ELSEWHERE = {"copied": "recorded below another output_root", "imported": "imported"}  # by source
COMMAND = Command(
    "results",
    __doc__,
    sections=lambda: [("filters (all must match)", FILTERS), ("exit codes", EXIT_CODES)],
)
main = partial(run_command, COMMAND)


@COMMAND.verb(
    "list",
    "[FILTER ...]",
    settings=OUTPUT_ROOT
    | {
        "sort": ("", "a column, e.g. time, or -time for the largest first"),
        "last": ("", "only this many, the newest, e.g. 20"),
    },
    options=JSON | flag("--wide", "print all columns"),
)
def _list(args: Args) -> int:
    """Print one line per finished run, oldest first. A terminal gets as many columns
    as fit; --wide and pipes get all.

    examples:
      python -m mlbench.results list last=20
      python -m mlbench.results list task=resnet20 workers=1,2 status=goal_reached
      python -m mlbench.results list sort=time --wide
    """
    runs = _runs(args)
    matches = [runs[name].row for name in _selection(args, runs, args.arguments)]
    last = args.settings["last"]
    if last and not (last.isdecimal() and int(last)):
        raise UserError(f"last={last} is not a number of runs", hint="e.g. last=20")
    rows = run_table.ordered(matches, sort=args.settings["sort"], last=int(last or 0))
    if args.json:
        print(json.dumps([run_table.summary(row) for row in rows], indent=2))
    elif rows:
        print(run_table.text(rows, wide=args.options.wide))
        origins = Counter(row["source"] for row in rows)
        for name in sorted(origins.keys() & ELSEWHERE):
            warn(f"{ELSEWHERE[name]}: {origins[name]} of {format.counted(len(rows), 'run')} (source={name})")
    if not rows and args.arguments:
        raise UserError(_none(args, args.arguments))
    if not rows and not args.json:
        warn(_none(args))
    if not args.arguments and (logs := run_folders.without_record(args.output_root)):
        sync = run_folders.results_command("sync", args.output_root)
        warn(f"in progress or killed: {', '.join(logs)} ({sync} makes the record of a killed run)")
    return OK


@COMMAND.verb(
    "show",
    "RUN",
    settings=OUTPUT_ROOT,
    options=JSON
    | flag("--full", "print everything that was measured")
    | flag("--markdown", "print a study's answer as Markdown")
    | flag("--csv", "print a study's points as CSV, one row each, with units in the names")
    | WITH_DISTURBED,
)
def _show(args: Args) -> int:
    """Print one run's result card. RUN is any part of its name that no other run has,
    its id in MLflow, or last; study:NAME prints a study's answer.

    examples:
      python -m mlbench.results show last
      python -m mlbench.results show resnet20-w4 --full
      python -m mlbench.results show resnet20-w4 --json
          The whole record.
      python -m mlbench.results show study:scaling
      python -m mlbench.results show study:scaling --csv
    """
    from mlbench.terminal import show

    word = _name(args, args.argument)
    if word.startswith("study:"):
        if args.options.full:
            raise UserError("--full is for one run", hint="--csv prints all numbers of a study's points")
        return _show_study(args, word.removeprefix("study:"))
    if args.options.markdown or args.options.csv or args.options.with_disturbed:
        sentence = "--markdown, --csv and --with-disturbed are for a study's answer"
        raise UserError(sentence, hint=f"{COMMAND.program} show study:NAME --csv")
    if re.fullmatch(MLFLOW_ID, word):
        from mlbench.tracking import sync

        word = sync.ask(_uri(args), lambda client: client.run_id(word), absent=None) or word
    folder = run_folders.folder(args.output_root, word)
    record = reader.load(folder / "record.json")
    if args.json:
        print(record.model_dump_json(indent=2))
    else:
        show.stored(record, folder=folder, tracking_uri=_uri(args, record), full=args.options.full)
    return OK


def _show_study(args: Args, name: str) -> int:
    """Print the answer of a study as its sweep printed it."""
    from mlbench.report import aggregates, grouping
    from mlbench.terminal import sweep_view

    records = run_folders.study(args.output_root, name, complain=warn)
    if args.json:
        print(json.dumps([record.model_dump(mode="json") for record in records], indent=2))
        return OK
    groups = grouping.groups(
        records, with_disturbed=args.options.with_disturbed, histories=study.histories(args.output_root)
    )
    if not groups:
        hint = run_folders.command_line(args.output_root, "sweep", f"study={name}")
        raise UserError(f"study {name} has no finished run", hint=hint)
    if args.options.csv:
        print(aggregates.csv(aggregates.rows(groups)).decode(), end="")
    else:
        print(sweep_view.answer(groups, markdown=args.options.markdown))
    return OK


@COMMAND.verb(
    "compare",
    "A B [FILTER ...]",
    settings=OUTPUT_ROOT,
    options=JSON
    | WITH_DISTURBED
    | flag("--markdown", "print Markdown")
    | {
        "--fail-if-slower": {
            "type": percentage,
            "metavar": "PERCENT",
            "help": "exit with 1 if a point of B is shown to need more than this more time, 3 if one "
            "has no verdict",
        }
    },
)
def _compare(args: Args) -> int:
    """Compare two selections side by side: ratios, 95 % intervals, a verdict.

    A and B are selections, each one shell word; further name=value words narrow
    both. B is measured against A: a ratio is B's median over A's, with a 95 %
    interval, paired by seed where both sides have the same seeds. The verdict is
    about the time to the goal. A single run per side cannot show a difference.

    examples:
      python -m mlbench.results compare workers=1 workers=2 task=resnet20
          Every field but the workers must agree; points without a partner are
          listed.
      python -m mlbench.results compare "task=gnmt workers=2" "task=gnmt workers=4"
      python -m mlbench.results compare study:old study:new --fail-if-slower 5%
          For CI: exit code 1 if a point of `new` is shown to need more than 5 %
          more time than its partner (the whole interval lies above 1.05) or lost
          its goal (half of its runs missed it and fewer of the partner's did).
      python -m mlbench.results compare key:01ab key:9f3e
    """
    from mlbench.analysis import compare  # numpy, as in what draws and uploads; a listing needs none
    from mlbench.terminal import comparison

    if len(args.arguments) < 2:
        raise UserError("compare takes A and B, two selections", hint=f"{COMMAND.program} compare --help")
    a, b, *narrow = args.arguments
    if any("=" not in word for word in narrow):
        raise UserError(f"compare takes two selections, got a third: {narrow[0]}", hint="quote a selection")
    limit = args.options.fail_if_slower
    runs = _runs(args)
    sides = []
    for label, side in (("A", a), ("B", b)):
        filters = [*side.split(), *narrow]
        sides.append(_records(args, _selection(args, runs, filters)))
        if not sides[-1]:
            hint = run_folders.results_command("list", args.output_root)
            raise UserError(f"{label}: {_none(args, filters)}", hint=hint)
    compared = compare.compare(*sides, limit=limit, with_disturbed=args.options.with_disturbed)
    text = comparison.text(compared, limit=limit, markdown=args.options.markdown)
    print(format.json_text(comparison.plain(compared)) if args.json else text)
    if any(pair.regression for pair in compared.pairs):
        return FAILED
    return NO_VERDICT if limit is not None and any(p.regression is None for p in compared.pairs) else OK


@COMMAND.verb(
    "export",
    "FILTER ...",
    settings=OUTPUT_ROOT | {"to": ("", "a folder, or one .zip file; default: output_root/exports")},
)
def _export(args: Args) -> int:
    """Write one zip file per run: record, event log, configuration, provenance and
    MLPerf log lines; beside them the plans of the studies. None has passwords,
    and none is an MLPerf submission.

    examples:
      python -m mlbench.results export resnet20-w4-1c9
      python -m mlbench.results export task=resnet20 status=goal_reached to=zips
    """
    from mlbench.report import mllog
    from mlbench.tracking import submission
    from mlbench.tracking.archive import export

    records = _some(args)
    to = _folder(args, args.output_root / "exports", files=(".zip",))
    single = to.suffix == ".zip"
    if single and len(records) > 1:
        raise UserError(f"to={to} is one file for {len(records)} runs", hint="to=FOLDER takes them all")
    for record in records:
        target = to if single else to / f"{record.run_id}.zip"
        target.parent.mkdir(parents=True, exist_ok=True)
        print(export(args.output_root / record.run_id, target, mllog=mllog.text), flush=True)
    if not single:
        for path in submission.export_studies(args.output_root, records, to):
            print(path)
    return OK


@COMMAND.verb("import", "PATH ...", settings=OUTPUT_ROOT | TRACKING_URI, options=JSON)
def _import(args: Args) -> int:
    """Read exports into output_root and MLflow, marked as imported. Importing twice
    adds nothing. An archive that is not whole, or was changed, is refused.

    examples:
      python -m mlbench.results import zips/
      python -m mlbench.results import run.zip
    """
    from mlbench.terminal import show
    from mlbench.tracking import archive, importer, sync

    if not args.arguments:
        raise UserError("import takes zip files or folders", hint=f"{COMMAND.program} import --help")
    uri = _uri(args)
    complete = sync.uploaded_runs(uri)
    outcomes = []
    for path, run, log in archive.load(archive.paths(args.arguments)):
        if isinstance(run, UserError):
            outcomes.append({"file": str(path), "outcome": "refused", "why": str(run)})
            warn(f"mlbench: {run}")
            continue
        outcome = importer.import_run(
            run, log, output_root=args.output_root, uri=uri, complete=complete, draw=show.Terminal().figures
        )
        outcomes.append({"file": str(path), "outcome": outcome, "run": run.run_id})
        if not args.json:
            print(f"{run.run_id}: {outcome}", flush=True)
    _total(args, outcomes, ("imported", "present", "refused"))
    return USER_ERROR if any(outcome["outcome"] == "refused" for outcome in outcomes) else OK


@COMMAND.verb("check", "PATH ...", options=JSON | flag("--markdown", "print the comment of a pull request"))
def _check(args: Args) -> int:
    """Check submissions: folders ENTITY/DATE-HARDWARE with submission.yaml, exported
    runs and the plans of their studies. Each record is derived from its log anew,
    and what does not fit is refused. Nothing is written.

    examples:
      python -m mlbench.results check submissions/epfl-mlo/2026-11-24-8xh100
      python -m mlbench.results check submissions --markdown
    """
    from mlbench.report import leaderboard
    from mlbench.tracking import submission

    if not args.arguments:
        raise UserError("check takes folders of submissions", hint=f"{COMMAND.program} check --help")
    places = [folder for path in args.arguments for folder in submission.folders(Path(path)) or [Path(path)]]
    checked = [submission.check(folder) for folder in dict.fromkeys(places)]
    entries = leaderboard.entries([result for result in checked if not result.refusals])
    if args.json:
        print(json.dumps([leaderboard.verdict(result, entries) for result in checked], indent=2))
    elif args.options.markdown:
        print("\n".join(leaderboard.markdown(result, entries) for result in checked))
    else:
        say("\n".join(line for result in checked for line in leaderboard.lines(result, entries)))
    return FAILED if any(result.refusals for result in checked) else OK


@COMMAND.verb(
    "plot",
    "[FILTER ...]",
    settings=OUTPUT_ROOT
    | {
        "to": ("", "the folder to write to; default: output_root/reports"),
        "question": ("", "what the report answers; its first line"),
    },
    options=WITH_DISTURBED,
)
def _plot(args: Args) -> int:
    """Write figures, tables and report.html of a selection.

    examples:
      python -m mlbench.results plot task=resnet20 to=figures
      python -m mlbench.results plot study:scaling
    """
    from mlbench.report import grouping, writer

    records = _some(args, or_all=True)
    filters = " ".join(args.arguments)
    text = writer.StudyText(
        title=f"Runs: {filters or 'all'}",
        question=args.settings["question"] or f"What do the runs {filters or 'here'} show?",
        commands=(f"{COMMAND.program} plot {filters}".strip(),),
    )
    folder = _folder(args, args.output_root / "reports")
    grouped = grouping.groups(
        records, with_disturbed=args.options.with_disturbed, histories=study.histories(args.output_root)
    )
    for path in writer.write(records, folder, study=text, grouped=grouped):
        print(path)
    return OK


@COMMAND.verb(
    "site",
    "PATH ...",
    settings=OUTPUT_ROOT | {"to": ("", "the folder to write to; default: output_root/site")},
    options=flag("--predict", "add predicted cost over time on all hardware (half a minute)"),
)
def _site(args: Args) -> int:
    """Write a static site over submissions, exports and folders of runs: rankings,
    a page per submission and study, cost over time, index.json, runs.parquet and
    badges. The folder needs no server: copy it to any host of files. It is also a
    Hugging Face data set and a Zenodo deposit.

    examples:
      python -m mlbench.results site runs/exports to=site
      python -m mlbench.results site submissions runs to=site
    """
    from mlbench.report import site
    from mlbench.tracking import archive, submission

    if not args.arguments:
        raise UserError(
            "site takes exports, or folders of them", hint=f"{COMMAND.program} export writes them"
        )
    to = _folder(args, args.output_root / "site")
    refused = False
    paths = list(map(Path, args.arguments))
    handed_in = [submission.check(folder) for path in paths for folder in submission.folders(path)]
    for result in handed_in:
        for why in result.refusals:
            refused = True
            warn(f"mlbench: {result.entity}/{result.name}: {why}")
    records = [run for path in paths for run in run_folders.readable(path, warn)]
    zips = [str(path) for path in paths if not (submission.folders(path) or run_folders.names(path))]
    for _, run, _ in archive.load(archive.paths(zips)):
        if isinstance(run, UserError):
            refused = True
            warn(f"mlbench: {run}")
        else:
            records.append(run)
    accepted = [result for result in handed_in if not result.refusals]
    if not records and not accepted:
        raise UserError("there is no run in these exports", hint=f"{COMMAND.program} export writes them")
    records = list({record.run_id: record for record in records}.values())
    for path in site.write(records, to, submissions=accepted, predict=args.options.predict):
        print(path)
    return USER_ERROR if refused else OK


@COMMAND.verb(
    "score",
    "name=value ...",
    settings={
        "weights": ("", "a file of weights: safetensors, or torch.save(model.state_dict(), FILE)"),
        "log": ("", "a file of JSON lines with `time` (s) and the task's metric"),
    },
    options=JSON,
)
def _score(args: Args) -> int:
    """Judge a model or a log from outside, of any framework, by a task's own
    validation and goal. Exit code 1: the goal is not reached. Nothing in the file
    is executed, and no run is recorded: nobody here has seen its clock.

    examples:
      python -m mlbench.results score task=resnet20 weights=model.safetensors
      python -m mlbench.results score task=gnmt scale=official log=times.jsonl
    """
    from mlbench.config import compose
    from mlbench.tasks import scoring

    check_overrides(args.arguments)
    weights, log = args.settings["weights"], args.settings["log"]
    if bool(weights) == bool(log):
        raise UserError("score takes weights=FILE or log=FILE", hint=f"{COMMAND.program} score --help")
    experiment = compose.compose(args.arguments)
    task, goal = experiment.task, experiment.target
    score = scoring.model(experiment, Path(weights)) if weights else scoring.log(experiment, Path(log))
    if args.json:
        print(json.dumps({"task": task.name, "scale": experiment.scale, **asdict(score)}, indent=2))
    else:
        units = {task.metric: task.metric_unit}
        values = [
            f"{name} {format.measured(value, units.get(name, ''), goal if name == task.metric else None)}"
            for name, value in score.metrics.items()
        ]
        print(f"{task.name} {experiment.scale}: {'best ' if log else ''}{', '.join(values)}")
        if goal is not None:
            verdict = "reached" if score.reached else "not reached"
            after = f" after {format.duration(score.seconds)}" if score.seconds is not None else ""
            print(f"goal {goal.metric} {format.target(goal, task.metric_unit)}: {verdict}{after}")
    return FAILED if score.reached is False else OK


@COMMAND.verb("rcp", "STUDY", settings=OUTPUT_ROOT | {"to": ("", "a folder; default: that of the study")})
def _rcp(args: Args) -> int:
    """Write how many epochs the study's runs needed to reach their goal as MLPerf's
    reference convergence points: one file rcps_BENCHMARK.json per benchmark.

    examples:
      python -m mlbench.results rcp scaling to=rcps
    """
    from mlbench.analysis.rcp import FEWEST
    from mlbench.tasks import rcp

    name = args.argument.removeprefix("study:")
    files = rcp.files(run_folders.study(args.output_root, name, complain=warn))
    if not files:
        raise UserError(
            f"study {name} has no point of which {FEWEST} runs reached the goal",
            hint="measure more repeats",
        )
    folder = _folder(args, args.output_root / "studies" / name)
    folder.mkdir(parents=True, exist_ok=True)
    for name, points in files.items():
        path = folder / f"rcps_{name}.json"
        path.write_text(json.dumps(points, indent=2) + "\n")
        print(path)
    return OK


@COMMAND.verb(
    "delete", "FILTER ...", settings=OUTPUT_ROOT | TRACKING_URI, options=JSON | flag("--yes", "do not ask")
)
def _delete(args: Args) -> int:
    """Delete the folders of the selected runs and their runs in MLflow, after asking.
    A run in progress is refused. MLflow keeps deleted runs until `mlflow gc`.

    examples:
      python -m mlbench.results delete resnet20-w4-1c9
      python -m mlbench.results delete status=failed --yes
    """
    from mlbench.tracking import importer

    broken = run_folders.damaged(args.output_root, args.arguments[0]) if len(args.arguments) == 1 else None
    if broken is not None:
        runs = [(broken.name, _uri(args))]
    else:
        runs = [(record.run_id, _uri(args, record)) for record in _some(args)]
    if not args.options.yes:
        count = format.counted(len(runs), "run")
        for name, _ in runs:
            warn(name)
        if not sys.stdin.isatty():
            raise UserError(f"delete asks before it deletes {count}", hint="--yes answers yes")
        print(f"delete {count} from {args.output_root} and MLflow? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was deleted")
            return OK
    outcomes = []
    for name, uri in runs:
        in_mlflow = importer.delete(args.output_root / name, uri)
        outcomes.append({"run": name, "outcome": "deleted", "mlflow": in_mlflow})
        if not args.json:
            say(f"{name}: deleted" + ("" if in_mlflow else "; it was not in MLflow"))
    _total(args, outcomes, ("deleted",))
    return OK


@COMMAND.verb("sync", settings=OUTPUT_ROOT | TRACKING_URI, options=JSON)
def _sync(args: Args) -> int:
    """Upload every run that is not complete in MLflow, each once.

    examples:
      python -m mlbench.results sync
      python -m mlbench.results sync tracking_uri=http://mlflow:5000
    """
    from mlbench.report import study_summary
    from mlbench.terminal import show
    from mlbench.tracking import sync

    uri = args.settings["tracking_uri"] or None
    outcomes = []
    usable, _ = run_index.entries(_existing(args))
    for result in sync.sync_runs(args.output_root, uri, usable=usable, draw=show.Terminal().figures):
        outcomes.append(vars(result))
        if not args.json and result.outcome != "present":
            say(f"{result.run_id}: {result.outcome}" + (f": {result.why}" if result.why else ""))
    studies = dict(sync.sync_studies(args.output_root, uri, summarize=study_summary.summary))
    for name, why in studies.items():
        if why or not args.json:
            outcome = f"failed: {why}" if why else "written"
            (warn if why else say)(f"study {name}: {outcome}")
    if outcomes or args.json:
        _total(args, outcomes, sync.OUTCOMES)
    elif not studies:
        warn(_none(args))
    return (
        FAILED if any(studies.values()) or any(outcome["outcome"] == "failed" for outcome in outcomes) else OK
    )


@COMMAND.verb("verify", "[FILTER ...]", settings=OUTPUT_ROOT, options=JSON)
def _verify(args: Args) -> int:
    """Derive each record from its run's event log anew, and say which agree, which
    differ and in what, and which have no log.

    examples:
      python -m mlbench.results verify
      python -m mlbench.results verify study:scaling
    """
    runs, complaints = run_index.entries(_existing(args))
    names = _selection(args, runs, args.arguments)
    if not names and (args.arguments or not complaints):
        raise UserError(_none(args, args.arguments))
    outcomes = []
    for name in names:
        outcome, why = reader.verdict(args.output_root / name)
        outcomes.append({"run": name, "outcome": outcome, "why": why})
        if not args.json:
            say(f"{name}: {outcome}" + (f": {why}" if why else ""))
    for complaint in complaints:  # whatever was selected, nobody knows what these are
        warn(complaint)
    _total(args, outcomes, reader.VERDICTS)
    good = not complaints and all(outcome["outcome"] == reader.VERDICTS[0] for outcome in outcomes)
    return OK if good else FAILED


@COMMAND.verb(
    "mlflow",
    "[RUN]",
    settings=OUTPUT_ROOT | TRACKING_URI | {"port": ("", f"of the server; default: {ui.PORT}")},
)
def _mlflow(args: Args) -> int:
    """Open the runs in MLflow. Prints the address of a table with status, time to
    accuracy, cost, workers and throughput, or that of a run or study:NAME. A store
    without a server is served on this machine until Ctrl-C.

    examples:
      python -m mlbench.results mlflow
      python -m mlbench.results mlflow last
      python -m mlbench.results mlflow study:scaling port=5001
    """
    from mlbench.tracking import parent_runs, sync

    uri, run_id = _uri(args), ""
    for word in args.arguments[:1]:
        name = word.removeprefix("study:")
        if name == word:
            run_id = run_folders.folder(args.output_root, word).name
        else:
            plan = study.load(study.folder(args.output_root, name))
            if plan is None:
                run_folders.study(args.output_root, name)  # UserError where there is none
            run_id = parent_runs.run_id(plan, name)
    upload = run_folders.results_command("sync", args.output_root)
    upload += " tracking_uri=..." if args.settings["tracking_uri"] else ""
    ids = sync.location(uri, run_id, upload=upload)
    ui.serve(uri, *ids, port_text=args.settings["port"], show=say)
    return OK


def _records(args: Args, names: Sequence[str]) -> list[Record]:
    """Return the records of runs, without those that were deleted since they were selected."""
    records = []
    for name in names:
        with suppress(FileNotFoundError):
            records.append(reader.load(args.output_root / name / "record.json"))
    return records


def _selection(args: Args, runs: Mapping[str, run_index.IndexEntry], filters: Sequence[str]) -> list[str]:
    """Return the names of the runs that the words select."""
    names = [word.partition("=")[0] for word in filters if "=" in word]
    if twice := next((name for name in names if names.count(name) > 1), None):
        values = ",".join(word.partition("=")[2] for word in filters if word.startswith(f"{twice}="))
        raise UserError(f"{twice} is given twice", hint=f"a comma means or: {twice}={values}")

    def in_studies(names: str) -> list[str]:
        chosen = []
        for name in names.split(","):
            members = [run for run in runs if runs[run].fields.get("study") == name]
            planned = run_folders.study(args.output_root, name, members=members)
            chosen += [*members, *(record.run_id for record in planned)]
        return chosen

    if compared := next((word for word in filters if re.match(r"[\w.]+ *[<>!]", word)), None):
        raise UserError(f"{compared} is no filter", hint="list the values: workers=2,4")
    filters = [_name(args, word) for word in filters]
    chosen = select.select(list(runs), filters, fields=lambda name: runs[name].fields, studies=in_studies)
    for name, _, value in (word.partition("=") for word in filters if chosen):
        for text in value.split(",") if "," in value else ():
            if not any(select.matches(entry.fields, name, [text]) for entry in runs.values()):
                warn(f"no finished run has {name}={text}")
    plain = [word for word in filters if not chosen and not {"=", ":"} & set(word)]
    named = {entry.fields.get("study") for entry in runs.values()}
    if name := next((w for w in plain if w in named or run_folders.is_study(args.output_root, w)), None):
        raise UserError(f"no finished run is called {name!r}", hint=f"it is a study: study:{name}")
    if word := next((word for word in plain if Path(word).is_dir()), None):
        raise UserError(f"{word} is a folder, not a run", hint=f"output_root={word} reads the runs in it")
    return chosen


def _name(args: Args, word: str) -> str:
    """Return the name of the run whose folder a word is, e.g. runs/RUN/ as the tab key completes it."""
    path = Path(word)
    return path.name if "/" in word and path.parent in (args.output_root, Path()) and path.name else word


def _runs(args: Args) -> dict[str, run_index.IndexEntry]:
    """Return all runs by name, oldest first; name those that cannot be read."""
    runs, complaints = run_index.entries(_existing(args))
    for complaint in complaints:
        warn(complaint)
    return runs


def _existing(args: Args) -> Path:
    """Return output_root; UserError for another one than the default that is not there."""
    root = args.output_root
    if str(root) != OUTPUT_ROOT["output_root"][0] and not root.is_dir():
        fault = "it is a file" if root.is_file() else "there is no such folder"
        raise UserError(f"output_root={root}: {fault}", hint="name the folder that has your runs")
    return root


def _some(args: Args, *, or_all: bool = False) -> list[Record]:
    """Return the records that the words select, without words all where `or_all`; UserError for none."""
    if not args.arguments and not or_all:
        raise UserError(
            "name the runs: a part of their name, or name=value filters", hint="--help has examples"
        )
    records = _records(args, _selection(args, _runs(args), args.arguments))
    if not records:
        listing = run_folders.results_command("list", args.output_root) if args.arguments else ""
        raise UserError(_none(args, args.arguments), hint=listing)
    return records


def _none(args: Args, filters: Sequence[str] = ()) -> str:
    """Return that nothing was selected, with the nearest value that a run has."""
    where = f"no finished run in {args.output_root}"
    if not filters:
        return f"{where} ({run_folders.command_line(args.output_root, 'run')} makes one)"
    runs, _ = run_index.entries(args.output_root)
    rows = [entry.fields for entry in runs.values()]
    for word in filters:
        name, equals, value = word.partition("=")
        values = {str(row[name]) for row in rows if row.get(name) is not None} if equals else set()
        values = {text.lower() if text in ("True", "False") else text for text in values}
        if values.isdisjoint(value.split(",")) and values:
            return f"{where} matches {word}{suggest(value.split(',')[0], sorted(values))}"
    return f"{where} matches {' '.join(filters)}"


def _folder(args: Args, default: Path, *, files: tuple[str, ...] = ()) -> Path:
    """Return the folder that to= names; UserError for the name of a file that is none of `files`."""
    to = Path(args.settings["to"] or default)
    if args.settings["to"] and re.fullmatch(FILE_SUFFIX, to.suffix) and to.suffix not in files:
        raise UserError(
            f"to={to} is the name of a {to.suffix} file, {args.verb} writes a folder"
            + (f" or one {' or '.join(files)} file" if files else ""),
            hint=f"to={to.with_suffix('')}",
        )
    return to


def _uri(args: Args, record: Record | None = None) -> str:
    """Return the store that has a run: the one given, else its own, else the default."""
    own = record.experiment.tracking_uri if record else None
    return args.settings.get("tracking_uri") or own or default_store(args.output_root)


def _total(args: Args, outcomes: list[dict[str, Any]], names: Sequence[str]) -> None:
    """Print how many there were of each outcome, or all of them as JSON."""
    if args.json:
        print(json.dumps(outcomes, indent=2))
        return
    counts = {word: sum(outcome["outcome"] == word for outcome in outcomes) for word in names}
    print(", ".join(f"{count} {word}" for word, count in counts.items() if count))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
