"""Private names of Ray that a new release may take away; what uses them runs under Ray in other tests."""

import importlib
import inspect

import pytest
import ray
from ray.exceptions import RpcError

from mlbench.clusters import ray_private


@pytest.mark.parametrize(
    ("module", "name", "use"),
    [
        ("ray._private.worker", "_global_node", "a dead server of Ray is noticed while a run waits for it"),
        ("ray._private.state", "actors", "the death of a worker is told apart from that of a node"),
        ("ray._private.services", "canonicalize_bootstrap_address_or_die", "cluster.address=auto"),
        ("ray._raylet", "GcsClient", "cluster=attached says at once why this process cannot join"),
    ],
)
def test_a_private_name_is_where_it_was(module: str, name: str, use: str) -> None:
    assert hasattr(importlib.import_module(module), name), f"Ray {ray.__version__} breaks: {use}"


def test_the_methods_of_a_node_are_what_is_called() -> None:
    from ray._private.node import Node

    assert "check_alive" in inspect.signature(Node.kill_log_monitor).parameters
    assert callable(Node.get_session_dir_path)


def test_without_a_ray_there_is_no_session_no_monitor_and_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert not ray.is_initialized()
    assert ray_private.session_folder() == ""
    ray_private.end_log_monitor()
    with pytest.raises(RpcError):
        ray_private.raylet_sockets("127.0.0.1:1", 0.1)
