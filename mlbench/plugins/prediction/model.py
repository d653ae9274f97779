"""Fit a model to runs and predict from it: other processors, links and spot nodes.

Every part is a non-negative least-squares fit of two terms to relative errors, since noise is a percentage.
docs/prediction-model.md explains each term.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from mlbench.analysis import pooling
from mlbench.analysis.points import TIMED, by_configuration, series
from mlbench.config.errors import UserError
from mlbench.config.experiment import Hardware
from mlbench.config.network import Network
from mlbench.record.format import counted
from mlbench.record.phases import PHASES, exposed
from mlbench.record.record import Record

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
STEP = ("compute", "optimizer", "data_wait")  # parts of a step besides communication
COMPUTING = ("compute", "optimizer")  # the parts that another processor changes
NODE, BETWEEN = "node_link", "network"  # the tiers of links: inside a node and between nodes
TIERS = {  # place of a link, and another way to give it than its fields
    NODE: ("inside a node", ""),
    BETWEEN: ("between nodes", ", or network=10gbit,50us"),
}
FIELDS = ("gbit_per_s", "us")  # of a tier in a hardware profile: e.g. hardware.node_link_us
PASSES = 3  # errors relative to noisy values pull a fit down; relative to the fit before they do not
TINY = 1e-6  # of a part's mean: a smaller value counts as 0 and has no relative error
ALIKE = 1.1  # ratio of relative errors up to which two forms of an all-reduce fit equally well
BITS = 8  # a byte
HOPELESS = 20.0  # interruptions expected in one attempt: one attempt in 500 million then succeeds
MANY = 10**6  # interruptions that are no longer drawn one by one, 8 bytes each
# One-way delays of a link for each hop of gloo's ring, measured at 2 to 8 hosts (benchmarks/delays.py,
# 2026-11-26): a receiver reports that it is ready, then the data come.
RING_DELAYS = 2
NETWORK = re.compile(r"(?P<rate>\d+(?:\.\d+)?)gbit,(?P<latency>\d+(?:\.\d+)?)us", re.IGNORECASE)
# The batch grows as workers ** power. The power is 0 or 1, except for short batches at the end of an epoch.
FIXED, GROWING = 0.25, 0.75


@dataclass(frozen=True)
class RunTimings:
    """One run. Seconds are sums over the run, of the mean rank."""

    workers: int
    reached: bool  # whether its epochs are epochs to the goal
    epochs: float
    steps: float
    samples: float  # of all workers
    validations: int
    compute_s: float  # forward, loss, backward
    optimizer_s: float
    data_wait_s: float  # waiting for data, metrics of the training batch
    communication_s: float  # exposed
    overlapped_s: float  # communication hidden behind backward
    outside_s: float  # the clock's time outside the batches: loading, validation, reports
    startup_s: float | None = None

    @property
    def total_s(self) -> float:
        """The clock at the end of the run."""
        return self.compute_s + self.optimizer_s + self.data_wait_s + self.communication_s + self.outside_s

    @property
    def batch(self) -> float:
        """Samples a step, of all workers."""
        return self.samples / self.steps


@dataclass(frozen=True)
class Measurements:
    """Runs that differ in workers and seed alone, and their common properties. None: not stated."""

    title: str
    task: str
    runs: tuple[RunTimings, ...]
    hardware: Hardware
    precision: str
    gradient_bytes: float | None  # bytes that a step's all-reduce sums
    backend: str | None = None  # of the collectives
    network: str | None = None  # the link of emulated hosts as text; None: a real network
    left_out: tuple[str, ...] = ()  # a sentence for each run that is not among `runs`
    notes: tuple[str, ...] = ()  # sentences about the source of the numbers

    @property
    def counts(self) -> list[int]:
        """The measured worker counts."""
        return sorted({run.workers for run in self.runs})

    @property
    def power(self) -> float:
        """The p of global batch = const * workers ** p, between the fewest and the most workers."""
        ends = self.counts[0], self.counts[-1]
        few, many = (median(run.batch for run in self.runs if run.workers == k) for k in ends)
        return math.log(many / few) / math.log(ends[1] / ends[0])

    @property
    def grows(self) -> bool:
        """Whether the global batch grows with the workers, so that each keeps its batch."""
        return self.power > GROWING

    @property
    def ring(self) -> bool:
        """Whether an all-reduce is one flat ring over all workers, whatever their nodes, as gloo's is."""
        return self.backend == "gloo"

    @property
    def workers_per_node(self) -> int | None:
        """How many workers share a node, or None for all. An emulated host has one."""
        return 1 if self.network else self.hardware.workers_per_node

    def moved(self, hardware: Hardware | None) -> TypeGuard[Hardware]:
        """Whether a prediction for this hardware is for other nodes than the measured ones."""
        return hardware is not None and hardware.name != self.hardware.name

    def other_processor(self, hardware: Hardware | None) -> bool:
        """Whether this hardware computes with another processor, so that the error of the ratio counts."""
        measured = self.hardware.gpu_model
        return self.moved(hardware) and (measured is None or hardware.gpu_model != measured)

    def speed_ratio(self, hardware: Hardware | None) -> float:
        """Return the ratio of this hardware's stated peak to the measured hardware's, per worker."""
        if not self.moved(hardware):
            return 1.0
        measured = peak(self.hardware, self.precision)
        return peak(hardware, self.precision) / measured

    @property
    def startup_s(self) -> float | None:
        """The median start-up in s, or None if no run has one."""
        known = [run.startup_s for run in self.runs if run.startup_s is not None]
        return median(known) if known else None

    def column(self, name: str) -> Array:
        """Return a field of every run."""
        return np.array([getattr(run, name) for run in self.runs], np.float64)

    def only(self, counts: Sequence[int]) -> "Measurements":
        """Return these measurements at the given worker counts."""
        return replace(self, runs=tuple(run for run in self.runs if run.workers in counts))

    def times(self, workers: int) -> list[float]:
        """Return the time to accuracy of each run at this worker count in s, infinite for a missed goal."""
        return [run.total_s if run.reached else math.inf for run in self.runs if run.workers == workers]


def peak(hardware: Hardware, precision: str) -> float:
    """Return the peak in FLOP/s of one worker: a GPU, or its part of a node's CPUs.

    Raises UserError if the profile states no peak.
    """
    peak = getattr(hardware.peak, precision) if hardware.peak else None
    if peak is None:
        sentence = f"hardware={hardware.name} states no peak in {precision}, so speed cannot be scaled"
        raise UserError(sentence, hint="choose hardware that states one, or measure on it")
    return peak if hardware.gpus else peak / (hardware.workers_per_node or 1)


def check(measurements: Measurements) -> Measurements:
    """Return the measurements if they can be fitted.

    Raises UserError for too few worker counts, two batch rules or no run that reached its goal.
    """
    if len(measurements.counts) < 2:
        counts = "".join(f", these are all at {counted(k, 'worker')}" for k in measurements.counts)
        counts = counts or ", found none"
        some = measurements.left_out
        left_out = f", {counted(len(some), 'run')} left out, e.g. {some[0]}" if some else ""
        second = max([2, *measurements.counts])
        sentence = f"a prediction needs runs at 2 or more worker counts{counts}{left_out}"
        where = " on a quiet machine with a CPU for each worker" if some else ""
        raise UserError(sentence, hint=f"measure more: the same sweep with workers=1,{second}{where}")
    if FIXED < measurements.power < GROWING:
        sentence = "the batch of a step neither stays the same nor grows with the workers"
        raise UserError(sentence, hint="predict from runs of one recipe")
    if not any(run.reached for run in measurements.runs):
        sentence = "no run reached its goal, so no time to accuracy can be predicted"
        raise UserError(sentence, hint="set a goal")
    return measurements


def from_records(records: Sequence[Record], *, title: str) -> Measurements:
    """Return the measurements in records of one experiment. Every seed counts once (experiment.attempts).

    Runs that are not fitted are listed with the reason. Raises UserError for records of several experiments.
    """
    reasons = {run.run_id: f"does not count for its seed ({run.status})" for run in records}
    for runs in by_configuration(records):
        disturbed = pooling.disturbed(runs)
        reasons |= {run.run_id: _exclusion_reason(run, disturbed) for run in runs}
    fitted = [run for run in records if not reasons[run.run_id]]
    if differing := mixture(fitted):
        tasks = list(dict.fromkeys(run.experiment.task.name for run in fitted))
        if len(tasks) > 1:
            sentence = f"{title} has runs of {len(tasks)} tasks: {', '.join(tasks)}"
            raise UserError(sentence, hint=f"choose one, e.g. task={tasks[0]}")
        sentence = f"{title} mixes experiments: {'; '.join(differing)}"
        raise UserError(sentence, hint="choose one, e.g. backend=gloo, or name the runs")
    # A script does not report epochs, so the most samples of a run count as one.
    epoch = 0 if all(run.epochs for run in fitted) else max(run.samples for run in fitted)
    first = (fitted or records)[0].experiment
    excluded = [(run, why) for run in records if (why := reasons[run.run_id])]
    return Measurements(
        title=title,
        task=first.task.name,
        runs=tuple(_timings(run, run.epochs or run.samples / epoch) for run in fitted),
        hardware=_with_rate(first.hardware, first.network),
        precision=getattr(first.task, "precision", None) or "fp32",
        gradient_bytes=fitted[0].gradient_bytes if fitted else None,
        backend=first.backend.name,
        network=f"network={first.network.name} ({first.network})" if first.network.emulated else None,
        left_out=tuple(f"{run.run_id} ({counted(run.workers, 'worker')}) {why}" for run, why in excluded),
        notes=(f"the runs have no epochs, {epoch:,} samples count as one",) if epoch else (),
    )


def _with_rate(hardware: Hardware, network: Network) -> Hardware:
    """Return the profile, with the rate of the slowest emulated link, if any, as that between nodes."""
    rates = [network.bandwidth_mbit_s, network.bandwidth_down_mbit_s, network.slow_bandwidth_mbit_s]
    rates += [network.rack_bandwidth_mbit_s] if network.racks > 1 else []
    slowest = min((rate for rate in rates if rate), default=None)
    return hardware.model_copy(update={"network_gbit_per_s": slowest / 1e3} if slowest else {})


def mixture(records: Sequence[Record]) -> list[str]:
    """Return the fields, except workers and seed, in which the experiments differ, with their values.

    If a group differs in its name, e.g. two tasks, the name alone is returned.
    """
    values: dict[str, set[str]] = {}
    for name, value in (field for record in records for field in series(record)):
        values.setdefault(name, set()).add(value)
    differing = {name: " and ".join(sorted(some)) for name, some in sorted(values.items()) if len(some) > 1}
    groups = {name.removesuffix(".name") for name in differing if name.endswith(".name")}
    return [
        f"{name} is {some}"
        for name, some in differing.items()
        if name.endswith(".name") or name.split(".")[0] not in groups
    ]


def _exclusion_reason(run: Record, disturbed: Mapping[str, str]) -> str:
    """Return why a run is not fitted, or an empty string if it is."""
    reasons = {
        "had more workers than CPUs": run.oversubscribed,
        f"has a caveat: {(run.caveats or ['none'])[0]}": run.caveats,
        f"was disturbed: {disturbed.get(run.run_id)}": run.run_id in disturbed,
        f"is {run.status.replace('_', ' ')}": run.status not in TIMED,
        "went on after a failure": run.restarts,
        "has no phase times": not {*PHASES} <= {*run.phases} or not run.steps,
        "lacks its samples": not run.samples,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _timings(run: Record, epochs: float) -> RunTimings:
    phases = {name: spread.mean * run.steps / run.timed_steps for name, spread in run.phases.items()}
    compute = math.fsum(phases[name] for name in ("forward", "loss", "backward"))
    communication = exposed(phases)
    if run.workers == 1:  # nothing is sent, so this is the end of backward
        compute, communication = compute + communication, 0.0
    overlapped = run.overlapped_communication
    return RunTimings(
        workers=run.workers,
        reached=run.status == "goal_reached",
        epochs=epochs,
        steps=run.steps,
        samples=run.samples,
        validations=len(run.validations),
        compute_s=compute,
        optimizer_s=phases["optimizer"],
        data_wait_s=phases["data_wait"] + phases["metrics"],
        communication_s=communication,
        overlapped_s=overlapped.mean if overlapped and run.workers > 1 else 0.0,
        outside_s=max(0.0, run.validations[-1].elapsed - math.fsum(phases.values())),
        startup_s=run.startup_time,
    )


@dataclass(frozen=True)
class NetworkCost:
    """The cost of a message: seconds each, and seconds a byte, at line rate unless it was measured."""

    name: str
    latency_s: float
    s_per_byte: float
    measured: bool

    @classmethod
    def stated(cls, text: str) -> "NetworkCost":
        """Return the network of a text such as 10gbit,50us: line rate, and one-way latency of a message."""
        match = NETWORK.fullmatch(text)
        if not match or float(match["rate"]) == 0:
            hint = "write line rate and latency of a message, as in network=10gbit,50us, "
            hint += "or the name of a run of task allreduce"
            raise UserError(f"network={text} is not a network", hint=hint)
        return cls._of_line(text, float(match["rate"]), float(match["latency"]))

    @classmethod
    def of_profile(cls, hardware: Hardware, tier: str) -> "NetworkCost":
        """Return the link that a profile states. Raises UserError if its rate or its delay is unknown."""
        line = {f"hardware.{tier}_{field}": getattr(hardware, f"{tier}_{field}") for field in FIELDS}
        for field, value in line.items():
            if value is None:
                where, instead = TIERS[tier]
                sentence = f"hardware={hardware.name} has no {field} of a link {where}"
                hint = f"{field}=... as measured there{instead}, or a smaller max_workers="
                raise UserError(sentence, hint=hint)
        return cls._of_line(f"{tier} of {hardware.name}", *line.values())

    @classmethod
    def of_table(cls, name: str, table: list[dict[str, Any]]) -> "NetworkCost":
        """Return the network that a run of task allreduce measured with all_reduce of float32."""
        wanted = {"kind": "fit", "collective": "all_reduce", "dtype": "float32"}
        rows = [row for row in table if wanted.items() <= row.items()]  # other tasks have other tables
        if not rows or not rows[0]["beta_s_per_byte"]:
            hint = "mlbench run task=allreduce"
            raise UserError(f"run {name!r} measured no bandwidth of all_reduce", hint=hint)
        line, workers = rows[0], rows[0]["workers"]
        hops, volume = 2 * (workers - 1), 2 * (workers - 1) / workers  # of a ring
        return cls(name, line["alpha_s"] / hops, line["beta_s_per_byte"] / volume, measured=True)

    @classmethod
    def _of_line(cls, name: str, gbit_per_s: float, us: float) -> "NetworkCost":
        return cls(name, us * 1e-6, BITS / (gbit_per_s * 1e9), measured=False)


@dataclass(frozen=True)
class Spot:
    """Nodes with interruptions, after which a run resumes from its last checkpoint on as many nodes."""

    per_hour: float  # interruptions of a node, a Poisson process
    restart_s: float  # from an interruption to the next training step; another interruption may come before
    checkpoints: int  # of a run, evenly spaced

    @np.errstate(over="ignore")  # a run that never ends
    def mean(self, seconds: Array, nodes: Array) -> Array:
        """Return the expected s of runs that take `seconds` undisturbed.

        Daly 2006, A Higher Order Estimate of the Optimum Checkpoint Interval for Restart Dumps.
        """
        rate = self.per_hour * nodes / 3600  # of the run, a second
        work = np.expm1(rate * seconds / self.checkpoints) / rate
        return self.checkpoints * np.exp(rate * self.restart_s) * work

    def draw(self, seconds: float, nodes: int, rng: np.random.Generator) -> float:
        """Return the s of one run, interrupted at random."""
        rate, part_s = self.per_hour * nodes / 3600, seconds / self.checkpoints
        interrupted = int(rng.binomial(self.checkpoints, -math.expm1(-rate * part_s)))
        again_s = self.restart_s + part_s
        if rate * again_s > HOPELESS:
            return float(self.mean(np.array([seconds]), np.array([nodes]))[0])
        # An attempt after the first succeeds if no interruption comes in its restart and work.
        more = int(rng.negative_binomial(interrupted, math.exp(-rate * again_s))) if interrupted else 0
        lost = [_until(rate, limit, some, rng) for limit, some in ((part_s, interrupted), (again_s, more))]
        return seconds + sum(lost) + interrupted * self.restart_s


def _until(rate: float, limit: float, some: int, rng: np.random.Generator) -> float:
    """Return the sum of the times of so many interruptions, each before `limit`."""
    if some > MANY:  # the sum is then nearly normal, with mean and variance of a truncated exponential
        before = limit / math.expm1(rate * limit)
        mean, variance = 1 / rate - before, 1 / rate**2 - before * (before + limit)
        return float(some * mean + math.sqrt(some * max(variance, 0.0)) * rng.standard_normal())
    return float(-np.log1p(rng.random(some) * math.expm1(-rate * limit)).sum() / rate)


@dataclass(frozen=True)
class Target:
    """The target of a prediction. None: as measured, and on demand."""

    hardware: Hardware | None = None
    network: NetworkCost | None = None
    spot: Spot | None = None


AS_MEASURED = Target()


@dataclass(frozen=True)
class FittedPart:
    """One fitted part of the time: `terms` (runs, 2) @ `theta` (2,) is close to `measured` (runs,)."""

    terms: Array
    measured: Array
    theta: Array

    @property
    def residuals(self) -> Array:
        """Relative errors as logarithms, 0 for runs in which the part took no time."""
        fitted = self.terms @ self.theta
        used = _positive(self.measured) & (fitted > 0)
        return np.log(np.where(used, self.measured, 1.0) / np.where(used, fitted, 1.0))

    @property
    def dof(self) -> int:
        """Degrees of freedom that the runs leave for the noise."""
        used = _positive(self.measured)
        return int(used.sum()) - _rank(self.terms[used])

    def spread(self, dof: int) -> Array:
        """Return the residuals scaled up for the fitted coefficients, and by Student's t for few runs."""
        from scipy.stats import norm, t

        if not self.dof:
            return np.zeros(0)
        student = float(t.ppf(0.975, dof) / norm.ppf(0.975))
        return self.residuals * math.sqrt(len(self.residuals) / self.dof) * student

    def refitted(self, noise: Array) -> "FittedPart":
        """Return the fit to the fitted values times exp(noise)."""
        fitted = self.terms @ self.theta
        used = fitted > 0
        if not used.any():
            return self
        theta = _least_squares(self.terms[used], fitted[used] * np.exp(noise[used]), fitted[used])
        return replace(self, theta=theta)


@dataclass(frozen=True)
class Times:
    """The predictions for each worker count, all (counts,)."""

    time: Array  # s to accuracy
    epochs: Array
    step: Array  # s
    exposed: Array  # s of communication a step
    communication: Array  # s of it up to the goal


@dataclass(frozen=True, eq=False)
class Model:
    """The model fitted to the measurements. Predictions are the mean of the forms of an all-reduce."""

    measurements: Measurements
    parts: Mapping[str, FittedPart]  # of a step, s; outside of an epoch, s; epochs to the goal
    allreduce: Mapping[str, Mapping[str, FittedPart]]  # s a step: measured tiers, forms with equally good fit
    hidden_of_communication: float  # at most this share of the all-reduce is overlapped
    hidden_of_compute: float  # and at most this share of compute, in time
    epoch_samples: float
    batch: float  # samples a step; of one worker if the global batch grows

    @property
    def most_workers(self) -> float:
        """The count beyond which a worker has no sample of a step, or an epoch no whole step."""
        return self.epoch_samples / self.batch if self.measurements.grows else self.batch

    def predict(self, workers: Array, target: Target = AS_MEASURED, *, speed: float | Array = 1.0) -> Times:
        """Return the times at each worker count, on a processor that reaches `speed` times its stated peak.

        Raises UserError if a peak, a needed link or the bytes of the gradients are unknown.
        """
        runs = self.measurements
        terms = _terms(workers, batch=self.batch, grows=runs.grows)
        values = {name: terms[name] @ part.theta for name, part in self.parts.items()}
        for name in COMPUTING:
            values[name] = values[name] / (runs.speed_ratio(target.hardware) * speed)
        allreduce = self._allreduce(workers, target)
        hidden = self.hidden_of_communication * allreduce
        exposed = allreduce - np.minimum(hidden, self.hidden_of_compute * values["compute"])
        step = sum((values[name] for name in STEP), exposed)
        steps = self.epoch_samples / (self.batch * (workers if runs.grows else 1.0))
        time = values["epochs"] * (steps * step + values["outside"])
        return Times(time, values["epochs"], step, exposed, values["epochs"] * steps * exposed)

    def refitted(
        self, seconds: Array, communication: Array, epochs: Array, forms: Mapping[str, str]
    ) -> "Model":
        """Return the model of runs as fitted times exp(noise), with one form of all-reduce a tier."""
        noises, measured = {"epochs": epochs}, tier_runs(self.measurements)
        parts = {name: part.refitted(noises.get(name, seconds)) for name, part in self.parts.items()}
        allreduce = {
            tier: {form: self.allreduce[tier][form].refitted(communication[measured[tier]])}
            for tier, form in forms.items()
        }
        return replace(self, parts=parts, allreduce=allreduce)

    def _allreduce(self, workers: Array, target: Target) -> Array:
        """Return the seconds of an all-reduce. A tier that no count needs may be unknown."""
        runs, node, seconds = self.measurements, target.hardware, np.zeros_like(workers)
        per_node = node.workers_per_node if runs.moved(node) else runs.workers_per_node
        for tier, size in tiers(workers, per_node, ring=runs.ring).items():
            if (size > 1).any():
                seconds = seconds + _mean_of_forms(size, self._thetas(tier, target), ring=runs.ring)
        return seconds

    def _thetas(self, tier: str, target: Target) -> dict[str, Array]:
        """Return alpha and beta of a tier by form: as measured, or of another link.

        Another link has its stated latency, and its bandwidth times the measured efficiency. This is the
        share of the measured hardware's line rate that the runs reached, if its profile states one. It is at
        most 1.
        """
        runs, forms = self.measurements, self.allreduce.get(tier, {})
        link = target.network if tier == BETWEEN else None
        if link is None and (runs.moved(target.hardware) or not forms):
            link = NetworkCost.of_profile(target.hardware or runs.hardware, tier)
        if link is None:
            return {name: form.theta for name, form in forms.items()}
        if runs.gradient_bytes is None:
            sentence = "the runs lack the bytes of gradients that one step sums, "
            sentence += "so another network cannot be predicted"
            hint = "predict for the measured hardware, or measure again: new records have it"
            raise UserError(sentence, hint=hint)
        line = runs.gradient_bytes * link.s_per_byte
        own = None if link.measured else getattr(runs.hardware, f"{tier}_{FIELDS[0]}")
        delays = RING_DELAYS if runs.ring and not link.measured else 1
        possible, thetas = _forms_of(ring=runs.ring), {}
        for name in [name for name in possible if name in forms] or possible:
            fitted, beta = forms.get(name) or forms.get("bandwidth"), line
            if own is not None and fitted is not None:
                beta = max(line, fitted.theta[1] * own * 1e9 * link.s_per_byte / BITS)
            thetas[name] = np.array([delays * link.latency_s, beta])
        return thetas


def tiers(workers: Array, workers_per_node: int | None, *, ring: bool) -> dict[str, Array]:
    """Return the number of participants of an all-reduce in each tier: workers of a node, and nodes.

    A flat ring passes between all workers. In each step it waits for the link between nodes if there is one.
    """
    if workers_per_node is None:
        return {NODE: workers, BETWEEN: np.ones_like(workers)}
    if ring:
        inside = workers <= workers_per_node
        return {NODE: np.where(inside, workers, 1.0), BETWEEN: np.where(inside, 1.0, workers)}
    return {NODE: np.minimum(workers, workers_per_node), BETWEEN: np.ceil(workers / workers_per_node)}


def tier_runs(measurements: Measurements) -> dict[str, Mask]:
    """Return which runs measure each tier: those inside one node its links, the others the network."""
    workers = measurements.column("workers")
    nodes = tiers(workers, measurements.workers_per_node, ring=measurements.ring)[BETWEEN]
    return {NODE: (nodes == 1) & (workers > 1), BETWEEN: nodes > 1}


def fit(measurements: Measurements) -> Model:
    """Return the model of these measurements, which `check` has accepted."""
    runs, grows, ring = measurements.runs, measurements.grows, measurements.ring
    workers, steps, epochs = map(measurements.column, ("workers", "steps", "epochs"))
    seconds = {name: measurements.column(f"{name}_s") for name in (*STEP, "outside", "overlapped")}
    batch = median(run.batch / (run.workers if grows else 1) for run in runs)
    terms = _terms(workers, batch=batch, grows=grows)
    parts = {name: part(terms[name], seconds[name] / steps) for name in STEP}
    parts["outside"] = part(terms["outside"], seconds["outside"] / epochs)
    reached = np.array([run.reached for run in runs])
    parts["epochs"] = part(terms["epochs"][reached], epochs[reached])
    communication = measurements.column("communication_s") + seconds["overlapped"]
    allreduce, left = {}, communication / steps
    sizes = tiers(workers, measurements.workers_per_node, ring=ring)
    for tier, mask in tier_runs(measurements).items():
        if mask.any():
            allreduce[tier] = _forms(sizes[tier][mask], left[mask], ring=ring)
            thetas = {name: form.theta for name, form in allreduce[tier].items()}
            left = (left - _mean_of_forms(sizes[tier], thetas, ring=ring)).clip(0.0)
    return Model(
        measurements=measurements,
        parts=parts,
        allreduce=allreduce,
        hidden_of_communication=_largest_share(seconds["overlapped"], communication),
        hidden_of_compute=_largest_share(seconds["overlapped"], seconds["compute"]),
        epoch_samples=median(run.samples / run.epochs for run in runs),
        batch=batch,
    )


def part(terms: Array, measured: Array) -> FittedPart:
    """Return the non-negative least-squares fit of the relative errors.

    If the runs cannot separate two terms (equal batches, one worker count), the first gets all of the time.
    """
    used = _positive(measured)
    if _rank(terms[used], tol=1e-2) < 2 and terms[used, 0].any():
        terms = terms * np.array([1.0, 0.0])
    theta, reference = np.zeros(2), measured
    for _ in range(PASSES if used.any() else 0):
        theta = _least_squares(terms[used], measured[used], reference[used])
        fitted = terms @ theta
        reference = np.where(fitted > 0, fitted, measured)
    return FittedPart(terms, measured, theta)


def allreduce_terms(workers: Array, *, ring: bool) -> dict[str, Array]:
    """Return the (counts, 2) terms of alpha and beta for each form of an all-reduce among `workers`."""
    volume, hops, tree = 2 * (workers - 1) / workers, 2 * (workers - 1), 2 * np.log2(workers)
    return {
        "ring": _pair(hops, volume),
        "tree": _pair(tree, volume),
        "bandwidth": _pair(0.0, volume),
        "latency": _pair(hops if ring else tree, 0 * workers),
    }


def _forms_of(*, ring: bool) -> tuple[str, ...]:
    return ("ring",) if ring else ("ring", "tree")


def _mean_of_forms(workers: Array, thetas: Mapping[str, Array], *, ring: bool) -> Array:
    """Return the seconds of an all-reduce as the unweighted mean of its forms."""
    terms = allreduce_terms(workers, ring=ring)
    return np.mean([terms[name] @ theta for name, theta in thetas.items()], axis=0)


def _forms(workers: Array, seconds: Array, *, ring: bool) -> dict[str, FittedPart]:
    """Return the forms that fit equally well. At a single count all may be latency, or all bandwidth."""
    terms = allreduce_terms(workers, ring=ring)
    names = _forms_of(ring=ring) if len(set(workers)) > 1 else ("bandwidth", "latency")
    forms = {name: part(terms[name], seconds) for name in names}
    errors = {name: float(np.sqrt(np.mean(form.residuals**2))) for name, form in forms.items()}
    return {name: forms[name] for name in names if errors[name] <= ALIKE * min(errors.values()) + 1e-3}


def _terms(workers: Array, *, batch: float, grows: bool) -> dict[str, Array]:
    """Return the (counts, 2) terms of each part except the all-reduce."""
    samples = _pair(1.0, np.full_like(workers, batch) if grows else batch / workers)  # of a worker in a step
    return {
        "compute": samples,
        "optimizer": _pair(1.0, 0 * workers),
        "data_wait": samples,
        "outside": _pair(1.0, 1 / workers),
        "epochs": _pair(1.0, batch * workers if grows else 0 * workers),
    }


def _least_squares(terms: Array, values: Array, reference: Array) -> Array:
    """Return the non-negative coefficients with the least squares of errors relative to `reference`."""
    from scipy.optimize import nnls

    rows = terms / reference[:, None]
    scale = np.linalg.norm(rows, axis=0).clip(1e-300)
    return nnls(rows / scale, values / reference)[0] / scale


def _rank(terms: Array, tol: float | None = None) -> int:
    unit = terms / np.linalg.norm(terms, axis=0).clip(1e-300)
    return int(np.linalg.matrix_rank(unit, tol=tol)) if len(terms) else 0


def _positive(measured: Array) -> Mask:
    return measured > TINY * max(measured.mean(), 1e-300)


def _pair(first: float | Array, second: Array) -> Array:
    return np.stack(np.broadcast_arrays(first, second), axis=-1)


def _largest_share(part: Array, whole: Array) -> float:
    """Return the part's largest share of the whole in any element, at most 1."""
    shares = np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)
    return min(1.0, float(shares.max()))
