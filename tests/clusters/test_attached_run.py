"""Runs on a Ray that was there before: three raylets on hosts of their own, with file systems of their own.

Its two workers' nodes differ, which a run refuses (on pods scripts train: test_script_on_pods.py).
"""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from commands import PATIENCE_S, until
from conftest import ROOT

from mlbench.clusters import reaper
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.record import events

links = pytest.importorskip("mlbench.plugins.emulation.links")
namespace = pytest.importorskip("mlbench.plugins.emulation.namespace")
pytestmark = pytest.mark.slow
PORT = 6380  # another than that of emulated hosts: Ray refuses an address that a process already names
ADDRESS = f"{links.HEAD}:{PORT}"
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
RAY += ["--object-store-memory=100000000", "--include-log-monitor=false"]  # bytes; nobody reads the logs
# What a host sees of these folders is its own.
HIDDEN = 'for folder in {}; do mkdir -p $folder && mount -t tmpfs none $folder || exit; done; exec "$@"'


@dataclass
class Cluster:
    """A Ray on emulated hosts.

    - head, laptop: words before a command that run it beside the head, where a driver belongs, or on a host
      of the same network without a raylet.
    - output: the folder of the driver's files.
    """

    head: list[str]
    laptop: list[str]
    environment: dict[str, str]
    output: Path
    data_root: Path

    def start(self, name: str, *overrides: str, host: list[str], **variables: str) -> "subprocess.Popen[str]":
        """Start the command on a host, in an output root of that name."""
        command = [sys.executable, "-m", "mlbench.run", "task=logreg", "workers=2", "seed=7"]
        command += ["cluster=attached", f"cluster.address={ADDRESS}"]
        command += [f"output_root={self.output / name}", f"data_root={self.data_root}", *overrides]
        return subprocess.Popen(
            [*host, *command], cwd=ROOT, env={**self.environment, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def raylets(self) -> int:
        alive = {process.pid for _, process in reaper.processes(reaper.owner())}
        named = psutil.process_iter(["name"])
        return sum(process.pid in alive and process.info["name"] == "raylet" for process in named)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> Iterator[Cluster]:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("nodes of two types need two CPUs")
    with ExitStack() as stack:
        try:
            links.require(compose(["network=1gbit_1ms"]).network, 2)
        except UserError as error:
            pytest.skip(f"hosts cannot be emulated here: {error}")
        places = [namespace.create(name) for name in ("head", "host0", "host1", "laptop")]
        for machine in places:
            stack.callback(machine.close)
        head, *hosts = places
        links.connect(head, hosts)
        folder = Path(tempfile.mkdtemp(prefix="mlbt-"))  # short: Ray's sockets lie in it
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        output = tmp_path_factory.mktemp("output")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            **reaper.environment(),
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        notes = Path(tempfile.gettempdir(), "ray")  # where Ray notes its address
        stack.callback(shutil.rmtree, notes, ignore_errors=True)
        hidden = HIDDEN.format(f"{folder} {notes} {data_root} {tmp_path_factory.getbasetemp()}")
        own_files = ["unshare", "--mount", "sh", "-c", hidden, "sh"]
        arguments = [*RAY, "--head", f"--port={PORT}", f"--node-ip-address={links.HEAD}", "--num-cpus=0"]
        commands = [head.command([*arguments, f"--temp-dir={folder}", "--include-dashboard=false"])]
        for number, host in enumerate(hosts[:2]):
            own = links.address(links.CONTROL, number)
            cpus = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if number else []
            arguments = [*RAY, f"--address={ADDRESS}", f"--node-ip-address={own}", "--num-cpus=1"]
            commands.append(host.command([*cpus, *own_files, *arguments]))
        laptop = hosts[2].command(own_files)
        cluster = Cluster(head.command([]), laptop, environment, output, data_root)
        for number, command in enumerate(commands, start=1):
            with open(folder / f"{number}.log", "w") as log:
                started = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(started.wait)
            stack.callback(reaper.end, reaper.owner())  # what the raylets started, too
            until(lambda number=number: cluster.raylets() == number)
        yield cluster


def finished(process: "subprocess.Popen[str]") -> tuple[int, str]:
    output, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, output


def test_who_cannot_join_and_nodes_with_all_that_does_not_fit_are_refused(cluster: Cluster) -> None:
    """Only nodes of several machines differ, and share no files; Ray itself would try to join for minutes."""
    laptop = cluster.start("laptop", host=cluster.laptop)
    stranger = cluster.start("stranger", host=cluster.head, RAY_AUTH_TOKEN="0" * 64)
    code, text = finished(laptop)
    assert code == 2 and f"Ray cluster at {ADDRESS}" in text, text
    code, text = finished(stranger)
    assert code == 2 and f"the server at {ADDRESS} accepts no driver" in text and "the same token" in text, (
        text
    )
    code, text = finished(cluster.start("closed", "max_failures=1", "cluster.wait_s=120", host=cluster.head))
    assert code == 2, text
    assert "are of 2 types" in text and "1 CPU (" in text and "division=open" in text
    assert "max_failures= needs" in text and "rank 0, 1 does" in text
    (log,) = cluster.output.glob(f"closed/*/{events.NAME}")
    assert not any(event["key"] == "validation" for event in events.read(log))
