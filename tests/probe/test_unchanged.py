"""What a script saves, copies and forks under the probe is what it saves, copies and forks without it."""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT

from mlbench.probe import sender
from mlbench.script.collector import Collector

STARTUP = ROOT / "mlbench" / "probe" / "startup"
# What any script has: a model with a hook of its own that gets keywords, trained for some steps.
TRAINED = """
import copy, io, os, pickle, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

def own(module, args, kwargs, output):
    pass

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
model.register_forward_hook(own, with_kwargs=True, always_call=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (rows,) in DataLoader(TensorDataset(torch.randn(64, 4)), 8):
    optimizer.zero_grad()
    model(rows).pow(2).mean().backward()
    optimizer.step()
"""


def ran(folder: Path, script: str, *, watched: bool, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script with the probe in it, or without; nobody takes its stamps."""
    path = folder / "script.py"
    path.write_text(TRAINED + textwrap.dedent(script))
    environment = os.environ | variables
    if watched:
        environment = {sender.ADDRESS: "127.0.0.1:9", **environment, "PYTHONPATH": str(STARTUP)}
    return subprocess.run(
        [sys.executable, path], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


SAVED = """
torch.save(model, "whole")
torch.save(model.state_dict(), "state")
torch.save(optimizer, "optimizer")
addressless = copy.deepcopy(model).to("meta")  # pickled weights name their place in memory
pickle.dump(addressless, open("pickle", "wb"))
torch.save(copy.deepcopy(model), "copy")
names = [torch.nn.Sequential, torch.nn.Linear, torch.nn.ReLU, own]
with torch.serialization.safe_globals(names):
    print(torch.load("whole", weights_only=True))
print([(name, [*(hooks or ())]) for name, hooks in vars(model).items() if "hook" in name])
model._forward_hooks.clear()  # which TorchScript and torch.fx cannot read
print(torch.jit.script(model).inlined_graph, torch.jit.trace(model, rows).inlined_graph)
print(torch.export.export(model, (rows,)).graph)
print(torch.fx.symbolic_trace(model).code)

class Interrupted(torch.nn.Module):
    def forward(self, rows):
        raise KeyboardInterrupt

model.append(Interrupted())
try:
    model(rows)
except KeyboardInterrupt:
    torch.save(model.state_dict(), "interrupted")
    assert b"mlbench" not in pickle.dumps(model)
"""


def test_what_is_saved_is_byte_for_byte_what_is_saved_without_the_probe(tmp_path: Path) -> None:
    outputs: list[Any] = []
    for watched in (False, True):
        done = ran(tmp_path, SAVED, watched=watched)
        assert done.returncode == 0, done.stderr
        files = [path for path in sorted(tmp_path.iterdir()) if path.suffix != ".py"]
        outputs.append({path.name: path.read_bytes() for path in files} | {"printed": done.stdout})
    plain, measured = outputs
    assert len(plain) == 7 and plain.keys() == measured.keys()
    assert [name for name in plain if plain[name] != measured[name]] == []


# Events of a GPU, which abort a process that has not made them: a fork can neither use nor free them.
FORKED = """
import gc, multiprocessing, time
from mlbench.probe import install

class Event:
    def __init__(self, enable_timing=True):
        self.at, self.pid = 0.0, os.getpid()

    def _used(self, *_):
        if os.getpid() != self.pid:
            os.abort()

    def record(self, stream=None):
        self._used()
        self.at = time.perf_counter()

    def query(self):
        self._used()
        return True

    def elapsed_time(self, other):
        self._used()
        return 1e3 * (other.at - self.at)

    __del__ = synchronize = _used

torch.cuda.Event = Event
torch.cuda.Stream = lambda *_, **__: 0
for name in ("synchronize", "current_stream", "max_memory_allocated"):
    setattr(torch.cuda, name, lambda device=None: 0)
torch.cuda.is_current_stream_capturing = lambda: False
install.start(torch).recording.begin_anew(torch.device("cuda:0"))

def train(workers=0):
    for (rows,) in DataLoader(TensorDataset(torch.randn(64, 4)), 8, num_workers=workers):
        optimizer.zero_grad()
        model(rows).pow(2).mean().backward()
        optimizer.step()

def ended(child):
    assert os.waitpid(child, 0)[1] == 0

def begun(kind):
    process = multiprocessing.get_context(kind).Process(target=train)
    process.start()
    process.join()
    assert process.exitcode == 0

if __name__ == "__main__":
    train()
    for _ in range(2):
        train(workers=2)  # not persistent: they start in each epoch
    begun("fork")
    if not (child := os.fork()):
        train()
        gc.collect()
        sys.exit()  # frees all that Python can
    ended(child)
    if not (child := os.fork()):
        optimizer, model = None, copy.deepcopy(model)
        gc.collect()
        os._exit(0)
    ended(child)
    begun("spawn")
    train()
    print("unharmed")
"""


def test_a_fork_neither_uses_nor_frees_an_event_of_its_parent(tmp_path: Path) -> None:
    collector = Collector("127.0.0.1", metric="none", goal=None)
    place = {sender.ADDRESS: collector.address, sender.TOKEN: collector.token}
    try:
        done = ran(tmp_path, FORKED, watched=True, **place)
        assert (done.returncode, done.stdout) == (0, "unharmed\n"), done.stderr
        collector.drain(60)
        collector.take(final=True)
    finally:
        collector.close()
    assert 32 <= sum(times[0].steps for _, times in collector.intervals) <= 40  # but for some on the CPU
    assert collector.refused == 3  # processes that trained beside it
    assert {note for note in collector.ranks[0].notes if note.startswith("failure")} == set()


def test_a_thread_that_was_about_to_send_connects_no_more_once_the_process_has_sent_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second connection would count as another process of the rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        monkeypatch.setenv(sender.ADDRESS, f"127.0.0.1:{server.getsockname()[1]}")
        about = sender.Sender()
        about._ended.set()  # by `finish`, where it has trained
        assert not about._flush(SimpleNamespace(recording=None), wait=False)
        with pytest.raises(BlockingIOError):
            server.accept()
