"""Stamps, steps, intervals and sources without any process."""

import importlib.util
import json
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import PATIENCE_S

from mlbench import clock
from mlbench.analysis.stragglers import straggler
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.config.goal import Goal
from mlbench.config.identity import key
from mlbench.probe import buckets, install, models, recording, sender
from mlbench.probe.stamps import (
    ASIDE,
    BACKWARD,
    BACKWARD_END,
    COMPARED,
    DATA,
    DATA_END,
    FORWARD,
    FORWARD_END,
    LAUNCH,
    MET,
    OBSERVED,
    OPTIMIZER,
    PARTLY,
    REDUCED,
    START,
    STEP,
    WHICH,
    Stamp,
    encode,
)
from mlbench.script import intervals, listener, sources, summary
from mlbench.script.collector import Collector
from mlbench.script.listener import Rank
from mlbench.script.steps import VALIDATION_END, Meeting, Splitter, Step, assemble
from mlbench.studies.grid import parse

STAMPS: list[Stamp] = [
    (DATA, 1.0),
    (DATA_END, 3.0),
    (FORWARD, 4.0),
    (FORWARD_END, 8.0),
    (BACKWARD, 9.0),
    (LAUNCH, 11.0),
    (REDUCED, 11.0, 13.0),
    (LAUNCH, 14.0),
    (BACKWARD_END, 14.5),
    (REDUCED, 14.0, 17.0),
    (OPTIMIZER, 18.0),
    (STEP, 20.0),
]
DURATIONS = ("validation", "data_wait", "forward", "loss", "backward", "transfer", "optimizer", "metrics")


def test_a_step_is_what_its_stamps_say() -> None:
    step = assemble(STAMPS, begin=0.5, rows=32)
    values = {name: getattr(step, name) for name in DURATIONS}
    assert values == {
        "validation": 0.0,
        "data_wait": 2.0,
        "metrics": 1.5,
        "forward": 4.0,
        "loss": 1.0,
        "backward": 5.0,
        "transfer": 3.0,
        "optimizer": 3.0,
    }
    assert (step.gap, step.meetings, step.overlapped, step.rows) == (
        3.5,
        ((14.0, 14.0, 17.0, COMPARED),),
        2.0,
        32,
    )
    assert sum(values.values()) == step.end - step.begin


def test_without_buckets_backward_ends_with_its_pass_and_without_a_pass_there_is_none() -> None:
    alone = [stamp for stamp in STAMPS if stamp[0] not in (LAUNCH, REDUCED)]
    step = assemble(alone, begin=0.5, rows=1)
    assert (step.backward, step.optimizer, step.transfer, step.meetings) == (5.5, 5.5, 0.0, ())
    step = assemble([stamp for stamp in alone if stamp[0] != BACKWARD_END], begin=0.5, rows=1)
    assert (step.backward, step.loss, step.metrics, step.optimizer) == (0.0, 1.0, 10.5, 2.0)


@pytest.mark.parametrize("next_one", [DATA, FORWARD, BACKWARD])
def test_each_micro_batch_has_a_backward_pass_and_a_transfer(next_one: int) -> None:
    stamps: list[Stamp] = []
    for begin in (0.0, 30.0):
        stamps += [(DATA, begin), (DATA_END, begin + 1), (FORWARD, begin + 1)]
        first = [(FORWARD_END, begin + 11), (BACKWARD, begin + 12), (LAUNCH, begin + 20)]
        stamps += [*first, (REDUCED, begin + 20, begin + 23), (LAUNCH, begin + 25)]
        stamps += [(BACKWARD_END, begin + 26), (REDUCED, begin + 25, begin + 28)]
    if next_one != DATA:  # without a DataLoader, or a second loss of one output
        stamps = [stamp for stamp in stamps if stamp[0] not in (DATA, DATA_END)]
    if next_one == BACKWARD:
        stamps = [stamp for stamp in stamps if stamp not in ((FORWARD, 31.0), (FORWARD_END, 41.0))]
    step = assemble([*stamps, (OPTIMIZER, 60.0), (STEP, 61.0)], begin=0.0, rows=1)
    assert (step.backward, step.transfer, step.optimizer) == (26.0, 6.0, 3.0)
    assert (step.overlapped, [each.launched for each in step.meetings]) == (6.0, [25.0, 55.0])
    assert sum(getattr(step, name) for name in DURATIONS) == step.end - step.begin == 61.0


def test_a_transfer_ends_at_the_latest_where_the_next_part_does() -> None:
    late = [(REDUCED, 14.0, 19.0) if stamp == (REDUCED, 14.0, 17.0) else stamp for stamp in STAMPS]
    step = assemble(late, begin=0.5, rows=1)
    assert (step.transfer, step.optimizer) == (4.0, 2.0)


def test_time_before_a_forward_pass_without_gradients_is_a_validation() -> None:
    step = assemble([(VALIDATION_END, 10.0), *_later()], begin=0, rows=1)
    assert (step.validation, step.gap, step.data_wait) == (10.0, 104.0, 2.0)


def test_what_follows_a_validation_until_the_next_epoch_begins_is_outside_the_steps() -> None:
    end = [(DATA, 11.0), (DATA_END, 12.0)]  # of the validation's loader; then the script saves its model
    epoch = [(START, 90.0), (DATA_END, 95.0), *_later()]
    step = assemble([(VALIDATION_END, 10.0), *end, *epoch], begin=0, rows=1)
    assert (step.validation, step.metrics, step.data_wait) == (90.0, 7.0, 7.0)
    step = assemble(epoch, begin=0, rows=1)
    assert (step.validation, step.metrics, step.data_wait) == (0.0, 97.0, 7.0)


def _later() -> list[Stamp]:
    return [(kind, *(at + 100 for at in moments)) for kind, *moments in STAMPS]


def _steps(count: int, *, late: float, draw: random.Random) -> list[Step]:
    made, at = [], 0.0
    for _ in range(count):
        launch = at + 3 + late + draw.uniform(0, 0.1)
        stamps = [(FORWARD, at + 1), (FORWARD_END, at + 2), (LAUNCH, launch)]
        stamps += [(REDUCED, launch, at + 7), (OPTIMIZER, at + 7), (STEP, at + 8)]
        made.append(assemble(stamps, begin=at, rows=4))
        at += 8
    return made


@pytest.mark.parametrize("late", [0.0, 0.2])
def test_all_time_is_accounted_for_and_only_a_late_rank_is_late(late: float) -> None:
    draw = random.Random(0)
    ranks = [_steps(200, late=0.0, draw=draw), _steps(200, late=late, draw=draw)]
    times, ends = intervals.phase_times(
        ranks, since=[0.0, 0.0], until=1650.0, count=200, start=0.0, clock_error_s=0.0
    )
    for each in times:
        assert sum(each.phases.values()) == pytest.approx(each.seconds) == 1600
        assert each.outside == {"validation": 50.0} and each.elapsed == 1650
    assert ends == [1650, 1650]
    named = straggler([each.lateness for each in times])
    assert (named.rank if named else None) == (1 if late else None)
    assert times[0].phases["wait"] == pytest.approx(200 * late, abs=200 * 0.06)


def test_steps_that_do_not_belong_together_name_no_late_rank() -> None:
    early, late = (_steps(200, late=0.0, draw=random.Random(seed)) for seed in range(2))
    ranks = [early[:-1], late[1:]]  # of which one has made a step more, of a model of its own
    times, _ = intervals.phase_times(
        ranks, since=[0.0, 0.0], until=None, count=199, start=0.0, clock_error_s=0.0
    )
    assert [(each.lateness, each.phases["wait"]) for each in times] == [([], 0.0)] * 2


@pytest.mark.parametrize(("gap", "meet"), [(0.0, True), (0.09, True), (0.11, False)])
def test_two_clocks_may_differ_by_a_tenth_of_a_step(gap: float, meet: bool) -> None:
    (step,) = _steps(1, late=0.0, draw=random.Random(0))
    ((_, begin, end, which),) = step.meetings
    late = Meeting(end + gap * (step.end - step.begin), begin, end, which)
    assert (intervals._waits([step, step._replace(meetings=(late,))], 0.0) is not None) is meet


# In 8 s of a step: a collective in forward that rank 1 launches `late`, one beside the step's stream, and a
# broadcast after backward, which is not compared.
def _sharded(at: float, late: float, *, others: int = 4 * WHICH) -> Step:
    stamps: list[Stamp] = [(FORWARD, at + 1), (MET, at + 2 + late, at + 2 + late, at + 3.5, COMPARED)]
    stamps += [(MET, at + 3.6, at + 3.7, at + 9.0, COMPARED | ASIDE | WHICH), (FORWARD_END, at + 4)]
    stamps += [(BACKWARD, at + 4), (BACKWARD_END, at + 6), (MET, at + 6.5, at + 6.75, at + 7, others)]
    return assemble([*stamps, (OPTIMIZER, at + 7), (STEP, at + 8)], begin=at, rows=4)


def test_a_wait_for_a_collective_is_no_part_of_the_phase_in_which_it_lies() -> None:
    step = _sharded(0.0, 0.0)
    assert (step.metrics, step.forward, step.backward, step.optimizer) == (1.0, 1.5, 2.0, 1.75)
    assert (step.transfer, sum(getattr(step, name) for name in DURATIONS)) == (1.75, 8.0)
    assert [each.launched for each in step.meetings] == [2.0, 3.6, 6.5]


def test_ranks_that_come_to_the_same_collectives_wait_for_the_last() -> None:
    ranks = [[_sharded(8.0 * n, late) for n in range(200)] for late in (0.0, 1.0)]
    times, _ = intervals.phase_times(
        ranks, since=[0.0, 0.0], until=None, count=200, start=0.0, clock_error_s=0.0
    )
    assert [each.phases["wait"] for each in times] == [200.0, 0.0]
    assert [each.phases["transfer"] for each in times] == pytest.approx([150.0] * 2)
    assert all(sum(each.phases.values()) == pytest.approx(1600) for each in times)
    named = straggler([each.lateness for each in times])
    assert named is not None and (named.rank, named.median_s) == (1, 1.0)
    for others in (4 * WHICH | COMPARED, 0):  # a collective that one rank alone comes to, or another one
        alone = [_sharded(0.0, 0.0, others=COMPARED | WHICH), _sharded(0.0, 1.0, others=others)]
        assert intervals._waits(alone, 0.0) is None


def _broadcast(at: float, *, late: float, end: float, arrived: float) -> Step:
    """Make a step of 8 s, of which rank 0's buffers come before forward and a bucket after backward."""
    stamps: list[Stamp] = [(FORWARD, at + 1 + late)]
    stamps += [(MET, at + 1 + late, at + 1 + late, at + end, COMPARED + PARTLY), (FORWARD_END, at + end + 1)]
    stamps += [(BACKWARD, at + end + 1), (LAUNCH, at + arrived), (BACKWARD_END, at + arrived)]
    return assemble(
        [*stamps, (REDUCED, at + arrived, at + 7), (OPTIMIZER, at + 7), (STEP, at + 8)], begin=at, rows=4
    )


def test_a_rank_that_comes_late_to_the_broadcast_of_buffers_is_late() -> None:
    """Rank 0 waits for rank 2 to take them, and rank 1, which has them, waits for both after backward."""
    values = ({"late": 0.0, "end": 3.0}, {"late": 0.0, "end": 1.1}, {"late": 1.9, "end": 3.0})
    arrived = (5.0, 3.1, 5.0)
    ranks = [
        [_broadcast(8.0 * n, **rank, arrived=at) for n in range(200)]
        for rank, at in zip(values, arrived, strict=True)
    ]
    times, _ = intervals.phase_times(
        ranks, since=[0.0] * 3, until=None, count=200, start=0.0, clock_error_s=0.0
    )
    assert [each.phases["wait"] for each in times] == pytest.approx([380.0, 400.0, 0.0])
    assert all(sum(each.phases.values()) == pytest.approx(1600) for each in times)
    named = straggler([each.lateness for each in times])
    assert named is not None and (named.rank, named.median_s) == (2, pytest.approx(1.95))


def test_a_collective_after_a_backward_pass_that_ends_a_step_is_in_the_next() -> None:
    splitter, stamps = Splitter(), list[Stamp]()
    for at in range(0, 80, 10):
        stamps += [(FORWARD, at + 1.0), (FORWARD_END, at + 2.0, 1, 4, 0), (BACKWARD, at + 2.0, 1)]
        stamps += [(BACKWARD_END, at + 5.0), (MET, at + 6.0, at + 6.0, at + 8.0, COMPARED)]
    steps = splitter.feed(stamps) + splitter.finish()
    assert [(step.backward, step.transfer, step.metrics) for step in steps[1:]] == [(3.0, 2.0, 4.0)] * 7


@pytest.mark.parametrize(("group", "world", "seen"), [(1, 1, False), (2, 4, False), (4, 4, True)])
def test_ranks_are_compared_where_all_of_them_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch, group: int, world: int, *, seen: bool
) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: group or world)
    monkeypatch.setattr("mlbench.probe.torch_private.add_comm_hook", lambda *_: True)
    watching = recording.Recording(torch)
    buckets.watch_buckets(watching, SimpleNamespace(process_group=group))
    assert watching.notes == {"buckets"} & {"buckets" * seen}


def test_an_interval_begins_where_the_metric_was_printed() -> None:
    (step,) = [assemble([(VALIDATION_END, 10.0), *_later()], begin=0, rows=1)]
    (times,), _ = intervals.phase_times(
        [[step]], since=[12.0], until=None, count=1, start=0.0, clock_error_s=0.0
    )
    assert times.seconds == pytest.approx(step.end - 12) == pytest.approx(sum(times.phases.values()))
    assert times.outside == {}


def test_a_rank_that_is_within_a_step_when_rank_0_prints_has_no_negative_time() -> None:
    step = assemble(_later(), begin=100.0, rows=1)
    for until in (100.0, 103.6, 107.5, 116.0, 119.0):  # metrics, metrics, forward, transfer, optimizer
        times, ends = intervals.phase_times(
            [[step]], since=[until], until=None, count=1, start=0.0, clock_error_s=0.0
        )
        assert min(times[0].phases.values()) >= 0 and ends == [120.0]
        assert sum(times[0].phases.values()) == pytest.approx(times[0].seconds) == pytest.approx(120 - until)
    before = step._replace(begin=90.0, end=100.0)
    _, ends = intervals.phase_times(
        [[before], [before, step]],
        since=[90.0, 90.0],
        until=115.0,
        count=1,
        start=0.0,
        clock_error_s=0.0,
    )
    assert ends == [115.0, 104.0]  # the second rank had begun its next forward pass


def test_a_collector_answers_nobody_without_its_token() -> None:
    collector = Collector("127.0.0.1", metric="acc", goal=Goal("acc", 1.0, "max"))
    host, port = collector.address.split(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b'{"token": "guess", "rank": 0, "world": 1}\n')
        assert stranger.recv(100) == b""
    assert not collector.ranks
    collector.close()


def test_a_rank_that_is_answered_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    collector, known, answer = Collector("127.0.0.1", metric="acc", goal=None), list[bool](), listener.answer

    def look(connection: socket.socket, **message: Any) -> None:
        known.append(0 in collector.ranks)
        answer(connection, **message)

    monkeypatch.setattr(listener, "answer", look)
    host, port = collector.address.split(":")
    with socket.create_connection((host, int(port))) as rank:
        rank.sendall(
            json.dumps({"token": collector.token, "rank": 0, "world": 1, "host": "b"}).encode() + b"\n"
        )
        assert json.loads(rank.recv(1000)) and known == [True]
    collector.close()


def test_the_clock_of_a_run_does_not_stand_still_while_a_rank_comes_late_to_its_first_step() -> None:
    after = [(FORWARD_END, 9.0), (OPTIMIZER, 9.0), (STEP, 10.0)]
    early = assemble([(FORWARD, 1.0), *after], begin=0.0, rows=1)
    late = assemble([(FORWARD, 7.0), *after], begin=6.0, rows=1)
    times, _ = intervals.phase_times(
        [[early], [late]],
        since=[0.0, 0.0],
        until=None,
        count=1,
        start=0.0,
        clock_error_s=0.0,
    )
    assert [each.outside for each in times] == [{}, {}]
    assert [each.seconds for each in times] == [10, 10] and times[1].phases["metrics"] == 7
    assert [sum(each.phases.values()) for each in times] == [10, 10]


@contextmanager
def connected(collector: Collector, *, rank: int = 0, world: int = 1) -> Iterator[Any]:
    """Yield the file of a rank's connection, after what a probe says first and is answered."""
    host, port = collector.address.split(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rw") as file:
        about = {"rank": rank, "world": world, "host": "here", "threads": 1}
        assert "clock" in said(file, token=collector.token, **about)
        yield file


def test_the_first_rank_of_another_host_says_what_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector("127.0.0.1", metric="none", goal=None)
    monkeypatch.setenv(sender.ADDRESS, collector.address)
    monkeypatch.setenv(sender.TOKEN, collector.token)
    for rank in range(3):
        collector.describe_hosts = rank < 2
        watching = install.Probe(torch)
        about = watching.describe() | {"rank": rank, "world": 3, "host": "c" if rank == 2 else "b"}
        monkeypatch.setattr(watching, "describe", lambda about=about: about)
        watching.recording.steps = 1
        watching.finish()
        collector.drain(60)
        described = collector.hosts.pop("b") if rank == 0 else collector.hosts.get(about["host"])
        collector.hosts["b"] = None
        assert (described is not None) is (rank == 0)
        assert collector.ranks[rank].last
    collector.close()


def said(file: Any, **message: Any) -> dict[str, Any]:
    """Say something to a collector; return its answer."""
    file.write(json.dumps(message) + "\n")
    file.flush()
    return json.loads(file.readline())


def told(
    file: Any,
    *ends: float,
    values: Any = (),
    goal: Any = None,
    notes: Any = ("forward",),
    peak: int | None = None,
) -> None:
    """Tell a collector of steps of 1 s, and wait until it has taken them in."""
    parts = [[(FORWARD, end - 1), (FORWARD_END, end, 1, 8, 0), (STEP, end)] for end in ends]
    columns = encode(stamp for part in parts for stamp in part)
    message = {"stamps": columns, "now": max(ends, default=0.0), "offset": 0.0, "error": 0.0, "notes": notes}
    message |= {"last": False, "log": []}
    file.write(json.dumps(message | {"values": values, "goal": goal or {}, "peak_bytes": peak}) + "\n")
    assert "at" in said(file, ping=True)


def test_a_second_process_of_a_rank_is_answered_and_named_and_not_measured() -> None:
    collector = Collector("127.0.0.1", metric="none", goal=None)
    with connected(collector) as first, connected(collector) as second:
        told(first, 1.0, 2.0)
        told(second, 3.0, peak=9)
        assert collector.steps == 2 and collector.peak_bytes is None
        told(first, 4.0, peak=7)
        assert collector.peak_bytes == 7
    collector.take(final=True)
    covered = summary.coverage(collector)
    assert covered["steps"] == 3 and f"1 {summary.REFUSED}" in covered["warnings"]
    collector.close()


def test_ranks_of_a_larger_world_that_come_once_all_ranks_were_there_are_not_measured() -> None:
    collector = Collector("127.0.0.1", metric="none", goal=None)
    with connected(collector) as alone, connected(collector, rank=1, world=2) as spawned:
        told(alone, 101.0, 102.0)
        told(spawned, 104.0)
        told(alone, 105.0)
        collector.take(final=True)
    assert [len(times) for _, times in collector.intervals] == [1]
    assert f"1 {summary.REFUSED}" in summary.coverage(collector)["warnings"]
    collector.close()


def test_only_the_values_of_the_goal_s_metric_count_whenever_the_script_tells_it() -> None:
    accuracy = {"metric": "accuracy", "target": 0.9, "direction": "max"}
    collector = Collector("127.0.0.1", metric="loss", goal=Goal("loss", 1.0, "min"))
    with connected(collector) as rank:
        told(rank, 1.0, 2.0, values=[(1.5, 0.4)], goal=accuracy)
    assert [validation["metrics"] for validation, _ in collector.take(final=True)] == [{}]
    assert not collector.reached
    never = "no value of loss was seen, neither printed nor given to validation()"
    assert never in summary.coverage(collector)["warnings"]
    collector.close()
    collector = Collector("127.0.0.1", metric="none", goal=None)
    with connected(collector) as rank:
        told(rank, 1.0)  # before `with mlbench.measure(...)`
        told(rank, 2.0, values=[(2.0, 0.95)], goal=accuracy)
    ((validation, _),) = collector.take(final=True)
    assert validation["metrics"] == {"accuracy": 0.95} and collector.reached
    collector.close()
    for metric in ("accuracy", "none"):  # of task.metric=; until the record had begun
        collector = Collector("127.0.0.1", metric=metric, goal=None)
        with connected(collector) as rank:
            told(rank, 1.0)
            if metric == "none":
                collector.settle()
            told(rank, 2.0, values=[(2.0, 0.95)], goal=accuracy)
        ((validation, _),) = collector.take(final=True)
        assert validation["metrics"] == {"accuracy": 0.95} and not collector.reached
        assert summary.MISSING["goal"] in summary.coverage(collector)["warnings"]
        collector.close()


VALIDATED = assemble([(VALIDATION_END, 1.0), (FORWARD, 1.5), (STEP, 2.0)], begin=0.0, rows=4)
LATER = [assemble([(FORWARD, at + 0.5), (STEP, at + 1.0)], begin=at, rows=4) for at in (2.0, 3.0)]
UNCOUNTED = VALIDATED._replace(rows=0)
SEEN = ["data", "forward"]


@pytest.mark.parametrize(
    ("ranks", "notes", "last", "missing"),
    [
        ([[UNCOUNTED]], SEEN, True, {"rows", "validated"}),
        ([[UNCOUNTED]], ["threads", "data"], True, {"forward", "threads", "validated"}),
        ([[UNCOUNTED._replace(backward=1.0)]], ["data"], True, {"loss", "validated"}),
        ([[UNCOUNTED]], [*SEEN, "fused", "graph"], False, {"cut", "fused", "graph", "rows", "validated"}),
        ([LATER[:1], LATER], ["buckets", *SEEN], True, {"uneven"}),  # e.g. by Join
        ([[VALIDATED, *LATER]], SEEN, True, set()),  # a validation before some steps is not one before most
    ],
)
def test_what_of_the_steps_is_to_be_doubted_is_said(
    ranks: list[list[Step]], notes: list[str], last: bool, missing: set[str]
) -> None:
    collector = Collector("127.0.0.1", metric="none", goal=None)
    for rank, steps in enumerate(ranks):
        collector.ranks[rank] = Rank({"rank": rank, "goal": {}}, steps=[*steps], notes=notes, last=last)
    collector.world = len(ranks)
    collector.take(final=True)
    assert {*summary.coverage(collector)["warnings"]} == {summary.MISSING[name] for name in missing}
    collector.close()


@pytest.mark.parametrize("by_command", [True, False])
def test_a_script_ends_when_its_command_is_gone_and_not_with_a_connection(
    monkeypatch: pytest.MonkeyPatch, *, by_command: bool
) -> None:
    server, killed = socket.create_server(("127.0.0.1", 0)), threading.Event()
    server.settimeout(PATIENCE_S)
    monkeypatch.setenv(sender.ADDRESS, f"127.0.0.1:{server.getsockname()[1]}")
    monkeypatch.setattr(sender, "FLUSH_S", 0.01)
    monkeypatch.setattr(sender.os, "kill", lambda *_: killed.set())
    if by_command:
        monkeypatch.setenv(sender.OTHERS, "")
    watching = install.Probe(torch)
    watching._sender.start(watching)
    for _ in range(2):
        connection, _ = server.accept()
        assert not killed.is_set()
        connection.sendall(b'{"clock": "another", "describe": false}\n')
        connection.close()
    server.close()
    assert watching._sender._ended.wait(PATIENCE_S)
    assert killed.is_set() == by_command and not watching.recording.watching


def test_a_failure_in_the_thread_that_sends_is_told() -> None:
    collector = Collector("127.0.0.1", metric="none", goal=None)
    watching = install.Probe(torch)
    watching.take = lambda **_: 1 / 0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(sender.ADDRESS, collector.address)
        patch.setenv(sender.TOKEN, collector.token)
        watching._sender.start(watching)
        while not (collector.ranks and collector.ranks[0].notes):
            assert not watching._sender._ended.wait(0.01)
    assert collector.ranks[0].notes == ["failure ZeroDivisionError: division by zero"]
    watching.finish()
    collector.close()


def test_a_failure_before_steps_are_taken_is_printed_and_another_run_has_notes_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    probe = install.Probe(torch)
    watching = probe.recording
    watching.notes |= {"data", "buckets"}  # no second run of one model asks for its hook again
    watching.fail(ValueError("no tensor"))
    assert capsys.readouterr().err == "mlbench: the probe stopped: ValueError: no tensor\n"
    assert watching.notes == {"buckets", "data", "failure ValueError: no tensor"}
    probe.restart()
    assert watching.notes == {"buckets"} and watching.watching
    watching.fail(OSError("refused"))  # as a rank that cannot reach the command
    assert capsys.readouterr().err == "mlbench: the probe stopped: OSError: refused\n"
    watching.until = 1.0
    watching.fail(OSError("the record says this one"))
    assert capsys.readouterr().err == ""


def test_time_before_an_optimizer_whose_model_was_not_seen_is_not_the_optimizer_s() -> None:
    (step,) = Splitter().feed([(START, 0.0), (OPTIMIZER, 10.0), (STEP, 11.0)])
    assert (step.metrics, step.optimizer) == (10.0, 1.0)


def test_a_matrix_of_integers_has_tokens_and_an_observed_step_says_so() -> None:
    assert models.size((torch.zeros(6, 8, dtype=torch.int64),)) == (6, 48)
    for other in (torch.zeros(6, 8, dtype=torch.uint8), torch.zeros(6, 8, 2, dtype=torch.int64)):
        assert models.size((other,)) == (6, 0)
    passes = [(FORWARD, 1.0), (FORWARD_END, 2.0, 1, 6, 48), (FORWARD, 3.0), (FORWARD_END, 4.0, 1, 6, 48)]
    first, second = Splitter().feed([(OBSERVED, 0.0), *passes, (STEP, 5.0), *passes, (STEP, 10.0)])
    assert (first.rows, first.tokens, first.observed, second.observed) == (12, 96, True, False)


def test_rows_are_the_first_dimension_of_the_first_input_also_in_lists_and_dicts() -> None:
    ids = torch.zeros(6, 8)
    for inputs in ((ids,), (None, ids), ({"input_ids": ids},), (torch.tensor(1.0), {"x": 1, "ids": ids})):
        assert models.size(inputs) == (6, 0)
    images, pairs = [torch.zeros(3, 4, side) for side in range(5)], [torch.zeros(6, 4, 8)] * 2
    for inputs in (([ids, ids], 0), ((ids,),), ({"batch": [ids]},), ([], pairs), (images, ids)):
        assert models.size(inputs) == (5 if inputs[0] is images else 6, 0)
    assert models.size((1, {}, "text", [1, 2], [[[[ids]]]])) is None


def test_a_metric_that_comes_within_a_step_ends_the_interval_with_that_step() -> None:
    collector = Collector("127.0.0.1", metric="acc", goal=None)
    collector.printed(0.5)
    now = clock.monotonic()
    step = assemble(_later(), begin=100.0, rows=1)
    before, within = step._replace(begin=now - 30, end=now - 10), step._replace(begin=now - 10, end=now + 10)
    rank = collector.ranks[0] = Rank({"rank": 0, "goal": {}}, steps=[before], until=now)
    collector.world = 1
    assert collector.take() == []
    rank.steps.append(within)
    ((validation, (times,)),) = collector.take()
    assert (validation["step"], times.outside) == (2, {})
    collector.close()


def test_a_script_is_identified_by_its_content_and_its_folder_by_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "__init__.py").write_text("from .deep import Net\n")
    (tmp_path / "nets" / "deep.py").write_text("Net = 1\n")
    (tmp_path / "train.py").write_text("import nets\nimport torch\n")
    (tmp_path / "other.py").write_text("import train\n")
    overrides = ["task=script", "task.path=train.py"]
    assert [path.name for path in sources.files(tmp_path / "train.py", tmp_path)] == [
        "__init__.py",
        "deep.py",
        "train.py",
    ]
    before = key(compose(overrides))
    (tmp_path / "other.py").write_text("")
    assert key(compose(overrides)) == before
    assert key(compose([*overrides, "task.args=--lr 0.1 --name 'a b'"])) != before
    module = compose(["task=script", "launcher=command", "task.command=[torchrun, -m, train]"])
    file = compose(["task=script", "launcher=command", "task.command=[torchrun, train.py]"])
    assert module.plain()["task"]["sources"] == file.plain()["task"]["sources"] is not None
    (tmp_path / "nets" / "train.py").write_text("from nets.deep import Net\n")
    package = ["task=script", "task.module=nets.train"]
    packaged = key(compose(package))
    (tmp_path / "nets" / "deep.py").write_text("Net = 2\n")
    assert key(compose(package)) != packaged
    assert key(compose(overrides)) != before


def test_a_launcher_s_own_arguments_do_not_separate_runs_and_the_script_s_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    lines = [
        ["torchrun", "--nproc-per-node=1", "train.py", "--lr", "0.1"],
        ["python", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py", "--lr", "0.1"],
        ["torchrun", "-m", "train", "--lr", "0.1"],
        ["torchrun", "train.py", "--lr", "0.2"],
        ["sh", "-c", "python train.py"],
        ["./train.py", "--lr", "0.1"],
    ]
    command = [f"task.command={json.dumps(line)}" for line in lines]
    runs = [compose(["task=script", "launcher=command", line]) for line in command]
    tasks: list[Any] = [run.task for run in runs]
    assert [task.args for task in tasks[:3]] == ["--lr 0.1"] * 3
    assert [task.args for task in tasks[3:]] == ["--lr 0.2", "sh -c 'python train.py'", "--lr 0.1"]
    assert tasks[5].sources == tasks[0].sources is not None  # a script that is the command itself
    assert (tasks[0].path, tasks[2].module, tasks[4].path) == ("train.py", "train", None)
    keys = [key(run) for run in runs]
    assert keys[0] == keys[1] and len(set(keys)) == 5


def test_torch_is_watched_also_where_another_package_has_looked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").touch()
    started: list[Any] = []
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(install, "start", started.append)
    monkeypatch.setenv(sender.ADDRESS, "127.0.0.1:9")
    finders = len(sys.meta_path)
    install.install()
    for _ in range(2):  # as transformers does
        assert importlib.util.find_spec("torch") and not started
    assert started == [importlib.import_module("torch")]
    assert len(sys.meta_path) == finders


def test_a_sweep_over_arguments_takes_them_between_quotes() -> None:
    grid = parse(["task.args='--lr 0.1 --name \"a b\"','--lr 0.2'", "task.path=it's.py"])
    assert grid.parameters == {
        "task.args": ['task.args=--lr 0.1 --name "a b"', "task.args=--lr 0.2"],
        "task.path": ["task.path=it's.py"],
    }


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_this_host_s_is_one_sentence(host: str) -> None:
    with pytest.raises(UserError, match=f"cannot listen on {host}"):
        Collector(host, metric="none", goal=None)


def test_a_rank_reaches_a_collector_by_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector("::1", metric="none", goal=None)
    monkeypatch.setenv(sender.ADDRESS, collector.address)
    monkeypatch.setenv(sender.TOKEN, collector.token)
    sender.announce()
    limit = clock.monotonic() + PATIENCE_S
    while not collector.announced and clock.monotonic() < limit:
        time.sleep(0.01)
    collector.close()
    assert collector.announced == 1
