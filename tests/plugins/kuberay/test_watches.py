"""The threads that watch a RayJob, on a log that is read again."""

from collections.abc import Iterator
from typing import Any, cast

from mlbench.plugins.kuberay.api import Kubernetes
from mlbench.plugins.kuberay.watches import Watches

LOG = ["event 1", "heartbeat 1", "event 2", "heartbeat 2"]


class Server:
    """A server whose log has grown each time that it is read."""

    def __init__(self) -> None:
        self.ends = iter((2, 4))

    def lines(self, endpoint: str, **query: Any) -> Iterator[str]:
        yield from LOG[: next(self.ends)]


def test_a_log_that_is_read_again_repeats_its_events_and_no_heartbeat() -> None:
    """Events carry their numbers, heartbeats do not: an old one would make a silent run look alive."""
    watches, pod = Watches(cast(Kubernetes, Server()), "lab", "job", "group"), {"metadata": {"name": "pod"}}
    read = watches._follow(pod, already=0)
    assert read == 2
    assert watches._follow(pod, already=read) == 4
    passed = [watches.queue.get_nowait()[1] for _ in range(watches.queue.qsize())]
    assert passed == [*LOG[:2], "event 1", *LOG[2:]]
