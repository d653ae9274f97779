"""Which rank NCCL waited for, from dumps in torch's own format, some of which torch itself has written."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from mlbench.launch import flight_recorder, process_group, rank_logs
from mlbench.launch.failures import WorkersFailed
from mlbench.record import official

TORCHS = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def entry(number: int, name: str = "nccl:all_reduce", **more: Any) -> dict[str, Any]:
    """Return a collective as torch 2.13 writes it (format 2.10)."""
    frames = [
        {"name": "all_reduce", "filename": TORCHS, "line": 3245},
        {"name": "step", "filename": "/w/train.py", "line": 10 + number},
    ]
    return {
        "frames": frames, "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"),
        "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "profiling_name": name,
        "time_created_ns": 1795794097923470101, "input_sizes": [[4]], "input_dtypes": ["Float"],
        "output_sizes": [[4]], "output_dtypes": ["Float"], "state": "scheduled", "is_p2p": False,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": False,
        "timeout_ms": 600000, "thread_id": "140459248851840", "thread_name": "python",
    } | more  # fmt: skip


def dump(*entries: dict[str, Any]) -> dict[str, Any]:
    configuration = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    return {
        "version": "2.10",
        "comm_lib_version": "2.28.9",
        "entries": [*entries],
        "pg_config": configuration,
    }


ALL = dump(entry(1), entry(2), entry(3))
OTHER_GROUP = entry(9, process_group=("1", "undefined"))
CASES = {
    "behind": (
        {0: ALL, 1: dump(entry(1), entry(2), OTHER_GROUP, entry(8, is_p2p=True)), 2: ALL},
        "NCCL waited for rank 1, which did not begin collective 3 (nccl:all_reduce of [[4]] in /w/train.py, "
        "line 13); its last was collective 2 in /w/train.py, line 12",
    ),
    "never began": ({0: ALL, 1: dump(), 2: ALL}, "NCCL waited for rank 1, which did not begin collective 3"),
    "silent": ({0: ALL, 2: ALL}, "NCCL waited for rank 1, which had stopped answering"),
    "another": (
        {0: ALL, 1: ALL, 2: dump(entry(2), entry(3, "nccl:all_gather"))},
        "rank 2 nccl:all_gather of [[4]] in /w/train.py, line 13, the others nccl:all_reduce of [[4]]",
    ),
    "another size": (
        {0: ALL, 1: dump(entry(3, input_sizes=[[5]])), 2: ALL},
        "rank 1 nccl:all_reduce of [[5]] in /w/train.py, line 13, the others nccl:all_reduce of [[4]]",
    ),
    "the network": ({0: ALL, 1: ALL, 2: ALL}, None),
    "nothing": ({}, None),
    "another format": ({0: dump({"profiling_name": "nccl:all_reduce"})}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rank_is_named_that_the_others_waited_for(case: str, tmp_path: Path) -> None:
    dumps, sentence = CASES[case]
    logs = []
    for rank in range(3):
        log = tmp_path / f"worker-{rank}.out"
        log.write_text("a line\n")
        logs.append(f"{log} on here")
        if rank in dumps:
            Path(f"{log}.trace{rank}").write_bytes(pickle.dumps(dumps[rank], protocol=2))
    (run := tmp_path / "run").mkdir()
    places = rank_logs.kept(logs, run)
    assert {path.name for path in run.glob("*.trace")} == {f"rank_{rank}.trace" for rank in dumps}
    cause = rank_logs.named(WorkersFailed("rank 0, 1, 2 died"), places)
    if sentence is None:
        assert str(cause) == "rank 0, 1, 2 died"
    else:
        assert sentence in str(cause) and str(cause).endswith("; rank 0, 1, 2 died")
    assert str(rank_logs.named(ValueError("a bug"), places)) == "a bug"


REAL = """
import os, sys
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
dist.init_process_group("gloo")
rank, number = dist.get_rank(), torch.ones(4)
for _ in range(2):
    dist.all_reduce(number)
if rank == 0:
    dist.all_reduce(torch.ones(3), async_op=True)  # which rank 1 never comes to
open(f"{sys.argv[1]}/rank_{rank}.trace", "wb").write(_dump_fr_trace())
sys.stdout.flush()
os._exit(0)
"""


def test_dumps_of_torch_itself_are_read(tmp_path: Path) -> None:
    """gloo's, as NCCL needs GPUs: one recorder and one format."""
    (tmp_path / "ranks.py").write_text(REAL)
    more = {"TORCH_FR_BUFFER_SIZE": "100", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(tmp_path / "ranks.py"), str(tmp_path)],
        cwd=ROOT, env=os.environ | more, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    dumps: Any = {rank: flight_recorder.read(tmp_path / f"rank_{rank}.trace") for rank in range(2)}
    assert [len(dump["entries"]) for dump in dumps.values()] == [3, 2]
    told = flight_recorder.first_cause(dumps, 2)
    assert told is not None and "waited for rank 1" in told and "collective 3 (gloo" in told
    assert f"of [[3]] in {tmp_path / 'ranks.py'}, line 10" in told


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_dump_calls_nothing_and_a_torn_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.trace"
    path.write_bytes(pickle.dumps({"entries": [Bomb(tmp_path / "made")]}))
    assert flight_recorder.read(path) is None and not (tmp_path / "made").exists()
    for content in (pickle.dumps(ALL)[:50], b"", pickle.dumps([1]), pickle.dumps({"entries": 3})):
        path.write_bytes(content)
        assert flight_recorder.read(path) is None
    assert flight_recorder.read(tmp_path / "absent") is None


def test_a_worker_dumps_next_to_its_log_and_stays_official(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "worker.out"
    log.touch()
    for name in flight_recorder.variables(""):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "7")  # the user's
    monkeypatch.setattr(os.path, "realpath", lambda path: str(log))
    assert process_group.import_backend(None).startswith(f"{log} on ")
    assert os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == f"{log}.trace"
    assert os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "7"
    assert os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    patterns = official.CHANGING["changes arithmetic or the library that does it"][1]
    assert all(
        any(name.startswith(each.rstrip("*")) for each in patterns) for name in flight_recorder.variables("")
    )
