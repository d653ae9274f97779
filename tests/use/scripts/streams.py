"""Reads standard input, writes to both streams, logs, and imports a module of lib."""

import logging
import sys

from steps_of import train  # in lib, which PYTHONPATH names

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
print("first line of standard input:", sys.stdin.readline().strip())
for epoch in range(3):
    loss = train()
    logging.info("epoch %d", epoch)
    sys.stdout.write(f"\repoch {epoch} loss {loss:.6f}")
    print(".", end="", file=sys.stderr)
print()
