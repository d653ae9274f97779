"""mlbench's own sync strategies keep the contract that ships for those of others."""

from mlbench.contract.test_sync import *  # noqa: F403
