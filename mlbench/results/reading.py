"""Verbs that answer from finished runs: list, show, why, compare."""

import json
import re
from collections import Counter

from mlbench.config.errors import UserError
from mlbench.record import format, reader, run_folders, study
from mlbench.results.command import COMMAND, MLFLOW_ID, WITH_DISTURBED, store_of
from mlbench.terminal import run_table, selection
from mlbench.terminal.args import (
    FAILED,
    JSON,
    NO_VERDICT,
    OK,
    OUTPUT_ROOT,
    Args,
    flag,
    percentage,
    say,
    warn,
)

ELSEWHERE = {"copied": "recorded below another output_root", "imported": "imported"}  # by source


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
    as fit. --wide and pipes get all.

    examples:
      mlbench results list last=20
      mlbench results list task=resnet20 workers=1,2 status=goal_reached
      mlbench results list sort=time --wide
    """
    runs = selection.entries(args)
    matches = [runs[name].row for name in selection.names(args, runs, args.arguments)]
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
        raise UserError(selection.nothing_found(args, args.arguments))
    if not rows and not args.json:
        warn(selection.nothing_found(args))
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
    its id in MLflow, or last. study:NAME prints a study's answer.

    examples:
      mlbench results show last
      mlbench results show resnet20-w4 --full
      mlbench results show resnet20-w4 --json
          The whole record.
      mlbench results show study:scaling
      mlbench results show study:scaling --csv
    """
    from mlbench.terminal import show

    word = selection.run_name(args, args.argument)
    if word.startswith("study:"):
        if args.options.full:
            raise UserError("--full is for one run", hint="--csv prints all numbers of a study's points")
        return _show_study(args, word.removeprefix("study:"))
    if args.options.markdown or args.options.csv or args.options.with_disturbed:
        sentence = "--markdown, --csv and --with-disturbed are for a study's answer"
        raise UserError(sentence, hint=f"{COMMAND.program} show study:NAME --csv")
    if re.fullmatch(MLFLOW_ID, word):
        from mlbench.tracking import sync

        word = sync.ask(store_of(args), lambda client: client.run_id(word), absent=None) or word
    folder = run_folders.folder(args.output_root, word)
    record = reader.load(folder / "record.json")
    if args.json:
        print(record.model_dump_json(indent=2))
    else:
        show.stored(record, folder=folder, tracking_uri=store_of(args, record), full=args.options.full)
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
    "why",
    "RUN QUANTITY [workers=N]",
    settings=OUTPUT_ROOT | {"workers": ("", "of a study: the number of workers whose speedup is explained")},
    options=JSON,
)
def _why(args: Args) -> int:
    """Explain a number: its formula, the values of the log that it is computed from,
    and their lines. QUANTITY is a name as of `results list --json`, or the part of
    a group, e.g. wait. study:NAME explains speedup.

    examples:
      mlbench results why last time_to_accuracy
      mlbench results why last wait
      mlbench results why study:scaling speedup workers=2
    """
    if len(args.arguments) != 2:
        raise UserError("give a run and a quantity", hint="e.g. mlbench results why last time_to_accuracy")
    run, quantity = args.arguments
    if run.startswith("study:"):
        return _why_study(args, run.removeprefix("study:"), quantity)
    from mlbench.record import events, formulas
    from mlbench.terminal import explanation

    folder = run_folders.folder(args.output_root, selection.run_name(args, run))
    record = reader.load(folder / "record.json")
    if not (folder / events.NAME).is_file():
        raise UserError(f"{record.run_id} has no event log", hint="imported results may lack it")
    found = formulas.explain(record, events.read(folder / events.NAME), quantity)
    if args.json:
        inputs = [{"path": p, "value": v, "line": n} for p, (v, n) in found.inputs.items()]
        print(
            json.dumps(
                {"run": record.run_id, "file": str(folder / events.NAME), **vars(found), "inputs": inputs},
                indent=2,
            )
        )
        return OK
    say("\n".join(explanation.of_run(found, record, folder / events.NAME)))
    return OK


def _why_study(args: Args, name: str, quantity: str) -> int:
    """Explain a study's speedup by the times of the runs of both points."""
    from mlbench.report import grouping
    from mlbench.terminal import explanation

    workers = args.settings["workers"]
    if quantity != "speedup" or not workers.isdecimal():
        raise UserError(
            "why study:NAME explains only speedup", hint=f"mlbench results why study:{name} speedup workers=2"
        )
    records = run_folders.study(args.output_root, name, complain=warn)
    groups = grouping.groups(records, histories=study.histories(args.output_root))
    answers = explanation.speedups(groups, int(workers))
    if not answers:
        raise UserError(
            f"study {name} has no speedup of {workers} workers", hint=f"mlbench results show study:{name}"
        )
    if args.json:
        print(json.dumps(answers, indent=2))
    else:
        say("\n".join(map(explanation.of_speedup, answers)))
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

    A and B are selections, each one shell word. Further name=value words narrow
    both. B is measured against A: a ratio is B's median over A's, with a 95 %
    interval. If both sides have the same seeds, runs are paired by seed. The
    verdict is about the time to the goal. A single run per side cannot show a
    difference.

    examples:
      mlbench results compare workers=1 workers=2 task=resnet20
          Every field but the workers must agree. Points without a partner are
          listed.
      mlbench results compare "task=gnmt workers=2" "task=gnmt workers=4"
      mlbench results compare study:old study:new --fail-if-slower 5%
          For CI: exit code 1 if a point of `new` is shown to need more than 5 %
          more time than its partner (the whole interval lies above 1.05). The same
          if it lost its goal: half of its runs missed it, fewer of the partner's.
      mlbench results compare key:01ab key:9f3e
    """
    from mlbench.analysis import compare  # numpy, as in what draws and uploads; a listing needs none
    from mlbench.terminal import comparison

    if len(args.arguments) < 2:
        raise UserError(
            "compare takes two selections, A and B", hint="e.g. mlbench results compare study:old study:new"
        )
    a, b, *narrow = args.arguments
    if any("=" not in word and not word.startswith(("study:", "key:")) for word in narrow):
        raise UserError(f"compare takes two selections, got a third: {narrow[0]}", hint="quote a selection")
    limit = args.options.fail_if_slower
    runs = selection.entries(args)
    sides = []
    for label, side in (("A", a), ("B", b)):
        filters = [*selection.terms(side), *narrow]
        sides.append(selection.load(args, selection.names(args, runs, filters)))
        if not sides[-1]:
            hint = run_folders.results_command("list", args.output_root)
            raise UserError(f"{label}: {selection.nothing_found(args, filters)}", hint=hint)
    compared = compare.compare(*sides, limit=limit, with_disturbed=args.options.with_disturbed)
    text = comparison.text(compared, limit=limit, markdown=args.options.markdown)
    print(format.json_text(comparison.plain(compared)) if args.json else text)
    if any(pair.regression for pair in compared.pairs):
        return FAILED
    return NO_VERDICT if limit is not None and any(p.regression is None for p in compared.pairs) else OK
