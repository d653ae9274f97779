"""Verbs that bring runs out and in: export, import, check, plot, site, score, rcp."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from mlbench.config.errors import UserError
from mlbench.record import format, run_folders, study
from mlbench.results.command import COMMAND, TRACKING_URI, WITH_DISTURBED, destination, store_of, total
from mlbench.terminal import selection
from mlbench.terminal.args import (
    FAILED,
    JSON,
    OK,
    OUTPUT_ROOT,
    USER_ERROR,
    Args,
    check_overrides,
    flag,
    say,
    warn,
)

PUBLISHED_FIELDS = {
    "source": ("", "published: origin of the results, e.g. a repository and its commit"),
    "licence": ("", "published: the licence of the results"),
    "round": ("", "published: e.g. 5.1 (predictions use results of one round)"),
    "submitter": ("", "published: who published the results, if the files do not state it"),
    "system": ("", "published: the system, if the files do not state it"),
    "benchmark": ("", "published: what was trained to which goal"),
    "accelerator": ("", "published: e.g. NVIDIA H100-SXM5-80GB"),
    "nodes": ("", "published: how many"),
    "accelerators_per_node": ("", "published: how many"),
    "global_batch": ("", "published: samples a step"),
}


@COMMAND.verb(
    "export",
    "FILTER ...",
    settings=OUTPUT_ROOT | {"to": ("", "a folder, or one .zip file (default: output_root/exports)")},
)
def _export(args: Args) -> int:
    """Write one zip file per run: record, event log, configuration, provenance and
    MLPerf log lines. The plans of the studies are written with them. None has
    passwords, and none is an MLPerf submission.

    examples:
      mlbench results export resnet20-w4-1c9
      mlbench results export task=resnet20 status=goal_reached to=zips
    """
    from mlbench.report import mllog
    from mlbench.tracking import submission
    from mlbench.tracking.archive import export

    records = selection.records(args)
    to = destination(args, args.output_root / "exports", files=(".zip",))
    single = to.suffix == ".zip"
    if single and len(records) > 1:
        raise UserError(f"to={to} is one file for {len(records)} runs", hint="to=FOLDER holds all of them")
    for record in records:
        target = to if single else to / f"{record.run_id}.zip"
        target.parent.mkdir(parents=True, exist_ok=True)
        print(export(args.output_root / record.run_id, target, mllog=mllog.text), flush=True)
    if not single:
        for path in submission.export_studies(args.output_root, records, to):
            print(path)
    return OK


@COMMAND.verb(
    "import", "[published] PATH ...", settings=OUTPUT_ROOT | TRACKING_URI | PUBLISHED_FIELDS, options=JSON
)
def _import(args: Args) -> int:
    """Read exports into output_root and MLflow, marked as imported. Importing twice
    adds nothing. An archive that is not whole, or was changed, is refused.
    With the word published, read others' results into output_root: folders of
    MLPerf logs, speedrun logs, and tables (.csv).

    examples:
      mlbench results import zips/
      mlbench results import run.zip
      mlbench results import published RESULTS/SYSTEM licence=MIT
    """
    if args.arguments[:1] == ["published"]:
        return _import_published(args)
    if given := [name for name in PUBLISHED_FIELDS if args.settings[name]]:
        raise UserError(
            f"{given[0]}= is for published results only", hint="mlbench results import published PATH"
        )
    from mlbench.terminal import show
    from mlbench.tracking import archive, importer, sync

    if not args.arguments:
        raise UserError("import takes zip files or folders", hint="e.g. mlbench results import runs.zip")
    uri = store_of(args)
    complete, draw = sync.uploaded_runs(uri), show.Terminal().figures

    def found() -> Iterator[tuple[Path, UserError | str, str]]:
        for path, run, log in archive.load(archive.paths(args.arguments)):
            if isinstance(run, UserError):
                yield path, run, "refused"
                continue
            place = {"output_root": args.output_root, "uri": uri}
            yield path, run.run_id, importer.import_run(run, log, **place, complete=complete, draw=draw)

    return _imported(args, found())


def _import_published(args: Args) -> int:
    """Import published results of others. Refuse those that cannot be read."""
    from mlbench.analysis import published_records, published_results

    if len(args.arguments) < 2:
        raise UserError("import published takes files or folders", hint=f"{COMMAND.program} import --help")
    about = {name: args.settings[name] for name in PUBLISHED_FIELDS if args.settings[name]}

    def found() -> Iterator[tuple[Path, UserError | str, str]]:
        for path in published_results.paths(list(map(Path, args.arguments[1:]))):
            try:
                results = published_results.read(path, about=about)
            except UserError as error:
                yield path, error, "refused"
                continue
            for record in (record for result in results for record in published_records.records(result)):
                yield path, record.run_id, published_records.write(record, args.output_root)

    return _imported(args, found())


def _imported(args: Args, found: Iterable[tuple[Path, UserError | str, str]]) -> int:
    """Print how each run of a file was imported, or why the file is refused; return the exit code."""
    outcomes = []
    for path, run, outcome in found:
        if isinstance(run, UserError):
            outcomes.append({"file": str(path), "outcome": outcome, "why": str(run)})
            warn(f"mlbench: {run}")
            continue
        outcomes.append({"file": str(path), "outcome": outcome, "run": run})
        if not args.json:
            print(f"{run}: {outcome}", flush=True)
    total(args, outcomes, ("imported", "present", "refused"))
    return USER_ERROR if any(outcome["outcome"] == "refused" for outcome in outcomes) else OK


@COMMAND.verb("check", "PATH ...", options=JSON | flag("--markdown", "print the comment of a pull request"))
def _check(args: Args) -> int:
    """Check submissions: folders ENTITY/DATE-HARDWARE with submission.yaml, exported
    runs and the plans of their studies. Each record is derived from its log
    again, and what does not fit is refused. Nothing is written.

    examples:
      mlbench results check submissions/epfl-mlo/2026-11-24-8xh100
      mlbench results check submissions --markdown
    """
    from mlbench.report import leaderboard
    from mlbench.tracking import submission

    if not args.arguments:
        raise UserError(
            "check takes folders of submissions",
            hint="e.g. mlbench results check submissions/acme/2026-11-27-gcp_n1_t4",
        )
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
        "to": ("", "the folder to write to (default: output_root/reports)"),
        "question": ("", "the question of the report, its first line"),
    },
    options=WITH_DISTURBED,
)
def _plot(args: Args) -> int:
    """Write figures, tables and report.html of a selection.

    examples:
      mlbench results plot task=resnet20 to=figures
      mlbench results plot study:scaling
    """
    from mlbench.report import grouping, writer

    records = selection.records(args, or_all=True)
    filters = " ".join(args.arguments)
    text = writer.StudyText(
        title=f"Runs: {filters or 'all'}",
        question=args.settings["question"] or f"What do the runs {filters or 'here'} show?",
        commands=(f"{COMMAND.program} plot {filters}".strip(),),
    )
    folder = destination(args, args.output_root / "reports")
    grouped = grouping.groups(
        records, with_disturbed=args.options.with_disturbed, histories=study.histories(args.output_root)
    )
    for path in writer.write(records, folder, study=text, grouped=grouped):
        print(path)
    return OK


@COMMAND.verb(
    "site",
    "PATH ...",
    settings=OUTPUT_ROOT | {"to": ("", "the folder to write to (default: output_root/site)")},
    options=flag("--predict", "add predicted cost over time on all hardware (half a minute)"),
)
def _site(args: Args) -> int:
    """Write a static site over submissions, exports and folders of runs: rankings,
    a page per submission and study, cost over time, index.json, runs.parquet and
    badges. The folder needs no server: copy it to any host of files. It is also a
    Hugging Face data set and a Zenodo deposit.

    examples:
      mlbench results site runs/exports to=site
      mlbench results site submissions runs to=site
    """
    from mlbench.report import site

    if not args.arguments:
        raise UserError(
            "site takes exports, or folders of them", hint=f"{COMMAND.program} export writes them"
        )
    to = destination(args, args.output_root / "site")
    records, accepted, refused = site.collect(list(map(Path, args.arguments)), warn)
    for sentence in refused:
        warn(f"mlbench: {sentence}")
    if not records and not accepted:
        raise UserError("these exports have no runs", hint=f"{COMMAND.program} export writes them")
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
    """Judge a model or a log of any framework by a task's validation and goal.
    Exit code 1: the goal is not reached. Nothing in the file is executed. No run
    is recorded, because its time was not measured here.

    examples:
      mlbench results score task=resnet20 weights=model.safetensors
      mlbench results score task=gnmt scale=official log=times.jsonl
    """
    from mlbench.config import compose
    from mlbench.tasks import scoring

    check_overrides(args.arguments)
    weights, log = args.settings["weights"], args.settings["log"]
    if bool(weights) == bool(log):
        raise UserError(
            "score takes weights=FILE or log=FILE",
            hint="e.g. mlbench results score task=resnet20 weights=model.safetensors",
        )
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


@COMMAND.verb("rcp", "STUDY", settings=OUTPUT_ROOT | {"to": ("", "a folder (default: that of the study)")})
def _rcp(args: Args) -> int:
    """Write how many epochs the study's runs needed to reach their goal as MLPerf's
    reference convergence points: one file rcps_BENCHMARK.json per benchmark.

    examples:
      mlbench results rcp scaling to=rcps
    """
    from mlbench.analysis.rcp import FEWEST
    from mlbench.tasks import rcp

    name = args.argument.removeprefix("study:")
    files = rcp.files(run_folders.study(args.output_root, name, complain=warn))
    if not files:
        raise UserError(
            f"study {name} has no point with {FEWEST} runs that reached the goal",
            hint="measure more repeats",
        )
    folder = destination(args, args.output_root / "studies" / name)
    folder.mkdir(parents=True, exist_ok=True)
    for name, points in files.items():
        path = folder / f"rcps_{name}.json"
        path.write_text(json.dumps(points, indent=2) + "\n")
        print(path)
    return OK
