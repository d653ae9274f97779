"""A rank runs on the CPUs of one NUMA node: of a made-up machine in /sys, with the kernel's own affinity."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import ROOT
from syrupy.assertion import SnapshotAssertion

from mlbench.clusters import node
from mlbench.clusters.monitor import CpuUse
from mlbench.config.compose import compose
from mlbench.config.errors import ClusterError, UserError
from mlbench.config.identity import ADDED, identity, key
from mlbench.launch import numa_binding
from mlbench.record.fields import FIELDS
from mlbench.record.record import Node, NumaBinding
from mlbench.training.worker import Worker

CPUS = sorted(os.sched_getaffinity(0))
TWO = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
GPUS = {"0000:3b:00.0": 0, "0000:5e:00.0": 0, "0000:af:00.0": 1, "0000:d8:00.0": -1}  # NUMA node by address
BIND = ["hardware.numa_binding=node"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes the machine's NUMA nodes, of lists of CPUs, and its allowed CPUs."""
    monkeypatch.setattr(node, "ROOT", tmp_path)
    for address, number in GPUS.items():
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{number}\n")

    def make(*lists: str, allowed: set[int]) -> None:
        for number, text in enumerate(lists):
            folder = tmp_path / f"sys/devices/system/node/node{number}"
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(f"{text}\n")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)

    return make


def chosen(
    ranks: list[str | None], threads: int = 1, local_ranks: int | None = None
) -> list[tuple[int, set[int]] | str]:
    """Return what each rank of one machine gets, by the addresses of their GPUs: all decide together."""
    told: list[Any] = []

    def of(rank: int, answers: Any) -> Any:
        worker = SimpleNamespace(local_rank=rank, gather=answers)
        try:
            return numa_binding.choose(worker, local_ranks or len(ranks), threads, ranks[rank])
        except ClusterError as error:
            return str(error)

    def note(item: Any) -> Any:
        told.append(item)
        raise LookupError

    for rank in range(len(ranks)):
        with pytest.raises(LookupError):
            of(rank, note)
    return [of(rank, lambda _: told) for rank in range(len(ranks))]


def test_without_gpus_ranks_share_the_nodes_in_their_order_within_what_is_allowed(machine: Any) -> None:
    machine("0-3,8-11", "4-7,12-15", "", allowed={*range(12)})  # the third has memory alone
    first, second = {*range(4), *range(8, 12)}, {*range(4, 8)}
    assert chosen([None] * 4) == [(0, first), (0, first), (1, second), (1, second)]
    assert chosen([None] * 3) == [(0, first), (0, first), (1, second)]


def test_a_rank_is_on_the_node_of_its_gpu(machine: Any) -> None:
    machine("0-3", "4-7", allowed={*range(8)})
    ranks: list[str | None] = ["0000:af:00.0", "0000:3b:00.0", "0000:5e:00.0"]
    assert chosen(ranks) == [(1, {4, 5, 6, 7}), (0, {0, 1, 2, 3}), (0, {0, 1, 2, 3})]


@pytest.mark.parametrize(
    ("lists", "allowed", "ranks", "threads"),
    [
        (("0-7",), 8, [None, None], 1),
        (("0-3", "4-7"), 4, [None, None], 1),  # a container with the first four
        (("0-3", "4-7"), 8, ["0000:3b:00.0", "0000:d8:00.0"], 1),
        (("0-3", "4-7"), 8, ["0000:3b:00.0", "0000:ff:00.0"], 1),
        (("0-3", "4-7", "8-9"), 8, ["0000:3b:00.0"], 5),
        (("0-3", "4-7"), 8, [None] * 3, 3),
    ],
)
def test_what_cannot_be_bound_is_refused_by_every_rank_in_one_sentence(
    machine: Any, lists: Any, allowed: int, ranks: Any, threads: int, snapshot: SnapshotAssertion
) -> None:
    machine(*lists, allowed={*range(allowed)})
    answers = chosen(ranks, threads)
    assert len({str(answer) for answer in answers}) == 1 and str(answers[0]) == snapshot, answers


def test_a_gpu_whose_node_has_no_allowed_cpu_is_refused(machine: Any) -> None:
    machine("0-1", "2-3", "4-5", allowed={0, 1, 4, 5})
    assert "NUMA node 1" in str(chosen(["0000:af:00.0"])[0])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["task=script", "task.path=x.py", "launcher=command"], "use torchrun --numa-binding=node"),
        pytest.param(["network=1gbit_1ms"], "emulated hosts have no", marks=pytest.mark.plugin("emulation")),
        (["hardware.numa_binding=socket"], "hardware.numa_binding=socket"),
    ],
)
def test_runs_that_nobody_could_bind_are_refused_as_they_are_composed(words: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        compose([*BIND, *words])


def test_this_machine_is_asked_before_a_worker_starts(machine: Any) -> None:
    machine("0-1", allowed={0, 1})
    numa_binding.require(compose())
    with pytest.raises(ClusterError, match="one NUMA node"):
        numa_binding.require(compose(BIND))


def test_a_bound_run_is_another_measurement_and_an_unbound_one_keeps_the_key_of_older_runs() -> None:
    (field,) = ADDED
    older = compose().plain()
    del older["hardware"]["numa_binding"]
    assert field not in identity(compose().plain()) and identity(older) == identity(compose().plain())
    assert identity(compose(BIND).plain())[field] == "node" and key(compose(BIND)) != key(compose())
    assert compose(BIND).deviations == (), "it changes speed, not the algorithm"


BOUND = """
import json, os, sys, threading, torch
from pathlib import Path
from torch.utils.data import DataLoader
from mlbench.clusters import node
from mlbench.launch import numa_binding
from mlbench.training.worker import Worker

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): return torch.tensor(sorted(os.sched_getaffinity(0)))

if __name__ == "__main__":
    node.ROOT = Path(sys.argv[1])
    waiting = threading.Event()
    threading.Thread(target=waiting.wait, daemon=True).start()  # as gloo's, it is there before
    torch.set_num_threads(2)
    torch.mm(torch.ones(512, 512), torch.ones(512, 512))
    (bound,) = numa_binding.bind(Worker(), 0, *numa_binding.choose(Worker(local_rank=1), 2, 1, None))
    threads = [sorted(os.sched_getaffinity(int(name))) for name in os.listdir("/proc/self/task")]
    loaded = [row.tolist() for rows in DataLoader(Rows(), num_workers=2) for row in rows]
    print(json.dumps([bound.model_dump(), threads, loaded]))
"""


@TWO
def test_every_thread_of_a_real_process_and_its_data_loaders_are_bound(tmp_path: Path) -> None:
    import json

    for number, cpu in enumerate(CPUS[:2]):
        folder = tmp_path / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpu}\n")
    (tmp_path / "rank.py").write_text(BOUND)
    command = [sys.executable, str(tmp_path / "rank.py"), str(tmp_path)]
    answer = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    bound, threads, loaded = json.loads(answer.stdout)
    assert bound == {"rank": 0, "node": 1, "cpus": str(CPUS[1])}
    assert len(threads) >= 3 and all(cpus == [CPUS[1]] for cpus in threads)
    assert loaded == [[CPUS[1]]] * 2


@TWO
def test_what_else_runs_is_counted_on_all_cpus_though_this_process_is_bound_later() -> None:
    code = (
        "import os; from mlbench.clusters.monitor import CpuUse; use = CpuUse(own=set);"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(use.interference().cpus)"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert float(answer.stdout) == len(CPUS) == CpuUse(own=set).interference().cpus, answer.stderr


def test_a_gpu_has_the_address_that_sys_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    has = SimpleNamespace(pci_domain_id=1, pci_bus_id=0xAF, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: has)
    assert numa_binding.address(torch.device("cuda", 3)) == "0001:af:00.0"
    assert Worker().local_rank == 0


def test_the_full_card_names_the_cpus_of_each_rank(snapshot: SnapshotAssertion) -> None:
    bound = [
        NumaBinding(rank=rank, node=rank // 2, cpus="0-3,8-11" if rank < 2 else "4-7") for rank in range(3)
    ]
    record: Any = SimpleNamespace(nodes=[Node(hostname="a", usable_cpus=12, numa=bound)])
    (field,) = [field for field in FIELDS if field.name == "numa_binding"]
    assert field.value(record) == snapshot


@TWO
@pytest.mark.slow
def test_a_run_is_bound_from_its_command_to_its_record(tmp_path: Path, data_root: Path) -> None:
    """/sys has two NUMA nodes in a namespace of mounts, which needs root."""
    sys_nodes = "/sys/devices/system/node"
    lines = [f"mount -t tmpfs none {sys_nodes}"]
    lines += [
        f"mkdir {sys_nodes}/node{n}; echo {cpu} > {sys_nodes}/node{n}/cpulist"
        for n, cpu in enumerate(CPUS[:2])
    ]
    (tmp_path / "two_nodes").write_text("\n".join(["set -e", *lines, 'exec "$@"']))
    inside = ["unshare", "-m", "sh", str(tmp_path / "two_nodes")]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("needs root, to mount")
    run = [sys.executable, "-m", "mlbench.run", "task=logreg", "workers=2", "launcher=torchrun", *BIND]
    run += ["goal=none", "task.epochs=1", "division=open", "cluster.exclusive=false"]
    run += [f"output_root={tmp_path / 'runs'}", f"data_root={data_root}"]
    answer = subprocess.run([*inside, *run], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    from mlbench.record.reader import load

    (path,) = tmp_path.glob("runs/*/record.json")
    (host,) = load(path).nodes
    assert [(each.rank, each.node, each.cpus) for each in host.numa] == [
        (0, 0, str(CPUS[0])),
        (1, 1, str(CPUS[1])),
    ]
    assert host.usable_cpus == len(CPUS), "the node is described before it is divided"
