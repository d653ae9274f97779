"""The suite's own tests start ranks as the contract tests do."""

from mlbench.contract.ranks import RankPool, mini_worker, run_ranks

__all__ = ["RankPool", "mini_worker", "run_ranks"]
