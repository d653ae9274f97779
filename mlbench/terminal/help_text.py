"""What `python -m mlbench.results --help` and `COMMAND --help` teach."""

RESULTS = """\
usage: python -m mlbench.results COMMAND [WORD ...] [output_root=] [--json]

Runs of the past: what was measured below output_root, and how it compares.

  list      one line a run
  show      one run's result card
  compare   two selections side by side: ratios, 95 % intervals, a verdict
  export    runs as zip files, in MLBench's layout and with everything of ours
  import    zip files: exports, and the results that MLBench published
  plot      figures, tables and a page of a selection
  delete    runs, from the folder and from MLflow
  sync      bring every run that is not complete there into MLflow

Selections are words that must all hold:
  task=resnet20 workers=1,2   values as on the command line; a comma means or
  status=goal_reached         also source=, key=, recipe=, seed=, official=
  key:01ab                    the beginning of a configuration's key
  study:scaling               the runs of a study
  w4-1c9                      any part of a run's name

COMMAND --help has examples. Exit codes: 0 done; 1 the answer is no (a run
could not be brought, --fail-if-slower); 2 a mistake, or a zip was refused.
"""

COMMANDS = {
    "list": """\
usage: python -m mlbench.results list [SELECTION ...] [output_root=] [--json]

Prints one line a finished run, oldest first.

  python -m mlbench.results list
  python -m mlbench.results list task=resnet20 workers=1,2 status=goal_reached
  python -m mlbench.results list source=mlbench-published --json
""",
    "show": """\
usage: python -m mlbench.results show RUN [output_root=runs] [--json]

Prints one run's result card; any part of its name that no other has will do.

  python -m mlbench.results show resnet20-w4
  python -m mlbench.results show resnet20-w4 --json    the whole record
""",
    "compare": """\
usage: python -m mlbench.results compare A B [name=value ...]
           [--fail-if-slower 5%] [output_root=runs] [--json]

A and B are selections, each one shell word; further name=value words narrow
both. B is measured against A: ratios are B's median over A's, with a 95 %
interval, taken in pairs where both sides have the same seeds. The verdict is
about the time to the goal. One run on a side shows no difference.

  python -m mlbench.results compare workers=1 workers=2 task=resnet20
      Every field but the workers must agree; what has no partner is listed.
  python -m mlbench.results compare "task=gnmt workers=2" "task=gnmt workers=4"
  python -m mlbench.results compare study:old study:new --fail-if-slower 5%
      Exit code 1 if a point of `new` is shown to need more than 5 % more time
      than its partner, i.e. the whole interval lies above 1.05, or lost its
      goal: half of its runs missed it and fewer of the partner's did. For CI.
  python -m mlbench.results compare key:01ab key:9f3e
""",
    "export": """\
usage: python -m mlbench.results export SELECTION ... [to=.] [output_root=]

Writes one zip file per run: record, event log, configuration, provenance and
MLPerf log lines. No passwords; not an MLPerf submission.

  python -m mlbench.results export resnet20-w4-1c9
  python -m mlbench.results export task=resnet20 status=goal_reached to=zips
""",
    "import": """\
usage: python -m mlbench.results import ZIP-OR-FOLDER ... [output_root=runs]
           [tracking_uri=] [--json]

Reads exports into output_root and MLflow, marked as imported. Importing twice
adds nothing. An archive that is not whole, or was changed, is refused.

  python -m mlbench.results import zips/
""",
    "plot": """\
usage: python -m mlbench.results plot [SELECTION ...] to=FOLDER
           [question=...] [output_root=runs]

Writes figures, summary tables and report.html of the selected runs.

  python -m mlbench.results plot task=resnet20 to=figures
  python -m mlbench.results plot study:scaling to=figures
""",
    "delete": """\
usage: python -m mlbench.results delete SELECTION ... [--yes] [output_root=]
           [tracking_uri=]

Deletes the folders of the selected runs and their runs in MLflow, after it has
asked; --yes answers. A run that is still going on is refused. MLflow keeps it
as deleted until `mlflow gc`.

  python -m mlbench.results delete resnet20-w4-1c9
  python -m mlbench.results delete status=failed --yes
""",
    "sync": """\
usage: python -m mlbench.results sync [tracking_uri=] [output_root=] [--json]

Brings every run that is not complete there into MLflow, each once.

  python -m mlbench.results sync
  python -m mlbench.results sync tracking_uri=http://mlflow:5000
""",
}
