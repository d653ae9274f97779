"""Runs on emulated hosts, as commands: a raylet in a namespace for each host."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median

import psutil
import pytest
import torch
from commands import Run, until
from conftest import ROOT
from leftovers import USERS_RAY, await_nothing_but, leftovers, mlbench, ray_found
from ranks import run_ranks

from mlbench.clusters import reaper
from mlbench.clusters.emulation import cpu_share, links
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.record import reader
from mlbench.report import grouping
from mlbench.tasks import registry
from mlbench.terminal.full_card import network
from mlbench.training import loop
from mlbench.training.worker import Worker

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]
SLOW_CPUS = ("network.slow_rank=1", "network.slow_cpus=0.35")
BUSY = "a machine that is less busy"  # what may help where links miss their profile
# A step takes longer than the kernel's slices of time, so that a third of a CPU shows in each.
TRAINING = ("task=resnet20", "workers=2", "task.epochs=2", "goal=none", "division=open", "seed=5")


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    try:
        links.require(compose(["network=1gbit_1ms"]).network, 2)
    except UserError as error:
        pytest.skip(f"hosts cannot be emulated here: {error}")


def skip_if_busy(output: str) -> None:
    """Skip a test whose run was refused because other programs leave its links no CPU."""
    if BUSY in output:
        pytest.skip("other programs leave emulated links too little CPU")


def run(output: Path, data_root: Path, *words: str, before: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run the command; return exit code and output."""
    command = [sys.executable, "-m", "mlbench.run", f"output_root={output}", f"data_root={data_root}"]
    command += ["task=logreg", "network=1gbit_1ms", *words]
    done = subprocess.run(
        [*before, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.returncode, done.stdout


def test_a_run_on_three_hosts_whose_slow_rank_has_the_slow_link(tmp_path: Path, data_root: Path) -> None:
    slow = ("network.bandwidth_mbit_s=200", "network.slow_rank=1", "network.slow_bandwidth_mbit_s=50")
    code, output = run(tmp_path, data_root, "workers=3", *slow)
    skip_if_busy(output)
    assert code == 0, output
    (folder,) = (path.parent for path in tmp_path.glob("*/record.json"))
    measured = reader.load(folder / "record.json")
    assert [node.hostname for node in measured.nodes] == ["emulated0", "emulated1", "emulated2"]
    assert measured.links is not None and measured.links.hosts == 3
    by_pair = {(one.source, one.target): one for one in measured.links.measured}
    assert by_pair.keys() == {(0, 1), (2, 0)}
    assert by_pair[0, 1].bandwidth_mbit_s == pytest.approx(50, rel=0.1)
    assert by_pair[2, 0].bandwidth_mbit_s == pytest.approx(200, rel=0.1)
    assert by_pair[2, 0].round_trip_ms == pytest.approx(2, rel=0.1)
    # A ring of three passes every link four times, 1 ms each: more than this task computes in a step.
    assert measured.exposed_communication_share is not None and measured.exposed_communication_share > 0.3
    assert "the network is emulated: 200 Mbit/s and 1 ms, rank 1 at 50 Mbit/s" in measured.official_reasons
    assert network(measured)[0] == ("network", "3 emulated hosts, links by user space")


def test_a_network_that_cannot_be_had_is_one_sentence_before_any_worker(
    tmp_path: Path, data_root: Path
) -> None:
    code, output = run(tmp_path / "fast", data_root, "network.bandwidth_mbit_s=1e6")
    assert code == 2 and "network=1gbit_1ms cannot be emulated here now" in output
    assert not reaper.reap()
    weak = ("setpriv", "--bounding-set=-sys_admin,-net_admin")
    code, output = run(tmp_path / "weak", data_root, before=weak)
    assert code == 2 and "for which this process lacks a right" in output


def trained_by_gloo(worker: Worker, data_root: Path) -> dict[str, torch.Tensor]:
    """Train as a run with TRAINING does, in processes that gloo connects; return the model's state."""
    worker.data_root, worker.seed = data_root, 5
    setup = registry.build(compose(TRAINING).task, worker)
    loop.train(setup, worker)
    return setup.model.state_dict()


def sent_over_links() -> dict[str, int]:
    """Return the bytes that each emulated host has sent over its link, by the host's namespace."""
    counters = {}
    for _, process in reaper.processes():
        with suppress(OSError):  # it has just ended
            lines = Path(f"/proc/{process.pid}/net/dev").read_text().splitlines()[2:]
            interfaces = {
                name.strip(): values.split() for name, values in (line.split(":") for line in lines)
            }
            if links.INTERFACE in interfaces:
                place = os.readlink(f"/proc/{process.pid}/ns/net")
                counters[place] = int(interfaces[links.INTERFACE][8])  # proc(5): the ninth is bytes sent
    return counters


def test_mpi_trains_over_the_emulated_links_as_gloo_does_and_the_rank_with_less_cpu_is_found(
    tmp_path: Path, data_root: Path
) -> None:
    words = ("backend=mpi", "network=1gbit_1ms", *SLOW_CPUS, "max_failures=1")  # which keeps a checkpoint
    run = Run(dict(os.environ), tmp_path, data_root, *TRAINING, *words)
    validations, sent = 0, {}
    while run.process.poll() is None:
        epochs = run.validations() if list(tmp_path.glob("*/events.jsonl")) else 0
        counters = sent_over_links()
        if len(counters) == 2:
            validations, sent = epochs, counters
        time.sleep(0.2)
    code, output = run.finish()
    skip_if_busy(output)
    assert code == 0, output
    measured = run.record()
    assert measured.contradictions == []

    chosen = {"provider": "ofi tcp", "interface": links.INTERFACE}
    assert [chosen.items() <= node.transport.items() for node in measured.nodes] == [True, True]
    assert measured.gradient_bytes is not None and measured.gradient_bytes > 200_000
    least = validations * measured.steps / 2 * measured.gradient_bytes  # of two ranks each sends all once
    assert validations and min(sent.values()) > least, (validations, sent)

    if not measured.disturbances:  # else the other rank may have had as little CPU
        phases = measured.phases  # of two ranks
        assert phases["backward"].max > 1.3 * phases["backward"].min
        assert phases["wait"].max > 0.5 * (phases["backward"].max - phases["backward"].min)
        late = [median(block.median_s for block in blocks) for blocks in measured.lateness]
        assert late[1] > 0 > late[0]
        (group,) = grouping.groups([measured], with_disturbed=True)
        (sentence,) = grouping.waiting(group)
        assert sentence.startswith("2 workers: in 1 of 1 run a rank kept the others waiting; rank 1 keeps")

    (checkpoint,) = tmp_path.glob("ray/*/checkpoint*/state.pt")
    ours = torch.load(checkpoint, weights_only=True)["states"]["model"]
    for gloos in run_ranks(trained_by_gloo, 2, data_root):
        assert ours.keys() == gloos.keys()
        apart = {name: float((ours[name] - gloos[name]).abs().max()) for name in ours}
        assert max(apart.values()) <= 1e-6, apart


def test_a_run_that_is_ended_while_it_starts_leaves_no_control_group(tmp_path: Path, data_root: Path) -> None:
    run = Run(dict(os.environ), tmp_path, data_root, *TRAINING, "network=1gbit_1ms", *SLOW_CPUS)
    owner = reaper.owner(run.process.pid)
    root = cpu_share.controller()
    assert root is not None
    group = root / f"{reaper.PREFIX}{owner}"
    until(
        lambda: (
            run.process.poll() is not None
            or any(process.name() == "raylet" for process in in_group(group / "host1"))
        )
    )
    run.process.terminate()
    code, output = run.finish()
    skip_if_busy(output)
    assert code == 130, output
    assert not group.exists() and not reaper.processes(owner)


def trains_or_ended(run: Run) -> bool:
    return run.process.poll() is not None or bool(
        list(run.output.glob("*/events.jsonl")) and run.validations()
    )


PLAIN = "import ray; ray.init(include_dashboard=False); print(ray.get(ray.put(7)))"


def test_a_killed_run_on_hosts_leaves_nothing_and_no_address_that_a_plain_ray_would_join(
    own_places: dict[str, str], tmp_path: Path, data_root: Path
) -> None:
    before = leftovers(own_places)
    words = ("task=logreg", "goal=none", "division=open", "task.epochs=100000", "network.bandwidth_mbit_s=20")
    run = Run(own_places, tmp_path, data_root, *words, "network=1gbit_1ms", "network.cpus=1")
    until(partial(trains_or_ended, run))
    if run.process.poll() is not None:
        skip_if_busy(run.finish()[1])
    assert run.process.poll() is None, run.finish()[1]
    assert ray_found(own_places) == USERS_RAY, "while it runs"
    run.process.kill()
    run.process.communicate()
    assert any("control group" in name for name in leftovers(own_places) - before)
    mlbench(own_places, "reap")
    await_nothing_but(before, own_places)
    Path(own_places["TMPDIR"], "ray", "ray_current_cluster").unlink()
    done = subprocess.run([sys.executable, "-c", PLAIN], env=own_places, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "7")


def in_group(group: Path) -> list[psutil.Process]:
    """Return the processes in a control group."""
    processes = []
    if (group / "cgroup.procs").exists():
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(int(pid)))
    return processes
