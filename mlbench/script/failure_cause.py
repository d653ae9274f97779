"""Finds why a command failed in what it printed: the first rank's words, not what followed from them."""

import re
import signal
from pathlib import Path

from mlbench.script.printed_metric import STYLE

RAISED = re.compile(
    r"^(?:[\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)"
)  # a traceback's last line
RANK = re.compile(r"^\[(?:rank|[A-Za-z_]\w*?)(\d+)\]: ?")  # torch's excepthook; torchrun --tee
# What the others of a process group raise once one of them has gone.
FOLLOWED = re.compile(
    r"(?i)connection (?:closed|reset|refused)|broken pipe|remote process exited|peer (?:closed|has)|"
    r"socket (?:closed|timeout)|DistBackendError|DistNetworkError|SignalException|ChildFailedError|"
    r"CalledProcessError"
)
FRAME = re.compile(r'^ *File "([^"]+)", line (\d+)')
LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|/mlbench/probe/|^<")
AGENT = re.compile(r"^[WEIF]\d{4} .*torch/distributed/(?:elastic|run)\b")  # what torchrun itself logs
ROOT = re.compile(
    r"Root Cause \(first observed failure\):.*?\n +rank +: (\d+).*?\n +exitcode +: (-?\d+)", re.S
)
LATER = re.compile(r"^(?:Traceback \(most recent call last\)|[EF]\d{4} .*torch/distributed/elastic/)")


def cause(log: bytes) -> str:
    """Return the line, or the sentence, for why the processes that printed this have failed."""
    text = plain(log.decode(errors="replace"))
    root = ROOT.search(text)
    lines = [line.rstrip() for line in text.split("\n") if re.search(r"\w", line)]
    ranks: dict[str, str] = {}  # the last exception of each rank that torch names
    others: list[str] = []
    frames: dict[str, str] = {}  # of each rank the last line of its own in a traceback
    for line in lines:
        named = RANK.match(line)
        who, words = (named[1], line[named.end() :]) if named else ("", line)
        if (frame := FRAME.match(words)) and not LIBRARY.search(frame[1]):
            frames[who] = f" ({Path(frame[1]).name}:{frame[2]})"
        elif RAISED.match(words):
            line += frames.pop(who, "")
        if named:
            said = line[named.end() :]
            if RAISED.match(said):
                ranks[named[1]] = said
            elif not said.startswith(("Traceback", " ")):
                others.append(said)
        elif not AGENT.match(line):
            others.append(line)
    own = {rank: said for rank, said in ranks.items() if not FOLLOWED.search(said)}
    if root and root[2].startswith("-") and not own:
        return f"rank {root[1]} was killed by {_signal(-int(root[2]))}"
    if not own and any(RAISED.match(line) and not FOLLOWED.search(line) for line in others):
        ranks = {}  # what others have raised is the cause
    named = own or ranks
    if root and named and not own and root[1] not in named:  # it only ended, e.g. by sys.exit(7)
        return f"rank {root[1]} ended with exit code {root[2]}"
    if named:
        first = root[1] if root and root[1] in named else next(iter(named))
        return f"rank {first}: {named[first]}"
    if root:  # torchrun's own traceback and its table come last
        agents = [index for index, line in enumerate(lines) if LATER.match(line) and "elastic" in line]
        before = [line for line in lines[: agents[0] if agents else None] if not AGENT.match(line)]
        others = before or others
    others = [line.strip() for line in others]
    raised = [line for line in others if RAISED.match(line) and "ChildFailedError" not in line]
    own_raised = [line for line in raised if not FOLLOWED.search(line)]
    return (own_raised or raised or others or [""])[-1]


def plain(text: str) -> str:
    """Return a text without colours and moves of the cursor."""
    return STYLE.sub(b"", text.encode(errors="replace")).decode()


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
