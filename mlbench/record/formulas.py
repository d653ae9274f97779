"""Explain each number of a run by a formula over the lines of its event log, and evaluate it.

A formula is a Python expression. `start`, `end`, `group` and `began` are the values of the log's
`run_configuration`, `run_result`, `startup` and `run_start`. `result` is that of `worker_result`, or of the
run's end. `validations` has one entry a validation that counts, and `times` has one a rank in each. Other
names are numbers of FIELDS, by their name with "_" for "/". PART is the part of a group, e.g. wait of phase.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlbench.config.errors import UserError, suggest
from mlbench.record import cost, fields, overhead, phases
from mlbench.record.record import RankStats, Record

METRIC = "start.experiment.task.metric"
BEST = "(max if start.experiment.task.direction == 'max' else min)"
VALUES = f"v.metrics.get({METRIC}) for v in validations if v.metrics.get({METRIC}) is not None"
# Of a rank: the sum over its intervals without its warm-up, which is not in the rates and phases.
OF_RANK = (
    "(sum(each[rank].{0} for each in times) - (times[-1][rank].warm_up and times[-1][rank].warm_up.{0} or 0))"
)
WARM_UP = "(times[-1][rank].warm_up and times[-1][rank].warm_up.seconds or 0)"
OUTSIDE = f"sum(each[rank].outside.sum() for each in times) + {WARM_UP}"
WAIT, TRANSFER = (OF_RANK.format(f"phases.get('{name}', 0)") for name in ("wait", "transfer"))
STEADY = "sum(" + OF_RANK.format("samples") + " for rank in ranks)"
HOUR = "start.experiment.hardware.price.usd_per_hour"
STARTUP = {  # parts of the start-up, each between two moments
    "command": "end.stamps.connect_begin - start.begun",
    "cluster": "end.stamps.connect_end - end.stamps.connect_begin",
    "scheduling": "group.backend_begin - end.stamps.connect_end",
    "imports": "group.imports_end - group.backend_begin",
    "process_group": "group.group_end - group.imports_end",
    "entering": "result.entered - group.group_end",
    "calibration": "result.calibrated - result.entered",
    "data_opening": "began - result.calibrated",
    "rest": "startup_time - sum(parts('startup'))",
}
FORMULAS: dict[str, str] = {
    "workers": "start.experiment.workers",
    "seed": "start.seed",
    "time_to_accuracy": "validations[-1].elapsed",
    "best": f"{BEST}({VALUES})",
    "accuracy_after_time": f"{BEST}({VALUES} and v.elapsed <= start.experiment.task.time_budget_s)",
    "epochs": "validations[-1].epoch",
    "steps": "validations[-1].step",
    "elapsed": "validations[-1].elapsed",
    "wall": "end.ended - start.begun",
    "samples": "sum(rank.samples for each in times for rank in each)",
    "samples_per_s": f"{STEADY} / (elapsed - max({OUTSIDE} for rank in ranks))",
    "samples_per_s_per_worker": "samples_per_s / len(ranks)",
    "tokens_per_s": f"{STEADY.replace('samples', 'tokens')} / (elapsed - max({OUTSIDE} for rank in ranks))",
    "seconds_per_epoch": "elapsed / epochs",
    "batches": f"mean({OF_RANK.format('phases.sum()')} for rank in ranks)",
    "outside": "mean(sum(each[rank].outside.get(PART, 0) for each in times) for rank in ranks)",
    "outside/warm_up": f"mean({WARM_UP} for rank in ranks)",
    "rest": f"elapsed - batches - mean({OUTSIDE} for rank in ranks)",
    "train_time": f"max({OF_RANK.format('phases.sum()')} - {OF_RANK.format('phases.data_wait')} for rank in "
    "ranks)",
    "startup_time": "began - start.begun if one_host else sum(parts('startup'))",
    "phase": f"mean({OF_RANK.format('phases.get(PART, 0)')} for rank in ranks)",
    "phase/overlapped_communication": f"mean({OF_RANK.format('overlapped_communication')} for rank in ranks)",
    "share": f"mean({OF_RANK.format('phases.get(PART, 0)')} for rank in ranks) / batches",
    "overlapped_communication_share": f"mean({OF_RANK.format('overlapped_communication')} for rank in ranks) "
    "/ batches",
    "exposed_communication_share": f"mean({WAIT} + {TRANSFER} for rank in ranks) / batches",
    "batch": "percentiles([rank.step_s for each in times for rank in each], [rank.warm_up.step_s for rank in "
    "times[-1] if rank.warm_up])[PART]",
    "bytes_sent_per_step": "mean(sum(each[rank].bytes_sent for each in times) / sum(each[0].steps for each "
    "in times) for rank in ranks)",
    "bytes_sent_per_gradient_byte": "bytes_sent_per_step / result.gradient_bytes",
    "flops_per_sample": "result.flops_per_sample",
    "model_flops_per_s": "result.flops_per_sample * samples_per_s",
    "mfu": "model_flops_per_s / (result.peak.flops_per_s * result.peak.devices if result.peak else "
    "start.experiment.hardware.peak[start.experiment.task.get('precision') or "
    "'fp32'] * (workers if start.experiment.hardware.gpus else cost_nodes))",
    "peak_memory_bytes": "result.peak_memory_bytes",
    "process_memory_bytes": "max(use.process_memory_bytes or 0 for node in result.nodes for use "
    "in node.gpu_use)",
    "peak_memory_of_ranks": "mean(max(each[rank].peak_memory_bytes or 0 for each in times) for rank in "
    "ranks)",
    "warm_up": "max(rank.warm_up.seconds for rank in times[-1])",
    "warm_up_steps": "times[-1][0].warm_up.steps",
    "warm_up_observation": "max(rank.warm_up.within.get('observation', 0) for rank in times[-1])",
    "warm_up_compilation": "max(rank.warm_up.within.get('compilation', 0) for rank in times[-1])",
    "data_cached": "min(node.data_cached for node in result.nodes if node.data_cached is not None)",
    "data_rows": "result.data_rows[PART]",
    "epoch_rows_share": "samples / epochs / result.data_rows.train",
    "restarts": "failures - (status == 'failed' and failures > 0)",
    "cost/nodes": "ceil(workers / (start.experiment.hardware.workers_per_node or workers))",
    "cost/wall_usd": f"wall / 3600 * cost_nodes * {HOUR}",
    "cost/goal_usd": f"time_to_accuracy / 3600 * cost_nodes * {HOUR}",
    "cost/wall_usd_spot": f"wall / 3600 * cost_nodes * {HOUR}_spot",
    "cost/goal_usd_spot": f"time_to_accuracy / 3600 * cost_nodes * {HOUR}_spot",
    "cost/cluster_provisioning_s": "start.begun - start.submitted",
    "cost/cluster_billed_s": "max(wall + (cost_cluster_provisioning_s or 0), overhead['minimum_s'])",
    "cost/cluster_part_usd": "cost_cluster_billed_s / 3600 * overhead[PART]",
    "cost/cluster_usd": "sum(parts('cost/cluster_part_usd'))",
    "cost/cluster_usd_spot": "cost_cluster_usd + cost_cluster_billed_s / 3600 * (cost_nodes * "
    f"{HOUR}_spot - overhead['workers'])",
    "energy/joules": "(energy_gpus_joules or 0) + (energy_cpu_packages_joules or 0)",
    "energy/gpus_joules": "sum(node.energy_j.gpus for node in result.nodes)",
    "energy/cpu_packages_joules": "sum(node.energy_j.cpu_packages for node in result.nodes)",
    "energy/goal_joules": "energy_joules",
    "energy/joules_per_sample": "energy_joules / samples",
    "energy/carbon_g": "energy_joules / 3.6e6 * start.experiment.hardware.grid.g_per_kwh",
} | {f"startup/{name}": formula for name, formula in STARTUP.items()}


@dataclass
class Explanation:
    """A number of a run, with all that it follows from.

    - value: as the record has it.
    - formulas: by name, of the numbers that the formula names. The first is that of this number.
    - inputs: value and line of the log by path. Line 0 is a file of mlbench's (record/overhead.yaml).
    """

    name: str
    value: float
    unit: str
    formulas: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, tuple[Any, int]] = field(default_factory=dict)


def numbers(record: Record) -> dict[str, tuple[float | None, str]]:
    """Return value and unit of every number of a run by its name. Parts of groups follow a "/"."""
    found = dict[str, tuple[float | None, str]]()
    for each in fields.FIELDS:
        for name, value in fields.flat(record, [each]).items():
            if each.name in FORMULAS or name in FORMULAS:
                found[name] = (value, each.unit)
    return found


def explain(record: Record, log: Sequence[dict[str, Any]], quantity: str) -> Explanation:
    """Return the explanation of a number.

    Raises UserError for a number that is unknown or does not follow from the log.
    """
    known = numbers(record)
    matches = [name for name in known if name.replace("/", "_") == quantity.replace("/", "_")]
    matches = matches or [name for name in known if name.endswith(f"/{quantity}")]
    if not matches:
        raise UserError(f"{quantity} is not a number of this run{suggest(quantity, list(known))}")
    value, unit = known[matches[0]]
    if value is None:
        raise UserError(
            f"{record.run_id} has no {matches[0]}", hint="mlbench results show RUN --full lists its numbers"
        )
    found = Explanation(matches[0], value, unit)
    try:
        computed = _Names(record, log, found).evaluate(matches[0])
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UserError(f"{matches[0]} does not follow from the log: {error!r}") from error
    if not math.isclose(computed, value, rel_tol=1e-9, abs_tol=1e-12):
        raise UserError(
            f"{matches[0]} is {value!r}, and {computed!r} follows from the log", hint="mlbench results verify"
        )
    return found


class _Traced:
    """JSON of a log that notes every value that is read, with its path and line."""

    def __init__(self, value: Any, path: str, line: int, inputs: dict[str, tuple[Any, int]]) -> None:
        self._value, self._path, self._line, self._inputs = value, path, line, inputs

    def __getitem__(self, name: Any) -> Any:
        value = self._value[name]
        path = f"{self._path}[{name}]" if isinstance(name, int) else f"{self._path}.{name}"
        if isinstance(value, dict | list):
            return _Traced(value, path, self._line, self._inputs)
        self._inputs[path] = (value, self._line)
        return value

    def __getattr__(self, name: str) -> Any:
        return self.get(name)

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self._value)))

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self._value else default

    def sum(self) -> float:
        return math.fsum(map(self.__getitem__, self._value))

    def items(self) -> list[tuple[str, Any]]:
        return [(name, self[name]) for name in self._value]


class _Names(dict[str, Any]):
    """The names in formulas. A number of the run is evaluated by its formula when it is read."""

    def __init__(self, record: Record, log: Sequence[dict[str, Any]], found: Explanation) -> None:
        lines = {event["key"]: (event["value"], number) for number, event in enumerate(log, 1)}
        ended = lines.get("run_result", ({}, 0))
        result = lines.setdefault("worker_result", (ended[0].get("result") or {}, ended[1]))
        kept = _kept(record, log)
        values = [(event["value"], line) for line, event in kept]
        times = [(event["metadata"].get("phase_times", []), line) for line, event in kept]
        names = {
            "start": "run_configuration",
            "end": "run_result",
            "result": "worker_result",
            "group": "startup",
        }
        hosts = [
            event["metadata"].get("hostname") for event in log if event["key"] in ("run_start", "startup")
        ]
        super().__init__(
            {name: self._traced(name, *lines.get(key, ({}, 0)), found) for name, key in names.items()},
            validations=[self._traced(f"validations[{n}]", *each, found) for n, each in enumerate(values)],
            times=[self._traced(f"times[{n}]", *each, found) for n, each in enumerate(times)],
            ranks=range(record.workers),
            mean=lambda each: RankStats.of(list(each)).mean,
            percentiles=lambda each, less: phases.percentiles(
                [{int(n): c for n, c in s.items()} for s in each]
                + [{int(n): -c for n, c in s.items()} for s in less]
            ),
            parts=self._parts,
            ceil=math.ceil,
        )
        failures = [line for line, event in enumerate(log, 1) if event["key"] == "worker_failure"]
        self._facts = {
            "began": lines.get("run_start") or (result[0].get("started_at"), result[1]),
            "one_host": (len(set(hosts)) < 2, lines.get("startup", (None, 0))[1]),
            "status": (record.status, ended[1]),
            "failures": (len(failures), max(failures, default=0)),
        }
        self._record, self._found = record, found
        self._known = numbers(record)

    def _traced(self, name: str, value: Any, line: int, found: Explanation) -> _Traced:
        return _Traced(value, name, line, found.inputs)

    def __missing__(self, name: str) -> Any:
        by_name = {known.replace("/", "_"): known for known in self._known}
        if name in self._facts:
            self._found.inputs[name] = self._facts[name]
            return self._facts[name][0]
        if name == "overhead":
            return self._overhead()
        known = by_name[name]
        return None if self._known[known][0] is None else self.evaluate(known)

    def _overhead(self) -> _Traced:
        hardware = self._record.experiment.hardware
        rates = overhead.hourly(hardware, cost.nodes(hardware, self._record.workers), spot=False)
        provider = hardware.machine.provider if hardware.machine else ""
        minimum = {"minimum_s": overhead.overhead(provider).minimum_s}
        return _Traced({**rates, **minimum}, "overhead", 0, self._found.inputs)

    def _parts(self, group: str) -> list[float]:
        names = [name for name in self._known if name.startswith(f"{group}/") and not name.endswith("/rest")]
        return [self.evaluate(name) for name in names if self._known[name][0] is not None]

    def evaluate(self, name: str) -> Any:
        """Return the value of a number, and note its formula."""
        group, _, part = name.partition("/")
        formula = FORMULAS.get(name) or FORMULAS[name.rpartition("/")[0] if name.count("/") > 1 else group]
        formula = formula.replace("PART", repr(name.rpartition("/")[2] if part else part))
        self._found.formulas[name] = formula
        return eval(formula, self)  # a constant of this file


def _kept(record: Record, log: Sequence[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Return line and event of the validations that count: after a restart some were measured twice."""
    by_step = {
        (event["value"]["step"], event["value"]["elapsed"]): (number, event)
        for number, event in enumerate(log, 1)
        if event["key"] == "validation"
    }
    return [by_step[each.step, each.elapsed] for each in record.validations]
