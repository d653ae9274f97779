"""Nodes of one type, and of several."""

import pytest

from mlbench.record.node_types import mixture
from mlbench.record.record import Gpu, Node

T4, V100 = Gpu(name="Tesla T4"), Gpu(name="Tesla V100")
V100_AT_150 = Gpu(name="Tesla V100", power_limit_w=150.0)
ONE = Node(hostname="a", usable_cpus=4, cpu_model="Xeon", gpus=[T4, V100], memory_bytes=2**34)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"usable_cpus": 1}, "b: 1 CPU (Xeon), 1 x Tesla T4, 1 x Tesla V100"),
        ({"cpu_model": "EPYC"}, "b: 4 CPUs (EPYC)"),
        ({"gpus": [T4, T4]}, "b: 4 CPUs (Xeon), 2 x Tesla T4"),
        ({"gpus": []}, "b: 4 CPUs (Xeon))"),
        ({"gpus": [T4, V100_AT_150]}, "b: 4 CPUs (Xeon), 1 x Tesla T4, 1 x Tesla V100 at 150 W"),
        ({"gpus": [V100, T4], "memory_bytes": 2**33, "ray_node_id": "b"}, None),
    ],
)
def test_nodes_differ_in_what_decides_their_speed(change: dict[str, object], sentence: str | None) -> None:
    result = mixture([ONE, ONE.model_copy(update={"hostname": "b", **change})])
    assert (result is None) == (sentence is None) and (sentence or "") in (result or "")


def test_a_sentence_does_not_name_a_hundred_nodes() -> None:
    nodes = [ONE.model_copy(update={"hostname": f"n{number}"}) for number in range(100)]
    result = mixture([*nodes, ONE.model_copy(update={"usable_cpus": 2})])
    assert result is not None and "n0, n1, n2, n3 and 96 more: 4 CPUs" in result and "a: 2 CPUs" in result
