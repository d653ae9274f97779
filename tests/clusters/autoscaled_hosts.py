"""Where the autoscaler of a test's Ray gets nodes: each is a command of the configuration, by its address."""

import subprocess
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID, FakeMultiNodeProvider
from ray.autoscaler.tags import NODE_KIND_WORKER, STATUS_UP_TO_DATE, TAG_RAY_NODE_KIND, TAG_RAY_NODE_STATUS


class Hosts(FakeMultiNodeProvider):
    """Ray's own provider for tests keeps the list; here a node is a process with an address of its own."""

    def _create_node_with_resources_and_labels(
        self, node_config: Any, tags: dict[str, str], count: int, resources: Any, labels: Any
    ) -> None:
        commands: dict[str, list[str]] = self.provider_config["commands"]
        address = next(address for address in commands if address not in self._nodes)
        own = {TAG_RAY_NODE_KIND: NODE_KIND_WORKER, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}
        process = subprocess.Popen(commands[address])
        nodes: dict[str, Any] = self._nodes
        nodes[address] = {"tags": {**tags, **own}, "node": process}

    def _terminate_node(self, node: dict[str, Any]) -> None:
        node["node"].terminate()
        node["node"].wait()

    def _get_ip(self, node_id: str) -> str:
        return self.provider_config["head"] if node_id == FAKE_HEAD_NODE_ID else node_id
