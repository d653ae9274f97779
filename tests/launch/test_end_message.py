"""What the ranks send at their end: together no more than one outcome, however many there are."""

import json

from mlbench.clusters import node
from mlbench.launch.worker_process import end_message
from mlbench.record.record import WorkerResult

RANKS = 256


def test_the_outcome_is_sent_once_and_grows_with_the_nodes() -> None:
    single, many = (
        WorkerResult(status="completed", nodes=[node.describe()] * ranks, gradient_bytes=8)
        for ranks in (1, RANKS)
    )
    sent = end_message(0, many, {})["result"]
    assert WorkerResult.model_validate(sent) == many
    others = [end_message(rank, many, {f"rank{rank}": b""}) for rank in range(1, RANKS)]
    assert all("result" in message and message["result"] is None for message in others)
    assert [list(message["profile"]) for message in others] == [[f"rank{n}"] for n in range(1, RANKS)]
    alone = len(json.dumps(end_message(0, single, {})))
    together = len(json.dumps(sent)) + sum(len(str(message)) for message in others)
    assert together <= RANKS * alone
