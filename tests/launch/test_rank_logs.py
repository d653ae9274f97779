"""What ranks had printed is there after the run, and tells whom NCCL waited for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from mlbench.launch import rank_logs

STUCK = (
    "[rank{0}]:[E808 04:21:41.161005534 ProcessGroupNCCL.cpp:2299] [PG ID 0 PG GUID 0(default_pg) Rank {0}]  "
    "failure detected by watchdog at work sequence id: 5 PG status: last enqueued work: {1}, "
    "last completed work: 4\n"
)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (
            {0: 7, 1: 5, 2: 7},
            "NCCL waited for rank 1, which began fewer collectives than the others",
        ),
        ({0: 7, 1: None, 2: 7}, "NCCL waited for rank 1, which had stopped answering"),
        ({0: 7, 1: 7}, None),  # all are in the same one: the network, not a rank
        ({0: None, 1: None}, None),  # nothing of NCCL's
    ],
)
def test_the_rank_is_named_that_nccl_waited_for(
    tmp_path: Path, texts: dict[int, int | None], sentence: str | None
) -> None:
    for rank, count in texts.items():
        text = "a line\n" if count is None else STUCK.format(rank, count)
        (tmp_path / f"rank_{rank}.log").write_text(text)
    places = [str(tmp_path / f"rank_{rank}.log") for rank in texts]
    assert rank_logs.first_cause(places) == sentence


FETCH = """
import json, sys
from pathlib import Path
import ray
from mlbench.launch import rank_logs
from mlbench.record import temporary_folder

def out_of_reach(*_):
    raise FileNotFoundError

folder = Path(sys.argv[1])
rank_logs.shutil.copyfile = out_of_reach  # this node stands for another, whose files only Ray reaches
own = str(temporary_folder.create()[0])  # removed with this process
ray.init(address="local", num_cpus=1, include_dashboard=False, _temp_dir=own)
host = ray.nodes()[0]["NodeManagerHostname"]
logs = [f"{folder}/worker.out on {host}", f"{folder}/worker.out on nowhere", f"{folder}/absent on {host}"]
print("PLACES", json.dumps([logs, rank_logs.kept(logs, folder / "run")]))
"""


@pytest.mark.slow
def test_the_last_lines_of_a_log_on_another_node_come_home(tmp_path: Path) -> None:
    (tmp_path / "worker.out").write_text("".join(f"line {number}\n" for number in range(1000)))
    (tmp_path / "run").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", FETCH, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    (answer,) = (line for line in done.stdout.splitlines() if line.startswith("PLACES "))
    logs, places = json.loads(answer.partition(" ")[2])
    assert places == [str(tmp_path / "run" / "rank_0.log"), *logs[1:]]
    lines = (tmp_path / "run" / "rank_0.log").read_text().splitlines()
    assert (len(lines), lines[-1]) == (rank_logs.LINES, "line 999")
