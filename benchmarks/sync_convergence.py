"""How near every sync strategy comes to the optimum of logistic regression at mini scale.

    python benchmarks/sync_convergence.py --epochs 10 --workers 2

Prints, per strategy, the distance from the least training objective, the bytes per step of the mean rank, and
the accuracy.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from mlbench.config.compose import compose
from mlbench.contract.ranks import RankPool
from mlbench.tasks import registry
from mlbench.training.loop import train
from mlbench.training.worker import Worker

COMMANDS = """\
sync=ddp
sync=all_reduce
sync=all_reduce sync.quantity=weights sync.message=layer
sync=zero1
sync=fsdp
sync=compression sync.method=fp16
sync=compression sync.method=bf16
sync=compression sync.method=topk sync.density=0.05
sync=compression sync.method=topk sync.density=0.05 sync.memory=ef21
sync=compression sync.method=randomk sync.density=0.2 task.lr=4
sync=compression sync.method=sign
sync=compression sync.method=sign_majority task.lr=0.02
sync=compression sync.method=qsgd
sync=compression sync.method=powersgd
sync=local_sgd
sync=local_sgd sync.start_step=100
sync=local_sgd sync.outer_lr=0.7 sync.outer_momentum=0.9 sync.nesterov=true
sync=decentralised
sync=decentralised sync.graph=exponential
sync=decentralised sync.graph=one_peer_exponential
sync=decentralised sync.graph=complete
sync=decentralised sync.compression=topk sync.density=0.1 sync.consensus_lr=0.2
sync=decentralised sync.compression=qsgd
"""


def trained(worker: Worker, root: Path, overrides: list[str]) -> tuple[float, float, float]:
    """Return this rank's last distance to the optimum, bytes per step and accuracy (%)."""
    experiment = compose(overrides)
    run = replace(worker, data_root=root, seed=1, sync=experiment.sync)
    result = train(registry.build(experiment.task, run), run)
    sent = sum(times.bytes_sent or 0 for times in result.phase_times) / result.steps
    return result.table[-1]["distance_to_optimum"], sent, result.validations[-1]["metrics"]["accuracy"]


def main() -> None:
    """Train with every strategy and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    given = parser.parse_args()
    common = ["task=logreg", f"task.epochs={given.epochs}", "goal=none", "division=open"]
    common.append(f"workers={given.workers}")
    registry.load("logreg").prepare(compose(["task=logreg"]).task, given.data_root)
    with RankPool(given.workers) as pool:
        for command in COMMANDS.splitlines():
            ranks = pool.run(trained, given.data_root, [*common, *command.split()])
            sent = sum(rank[1] for rank in ranks) / given.workers
            print(f"{command:85} {ranks[0][0]:.4f} {sent:8,.0f} B {ranks[0][2]:.2f} %", flush=True)


if __name__ == "__main__":
    main()
