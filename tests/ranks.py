"""The suite's own tests start ranks as the contract tests do."""

from mlbench.contract.ranks import mini_worker, run_ranks

__all__ = ["mini_worker", "run_ranks"]
