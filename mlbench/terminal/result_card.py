"""The result card of a run: at most 12 lines with verdict, doubts, time, cost and phases."""

import math
import re
import textwrap
from itertools import zip_longest
from pathlib import Path

from rich.text import Text

from mlbench.analysis import causes, stragglers
from mlbench.config.division import task_title
from mlbench.record import fields, format, log_consistency, noise
from mlbench.record.record import Record
from mlbench.tasks import registry
from mlbench.terminal import next_steps

WIDTH = 79  # columns where stdout is no terminal
WIDEST = 100  # columns; longer lines are hard to read
LABEL = 18  # columns of the first column
ERROR_CHARACTERS = 400  # of a failure's reason; all of it is in record.json
UNFINISHED = ("failed", "interrupted", "preempted")
NO_RESULT = (*UNFINISHED, "diverged")
STYLES = {
    "goal_reached": "green",
    "completed": "green",
    "goal_not_reached": "yellow",
    "interrupted": "yellow",
    "preempted": "yellow",
}
BAR = 14  # columns of a phase's bar
MOST_LINES = 12  # of the short card: half a terminal
SENTENCE_LINES = 2  # of the verdict, the doubts and the advice in the short card
MORE = " ... (--full)"
COSTS = {
    "cost/goal_usd": "to the goal",
    "cost/wall_usd": "for the whole command",
    "cost/cluster_usd": "for the whole cluster",
}
PHASES = ("data_wait", "train_step", "forward", "loss", "backward", "wait", "transfer", "optimizer", "other")
JOINED = {"loss": "forward", "metrics": "optimizer"}  # short phases are added to their neighbours
COMMAND = re.compile(r"\bmlbench (?:run|sweep|results|predict|data|cluster)(?: [\w:.=/-]+)+")
LARGE = 0.1  # of a step: the loss has a bar of its own from here on
SHORT = "short phases"  # label of their line
SMALL = 0.05  # of a step: shorter phases share a line
NOTHING = 0.005  # of a step: shorter ones are left out
OUTSIDE = 0.01  # of the time: what lies outside a script's steps has a line from here on


def verdict(record: Record) -> str:
    """Return how the run ended, in one sentence."""
    task, goal = record.experiment.task, record.goal
    target = f"goal {format.target(goal, task.metric_unit)}" if goal else "no goal"
    best = "no validation"
    if _is_script(record):
        best = "no metric was given (task.metric=)" if task.metric == "none" else f"no value of {task.metric}"
    if record.best is not None:
        best = f"best {task.metric} {format.measured(record.best, task.metric_unit, goal)}"
    progress = _progress(record)
    if record.status == "goal_reached" and goal and record.validations:
        value = record.validations[-1].metrics.get(goal.metric)
        if value is not None and record.time_to_accuracy is not None:
            measured = format.measured(value, task.metric_unit, goal)
            after = format.duration(record.time_to_accuracy)
            return f"GOAL REACHED: {goal.metric} {measured} ({target}) after {after}, {progress}"
    if record.status == "goal_not_reached":
        return f"GOAL NOT REACHED: {best} ({target}) after {progress}"
    if record.status == "completed":
        goalless = "" if _is_script(record) and task.metric == "none" else " (no goal was set)"
        return f"COMPLETED: {progress}" + (f", {best}{goalless}" if record.validations else "")
    if record.status == "diverged":
        return (
            f"DIVERGED: loss or validation stopped being a finite number in {progress}, step {record.steps}"
        )
    reason = " ".join(format.printable(record.error or "no reason was recorded").split())
    if len(reason) > ERROR_CHARACTERS:
        reason = reason[:ERROR_CHARACTERS] + " ..."
    after = f" after {progress}" if record.steps and not record.epochs else ""  # of a script
    return f"{record.status.upper()}{after}: {reason}"


def advice(record: Record) -> str | None:
    """Return what to do after a run that did not end well, or in which one thing takes much time."""
    if _is_script(record) and record.status == "failed":
        return None  # its error, and what it printed, are on the card
    ended = ("completed", "goal_reached", "goal_not_reached")
    cause = causes.of_run(record) if record.status in ended else None
    if cause is not None:
        return cause.next_step
    if _is_script(record) and record.status == "goal_not_reached":
        values = [validation.metrics.get(record.experiment.task.metric) for validation in record.validations]
        if record.best is None:  # the warning names the metric
            return "Print it on rank 0, e.g. 'val_acc 0.95', or name in task.metric what the script prints."
        if values[-1] is None:
            return "It diverged: try a lower learning rate or another seed."
        rising = values[-1] == record.best
        first = "Train for longer" if rising else "Its last value is not its best, so more steps may not help"
        return f"{first}. goal=NUMBER sets another goal."
    epochs = format.counted(getattr(record.experiment.task, "epochs", 0), "epoch")
    return {
        "goal_not_reached": f"The recipe ends at {epochs}. Another seed may reach the goal. goal=light or "
        "goal=NUMBER sets another goal.",
        "diverged": "Try another seed or fewer workers. A lower task.lr needs division=open.",
        "failed": "Run it with verbose=true to print the output of Ray and the workers. "
        "max_failures=N allows N "
        "restarts from the last checkpoint.",
        "preempted": "Spot nodes can be taken at any time. retries=N starts the run again, as another run.",
        "interrupted": "Earlier measurements are kept. The command below measures it again.",
    }.get(record.status)


def short(record: Record, *, folder: Path, width: int, tracking_uri: str, ascii_only: bool) -> list[Text]:
    """Return verdict, doubts, time, cost and phases: MOST_LINES lines, none wider but commands to copy."""
    lines = wrapped(verdict(record), width)
    # Why a run failed is its answer, so it is not cut.
    ranked = [(0.0, line) for line in heading(record, lines if record.error else _cut(lines, width))]
    ranked += [(1, line) for line in doubts(record, width)]
    run = wrapped(_what(record), width - LABEL)
    rank_of_run = 3.6 if _is_script(record) else 2  # who measures a script knows what ran
    ranked += [
        (3 if number else rank_of_run, _row("" if number else "run", line)) for number, line in enumerate(run)
    ]
    label, why = reason(record)
    message = wrapped(why or "", width - LABEL)
    ranked += [(2, _row("" if number else label, line)) for number, line in enumerate(message)]
    hint = wrapped(advice(record) or "", width - LABEL)[:SENTENCE_LINES]
    rank_of_hint = 2.2 if why and label == "late rank" else 3  # its sentence asks for one
    ranked += [(rank_of_hint, _row("" if number else "next", line)) for number, line in enumerate(hint)]
    ranked.append((2, _row("time", _time(record, width - LABEL))))
    if warm_up := _warm_up(record):
        ranked += [
            (3, _row("" if n else "warm-up", line)) for n, line in enumerate(wrapped(warm_up, width - LABEL))
        ]
    if record.mfu is not None and record.peak is not None:
        ranked.append((3, _row("MFU", f"{format.percent(record.mfu)} of {fields.texts(record)['mfu_peak']}")))
    if outside := _outside(record):
        ranked.append((3, _row("outside steps", outside)))
    if price := _cost(record):
        ranked.append((2 if record.cost else 6, _row("cost", price)))
    shown = _bars(record, width, "#" if ascii_only else "━")
    ranked += [(3.5 if SHORT in line.plain else 2.3, line) for line in shown]
    if _is_script(record) and record.status == "failed" and (printed := next_steps.printed(folder)):
        ranked.append((2, _row("output", printed)))
    ranked.append((0, _row("all numbers", next_steps.full(record, folder))))
    again = next_steps.again(record) if record.source == "mlbench" else ""
    if again and len(again) + LABEL <= width:
        ranked.append((3, _row("run again", again)))
    label, opening = next_steps.opening(tracking_uri)
    if len(opening) + LABEL <= width:
        ranked.append((6, _row(label, opening)))
    while len(ranked) > MOST_LINES:  # the least important goes; the full card has it
        ranked.remove(max(reversed(ranked), key=lambda line: line[0]))
    return [line for _, line in ranked]


def reason(record: Record) -> tuple[str, str | None]:
    """Return what stands out in a run, with its label: a late rank, or what takes most time."""
    cause, late = causes.of_run(record), stragglers.of_run(record)
    if cause is not None:
        return "late rank" if cause.ranks else "most time", cause.sentence
    return "late rank", stragglers.sentence(late) if late else None


def doubts(record: Record, width: int) -> list[Text]:
    """Return what a reader must know before trusting the numbers, in two lines, what weighs most first.

    That a mini run is not official is no reason to doubt this one: it is on the full card alone.
    """
    sentences = sorted(record.caveats, key=_lightness)
    if record.oversubscribed and not any("oversubscribed" in caveat for caveat in record.caveats):
        sentences.append("oversubscribed: more threads than CPUs, excluded from speed-ups")
    sentences += [str(deviation) for deviation in record.deviations]
    if record.source != "mlbench" or record.imported:
        sentences.append("imported: measured elsewhere, not checked here")
    elif record.recorded_in:
        sentences.append(f"copied: it was recorded in {record.recorded_in}")
    sentences += record.warnings[:1]
    serious = bool(sentences)
    reasons = unofficial(record)
    if reasons and record.status not in NO_RESULT and record.experiment.scale == "official":
        sentences.append(f"not official: {'; '.join(reasons)}")
    text = wrapped("; ".join(format.printable(sentence) for sentence in sentences), width - 2)
    lines = [f"{'  ' if number else '! '}{line}" for number, line in enumerate(text)]
    return [Text(line, style="yellow" if serious else "dim") for line in _cut(lines, width)]


def unofficial(record: Record) -> list[str]:
    """Return why a run is not official, without its caveats and deviations, which the card lists apart."""
    shown = {f"caveat: {caveat}" for caveat in record.caveats}
    shown |= {f"deviation: {deviation}" for deviation in record.deviations}
    return [reason for reason in record.official_reasons if reason not in shown]


def _lightness(caveat: str) -> int:
    """Return how little a caveat weighs: a forged log before all, what disturbed the start-up alone last."""
    return 0 if caveat.startswith(log_consistency.CAVEAT) else 1 + caveat.endswith(noise.AT_BEGIN)


def wrapped(text: str, width: int) -> list[str]:
    """Return text as lines, none of which parts a number from its unit, a path or a command of mlbench."""
    glued = re.sub(r"(?<=\d) (?=(?:%|us|ms|s|min|h|d|USD)(?![\w/]))", "\N{NO-BREAK SPACE}", text)
    glued = COMMAND.sub(lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), glued)
    lines = textwrap.wrap(glued, width, break_on_hyphens=False, break_long_words=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def heading(record: Record, lines: list[str]) -> list[Text]:
    """Return the lines of a verdict in the colour of the run's end."""
    return [Text(line, style=f"bold {STYLES.get(record.status, 'red')}") for line in lines]


def _cut(lines: list[str], width: int) -> list[str]:
    """Return the first lines of a longer text, with the way to all of it."""
    if len(lines) <= SENTENCE_LINES:
        return lines
    return [*lines[: SENTENCE_LINES - 1], lines[SENTENCE_LINES - 1][: width - len(MORE)].rstrip() + MORE]


def _row(label: str, text: str) -> Text:
    return Text.assemble((f"{label:{LABEL}}", "dim"), format.printable(text))


def _progress(record: Record) -> str:
    of = getattr(record.experiment.task, "epochs", None)
    if record.epochs:
        return f"epoch {record.epochs:g}" + (f" of {of}" if of else "")
    if record.steps:  # of a script, which does not tell its epochs
        return format.counted(record.steps, "step")
    return f"{len(record.table)} rows measured" if record.table and not of else "no epoch"


def _what(record: Record) -> str:
    """Return what ran, and on how many workers of what."""
    experiment, task = record.experiment, record.experiment.task
    data = "" if task.dataset == registry.NO_DATASET else f" on {task.dataset}"
    data = " on your files" if registry.own_data(task) else data
    workers = format.counted(record.workers, "worker")
    network = f"emulated {experiment.network}, " if experiment.network.emulated else ""
    launcher = f"{experiment.launcher}, " if experiment.launcher == "torchrun" else ""
    where = f"{experiment.backend.name}, {launcher}{experiment.hardware.name}, {network}"
    if _is_script(record):  # which has no scale, and draws its own seed
        return f"{task.name}, {workers}, {where.rstrip(', ')}"
    title = f"{task_title(task.name, record.deviations)} {experiment.scale}{data}"
    return f"{title}, {workers}, {where}seed={record.seed}"


def _time(record: Record, width: int) -> str:
    """Return time, throughput, the whole command's time and epochs, as many of them as fit."""
    texts, parts = fields.texts(record), []
    if record.time_to_accuracy is not None:
        parts.append(f"{texts['time_to_accuracy']} to the goal")
    elif record.validations:
        trained = texts["elapsed"]
        if _is_script(record) and record.samples_per_s:  # one time for both numbers
            steady = record.samples - (record.warm_up.samples if record.warm_up else 0)
            trained = format.duration(steady / record.samples_per_s)
        parts.append(f"{trained} trained{', goal not reached' if record.goal else ''}")
    parts += [texts[name] for name in ("samples_per_s", "tokens_per_s") if name in texts]
    parts.append(f"command {texts['wall']}")
    if "seconds_per_epoch" in texts:
        parts.append(f"{texts['epochs']} of {texts['seconds_per_epoch']}")
    while len(", ".join(parts)) > width and len(parts) > 1:
        parts.pop()
    return ", ".join(parts)


def _warm_up(record: Record) -> str | None:
    """Return what of a script's steps is in no other number of the card."""
    if record.unsteady:
        return fields.UNSTEADY
    if record.warm_up is None:
        return None
    half = 0.5 * record.warm_up.seconds
    observed = " (observed for FLOP)" if record.warm_up.observation_s > half else ""
    why = " (compilation)" if record.warm_up.compilation_s > half else observed
    steps = format.counted(record.warm_up.steps, "step")
    counted = ", but in the time to the goal" if record.time_to_accuracy is not None else ""
    return f"{format.duration(record.warm_up.seconds)}, {steps}{why}, in no rate and no phase{counted}"


def _outside(record: Record) -> str | None:
    """Return how long a script was outside its steps, as far as that is worth a line."""
    if not _is_script(record) or not record.validations:
        return None
    elapsed = record.validations[-1].elapsed
    seconds = math.fsum(stats.max for name, stats in record.outside.items() if name != "warm_up")
    if seconds < OUTSIDE * elapsed:
        return None
    times = f"{format.duration(seconds)} of {format.duration(elapsed)} ({100 * seconds / elapsed:.0f} %)"
    return f"{times}: validation, passes without gradients"


def _is_script(record: Record) -> bool:
    return record.experiment.task.name == "script"


def unpriced(record: Record) -> str | None:
    """Return why a run that ended by itself has no price; the way to one follows in parentheses."""
    hardware = record.experiment.hardware
    if record.cost is not None or record.status in UNFINISHED:
        return None
    if hardware.price is not None:
        return f"the machine is not hardware={hardware.name} (the caveats list the differences)"
    return (
        f"hardware={hardware.name} has no price (give it with hardware.price.usd_per_hour=N "
        "hardware.price.date=YYYY-MM-DD hardware.price.source=WHO, or choose a profile with a price)"
    )


def _cost(record: Record) -> str | None:
    if record.cost is None:
        why = unpriced(record)
        return why and f"not priced ({why.partition(' (')[0]})"
    texts = fields.texts(record)
    parts = [f"{texts[name]} {what}" for name, what in COSTS.items() if name in texts]
    other = " of another node than this" if record.is_cost_elsewhere else ""
    return ", ".join([*parts, f"prices of {record.cost.date}{other}"])


def _bars(record: Record, width: int, mark: str) -> list[Text]:
    """Return the phases of a step as shares of it, the mean over the ranks, which sum to 100 %."""
    shares: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    for name, share in fields.shares(record, record.phases).items():
        if name == "metrics" and _is_script(record):
            name = "other"
        elif name != "loss" or share.mean < LARGE:
            name = JOINED.get(name, name)
        shares[name] += share.mean
    bars = [_bar(name, share, mark) for name, share in shares.items() if share >= SMALL]
    pairs = zip_longest(bars[::2], bars[1::2]) if width >= WIDTH else ((bar,) for bar in bars)
    short = {name: share for name, share in shares.items() if NOTHING <= share < SMALL}
    texts = [f"{name} {format.percent(share)}" for name, share in short.items()]
    lines = wrapped(", ".join(texts), width - LABEL)
    rest = [_row("" if number else SHORT, line) for number, line in enumerate(lines)]
    return [*(Text("   ".join(filter(None, pair))) for pair in pairs), *rest]


def _bar(name: str, share: float, mark: str) -> str:
    return f"{name:{LABEL}}{(mark * round(BAR * share)).ljust(BAR)} {100 * share:3.0f} %"
