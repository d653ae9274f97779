"""Why a command has failed, by what torchrun 2.13 and its ranks print."""

import pytest

from mlbench.script.failure_cause import cause

AGENT = "E1127 07:53:14.755 2 torch/distributed/elastic/multiprocessing/api.py:1] failed (exitcode: {code})"
REPORT = """W1127 07:53:14.589 2 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 20942
{agent} local_rank: {rank} (pid: 20943) of binary: /usr/bin/python3
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
two.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-27_07:53:14
  host      : localhost
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 20943)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:11500"
TRACE = """Traceback (most recent call last):
  File "/work/train.py", line 33, in <module>
    loss(model(rows))
  File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl
    return forward_call(*args, **kwargs)
"""
USAGE = "usage: two.py [-h] [--how HOW]\ntwo.py: error: unrecognized arguments: --hwo x\n"


def report(rank: int, code: int) -> str:
    return REPORT.format(agent=AGENT.format(code=code), rank=rank, code=code)


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ("loss 0.5\n\x1b[1mTraceback\n  x\n\x1b[31mValueError\x1b[0m: bad\n", "ValueError: bad"),
        ("usage: train.py\ntrain.py: error: bad flag\n", "train.py: error: bad flag"),
        (
            f"[rank1]: Traceback\n[rank1]: ValueError: no rows\n[rank0]: {CLOSED}\n" + report(1, 1),
            "rank 1: ValueError: no rows",
        ),
        (
            f"[rank1]: ValueError: no rows\n[rank0]: {CLOSED}\n" + report(0, 1),  # seen in the other order
            "rank 1: ValueError: no rows",
        ),
        (f"[rank0]: {CLOSED}\n" + report(1, -9), "rank 1 was killed by SIGKILL"),
        (f"[rank0]: {CLOSED}\n" + report(1, 7), "rank 1 ended with exit code 7"),
        (f"ValueError: no rows\n[rank0]: {CLOSED}\n" + report(1, 1), "ValueError: no rows"),
        (f'  File "/src/mlbench/probe/collectives.py", line 68, in wait\n{CLOSED}\n', CLOSED),
        (USAGE + USAGE + report(0, 2), "two.py: error: unrecognized arguments: --hwo x"),
        (f"KeyError: 'lr'\n{CLOSED}\n", "KeyError: 'lr'"),
        (f"{TRACE}ValueError: bad\n", "ValueError: bad (train.py:33)"),
        (
            "".join(f"[rank1]: {line}\n" for line in f"{TRACE}ValueError: bad".splitlines())
            + f"[rank0]: {CLOSED}\n"
            + report(0, 1),
            "rank 1: ValueError: bad (train.py:33)",
        ),
        (f"{CLOSED}\n", CLOSED),
        ("", ""),
    ],
)
def test_the_first_rank_s_own_words_are_the_cause(printed: str, why: str) -> None:
    assert cause(printed.encode()) == why
