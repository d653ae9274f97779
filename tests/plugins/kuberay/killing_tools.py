"""Commands of clouds that kill, by SIGKILL, the command of mlbench that has called them."""

import shutil
from collections.abc import Sequence
from pathlib import Path

# The tool itself; after the step number $KILL_AT its caller is killed, "during" it while the tool goes on.
SHIM = """#!/bin/sh
case " $* " in {patterns}) ;; *) exec {tool} "$@";; esac
number=$(($(cat {count}) + 1)); echo $number > {count}
if [ "$KILL_AT" = "during $number" ]; then {tool} "$@" & kill -9 $PPID; wait; exit 0; fi
{tool} "$@"; code=$?
[ "$KILL_AT" = "after $number" ] && kill -9 $PPID
exit $code
"""


def write(folder: Path, name: str, arguments: Sequence[str], *, tool: str | None = None) -> None:
    """Write a command that counts as a step of `up` where one of `arguments` is among its own.

    All commands of a folder count together. `tool` is called in its place; None: the one on the PATH.
    """
    tool = tool or shutil.which(name)
    assert tool is not None
    count = folder / "count"
    count.write_text("0")
    patterns = "|".join(f'*" {word} "*' for word in arguments)
    (folder / name).write_text(SHIM.format(patterns=patterns, tool=tool, count=count))
    (folder / name).chmod(0o755)
