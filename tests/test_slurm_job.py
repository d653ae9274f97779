"""The job scripts of docs/slurm.md on a real Slurm: slurmctld and two slurmds, each on its own host."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import PATIENCE_S, Runs, until
from conftest import ROOT
from doc_pages import blocks

from mlbench.config.compose import compose
from mlbench.config.errors import UserError

links = pytest.importorskip("mlbench.plugins.emulation.links")
namespace = pytest.importorskip("mlbench.plugins.emulation.namespace")

pytestmark = pytest.mark.slow
PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged")
HOSTS = ("host0", "host1")
CONFIGURATION = """
ClusterName=test
SlurmctldHost=head({head})
AuthInfo=socket={folder}/munge
SlurmUser=root
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
PartitionName=all Nodes=ALL Default=YES
"""
NODE = "NodeName={} NodeAddr={} CPUs=1 RealMemory=4000\n"
# `ray stop` ends all of a user's Rays that it sees; a slurmd's end ends what its jobs have left.
# The shell waits for the orphans of a job, which slurmd as process 1 would not.
OWN_PROCESSES = [
    "unshare",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "bash",
    "-c",
    '"$@"; exit',
    "-",
]


@dataclass
class Slurm:
    """Two nodes with a CPU each; `login` are the words before a command that run it beside slurmctld."""

    login: list[str]
    environment: dict[str, str]

    def __call__(self, *command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm."""
        return subprocess.run(
            [*self.login, *map(str, command)], env=self.environment, cwd=cwd, timeout=PATIENCE_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def job(self, script: str, *arguments: object, cwd: Path) -> tuple[int, str]:
        """Submit a script of the page in a folder and wait; return its exit code, and what it printed."""
        (cwd / "mlbench.sbatch").write_text(script)
        limits = ["--wait", "--nodes=2", "--cpus-per-task=1", "--output=out.log"]
        done = self("sbatch", *limits, "mlbench.sbatch", *arguments, cwd=cwd)
        logs = [path.read_text() for path in cwd.glob("*.log")]
        return done.returncode, "\n".join([done.stdout, *logs])


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"there is no {missing[0]}: apt-get install slurm-wlm munge")
    with ExitStack() as stack:
        try:
            links.require(compose(["network=1gbit_1ms"]).network, len(HOSTS))
        except UserError as error:
            pytest.skip(f"hosts cannot be emulated here: {error}")
        folder = Path(tempfile.mkdtemp(prefix="mlbt-"))  # short: Ray's sockets lie in it
        stack.callback(shutil.rmtree, folder)
        head, *hosts = [namespace.create(name) for name in ("head", *HOSTS)]
        for host in (head, *hosts):
            stack.callback(host.close)
        links.connect(head, hosts)
        addresses = [links.address(links.CONTROL, number) for number in range(len(hosts))]
        text = CONFIGURATION.format(head=links.HEAD, folder=folder)
        text += "".join(NODE.format(*node) for node in zip(HOSTS, addresses, strict=True))
        (folder / "slurm.conf").write_text(text)
        (folder / "key").write_bytes(os.urandom(64))
        (folder / "key").chmod(0o600)
        for name in ("state", "tmp"):
            (folder / name).mkdir()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "SLURM_CONF": str(folder / "slurm.conf"),
            "TMPDIR": str(folder / "tmp"),
            "MLBENCH_VENV": sys.prefix,
            "PYTHONPATH": str(ROOT),
            "GLOO_SOCKET_IFNAME": "control",  # as these hosts' names are known to nobody
        }

        def start(command: list[str]) -> None:
            with (folder / "daemons.log").open("a") as log:
                daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(daemon.wait)
            stack.callback(daemon.kill)

        files = {"socket": "munge", "key-file": "key", "pid-file": "pid", "seed-file": "seed"}
        munged = [f"--{option}={folder / name}" for option, name in files.items()]
        start(["munged", "--foreground", "--force", *munged, f"--log-file={folder / 'munge.log'}"])
        until((folder / "munge").exists)
        start(head.command(["slurmctld", "-D"]))
        for host in hosts:
            start(host.command([*OWN_PROCESSES, "slurmd", "-D", "-N", host.hostname]))
        made = Slurm(head.command([]), environment)
        until(lambda: made("sinfo", "--noheader", "--states=idle", "--format=%D").stdout == "2\n")
        yield made


@pytest.fixture(scope="module")
def scripts() -> list[str]:
    return blocks(ROOT / "docs" / "slurm.md", "sh")


def test_a_job_trains_on_a_ray_of_its_own_on_both_nodes_and_ends_it(
    slurm: Slurm, scripts: list[str], tmp_path: Path, data_root: Path
) -> None:
    overrides = ["task=logreg", "workers=2", "hardware.workers_per_node=1", "hardware.cpus=1", "seed=7"]
    code, text = slurm.job(scripts[0], *overrides, f"data_root={data_root}", cwd=tmp_path)
    assert code == 0 and "GOAL REACHED" in text, text
    record = Runs(tmp_path / "runs").record()
    assert sorted(node.hostname for node in record.nodes) == list(HOSTS)
    # Ray's node on the second host ends with the job; Slurm needs a moment for that.
    until(lambda: "raylet" not in slurm("srun", "--nodes=2", "ps", "-e", "--format=comm").stdout)


def test_a_job_measures_a_script_that_srun_starts(slurm: Slurm, scripts: list[str], tmp_path: Path) -> None:
    script = ROOT / "tests/script/scripts/ddp.py"
    code, text = slurm.job(scripts[1], script, 20, -1, 0, cwd=tmp_path)
    assert code == 0 and "GOAL REACHED" in text, text
    record = Runs(tmp_path / "runs").record()
    assert record.workers == 2 and [node.hostname for node in record.nodes] == list(HOSTS)
    assert record.nodes[1].cpu_model == record.nodes[0].cpu_model
    assert any(warning.startswith(f"{HOSTS[1]}: its energy") for warning in record.nodes[1].warnings)
