"""What a worker reserves on nodes of any shape, and what is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from mlbench.clusters import placement
from mlbench.clusters.placement import WorkerResources, worker_resources
from mlbench.config.compose import compose
from mlbench.config.errors import UserError

SMALL = {"CPU": 4.0}
ONE_CPU = {"CPU": 1.0}
EIGHT_GPUS = {"CPU": 96.0, "GPU": 8.0}
ONE_GPU = {"CPU": 4.0, "GPU": 1.0}
HEAD = {"CPU": 0.0}
MIXED = [HEAD, ONE_CPU, SMALL, SMALL]
STANDARD = "cluster=attached hardware=gcp_n1_standard_4"


@pytest.mark.parametrize(
    ("overrides", "nodes", "expected"),
    [
        # this machine: all CPUs shared out; more threads than CPUs share them and are marked
        ("workers=2", [SMALL], WorkerResources({"CPU": 1.0}, "PACK", 2, False)),
        ("workers=4 hardware.threads_per_worker=1", [SMALL], WorkerResources({"CPU": 1.0}, "PACK", 1, False)),
        ("workers=4 hardware.threads_per_worker=2", [SMALL], WorkerResources({"CPU": 1.0}, "PACK", 2, True)),
        ("workers=8", [SMALL], WorkerResources({"CPU": 0.5}, "PACK", 1, True)),
        # three times 0.66667, which Ray makes 0.6667, would be more than there is
        ("workers=6", [SMALL], WorkerResources({"CPU": 0.6666}, "PACK", 1, True)),
        # one worker a node: its reservation is the node, so that Ray cannot put two there
        (f"{STANDARD} workers=4", [SMALL] * 4, WorkerResources({"CPU": 4.0}, "STRICT_SPREAD", 3, False)),
        (f"{STANDARD} workers=2", MIXED, WorkerResources({"CPU": 4.0}, "STRICT_SPREAD", 3, False)),
        (
            "cluster=attached hardware=gcp_n1_t4 backend=nccl workers=2",
            [HEAD, ONE_GPU, EIGHT_GPUS],
            WorkerResources({"CPU": 4.0, "GPU": 1.0}, "STRICT_SPREAD", 3, False),
        ),
        # more GPUs than CPUs, as in a job with one CPU a task: a whole one each was waited for
        (
            "backend=nccl workers=2",
            [{"CPU": 1.0, "GPU": 4.0}],
            WorkerResources({"CPU": 0.25, "GPU": 1.0}, "PACK", 1, False),
        ),
        (
            "backend=nccl workers=2",
            [EIGHT_GPUS],
            WorkerResources({"CPU": 1.0, "GPU": 1.0}, "PACK", 48, False),
        ),
        # eight a node
        (
            "cluster=attached hardware=aws_p4d_24xlarge backend=nccl workers=16",
            [EIGHT_GPUS] * 2,
            WorkerResources({"CPU": 12.0, "GPU": 1.0}, "PACK", 11, False),
        ),
        # a profile of many nodes on this machine runs, and the record says that it is not the profile
        ("hardware=gcp_n1_standard_4 workers=1", [SMALL], WorkerResources({"CPU": 1.0}, "PACK", 3, False)),
    ],
)
def test_a_worker_s_share(overrides: str, nodes: list[dict[str, float]], expected: WorkerResources) -> None:
    assert worker_resources(compose(overrides.split()), nodes) == expected


@pytest.mark.parametrize(
    ("overrides", "nodes"),
    [
        ("cluster=attached workers=9", [SMALL] * 2),
        ("backend=nccl workers=4", [ONE_GPU]),
        ("backend=nccl workers=1", [SMALL]),
        (f"{STANDARD} workers=4", [{"CPU": 96.0}]),
    ],
)
def test_what_does_not_fit_is_refused_with_a_way_out(
    overrides: str, nodes: list[dict[str, float]], as_stored: Any
) -> None:
    with pytest.raises(UserError, check=as_stored):
        worker_resources(compose(overrides.split()), nodes)


class Autoscaled:
    """Stands for a Ray cluster that adds one node at each look, once it was asked for some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, most: int) -> None:
        self.most, self.count = most, 0
        self.requests: list[list[dict[str, float]]] = []
        monkeypatch.setattr(ray, "nodes", self.nodes)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: "1"))
        monkeypatch.setattr(
            "ray.autoscaler.sdk.request_resources", lambda bundles: self.requests.append(bundles)
        )
        monkeypatch.setattr(placement, "POLL_S", 0.01)

    def nodes(self) -> list[dict[str, object]]:
        self.count = min(self.most, self.count + bool(self.requests))
        node = {"Alive": True, "NodeID": "n", "Resources": dict(SMALL)}
        return [node] * self.count + [{"Alive": False, "NodeID": "dead", "Resources": {"CPU": 64.0}}]


def test_an_autoscaler_is_asked_for_whole_nodes_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Autoscaled(monkeypatch, most=3)
    experiment = compose(f"{STANDARD} workers=3 cluster.wait_s=60".split())
    reservation = placement.reserve(experiment, host="h")
    assert reservation.node_ids == ["n"] * 3 and reservation.placement == "STRICT_SPREAD"
    assert cluster.requests == [[{"CPU": 3.0}] * 3] * 3 + [[]]  # at last it is taken back


def test_an_autoscaler_that_adds_too_little_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Autoscaled(monkeypatch, most=2)
    experiment = compose(["cluster=attached", "workers=9", "cluster.wait_s=0.1"])
    with pytest.raises(UserError, match="room for 8 on 2 .* 0.1 s"):
        placement.reserve(experiment, host="h")
    assert cluster.requests[-1] == []


def test_without_an_autoscaler_what_does_not_fit_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Autoscaled(monkeypatch, most=9)
    with pytest.raises(UserError, match="0 on 0.*wait_s=SECONDS"):
        placement.reserve(compose(["cluster=attached", "workers=1"]), host="h")
    assert cluster.requests == []
