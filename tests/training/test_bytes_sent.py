"""The bytes that strategies say they sent beside what the interface's counters show."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PATIENCE_S

COMMANDS = [
    ["sync=ddp"],
    ["sync=all_reduce"],
    ["sync=all_reduce", "sync.message=layer"],
    ["sync=zero1"],
    ["sync=fsdp"],
    ["sync=compression", "sync.method=bf16"],
    ["sync=compression", "sync.method=topk", "sync.density=0.1"],
    ["sync=compression", "sync.method=sign"],
    ["sync=compression", "sync.method=sign_majority"],
    ["sync=compression", "sync.method=qsgd"],
    ["sync=compression", "sync.method=powersgd", "sync.rank=8"],
    ["sync=local_sgd", "sync.every=2"],
    ["sync=decentralised"],
    ["sync=decentralised", "sync.graph=exponential", "sync.compression=topk", "sync.density=0.1",
     "sync.consensus_lr=0.2"],
]  # fmt: skip
# Headers: TCP over loopback carries up to 64 KB a packet of 66 bytes of headers, and acknowledges. gloo cuts
# a ring into many messages with headers: some 200 kB in six steps of PowerSGD's two small all-reduces.
SHARE, FIXED = 0.01, 250_000  # of the bytes; bytes


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"),
    reason="needs root, unshare (util-linux) and ip (iproute2) for a network namespace of its own",
)
def test_what_is_counted_is_what_the_interface_sends() -> None:
    here = Path(__file__).parent
    path = os.pathsep.join(map(str, [here.parent.parent, here.parent, here]))
    script = f"ip link set lo up && exec {sys.executable} {here / 'loopback.py'} '{json.dumps(COMMANDS)}'"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    for overrides, counted, sent in rows:
        print(f"{' '.join(overrides):80} counted {counted:>12,} interface {sent:>12,}")
    assert len(rows) == len(COMMANDS)
    for overrides, counted, sent in rows:
        assert counted <= sent <= (1 + SHARE) * counted + FIXED, (overrides, counted, sent)
