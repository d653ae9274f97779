"""`python -m mlbench.results`, the same as `mlbench results`."""

import sys

from mlbench.results import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
