"""Two commands, or two settings of a task, measured in pairs until their order is decided.

analysis/duel.py has the test, and studies/duel_notes.py the causes that may make a comparison unfair.
"""

import ctypes
import hashlib
import itertools
import math
import os
import re
import resource
import secrets
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import psutil

from mlbench import clock
from mlbench.analysis import duel
from mlbench.clusters import processes
from mlbench.config.errors import UserError, suggest
from mlbench.launch import command_run, signals
from mlbench.launch.output import Output
from mlbench.record import events, fields, run_folders
from mlbench.record.record import Record
from mlbench.script import failure_cause
from mlbench.script.printed_metric import NUMBER
from mlbench.tracking import importer

# Variables that place compiler caches. Each side has a separate one, which its warm-up run fills.
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TORCH_EXTENSIONS_DIR")
# Quantiles of the durations of a command's steps. The percentiles of a record are in bins of 1 %. What else
# a machine does only adds to a step, so the fast ones differ less from run to run than the median.
STEP, FAST_STEP = "step", "step_p5"
STEPS = {STEP: 0.5, FAST_STEP: 0.05}
ALIASES = {
    "goal": "time_to_accuracy",
    "rate": "samples_per_s",
    "memory": "peak_memory_bytes",
}
PRINTED = "printed:"  # begins compare= of a number that the command prints
MOST_FILES = 50_000  # of which changes are looked for
UNSEEN = ("__pycache__", "node_modules", "mlruns")  # in addition to hidden folders
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


@dataclass(frozen=True)
class Side:
    """One of the two: a command, or overrides of a task (`task`), and the folder that it runs in."""

    name: str
    words: tuple[str, ...]
    folder: Path
    task: bool = False


@dataclass(frozen=True)
class Quantity:
    """What is compared. `less`: whether less of it is better. `pattern`: of a number that is printed."""

    name: str
    unit: str
    less: bool
    pattern: str | None = None

    def value(self, ended: command_run.CommandRun, record: Record) -> float | None:
        """Return the value of a run. None without a positive one."""
        if self.pattern is not None:
            found = re.findall(self.pattern, ended.printed.decode(errors="replace"))
            value = float(found[-1]) if found else None
        elif self.name in STEPS and ended.step_s:
            value = float(np.quantile(ended.step_s, STEPS[self.name]))
        elif self.name == STEP:  # of a task: the mean between two validations, after the first
            parts = [each for each in record.intervals[1:] or record.intervals if each.phases]
            means = [sum(phase.mean for phase in each.phases.values()) / each.steps for each in parts]
            value = statistics.median(means) if means else None
        else:
            value = fields.flat(record, fields.METRICS).get(self.name)
        return value if value is not None and math.isfinite(value) and value > 0 else None


@dataclass(frozen=True)
class Run:
    """One measured run. `pair` 0 is the warm-up.

    - sources: digest of the files that the command names. digest: of the run's record and log at its end.
    - cpu_s: CPU time of the command, s. None of a task.
    """

    side: str
    pair: int
    first: bool
    value: float | None
    record: Record
    ended: command_run.CommandRun
    sources: str
    digest: str
    cpu_s: float | None
    left: Sequence[str]


@dataclass
class Contest:
    """What is compared, the runs so far, and the files that each side's warm-up run changed."""

    study: str
    quantity: Quantity
    sides: tuple[Side, Side]
    output_root: Path
    margin: float = 0.0
    with_disturbed: bool = False
    runs: list[Run] = field(default_factory=list)
    files: dict[str, set[Path]] = field(default_factory=dict)

    def pairs(self) -> dict[int, tuple[Run, Run]]:
        """Return the whole pairs by number, A first, without the warm-up."""
        a, b = ({run.pair: run for run in self.runs if run.side == side and run.pair} for side in "AB")
        return {pair: (a[pair], b[pair]) for pair in sorted(a.keys() & b.keys())}

    def left_out(self) -> dict[int, str]:
        """Return why a pair does not count, by its number."""
        reasons = dict[int, str]()
        for number, pair in self.pairs().items():
            for run in pair:
                if run.value is None:
                    reasons.setdefault(number, f"{run.side} has no {self.quantity.name}")
                elif run.record.disturbances and not self.with_disturbed:
                    reasons.setdefault(number, f"{run.side}: {run.record.disturbances[0]}")
        return reasons

    def counted(self) -> list[tuple[float, float, Run, Run]]:
        """Return the pairs that count: the values of A and B, and their runs."""
        out = self.left_out()
        return [(a.value or 0, b.value or 0, a, b) for n, (a, b) in self.pairs().items() if n not in out]

    def spoiled(self) -> str | None:
        """Return why nothing can be decided, however the values are."""
        for side in self.sides:
            runs = [run for run in self.runs if run.side == side.name]
            if len({run.sources for run in runs}) > 1:
                return f"{side.name}'s script changed while it was judged"
            if missed := sum(run.value is None for run in runs if run.pair):
                return f"{side.name} has no {self.quantity.name} in {missed} of {len(runs) - 1} runs"
        return None

    def verdict(self, *, ended: bool = False) -> duel.Verdict | None:
        """Return what the pairs that count show. None for fewer than the first look takes."""
        values = [(a, b) for a, b, *_ in self.counted()]
        if len(values) < duel.LOOKS[0]:
            return None
        a, b = zip(*values, strict=True)
        less = self.quantity.less
        verdict = duel.judge(a, b, margin=self.margin, less_is_better=less, ended=ended)
        return replace(verdict, decision=None) if self.spoiled() else verdict


def quantity(name: str, better: str) -> Quantity:
    """Return what `compare=` and `better=` name. Raises UserError for invalid values."""
    if better not in ("", "less", "more"):
        raise UserError(f"better={better} is unknown", hint="give less or more")
    pattern, known = None, {each.name: each.unit for each in fields.METRICS if each.name != "batch"}
    if name.startswith(PRINTED):
        name = name.removeprefix(PRINTED)
        try:
            pattern = name if re.compile(name).groups == 1 else rf"\b{re.escape(name)}{NUMBER}"
        except re.error as error:
            raise UserError(f"compare={PRINTED}{name} is not a regular expression: {error}") from error
        unit = "/s" if name.endswith(("/s", "per_s", "per_sec")) else ""
    else:
        name = ALIASES.get(name, name)
        unit = "s" if name in STEPS else known.get(name) or known.get(name.rpartition("/")[0], "")
        if not unit:
            near = suggest(name, [*STEPS, *ALIASES, *known])
            raise UserError(f"compare={name} is unknown{near}", hint=f"{PRINTED}NAME is a printed number")
    less = better == "less" if better else not (unit.endswith("/s") or unit == "metric" or name == "mfu")
    return Quantity(name, unit, less, pattern)


def run(
    contest: Contest,
    overrides: Sequence[str],
    *,
    caches: Path,
    max_time_s: float,
    max_pairs: int,
    show: Callable[[str], None],
) -> int:
    """Measure pairs until they are decided or a limit is reached. Return 0, or a failed command's exit code.

    Args:
        overrides: As of `mlbench.run`, for both sides.
        caches: A folder for the compiler caches.
        max_time_s: No pair starts that would end later.
        show: Called with a sentence for each pair.

    Raises:
        UserError: For a command that trains nothing, or sides that write the same files.
    """
    with suppress(OSError, AttributeError):  # orphans of a command become children of this process
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    begun, slowest = clock.monotonic(), 0.0
    seeded = any(word.startswith("seed=") for word in overrides)
    sides = {side.name: side for side in contest.sides}
    with signals.interruptible():
        for number, order in enumerate(["AB", *duel.orders(max_pairs, np.random.default_rng())]):
            started = clock.monotonic()
            if started + slowest > begun + max_time_s:
                break
            seed = [] if seeded else [f"seed={secrets.randbelow(2**31)}"]
            for name in order:
                before = {} if number else _files(contest)
                ended = _measure(contest, sides[name], [*overrides, *seed], caches, number, name == order[0])
                if ended.code:
                    why = (ended.record and ended.record.error) or ended.error
                    show(f"mlbench: {name} failed: {why or f'exit code {ended.code}'}")
                    return ended.code
                if not number:
                    new = _files(contest).items() - before.items()
                    contest.files[name] = {path for path, _ in new}
            if number:
                slowest = max(slowest, clock.monotonic() - started)
                show(_progress(contest, number))
                if contest.spoiled() or ((verdict := contest.verdict()) and verdict.decision):
                    break
            else:
                _require_own_outputs(contest)
                show("warm-up pair done (it does not count)")
    return 0


def _measure(
    contest: Contest, side: Side, overrides: Sequence[str], caches: Path, pair: int, first: bool
) -> command_run.CommandRun:
    """Run one side once, and append what was measured if it has not failed."""
    environment = {name: str(caches / side.name / name) for name in CACHES}
    own = [*overrides, f"study={contest.study}"]
    if not any(word.startswith("cluster.exclusive=") for word in overrides):
        own.append("cluster.exclusive=true")  # another run waits for its turn, and disturbs none
    cpu_s, before = _children_s(), {process.pid for process in psutil.Process().children()}
    if side.task:
        ended = _run_task([*own, *side.words, "force=true"], environment, contest)
    else:
        with chdir(side.folder):
            ended = command_run.run(
                side.words,
                own,
                begun=clock.wall(),
                listen="127.0.0.1",
                output=Output(),
                contained=True,
                environment=environment,
            )
    cpu_s, left = _children_s() - cpu_s, [*ended.left, *_end_orphans(before)]
    record, folder = ended.record, ended.folder
    if ended.interrupted or (record is not None and record.status == "interrupted"):
        raise KeyboardInterrupt
    if ended.code:
        return ended
    value = record and contest.quantity.value(ended, record)
    if record is None or folder is None or value is None and not pair and contest.quantity.name in STEPS:
        _discard(contest, record)
        raise UserError(f"{side.name}: {ended.error}", hint="a duel compares commands that train")
    if record.goal is None and contest.quantity.name == ALIASES["goal"]:
        _discard(contest, record)
        hint = "give task.metric=NAME goal=NUMBER before the --"
        raise UserError(f"compare=goal needs a goal, and {side.name} has none", hint=hint)
    named = hashlib.sha256(str(getattr(record.experiment.task, "sources", "")).encode())
    for path in (side.folder / word for word in side.words):
        if path.is_file():
            named.update(path.read_bytes())
    run_cpu_s = None if side.task else cpu_s
    contest.runs.append(
        Run(side.name, pair, first, value, record, ended, named.hexdigest(), digest(folder), run_cpu_s, left)
    )
    return ended


def _run_task(
    overrides: Sequence[str], environment: Mapping[str, str], contest: Contest
) -> command_run.CommandRun:
    """Run a task in a separate process. Its record is that of the folder that is new afterwards."""
    root = contest.output_root
    before = set(run_folders.names(root))
    process = subprocess.Popen(
        [sys.executable, "-m", "mlbench.run", *overrides],
        env={**os.environ, **environment, signals.PARENT_PID: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate()
    except KeyboardInterrupt:
        process.send_signal(2)
        process.communicate()
        raise
    new = [run_folders.load(root / name) for name in run_folders.names(root) if name not in before]
    record = next((each for each in new if each.experiment.study == contest.study), None)
    folder = root / record.run_id if record else None
    why = failure_cause.cause(printed)
    return command_run.CommandRun(process.returncode, why, record, folder, printed=printed)


def _children_s() -> float:
    """Return the CPU time of the children that have ended, s."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _end_orphans(before: Collection[int]) -> list[str]:
    """End what a command has left running, however it hides. Return the names. `before`: others' numbers."""
    left = list[str]()
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            if process.pid not in before:
                if processes.lives(process):
                    left.append(f"{process.name()} (pid {process.pid})")
                processes.kill(processes.below([process.pid]))
                process.wait(1)
    return left


def _files(contest: Contest) -> dict[Path, tuple[int, int, int]]:
    """Return the state of the files in the commands' folders and at the paths that they name."""
    states = dict[Path, tuple[int, int, int]]()
    for path in itertools.islice(_candidates(contest), MOST_FILES):
        with suppress(OSError):
            state = path.stat()
            states[path] = (state.st_ino, state.st_size, state.st_mtime_ns)
    return states


def _candidates(contest: Contest) -> Iterator[Path]:
    own = contest.output_root.resolve()
    for side in contest.sides if not contest.sides[0].task else ():
        named = [side.folder / word.rpartition("=")[2] for word in side.words if "/" in word]
        for top in (path.resolve() for path in (side.folder, *named)):
            if top.is_file():
                yield top
            for folder, inside, names in os.walk(top):
                path = Path(folder)
                inside[:] = [each for each in inside if each not in UNSEEN and each[0] != "."]
                inside[:] = [each for each in inside if path / each != own]
                yield from (path / name for name in names)


def _require_own_outputs(contest: Contest) -> None:
    """Raise UserError if two different commands write one file."""
    a, b = contest.sides
    shared = sorted(contest.files["A"] & contest.files["B"])
    if shared and a.words != b.words:
        _discard(contest)
        more = f" and {len(shared) - 1} more" if shared[1:] else ""
        hint = "give each a different output, or a run finds the other's files"
        raise UserError(f"A and B both write {shared[0]}{more}", hint=hint)


def _discard(contest: Contest, last: Record | None = None) -> None:
    """Delete the runs of a duel without a result, and the last."""
    for record in (*(run.record for run in contest.runs), *filter(None, [last])):
        importer.delete(contest.output_root / record.run_id, record.experiment.store)


def digest(folder: Path) -> str:
    """Return the SHA-256 of a run's record and log."""
    files = [folder / name for name in ("record.json", events.NAME)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files if path.is_file())).hexdigest()


def _progress(contest: Contest, number: int) -> str:
    """Return the values of a pair, and why it does not count."""
    shown = fields.Field("value", unit=contest.quantity.unit)
    texts = [
        f"{run.side} {'none' if run.value is None else shown.quantity(run.value, fields.units(run.record))}"
        for run in contest.pairs()[number]
    ]
    why = contest.left_out().get(number)
    return f"pair {number}: {', '.join(texts)}" + (f"; left out: {why}" if why else "")


@contextmanager
def worktrees(commits: str, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Check out both commits of A..B below a folder. Yield the current folder in each.

    Raises UserError if that cannot be done.
    """
    range_ = re.fullmatch(r"(.+?)\.\.([^.].*)", commits)
    if range_ is None:
        raise UserError(f"--commits {commits} is not a range of commits", hint="e.g. --commits main..HEAD")
    prefix, made = _git("rev-parse", "--show-prefix"), [folder / "trees" / name for name in "AB"]
    try:
        for path, commit in zip(made, range_.groups(), strict=True):
            sha = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", why=f"no commit {commit}")
            _git("worktree", "add", "--detach", str(path), sha)
            if not (path / prefix).is_dir():
                raise UserError(f"{commit} has no folder {prefix}", hint="start in a folder of both commits")
        yield made[0] / prefix, made[1] / prefix
    finally:
        for path in filter(Path.exists, made):
            _git("worktree", "remove", "--force", str(path))


def _git(*words: str, why: str = "") -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True)
    if done.returncode:
        raise UserError(why or f"git {words[0]}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip()
