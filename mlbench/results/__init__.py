"""Finished runs: what was measured in output_root, and how it compares."""

from functools import partial

# In the order in which --help lists their verbs.
# isort: off
from mlbench.results import reading as reading
from mlbench.results import exchange as exchange
from mlbench.results import store as store
# isort: on

from mlbench.results.command import COMMAND
from mlbench.terminal.args import run_command

main = partial(run_command, COMMAND)
