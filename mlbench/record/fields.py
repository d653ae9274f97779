"""List the numbers and names of a run, once for cards, `results list`, MLflow, notebooks and the page.

A new number is a field of the Record and a line here. It then appears in MLflow and in notebooks. If it has a
`row`, it is on the full card. If it has a `heading`, it is also a column of `results list`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from mlbench.config.goal import Goal
from mlbench.config.plugins import TORCH
from mlbench.record import format
from mlbench.record.record import Git, RankStats, Record

SETTINGS = "what"  # the row of names, as on the command line
UNSTEADY = "the run ended before its steps were steady: rate and phases include its first steps"
NOT_OF_SCRIPTS = ("seed", "recipe", "dataset")  # of which a script has its own
SHORTEST_REST_S = 1e-3  # s, less is rounding


class Units(NamedTuple):
    """The units of a run: its samples, e.g. images, the unit of its task's metric, and its goal."""

    samples: str
    metric: str
    goal: Goal | None


@dataclass(frozen=True)
class Field:
    """One number, name or list of sentences of a run, in base units.

    - name: in MLflow and JSON. A part of a group follows a "/".
    - source: the attribute of the record that has the value, or a function of the record. Default: the
      attribute with the field's name. A value may be a group, a dict. None is no value.
    - unit: as `format.quantity` takes it. "samples" are counted in the run's sample_unit, and "metric" is
      that of the task's metric. A number without a unit is an identifier, not a measurement.
    - row, text: the row of the full card and its text, with {} for the value. "" is on no card. Fields of one
      row are joined. On the page it is the heading.
    - heading: of the column in `results list`. "" is no column.
    - setting: whether it is configured. If so, RunStart has it, too, runs of a point share it, and it is a
      tag in MLflow.
    - tag: whether it is an MLflow tag from the run's end on.
    - parallel: whether it applies only to several workers.
    - page: whether the page lists it among the origins of its numbers.
    """

    name: str
    source: str | Callable[[Any], Any] = ""
    unit: str = ""
    row: str = ""
    text: str = "{}"
    heading: str = ""
    setting: bool = False
    tag: bool = False
    parallel: bool = False
    page: bool = False

    @property
    def column(self) -> str:
        """The name in flat tables: JSON of a listing, notebooks."""
        return self.name.replace("/", "_")

    def value(self, record: Any) -> Any:
        """Return the value of a Record or, for a setting, of a RunStart."""
        if callable(self.source):
            return self.source(record)
        for attribute in (self.source or self.name.replace("/", ".")).split("."):
            record = record.get(attribute) if isinstance(record, dict) else getattr(record, attribute, None)
        return record

    def quantity(self, value: Any, units: Units) -> str:
        """Return a value for people. `units` are those of its run."""
        if isinstance(value, dict):
            parts = (f"{name.replace('_', ' ')} {self.quantity(part, units)}" for name, part in value.items())
            return ", ".join(parts)
        if isinstance(value, RankStats):
            return format.spread(value, self._unit(units))
        if self.unit == "metric":
            return format.measured(value, units.metric, units.goal)
        if not self.unit and type(value) is int:
            return str(value)  # seed=1350092275 is copied into a command
        return format.quantity(value, self._unit(units))

    def _unit(self, units: Units) -> str:
        return self.unit.replace("samples", units.samples)


def units(record: Record) -> Units:
    """Return the units of a run's numbers."""
    return Units(record.sample_unit, record.experiment.task.metric_unit, record.goal)


def flat(record: Record, fields: Iterable[Field]) -> dict[str, Any]:
    """Return plain values by name, with each value of a group separate, and the mean of rank statistics."""
    values: dict[str, Any] = {}
    for field in fields:
        value = field.value(record)
        if isinstance(value, dict):
            values |= {f"{field.name}/{name}": _plain(part) for name, part in value.items()}
        else:
            values[field.name] = _plain(value)
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return "; ".join(value)
    return value.mean if isinstance(value, RankStats) else value


def _lacking(record: Record) -> str | None:
    bill = record.cost and record.cost.whole
    if not bill:
        return None
    return bill.lacking if bill.provisioning_s is not None else f"provisioning (not measured), {bill.lacking}"


def batches(record: Record) -> float | None:
    """Return the seconds in batches, the mean over the ranks, or None without phase clocks."""
    return math.fsum(stats.mean for stats in record.phases.values()) or None


def shares(record: Record, phases: Mapping[str, RankStats]) -> dict[str, RankStats]:
    """Return phases as shares of the mean rank's time in batches."""
    total = batches(record)
    if total is None:
        return {}
    return {name: RankStats(**{end: value / total for end, value in s}) for name, s in phases.items()}


def _elapsed(record: Record) -> float | None:
    return record.validations[-1].elapsed if record.validations else None


def _seconds_per_epoch(record: Record) -> float | None:
    elapsed = _elapsed(record)
    return elapsed / record.epochs if elapsed is not None and record.epochs else None


def _rest(record: Record) -> float | None:
    elapsed, outside = _elapsed(record) or 0.0, math.fsum(stats.mean for stats in record.outside.values())
    rest = elapsed - (batches(record) or 0.0) - outside
    return rest if rest > 0 else None


def _startup(record: Record) -> dict[str, float]:
    parts = record.startup.parts()
    rest = (record.startup_time or 0.0) - math.fsum(parts.values())
    return parts | ({"rest": rest} if rest > SHORTEST_REST_S else {})


def _if_any(**spreads: RankStats | None) -> dict[str, RankStats]:
    return {name: spread for name, spread in spreads.items() if spread is not None}


def _sent_over_gradients(record: Record) -> float | None:
    sent = record.bytes_sent_per_step
    return sent.mean / record.gradient_bytes if sent is not None and record.gradient_bytes else None


def _cached(record: Record) -> float | None:
    return min((node.data_cached for node in record.nodes if node.data_cached is not None), default=None)


def _peaks(record: Record) -> RankStats | None:
    peaks = [each.peak_memory_bytes for each in record.ranks if each.peak_memory_bytes is not None]
    return RankStats.of(peaks) if peaks else None


def _peak(record: Record) -> str | None:
    peak = record.peak if record.mfu is not None else None
    return (
        peak and f"{format.with_prefix(peak.flops_per_s, 'FLOP/s')} ({peak.precision} dense, {peak.source})"
    )


def _process_memory(record: Record) -> int | None:
    used = (use.process_memory_bytes for node in record.nodes for use in node.gpu_use)
    return max(filter(None, used), default=None)


def _epoch_rows(record: Record) -> float | None:
    rows = record.data_rows.get("train")
    counted = rows and record.epochs and record.sample_unit in ("images", "rows")
    return record.samples / record.epochs / rows if rows and counted else None


def _threads(record: Record) -> str | None:
    return ", ".join(map(str, sorted({n.threads_per_worker for n in record.nodes if n.threads_per_worker})))


def _transport(record: Record) -> str:
    """Return the transport that the backend's module reports, once for all nodes with the same."""
    texts = (", ".join(f"{name} {text}" for name, text in node.transport.items()) for node in record.nodes)
    return "; ".join(dict.fromkeys(filter(None, texts)))


def _sent_as(record: Record) -> str | None:
    """Return the meaning of `bytes_sent` if a switch may have summed, so that less was sent."""
    chosen = " ".join(node.transport.get("algorithms", "") for node in record.nodes)
    summed = "NVLS" in chosen or "COLLNET" in chosen
    return "counted as a ring sends them, and NCCL let a switch sum" if summed else None


def _gpu_use(record: Record) -> str:
    """Return each GPU's kind, its clock under load, and how long each throttling reason lowered it."""
    texts = list[str]()
    for node in record.nodes:
        for use in node.gpu_use:
            parts = [gpu.kind for gpu in node.gpus[use.index : use.index + 1]]
            if use.sm_clock_mean_mhz is not None:
                parts.append(f"{use.sm_clock_mean_mhz:.0f} MHz under load")
            for reason, seconds in sorted(use.throttled_s.items()):
                parts.append(f"{reason.replace('_', ' ')} for {seconds:.3g} of {use.seconds:.3g} s")
            texts.append(", ".join(parts))
    return "; ".join(dict.fromkeys(texts))


def _numa(record: Record) -> str:
    """Return the CPUs to which ranks were bound, once for all ranks with the same."""
    texts = list[str]()
    for node in record.nodes:
        for number, cpus in dict.fromkeys((each.node, each.cpus) for each in node.numa):
            ranks = ", ".join(str(each.rank) for each in node.numa if each.cpus == cpus)
            texts.append(f"rank {ranks}: NUMA node {number} of {node.hostname}, CPUs {cpus}")
    return "; ".join(texts)


def _framework(record: Any) -> str | None:
    """Return the framework of a Record or RunStart if it is not torch."""
    return record.experiment.framework if record.experiment.framework != TORCH else None


def _of_task(attribute: str) -> Callable[[Any], Any]:
    """Return the source of what the suite's tasks have and a user's script does not tell."""
    value = attrgetter(attribute)
    return lambda record: None if record.experiment.task.name == "script" else value(record)


def _script(record: Any) -> str | None:
    """Return the script of a Record or RunStart of a user's script, with its arguments."""
    task = record.experiment.task
    if task.name != "script" or not record.command:  # published runs have no command
        return None
    return " ".join(filter(None, (task.path or task.module, task.args)))


def _git(git: Git | None) -> str | None:
    return git and f"{git.sha}{', with uncommitted changes' if git.dirty else ''}"


# In the order of importance: a narrow terminal gets the first columns, the full card the rows in this order.
FIELDS = (
    Field("run", "run_id", heading="id"),
    Field("started_at", unit="date", heading="when"),
    Field("task", "experiment.task.name", row=SETTINGS, heading="task", setting=True),
    Field("script", _script, heading="script", setting=True),
    Field("workers", "experiment.workers", row=SETTINGS, heading="w", setting=True),
    Field("status", heading="status", tag=True),
    Field("time_to_accuracy", unit="s", row="time to accuracy", heading="time",
          text="{} from clock start (first access to training data) to the goal"),
    Field("best", unit="metric", row="best", heading="best"),
    Field("scale", _of_task("experiment.scale"), row=SETTINGS, heading="scale", setting=True),
    Field("backend", "experiment.backend.name", row=SETTINGS, heading="backend", setting=True),
    Field("epochs", _of_task("epochs"), "epochs", "trained", heading="epochs"),
    Field("samples_per_s", unit="samples/s", row="throughput", heading="throughput"),
    Field("cost/wall_usd", unit="USD", row="cost", text="{} on demand for the whole command", heading="cost"),
    Field("hardware", "experiment.hardware.name", row=SETTINGS, heading="hardware", setting=True),
    Field("sync", _of_task("experiment.sync.name"), row=SETTINGS, heading="sync", setting=True),
    Field("framework", _framework, row=SETTINGS, heading="framework", setting=True),
    Field("network", lambda r: str(r.experiment.network), row=SETTINGS, heading="network", setting=True),
    Field("division", _of_task("experiment.division.name"), row=SETTINGS, heading="division",
          setting=True, page=True),
    Field("goal", lambda r: str(r.goal) if r.goal else None, heading="goal"),
    Field("seed", row=SETTINGS, heading="seed"),
    Field("study", lambda r: r.experiment.study or None, row=SETTINGS, heading="study", setting=True),
    Field("source", "origin", heading="source"),
    Field("recipe", "experiment.task.recipe", row=SETTINGS, setting=True),
    Field("dataset", "experiment.task.dataset", row=SETTINGS, setting=True),
    Field("cluster", "experiment.cluster.name", row=SETTINGS, setting=True),
    Field("launcher", "experiment.launcher", row=SETTINGS, setting=True),
    Field("compile", "experiment.compile", row=SETTINGS, setting=True),
    Field("threads_per_worker", _threads, row=SETTINGS, page=True),
    Field("eligible", tag=True),
    Field("oversubscribed", tag=True),
    Field("elapsed", _elapsed, "s", "time breakdown", "{} from clock start to the last validation:"),
    Field("batches", batches, "s", "time breakdown", "batches {}"),
    Field("outside", unit="s", row="time breakdown"),
    Field("rest", _rest, "s", "time breakdown", "rest {}"),
    Field("warm_up", "warm_up.seconds", "s", row="warm-up", text="{} in no rate, phase or percentile:"),
    Field("warm_up_steps", "warm_up.steps", "steps", "warm-up"),
    Field("warm_up_compilation", lambda r: (r.warm_up and r.warm_up.compilation_s) or None, "s", "warm-up",
          "{} of it torch.compile"),
    Field("warm_up_observation", lambda r: (r.warm_up and r.warm_up.observation_s) or None, "s", "warm-up",
          "{} of it observed for FLOP"),
    Field("unsteady", lambda r: UNSTEADY if r.unsteady else None, row="warm-up"),
    Field("train_time", unit="s", row="train time", text="{} as MLBench counts it"),
    Field("startup_time", unit="s", row="start-up", text="{} from the command to clock start:"),
    Field("startup", _startup, "s", "start-up"),
    Field("wall", unit="s", row="whole command"),
    Field("seconds_per_epoch", _seconds_per_epoch, "s", "trained", "{} per epoch"),
    Field("steps", unit="steps", row="trained"),
    Field("samples", unit="samples", row="trained"),
    Field("samples_per_s_per_worker", unit="samples/s", row="throughput", parallel=True,
          text="{} per worker"),
    Field("tokens_per_s", unit="tokens/s", row="throughput"),
    Field("batch", "step_s", "s", "batch"),
    Field("phase", lambda r: r.phases | _if_any(overlapped_communication=r.overlapped_communication), "s"),
    Field("share", lambda r: shares(r, r.phases), "share", "phases",
          "of the batch, mean (lowest to highest rank): {}"),
    Field("exposed_communication_share", unit="share", row="communication", parallel=True,
          text="exposed {} of the batch (wait and transfer)"),
    Field("overlapped_communication_share",
          lambda r: shares(r, _if_any(all=r.overlapped_communication)).get("all"), "share", "communication",
          "overlapped with backward {}", parallel=True),
    Field("bytes_sent_per_step", unit="B", row="bytes sent", text="{} per step and worker"),
    Field("bytes_sent_as", _sent_as, row="bytes sent"),
    Field("bytes_sent_per_gradient_byte", _sent_over_gradients, "ratio", "bytes sent", "{} x its gradients"),
    Field("model_flops_per_s", unit="FLOP/s", row="arithmetic", text="model FLOP/s (all workers) {}"),
    Field("mfu", unit="share", row="arithmetic", text="MFU {}"),
    Field("mfu_peak", _peak, row="arithmetic", text="of {}"),
    Field("flops_per_sample", unit="FLOP", row="arithmetic", text="{} a sample"),
    Field("flops_lacking", row="arithmetic", text="FLOP not counted: {}"),
    Field("accuracy_after_time", unit="metric", row="best in budget", text="{} within the time budget"),
    Field("peak_memory_bytes", unit="B", row="GPU memory", text="{} at most on the fullest GPU"),
    Field("process_memory_bytes", _process_memory, "B", "GPU memory",
          "{} by the driver, with NCCL and context"),
    Field("peak_memory_of_ranks", _peaks, "B", "GPU memory", "by rank {}", parallel=True),
    Field("data_cached", _cached, "share", "data", "{} were in memory when the clock started"),
    Field("epoch_rows_share", _epoch_rows, "share", "data", "an epoch takes {} of the training rows"),
    Field("data_rows", unit="rows", row="data"),
    Field("cost/goal_usd", unit="USD", row="cost", text="{} from the first data to the goal"),
    Field("cost/wall_usd_spot", unit="USD", row="cost", text="{} on spot nodes for the whole command"),
    Field("cost/goal_usd_spot", unit="USD", row="cost", text="{} on spot nodes to the goal"),
    Field("cost/nodes", unit="nodes", row="cost", text="for {}"),
    Field("cost/date", row="cost", text="prices of {}:"),
    Field("cost/source", row="cost"),
    Field("cost/cluster_usd", "cost.whole.usd", "USD", "whole cluster", "{} on demand"),
    Field("cost/cluster_usd_spot", "cost.whole.usd_spot", "USD", "whole cluster", "{} with spot workers"),
    Field("cost/cluster_billed_s", "cost.whole.billed_s", "s", "whole cluster", "billed for {}"),
    Field("cost/cluster_provisioning_s", "cost.whole.provisioning_s", "s", "whole cluster",
          "{} of provisioning among them"),
    Field("cost/cluster_part_usd", "cost.whole.parts", "USD", "whole cluster", "by part: {}"),
    Field("cost/cluster_date", "cost.whole.date", row="whole cluster", text="prices from {} on:"),
    Field("cost/cluster_source", "cost.whole.source", row="whole cluster"),
    Field("cost/cluster_lacking", _lacking, row="whole cluster", text="not in it: {}"),
    Field("transport", _transport, row="transport"),
    Field("numa_binding", _numa, row="bound to"),
    Field("gpu_use", _gpu_use, row="GPUs"),
    Field("energy/joules", unit="J", row="energy", text="{} to the last validation:"),
    Field("energy/gpus_joules", "energy.parts.gpus", "J", "energy", "GPUs {}"),
    Field("energy/cpu_packages_joules", "energy.parts.cpu_packages", "J", "energy", "CPU packages {}"),
    Field("energy/goal_joules", unit="J", row="energy", text="{} to the goal"),
    Field("energy/joules_per_sample", unit="J", row="energy", text="{} a sample"),
    Field("energy/carbon_g", unit="g CO2e", row="energy"),
    Field("energy/carbon_source", row="energy"),
    Field("mlbench", row="mlbench", tag=True, page=True),
    Field("git", lambda r: _git(r.software.git), row="mlbench", text="commit {}", page=True),
    Field("script_git", lambda r: _git(r.software.script_git), row="script", text="commit {}", page=True),
    Field("data_hash", row="prepared data (hash)", page=True),
    Field("error", tag=True),
    Field("restarts", lambda r: len(r.restarts), tag=True),
    Field("deviations", lambda r: list(map(str, r.deviations)), row="deviation"),
    Field("caveats", row="caveat", tag=True, page=True),
    Field("warnings", row="warning", page=True),
    Field("official_reasons", row="not official", page=True),
)  # fmt: skip
METRICS = [field for field in FIELDS if field.unit not in ("", "date")]


def texts(record: Record) -> dict[str, str]:
    """Return every value that the record has, for people, by its name, without lists of sentences."""
    values = {field: field.value(record) for field in FIELDS}
    return {
        field.name: field.quantity(value, units(record))
        for field, value in values.items()
        if value is not None and value not in ("", {}) and not isinstance(value, list)
    }


def rows(record: Record) -> dict[str, str]:
    """Return the text of each row of the full card that has a value."""
    values, parts = texts(record), dict[str, list[str]]()
    if record.experiment.task.name == "script":
        values = {name: text for name, text in values.items() if name not in NOT_OF_SCRIPTS}
    for field in FIELDS:
        if field.row and field.name in values and not (field.parallel and record.workers == 1):
            text = field.text.format(values[field.name])
            parts.setdefault(field.row, []).append(f"{field.name}={text}" if field.row == SETTINGS else text)
    return {
        row: ", ".join(some).replace(":, ", ": ").replace(", of ", " of ").rstrip(":")
        for row, some in parts.items()
    }
