"""mlbench's own clusters keep the contract that ships for those of others."""

from mlbench.contract.test_cluster import *  # noqa: F403
