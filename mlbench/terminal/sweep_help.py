"""What `python -m mlbench.sweep --help` teaches."""

HELP = """\
usage: python -m mlbench.sweep name=value[,value ...] ... [repeats=5]
                               [study=NAME] [max_usd=USD]

Measures every point of a grid several times, one run after the other in
random order, and reports speed-up, cost and how sure that is.

Examples
  python -m mlbench.sweep task=resnet20 workers=1,2,4,8 repeats=5
      Four points, five fresh seeds each: twenty runs.
  python -m mlbench.sweep task=logreg,resnet20 workers=1,2
      Tasks, workers, backends, hardware, recipes: any field, any number of
      them. Hydra's syntax: lists with commas, or range(1,9).
  python -m mlbench.sweep task=resnet20 workers=1,2,4,8,16 repeats=5
      The first study again, extended: only 16 workers are measured.
  python -m mlbench.sweep task=resnet50 scale=official data_root=/data \\
      workers=1,2,4 hardware=gcp_n1_t4 backend=nccl cluster=attached \\
      max_usd=50
      Stops before the runs of this study have cost more than 50 USD.
  python -m mlbench.sweep study=quick
      A study of conf/study, or one that you began and named: the rest of it.

Words of its own
  repeats=5     Runs of every point, each with a fresh seed that is logged.
                seed=1,2,3 gives the seeds instead.
  study=NAME    The folder below output_root/studies; by default it is named
                after what varies, so that the same command finds it again.
  max_usd=USD   Limit for all runs of the study together, by the hardware's
                price and how long runs of the same point took.
                The first run of a task has no estimate and is always begun.
  question=...  What the study asks; the first line of its report.
All others are those of python -m mlbench.run.

Stopping. Ctrl-C ends the run that is going on, as it ends a single run. The
same command goes on where a sweep was stopped or killed, and repeats nothing
that was finished. A run that failed is reported, does not stop the rest, and
is tried again by the next call.

Results. output_root/studies/NAME has the plan (study.yaml), the log of all
attempts (trials.jsonl), what each run printed (logs) and the report. The
runs are where single runs are; in MLflow they are children of the study.

Exit codes. 0: all that was asked for is measured, whether or not goals were
reached. 1: a run failed, did not fit on the cluster, or was not paid for.
2: a mistake in the command, told before anything is run. 130: interrupted.
"""
