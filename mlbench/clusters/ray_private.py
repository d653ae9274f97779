"""Wrap all private names of Ray 2.60 that mlbench uses, listed in tests/clusters/test_ray_private.py."""

from typing import Any


def session_folder() -> str:
    """Return the session folder of the Ray that this process has started or joined, or "" without one."""
    from ray._private import worker

    return worker._global_node.get_session_dir_path() if worker._global_node else ""


def end_log_monitor() -> None:
    """End the process that sends the workers' output to drivers. It checks for output ten times a second."""
    from ray._private import worker

    if worker._global_node:
        worker._global_node.kill_log_monitor(check_alive=False)


def actors(job_id: str) -> list[dict[str, Any]]:
    """Return Ray's state of a job's actors. Its public state API needs the dashboard, which is off."""
    import ray
    from ray._private import state

    return list(state.actors(job_id=ray.JobID.from_hex(job_id)).values())


def default_address() -> str:
    """Return the address of the Ray on this machine. Raises ConnectionError if none or several run."""
    from ray._private.services import canonicalize_bootstrap_address_or_die

    return canonicalize_bootstrap_address_or_die("auto")


def raylet_sockets(address: str, timeout_s: float) -> list[str]:
    """Return the path of each registered node's raylet socket on that node. This needs no driver.

    - address: HOST:PORT of the state server (GCS). Raises an error of Ray's C++ part if it takes no client.
    """
    from ray._raylet import GcsClient  # type: ignore  (Ray's C++ part has no stub of it)

    nodes = GcsClient(address=address).get_all_node_info(timeout=timeout_s).values()
    return [node.raylet_socket_name for node in nodes]
