"""`cluster check` on a cluster is a run of task 0: machines, plan, counters of GPUs, and its command."""

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.launch import check, process_group
from mlbench.tasks.allreduce import gpu_faults, links, survey, verdict
from mlbench.tasks.allreduce.links import MachinePair
from mlbench.training.worker import Worker

NOTHING = dict.fromkeys(check.SETTINGS, "") | {"minutes": "2", "backend": "gloo"}


def told(hosts: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[list[int]]]:
    monkeypatch.setattr(Worker, "gather", lambda *_: [list(host) for host in hosts])
    return links.machines(Worker(world_size=len(hosts)))


def test_the_ranks_of_a_host_are_one_machine_and_two_pods_of_one_name_are_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eight = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert told(eight, monkeypatch) == (["a", "b"], [[0, 1], [2, 3]])
    assert told([("a", 0), ("a", 0)], monkeypatch) == (["a (rank 0)", "a (rank 1)"], [[0], [1]])


def test_what_the_ranks_of_two_machines_receive_adds_up() -> None:
    rows = [
        MachinePair(0, 1, 1.0, 4e9, 0.0),
        MachinePair(0, 1, 3.0, 5e9, 0.01),
        MachinePair(1, 0, 1e-5, 8e9, 0),
    ]
    assert [*links._joined(rows)] == [MachinePair(0, 1, 2.0, 9e9, 0.01), MachinePair(1, 0, 1e-5, 8e9, 0)]


@pytest.mark.parametrize("machines", [2, 8, 32, 33, 64, 256])
def test_a_look_at_any_number_of_machines_takes_ten_minutes_at_most(machines: int) -> None:
    """By its plan, with every pair as slow as it may be. At 32 machines every pair is measured."""
    every = len([*links.rounds(machines)])
    measured = min(every, max(1, int(survey.plan(machines, 600.0) / links.PAIR_S)))
    seconds = machines * survey.CPU_S + survey.GPU_S + measured * links.PAIR_S
    assert seconds <= 600
    assert machines > 33 or measured == every


def test_a_machine_whose_gpus_reduce_slowly_among_themselves_is_named(snapshot: SnapshotAssertion) -> None:
    rates: list[dict[str, float]] = [{"gpu_ring_busbw_per_s": each} for each in (480e9, 475e9, 120e9)]
    assert verdict.faults(["a", "b", "c"], rates, [[]] * 3, [], expected_bytes_per_s=None) == snapshot


def played(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
    for name in ("GetRemappedRows", "GetNvLinkState", "GetNvLinkErrorCounter", "GetTotalEccErrors"):

        def ask(*arguments: Any, name: str = name) -> Any:
            if name not in answers:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answers[name](*arguments)

        monkeypatch.setattr(pynvml, f"nvmlDevice{name}", ask)


def test_gpus_are_named_for_what_their_driver_counts(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    errors = {"a": 0, "b": 4}  # in each link that is up
    answers: dict[str, Any] = {
        "GetTotalEccErrors": lambda gpu, kind, since: {("b", 1, 0): 2}.get((gpu, kind, since), 0),
        "GetRemappedRows": lambda gpu: (0, 0, 0, int(gpu == "a")),
        "GetNvLinkState": lambda gpu, link: int(link < (18 if gpu == "a" else 17)),
        "GetNvLinkErrorCounter": lambda gpu, link, kind: errors[gpu] if (link, kind) == (3, 2) else 0,
    }
    played(monkeypatch, **answers)
    before = [gpu_faults.counts(gpu) for gpu in "ab"]
    errors["b"] = 9
    assert gpu_faults.sentences("here", before, [gpu_faults.counts(gpu) for gpu in "ab"]) == snapshot
    played(monkeypatch)
    nothing = [gpu_faults.counts("a")] * 2
    assert gpu_faults.sentences("here", nothing, nothing) == [], "what a model does not count is no fault"


def test_what_the_driver_reports_while_gpus_work_is_told_with_its_number(
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    reports, registered = [SimpleNamespace(eventData=79), SimpleNamespace(eventData=48)], list[Any]()

    def wait(events: str, ms: int) -> Any:
        assert (events, ms) == ("set", 0)
        if not reports:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return reports.pop(0)

    monkeypatch.setattr(pynvml, "nvmlEventSetCreate", lambda: "set")
    monkeypatch.setattr(pynvml, "nvmlDeviceRegisterEvents", lambda *arguments: registered.append(arguments))
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", wait)
    monkeypatch.setattr(gpu_faults.node, "gpu_handles", lambda: ("gpu",))
    played(monkeypatch)
    found = list[str]()
    with gpu_faults.watched("here", found):
        assert registered == [("gpu", pynvml.nvmlEventTypeXidCriticalError, "set")]
    assert found == snapshot


def test_a_table_is_judged_by_the_rate_of_its_hardware(snapshot: SnapshotAssertion) -> None:
    table = [{"kind": "machine", "machine": host, "rates": {}, "gpus": []} for host in "ab"]
    table += [{"kind": "link", **MachinePair(*way, 1e-4, 5e8, 0.0)._asdict()} for way in ((0, 1), (1, 0))]
    table += [{"kind": "times", "busbw_bytes_per_s": rate, "reason": None} for rate in (3e6, 4e8)]
    assert survey.judged(table)["faults"] == [] and survey.judged(table)["ring_busbw_bytes_per_s"] == 4e8
    result = survey.judged(table, 1.25e9)
    assert (
        len(result["faults"]) == 2
        and "4 Gbit/s of" in result["faults"][0]
        and "10 Gbit/s" in result["faults"][0]
    )
    assert check.text(result).splitlines()[1:] == result["faults"]
    reordered = [dict(sorted(row.items())) for row in table if row["kind"] != "times"]
    bare = survey.judged(reordered, 1.25e9)
    assert bare["faults"] == result["faults"] and bare["ring_busbw_bytes_per_s"] is None
    assert check.text(bare).splitlines()[0] == snapshot


@pytest.mark.parametrize(("backend", "device"), [("nccl", "cuda:3"), ("gloo", "cpu")])
def test_a_process_that_torchrun_started_computes_on_its_gpu_before_it_meets_the_others(
    backend: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL takes the current device: on one machine all would meet on GPU 0."""
    calls, workers = list[str](), list[Worker]()
    for name in ("listen", "leave"):
        monkeypatch.setattr(process_group, name, lambda *_: None)
    monkeypatch.setattr(process_group, "choose_interface", lambda *_, **__: "127.0.0.1")
    monkeypatch.setattr(process_group, "join", lambda *_, **__: calls.append("join"))
    monkeypatch.setattr("mlbench.training.worker.control_group", lambda _: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(str(device)))
    monkeypatch.setattr(survey, "survey", lambda worker, **_: workers.append(worker) or [])
    monkeypatch.setattr(survey, "ring", lambda worker: 1e9)
    for name, value in {"RANK": "11", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "MASTER_ADDR": "a"}.items():
        monkeypatch.setenv(name, value)
    result = check.measured(NOTHING | {"backend": backend, "port": "29500"})
    assert (result["rank"], result["ring_busbw_bytes_per_s"]) == (11, 1e9)
    assert [(each.rank, each.local_rank, str(each.device)) for each in workers] == [(11, 3, device)]
    assert calls == (["cuda:3", "join"] if backend == "nccl" else ["join"])


def test_streams_of_ec2_reach_less_than_its_machines() -> None:
    """One connection has 5 Gbit/s, and a pair of gloo sends over 8; NCCL is held to the whole rate."""
    hardware = compose(["hardware=aws_c5n_18xlarge"]).hardware
    assert hardware.network_gbit_per_s == 100
    assert check.expected_bytes_per_s(hardware, "gloo") == 40e9 / 8
    assert check.expected_bytes_per_s(hardware, "nccl") == 100e9 / 8


@pytest.mark.parametrize("words", [["workers=4"], ["cluster=kuberay", "rank"]])
def test_a_check_is_a_run_or_is_started_on_each_machine(words: list[str]) -> None:
    settings = NOTHING | ({"rank": "1"} if "rank" in words else {})
    with pytest.raises(UserError, match="check cannot use"):
        check.words([word for word in words if word != "rank"], settings)
    given = check.words(["cluster=kuberay"], NOTHING | {"hardware": "gcp_n1_t4", "backend": "nccl"})
    assert {"task.recipe=check", "backend=nccl", "hardware=gcp_n1_t4", "task.time_budget_s=120"} <= {*given}
