"""Faults of an experiment that no field can refuse alone: what its parts cannot do together."""

from collections.abc import Callable, Iterator

from mlbench.config import plugins
from mlbench.config.errors import UserError, suggest
from mlbench.config.experiment import CAPTURED, GPU_ONLY, SINCE_AMPERE, Experiment, Precision, TrainingConfig
from mlbench.config.network import idle

ALGORITHMS = {  # of all-reduce, by backend. Those of others are in the module that its package brings
    "nccl": ("ring", "tree", "collnetdirect", "collnetchain", "nvls", "nvlstree"),  # NCCL_ALGO
}


def _idle(experiment: Experiment) -> Iterator[str]:
    if (sentence := idle(experiment.network)) is not None:
        yield sentence


def _unemulated(experiment: Experiment) -> Iterator[str]:
    if experiment.network.emulated:
        yield from plugins.emulator().faults(experiment)


def precision(experiment: Experiment, task: TrainingConfig) -> Precision:
    """Return what a task computes in: as given, or the recipe's, which in torch's autocast may be half."""
    recipe = task.RECIPE_PRECISION[experiment.backend.device]
    return task.precision or (recipe if experiment.framework == plugins.TORCH else "fp32")


def _uncombined(experiment: Experiment) -> Iterator[str]:
    """Yield why the strategy cannot combine these workers' models."""
    if isinstance(experiment.task, TrainingConfig) and experiment.workers > 1:
        try:
            experiment.sync.check(
                workers=experiment.workers, precision=precision(experiment, experiment.task)
            )
        except UserError as error:
            yield str(error)


def _uncomputable(experiment: Experiment) -> Iterator[str]:
    """Yield that the device cannot compute in the task's precision, and in which it can."""
    task, device = experiment.task, experiment.backend.device
    if not isinstance(task, TrainingConfig):
        return
    cannot = task.CPU_ONLY if device == "cuda" else GPU_ONLY
    platform = f"backend={experiment.backend.name}"
    if device == "cuda" and (experiment.hardware.capability or 8.0) < 8.0:
        cannot = (*cannot, *SINCE_AMPERE)
        platform += f" hardware={experiment.hardware.name}"
    can = [choice for choice in task.PRECISIONS if choice not in cannot]
    computed = precision(experiment, task)
    if computed not in can:
        given = f"task.precision={computed}" if task.precision else f"{task.name}'s recipe has {computed}"
        yield (
            f"{given}: on {platform} {task.name} computes in {', '.join(can)}: "
            f"write task.precision={' or '.join(can)}"
        )


def _no_restart(experiment: Experiment) -> Iterator[str]:
    if experiment.max_failures and not experiment.sync.restarts:
        yield (
            f"max_failures={experiment.max_failures}: sync={experiment.sync.name} has state on every worker "
            "that no checkpoint holds, so no run goes on after a failure"
        )


def _unserved(experiment: Experiment) -> Iterator[str]:
    """Yield what of an experiment its launcher cannot start."""
    cluster = experiment.cluster.name
    if experiment.launcher != "torchrun":
        return
    if cluster != "local":
        yield f"launcher=torchrun starts workers on this machine, not on cluster={cluster}: leave one out"
    elif experiment.network.emulated:
        yield "launcher=torchrun starts no emulated hosts: leave network out, or launcher"
    elif experiment.max_failures:
        yield "launcher=torchrun starts no failed run again: leave max_failures out, or launcher"


def _unbilled(experiment: Experiment) -> Iterator[str]:
    """Yield that a price is per node and their number is unknown. This machine counts as one."""
    hardware, cluster = experiment.hardware, experiment.cluster.name
    if cluster == "local" or hardware.price is None or hardware.workers_per_node is not None:
        return
    yield (
        f"hardware={hardware.name} has a price and cluster={cluster} bills by the node: "
        "add hardware.workers_per_node=N"
    )


def _uncapturable(experiment: Experiment) -> Iterator[str]:
    """Yield why no CUDA graph can hold the steps that `compile=` would capture."""
    how, task, sync = f"compile={experiment.compile}", experiment.task, experiment.sync.name
    if experiment.compile not in CAPTURED:
        return
    if experiment.backend.device != "cuda":
        yield f"{how} replays CUDA graphs, and backend={experiment.backend.name} has none: use backend=nccl"
    elif not (isinstance(task, TrainingConfig) and task.ONE_SHAPE):
        yield f"{how} replays steps of one shape, and task={task.name} has many: use compile=inductor"
    elif experiment.workers > 1 and sync != "ddp":
        yield f"{how} captures what sync=ddp sends, and not what sync={sync} does: use compile=inductor"


def _unbindable(experiment: Experiment) -> Iterator[str]:
    """Yield why no rank can be bound to a NUMA node."""
    setting = "hardware.numa_binding=node"
    if experiment.hardware.numa_binding == "none":
        return
    if experiment.launcher == "command":
        yield f"{setting}: a measured command starts its ranks itself; use torchrun --numa-binding=node"
    elif experiment.network.emulated:
        yield f"{setting}: emulated hosts have no NUMA nodes: leave it out"


def _faults_of_framework(experiment: Experiment) -> Iterator[str]:
    """Yield why a framework other than torch cannot train this."""
    name, task = experiment.framework, experiment.task.name
    if name == plugins.TORCH:
        return
    if name not in plugins.frameworks():
        yield f"framework={name} is unknown{suggest(name, plugins.frameworks())}{plugins.absent()}"
        return
    if task not in (tasks := plugins.trained_by(name)):
        yield f"framework={name} has no task={task}: choose {', '.join(sorted(tasks))}, or framework=torch"
    yield from plugins.framework(name).faults(experiment)


def _unknown_algorithm(experiment: Experiment) -> Iterator[str]:
    """Yield that the backend's library has no such all-reduce, and which it has."""
    backend = experiment.backend
    if backend.algorithm is None:
        return
    algorithms = ALGORITHMS.get(backend.name) or getattr(plugins.library(backend.name), "ALGORITHMS", ())
    if algorithms and backend.algorithm not in algorithms:
        yield f"backend.algorithm={backend.algorithm}: {backend.name} has {', '.join(algorithms)}"


def _too_easy(experiment: Experiment) -> Iterator[str]:
    """Yield why a goal in % is meaningless: it is a fraction, or guessing reaches it."""
    goal, task = experiment.goal, experiment.task
    if isinstance(goal, str) or task.metric_unit != "%" or task.direction != "max":
        return
    if 0 < goal < 1:
        yield f"goal={goal:g}: {task.metric} is in %: goal={100 * goal:g} is {100 * goal:g} %"
        return
    chance = 100 / task.CLASSES if task.CLASSES else 0.0
    if goal <= chance:
        yield f"goal={goal:g}: guessing reaches {task.metric} {chance:g} %"


# What no field can refuse alone, in the order in which it is reported.
CHECKS: tuple[Callable[[Experiment], Iterator[str]], ...] = (
    *(_idle, _unknown_algorithm, _unserved, _unbilled, _uncapturable, _unbindable, _unemulated),
    *(_faults_of_framework, _too_easy, _uncombined, _uncomputable, _no_restart),
)
