"""More workers than were measured: `python -m mlbench.predict STUDY` gives time, cost and their intervals."""

import dataclasses
import shutil
import sys
import textwrap
from functools import partial
from pathlib import Path

from mlbench.config.errors import UserError
from mlbench.prediction import advice, explain, forecast, inputs, model
from mlbench.prediction.forecast import FURTHEST, Target
from mlbench.prediction.published import PUBLISHED_TASKS
from mlbench.prediction.runs import check
from mlbench.record import format
from mlbench.terminal import forecast_table
from mlbench.terminal.args import JSON, OK, Args, Command, run_command

WIDEST = 110  # columns of a sentence; longer lines are hard to read
SETTINGS = {
    "workers": ("", "fit only these measured worker counts, e.g. 1,2,4; the others show the model's error"),
    "max_workers": (
        "",
        f"predict 1, 2, 4, ... up to this many; without it {FURTHEST} x the most measured",
    ),
    "hardware": ("", "predict for another profile of conf/hardware: speed by stated peaks, and its price"),
    "network": ("", "predict for another network: 10gbit,50us, or the name of a run of task allreduce"),
    "deadline": ("", "the cheapest number of workers that reaches the goal in time, e.g. 8h, 90min"),
    "budget": ("", "the fastest number of workers for this many USD"),
    "task": ("", "of a study of several tasks, this one"),
    "backend": ("", "of a study of several backends, this one; published runs: nccl, gloo, mpi"),
    "on": ("", "of a study of several hardware profiles, this one"),
    "plot": ("", "write the curve with its band to this PNG file"),
    "output_root": ("runs", "the folder that has the runs and studies"),
}


SECTIONS = (
    (
        "STUDY",
        "The name of a study in output_root, the names of runs, or published:TASK with TASK one of "
        f"{', '.join(PUBLISHED_TASKS)}: the runs that MLBench published in 2021.",
    ),
    (
        "model",
        "A model is fitted to each phase of the measured runs: compute over the samples per worker, an "
        "all-reduce of latency and bandwidth, what overlaps with backward, epochs to the goal over the "
        "global batch, and the time outside the batches. docs/prediction.md explains it. Runs with more "
        "workers than CPUs, or with any other caveat, are never fitted. An interval is a 95 % prediction "
        "interval; it is wide where the runs say little.",
    ),
)
COMMAND = Command("predict", sections=lambda: SECTIONS)
main = partial(run_command, COMMAND)


@COMMAND.verb("", "STUDY ...", settings=SETTINGS, options=JSON)
def _predict(args: Args) -> int:
    r"""Predict time to accuracy, speedup and cost on more workers from runs on a few.

    examples:
      python -m mlbench.predict scaling task=resnet20 deadline=8h
          One task of a study of your own.
      python -m mlbench.predict published:gnmt hardware=gcp_a2_highgpu_1g \
          network=25gbit,30us
      python -m mlbench.predict published:gnmt workers=1,2,4
          What the model says of 8 and 16 workers.
    """
    if not args.arguments:
        raise UserError("predict takes a study", hint="python -m mlbench.predict --help")
    settings = args.settings
    if settings["plot"] and Path(settings["plot"]).suffix != ".png":
        raise UserError(f"plot={settings['plot']} is no PNG file", hint="write e.g. plot=prediction.png")
    everything = inputs.measurements(args.arguments, args.output_root, settings)
    fitted = check(inputs.to_fit(everything, settings["workers"]))
    fit = model.fit(fitted)
    target = inputs.target(settings["hardware"], settings["network"], args.output_root)
    counts = inputs.worker_counts(fit, everything, settings["max_workers"])
    forecasts = forecast.forecast(fit, counts, target)
    left_out, held_out = forecast.leave_one_out(fitted), forecast.held_out(fit, everything)
    answers = advice.advise(
        forecasts,
        deadline=advice.parse_deadline(settings["deadline"]) if settings["deadline"] else None,
        budget=advice.parse_budget(settings["budget"]) if settings["budget"] else None,
    )
    if settings["plot"]:
        from mlbench.report import render  # Altair is for the chart alone

        unseen = everything.only([k for k in everything.counts if k not in fitted.counts])
        chart = explain.chart(forecasts, fitted=fitted, held_out=unseen if target == Target() else None)
        render.save([chart], Path(settings["plot"]))
    emulated, doubt = explain.emulated(fit, target), explain.warning(fit)
    most = inputs.wanted(fit, settings["max_workers"])
    ends = explain.limit(fit, most=counts[-1], wanted=most)
    sentences = [
        *filter(None, [emulated, doubt, ends]),
        *explain.basis(fit),
        *explain.target(fit, target),
        explain.left_out(left_out),
    ]
    if held_out:
        sentences.append(explain.held_out(held_out))
    if args.json:
        values = {
            "predictions": forecasts,
            "leave_one_out": left_out,
            "held_out": held_out,
            "advice": answers,
        }
        plain = {name: [dataclasses.asdict(one) for one in some] for name, some in values.items()}
        title = {"title": everything.title, "fitted_workers": fitted.counts}
        print(format.json_text(title | plain | {"sentences": sentences}))
        return OK
    width = min(shutil.get_terminal_size().columns, WIDEST) if sys.stdout.isatty() else sys.maxsize
    table = forecast_table.text(forecasts, everything, fitted=fitted, target=target, width=width)
    first = [everything.title, emulated, doubt]
    rest = [one for one in sentences if one not in (emulated, doubt, ends)]
    for part in (*first, "", table, ends, "", *(one.sentence for one in answers), "", *rest):
        if part is not None:
            print(part if part is table else textwrap.fill(part, width, break_on_hyphens=False))
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
