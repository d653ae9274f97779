"""A run on emulated hosts, as a command: three raylets in three namespaces."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from mlbench.clusters.emulation import links, reaper
from mlbench.experiment import record
from mlbench.experiment.config import compose
from mlbench.experiment.errors import UserError
from mlbench.terminal.full_card import network

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    try:
        links.require(compose(["network=1gbit_1ms"]).network, 2)
    except UserError as error:
        pytest.skip(f"hosts cannot be emulated here: {error}")


def run(output: Path, data_root: Path, *words: str, before: tuple[str, ...] = ()) -> tuple[int, str]:
    command = [sys.executable, "-m", "mlbench.run", f"output_root={output}", f"data_root={data_root}"]
    command += ["task=logreg", "network=1gbit_1ms", *words]
    done = subprocess.run(
        [*before, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.returncode, done.stdout


def test_a_run_on_three_hosts_whose_slow_rank_has_the_slow_link(tmp_path: Path, data_root: Path) -> None:
    owners = {owner for owner, _ in reaper.processes()}
    slow = ("network.bandwidth_mbit_s=200", "network.slow_rank=1", "network.slow_bandwidth_mbit_s=50")
    code, output = run(tmp_path, data_root, "workers=3", *slow)
    assert code == 0, output
    (folder,) = (path.parent for path in tmp_path.glob("*/record.json"))
    measured = record.load(folder / "record.json")
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
    assert {owner for owner, _ in reaper.processes()} <= owners, "something was left behind"


def test_a_network_that_cannot_be_had_is_one_sentence_before_any_worker(
    tmp_path: Path, data_root: Path
) -> None:
    code, output = run(tmp_path / "fast", data_root, "network.bandwidth_mbit_s=1e6")
    assert code == 2 and "network=1gbit_1ms cannot be emulated here now" in output
    assert not reaper.reap()
    weak = ("setpriv", "--bounding-set=-sys_admin,-net_admin")
    code, output = run(tmp_path / "weak", data_root, before=weak)
    assert code == 2 and "for which this process lacks a right" in output
