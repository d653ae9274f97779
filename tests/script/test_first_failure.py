"""Where each rank of a run that hangs is, and what the kernel has killed."""

from pathlib import Path
from typing import Any

import pytest

from mlbench.probe.stamps import BACKWARD, DATA, DATA_END, FORWARD, FORWARD_END, LAUNCH, STEP, Stamp
from mlbench.script import memory_kills, summary
from mlbench.script.collector import Collector
from mlbench.script.listener import Rank

WHOLE: list[Stamp] = [(FORWARD, 1.0), (FORWARD_END, 2.0, 1, 4, 0), (BACKWARD, 2.0, 1), (STEP, 3.0)]
LAUNCHED: list[Stamp] = [*WHOLE[:3], (LAUNCH, 2.5)]


def rank(*stamps: Stamp, last: bool = False) -> Rank:
    made: Any = Rank({})
    made.steps += made.splitter.feed(stamps)
    made.last = last
    return made


def test_a_hang_is_told_by_rank_and_step() -> None:
    collector = Collector("127.0.0.1", metric="none", goal=None)
    collector.ranks = {
        0: rank(*WHOLE * 3, *LAUNCHED),
        1: rank(*WHOLE * 2, (DATA, 9.0), (DATA_END, 9.5)),
        2: rank(*WHOLE * 3, *LAUNCHED),
        3: rank(*WHOLE * 2, last=True),
    }
    where = summary.standstill(collector)
    collector.close()
    assert where == (
        "ranks 0, 2: waits for the all-reduce of its gradients in step 4; "
        "rank 1 has made 2 steps, and has got a batch, or has ended its DataLoader; "
        "rank 3 has made 2 steps, and has ended"
    )
    assert summary.failure([None], [""], 30.0, where) == (
        f"the script hung: no step and no output for 30 s (task.stall_s); {where}"
    )


@pytest.mark.parametrize("group", ["0::/job", "4:memory,cpu:/job"])
def test_a_kill_for_want_of_memory_is_told_where_a_counter_has_risen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    events = "memory.events" if group.startswith("0") else "memory.oom_control"
    folder = tmp_path / "sys/fs/cgroup" / ("" if group.startswith("0") else "memory") / "job"
    (tmp_path / "proc/self").mkdir(parents=True)
    folder.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    (tmp_path / "proc/vmstat").write_text("pgfault 7\noom_kill 2\n")
    before = memory_kills.count(tmp_path)
    (folder / events).write_text("under_oom 0\noom_kill 3\n")
    after = memory_kills.count(tmp_path)
    assert (before, after) == (2, 3) and memory_kills.count() >= 0
    monkeypatch.setattr(memory_kills, "count", lambda: after)
    killed = "the script ended with exit code 137 (SIGKILL)"
    assert "probably out of memory" in str(summary.killed(killed, before))
    assert summary.killed(killed, after) == killed
    assert summary.killed("ValueError", before) == "ValueError" and summary.killed(None, before) is None
