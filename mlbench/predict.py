"""`mlbench predict`: a command that an installed package brings (mlbench/config/plugins.py)."""

import sys
from functools import partial

from mlbench.terminal.args import installed, run_command

COMMAND = installed("predict")
main = partial(run_command, COMMAND)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
