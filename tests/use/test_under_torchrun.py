"""Every task, strategy, backend and framework by its command under torch's elastic agent.

Neither Ray nor MLflow is installed there.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT
from installed import Place, shared

from mlbench.record.record import Record

pytestmark = pytest.mark.use
# As few steps as lead to a validation; the open division takes any value.
SHORT = "division=open goal=none task.epochs=1"
# What ends each task soon: a goal that every model reaches at its first validation, or one epoch; few steps
# of small layers lead to it.
TASKS = {
    "awdlstm": "division=open goal=100000 task.embedding=16 task.hidden=16 task.batch_size=80",
    "gnmt": "division=open goal=0 task.hidden=8 task.validate_at=[0.02,1.0]",
    "gpt": "division=open goal=100 task.d_model=32 task.validations_per_epoch=100",
    "logreg": SHORT,
    "resnet20": SHORT,
    "resnet50": f"{SHORT} task.width=8",
    "transformer": "division=open goal=0 task.d_model=16 task.ffn=16 task.validate_at=[0.02,1.0]",
}
SIZES = "division=open task.max_elements=1000 task.repeats=2 task.warmups=5 task.dtypes=[float32]"
AVX2 = "ONEDNN_MAX_CPU_ISA=AVX2"  # what oneDNN then uses of a CPU that has more
SYNCS = sorted(path.stem for path in (ROOT / "conf" / "sync").glob("*.yaml"))
EXTRAS = ("image", "report", "text", *(("jax",) if find_spec("jax") else ()))
EXTRAS += ("mpi",) if find_spec("mpi4py") else ()


@pytest.fixture(scope="module")
def shell(user: Place, installed_root: Path) -> Place:
    """Return the user's folder and an environment without Ray and MLflow."""
    return user.activated(shared(installed_root, EXTRAS))


def logreg(shell: Place, words: str) -> Record:
    """Return the record of two workers' first epoch."""
    record = shell.run(f"mlbench run task=logreg workers=2 launcher=torchrun {words} {SHORT}")
    assert record.status == "completed" and record.workers == 2 and record.validations
    return record


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("task", TASKS)
def test_a_task_trains_to_its_first_validation(shell: Place, task: str, workers: int) -> None:
    record = shell.run(f"mlbench run task={task} workers={workers} launcher=torchrun {TASKS[task]}")
    status = "completed" if SHORT in TASKS[task] else "goal_reached"
    assert (record.status, record.workers, record.experiment.launcher) == (status, workers, "torchrun")
    assert len(record.validations) == 1 and record.best is not None and record.steps


def test_a_narrow_network_trains_on_a_cpu_of_avx2(shell: Place) -> None:
    """oneDNN 3.12 dies there from fewer than 8 channels that lie last."""
    record = shell.run(f"{AVX2} mlbench run task=resnet20 workers=1 launcher=torchrun {SHORT} task.width=4")
    assert record.status == "completed" and record.validations


@pytest.mark.parametrize("task", ["awdlstm", "gnmt"])
def test_an_lstm_in_bf16_is_refused_on_a_cpu_of_avx2(shell: Place, task: str) -> None:
    words = f"workers=1 launcher=torchrun {TASKS[task]} task.precision=bf16"
    done = shell.type(f"{AVX2} mlbench run task={task} {words}", codes=[2])
    assert "no LSTM in bf16 on this CPU (task.precision=fp32)" in done.text


def test_two_workers_reach_their_goal_without_ray(shell: Place) -> None:
    assert shell.type("python -c 'import ray' 2>/dev/null", codes=[1]).code
    record = shell.run("mlbench run task=logreg workers=2 launcher=torchrun seed=1")
    assert (record.status, record.workers) == ("goal_reached", 2)
    assert record.startup_time is not None and None not in dict(record.startup).values()
    assert record.phases["transfer"].mean > 0 and len(record.nodes) == 1
    assert [*(shell.folder / "runs" / record.run_id).glob("rank_*.log")] == []


@pytest.mark.parametrize("sync", SYNCS)
def test_a_strategy_trains_to_its_first_validation(shell: Place, sync: str) -> None:
    assert logreg(shell, f"sync={sync}").experiment.sync.name == sync


@pytest.mark.plugin("mpi")
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="needs mpi4py")
def test_mpi_trains_to_its_first_validation(shell: Place) -> None:
    assert logreg(shell, "backend=mpi").experiment.backend.name == "mpi"


@pytest.mark.plugin("jax")
@pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")
def test_jax_trains_to_its_first_validation(shell: Place) -> None:
    assert logreg(shell, "framework=jax").experiment.framework == "jax"


def test_collectives_are_timed_between_two_workers(shell: Place) -> None:
    record = shell.run(f"mlbench run task=allreduce workers=2 launcher=torchrun {SIZES}")
    assert record.status == "completed" and record.table


@pytest.mark.parametrize("workers", [1, 2])
def test_a_script_trains(shell: Place, workers: int) -> None:
    (shell.folder / "ddp.py").write_bytes((ROOT / "tests/script/scripts/ddp.py").read_bytes())
    words = "task=script task.path=ddp.py task.args='2 -1 0' task.metric=val_acc launcher=torchrun"
    record = shell.run(f"mlbench run {words} workers={workers}")
    assert (record.status, record.workers, len(record.validations)) == ("completed", workers, 2)
