"""Task 0 with real gloo processes, and the arithmetic that its table rests on."""

import math
from dataclasses import replace
from io import StringIO
from itertools import groupby
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from drawings import column, series
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks
from rich.console import Console
from scripted import Clock
from stand_in_gpu import CUDA, Gpu

from mlbench.config.compose import compose
from mlbench.tasks.allreduce import bandwidth, collectives, report
from mlbench.tasks.allreduce import torch as allreduce
from mlbench.training.timer import PhaseTimer
from mlbench.training.worker import Worker

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
TINY = ["task=allreduce", "division=open", "task.max_elements=9", "task.repeats=3"]


def measure(worker: Worker, overrides: list[str]) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
    """Run the task and return its status, its table and the signs of life that it gave."""
    signs: list[Any] = []
    worker.heartbeat = signs.append
    worker.timer.heartbeat_due = lambda: True
    task: Any = compose(overrides).task
    outcome = allreduce.measure(task, worker)
    assert outcome.elapsed > 0 and not outcome.validations
    return outcome.status, outcome.table, signs


@pytest.mark.slow
def test_every_collective_and_dtype_is_timed_and_every_element_is_right() -> None:
    workers = 3
    answers = run_ranks(measure, workers, TINY)
    assert len({str(table) for _, table, _ in answers}) == 1, "all ranks have the same table"
    status, table, signs = answers[0]
    assert status == "completed"
    pairs = [(pair, list(rows)) for pair, rows in groupby(table, lambda r: (r["dtype"], r["collective"]))]
    assert [pair for pair, _ in pairs] == [
        (dtype, name) for dtype in ("float32", "float16", "bfloat16") for name in NAMES
    ]
    for (dtype, name), rows in pairs:
        assert [row["kind"] for row in rows] == ["times"] * (len(rows) - 1) + ["fit"]
        assert rows[-1]["points"] == len(rows) - 1 and rows[-1]["residual"] >= 0
        for row in rows[:-1]:
            blocks = name in ("all_gather", "reduce_scatter", "all_to_all")
            whole = math.ceil(row["size"] / workers) * workers if blocks else row["size"]
            assert row["elements"] == whole
            assert row["bytes"] == whole * (4 if dtype == "float32" else 2)
            assert 0 < row["min_s"] <= row["p50_s"] <= row["p95_s"] <= row["p99_s"] <= row["max_s"]
            assert row["min_s"] <= row["mean_s"] <= row["max_s"]
            assert row["wrong_elements"] == 0 and row["reason"] is None
            assert row["busbw_bytes_per_s"] == pytest.approx(
                row["bytes"] / row["p50_s"] * bandwidth.bus_factor(name, workers)
            )
    assert all(set(row) == set(bandwidth.COLUMNS) for row in table)
    doing = list(dict.fromkeys(sign["doing"] for sign in signs))
    assert len(doing) == 15 and doing[0].endswith("float32 (1 of 15)")
    assert doing[-1].endswith("bfloat16 (15 of 15)")
    assert not answers[1][2], "one rank tells for all"


def faulty(worker: Worker, overrides: list[str]) -> Any:
    """Let rank 1 spoil an element of every second broadcast, and refuse to scatter bfloat16 sums."""
    original = collectives.CollectiveCase.of

    def spoiled(collective: str, dtype: torch.dtype, *args: Any, **kwargs: Any) -> collectives.CollectiveCase:
        exchange = original(collective, dtype, *args, **kwargs)
        calls = 0

        def operation() -> None:
            nonlocal calls
            exchange.operation()
            calls += 1
            if collective == "broadcast" and calls == 2:
                exchange.received[-1] += 1
            if collective == "reduce_scatter" and dtype == torch.bfloat16:
                raise RuntimeError("no such kernel\nsecond line")

        return replace(exchange, operation=operation) if worker.rank == 1 else exchange

    collectives.CollectiveCase.of = spoiled  # type: ignore[assignment]
    return measure(worker, overrides)


SET_UP_S = 1000.0  # s that each of the first calls of a collective takes, as connections are made
CALLS_S = ((2.0, 4.0, 9.0), (3.0, 1.0, 1.0))  # s of each later call on each rank; the slower one counts
LONG_S = 0.5  # s of a barrier, and of filling


def clocked(worker: Worker, overrides: list[str]) -> list[dict[str, Any]]:
    """Return the table where calls, barriers and preparations last as long as is said here."""
    clock = Clock()
    worker.timer = PhaseTimer(now=clock, wall_now=clock, clock_id="here")
    task: Any = compose(overrides).task
    of, fill, barrier = collectives.CollectiveCase.of, collectives.CollectiveCase.fill, dist.barrier

    def slow_at_first(*args: Any, **kwargs: Any) -> collectives.CollectiveCase:
        exchange, calls = of(*args, **kwargs), []

        def operation() -> None:
            calls.append(exchange.operation())
            clock.wait(([SET_UP_S] * task.warmups + [*CALLS_S[worker.rank]])[len(calls) - 1])

        return replace(exchange, operation=operation)

    def slow(what: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> None:
            clock.wait(LONG_S)
            what(*args, **kwargs)

        return run

    with (
        mock.patch.object(collectives, "CACHED_BYTES", 0),  # as for long messages: no call before each
        mock.patch.object(collectives.CollectiveCase, "of", slow_at_first),
        mock.patch.object(collectives.CollectiveCase, "fill", slow(fill)),
        mock.patch.object(collectives.dist, "barrier", slow(barrier)),
    ):
        return allreduce.measure(task, worker).table


@pytest.mark.slow
def test_a_time_is_that_of_a_call_without_set_up_preparation_or_barrier_on_the_slowest_rank() -> None:
    table, other = run_ranks(clocked, 2, [*TINY, "task.collectives=[all_reduce]", "task.dtypes=[float32]"])
    assert table == other
    rows = [row for row in table if row["kind"] == "times"]
    assert len(rows) > 5
    for row in rows:
        times = [row[name] for name in ("min_s", "mean_s", "p50_s", "max_s")]
        assert times == pytest.approx([3.0, 16 / 3, 4.0, 9.0]) and row["repeats"] == 3
        assert row["algbw_bytes_per_s"] == pytest.approx(row["bytes"] / 4.0)


@pytest.fixture(scope="module")
def with_faults() -> list[tuple[str, list[dict[str, Any]]]]:
    """Return status and table of both ranks of a run in which rank 1 is faulty."""
    overrides = [*TINY, "task.collectives=[reduce_scatter,broadcast]", "task.dtypes=[bfloat16,float32]"]
    return [(status, table) for status, table, _ in run_ranks(faulty, 2, overrides)]


@pytest.mark.slow
def test_one_wrong_element_on_one_rank_is_found_and_leaves_no_time(with_faults: list) -> None:
    for status, table in with_faults:
        assert status == "failed"
        for row in table:
            if row["kind"] == "times":
                bad = row["collective"] == "broadcast"
                assert row["wrong_elements"] == bad and (row["p50_s"] is None) == bad
                assert row["reason"] == ("1 elements were wrong" if bad else None)
        unfitted = [row["reason"] for row in table if row["collective"] == "broadcast"][-1]
        assert "two sizes" in unfitted


@pytest.mark.slow
def test_a_pair_that_one_rank_cannot_do_is_skipped_by_all_with_the_reason(with_faults: list) -> None:
    for _, table in with_faults:
        assert (table[0]["kind"], table[0]["dtype"], table[0]["reason"]) == (
            "skipped",
            "bfloat16",
            "no such kernel",
        )
        scattered = [row for row in table[1:] if row["collective"] == "reduce_scatter"]
        assert {row["dtype"] for row in scattered} == {"float32"}
        assert all(row["wrong_elements"] == 0 for row in scattered if row["kind"] == "times")


def test_a_sum_that_the_dtype_cannot_hold_exactly_is_not_measured() -> None:
    worker = Worker(world_size=65)
    base = torch.ones(1, dtype=torch.uint8)
    reason = collectives.reason_to_skip("all_reduce", torch.bfloat16, base, worker)
    assert reason and "not exact" in reason


def contents(worker: Worker) -> dict[str, tuple[list[float], list[float], list[float]]]:
    """Return what this rank sent, received, and was to receive, for each collective."""
    base = collectives.values(20, worker)
    result = {}
    for name in NAMES:
        exchange = collectives.CollectiveCase.of(name, torch.float32, 20, base=base, worker=worker)
        exchange.fill()
        sent = exchange.sent.tolist()
        exchange.operation()
        result[name] = sent, exchange.received.tolist(), exchange.expected.tolist()
    return result


def test_before_each_timed_call_of_a_short_message_comes_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collectives.dist, "barrier", lambda: None)
    longest = collectives.CACHED_BYTES // 4
    for elements, calls in ((1, 6), (longest, 6), (longest + 1, 3)):
        sent = torch.zeros(elements)
        seen: list[float] = []
        exchange = collectives.CollectiveCase(
            lambda sent=sent, seen=seen: seen.append(sent[0].item()),
            sent, sent, [torch.ones(elements)], torch.ones(elements), elements,
        )  # fmt: skip
        assert len(exchange.seconds(3, Worker())) == 3
        assert seen == [1.0] * calls, "each begins with what is to be sent"
        assert exchange.errors.item() == 0


@pytest.mark.slow
def test_what_is_expected_is_what_the_collectives_are_defined_to_give() -> None:
    ranks = run_ranks(contents, 2)
    for name in NAMES:
        first, second = (rank[name][0] for rank in ranks)
        half = len(first) // 2
        sums = [a + b for a, b in zip(first, second, strict=True)]
        wanted = {
            "all_reduce": [sums, sums],
            "broadcast": [first, first],
            "all_gather": [first + second] * 2,
            "reduce_scatter": [sums[:half], sums[half:]],
            "all_to_all": [first[:half] + second[:half], first[half:] + second[half:]],
        }[name]
        for rank, answer in zip(ranks, wanted, strict=True):
            assert rank[name][1] == answer == rank[name][2]
        assert first != second, "equal messages would hide a mix-up"


def test_official_sizes_are_those_of_the_original_and_mini_stops_at_a_million() -> None:
    official = compose(["task=allreduce", "scale=official"]).task
    sizes = bandwidth.sizes(official.sizes, official.max_elements)  # type: ignore[attr-defined]
    assert len(sizes) == 77 and sizes[:6] == [1, 2, 3, 4, 5, 6] and sizes[-1] == 100_000_000
    assert sizes == sorted({int(10 ** (8 * i / 79) + 1e-9) for i in range(80)})
    mini = compose(["task=allreduce"]).task
    short = bandwidth.sizes(mini.sizes, mini.max_elements)  # type: ignore[attr-defined]
    assert short == [size for size in sizes if size <= 1_000_000]


@given(
    alpha=st.floats(1e-7, 1e-2),
    beta=st.floats(1e-12, 1e-7),
    sizes=st.lists(st.integers(1, 4 * 10**8), min_size=2, max_size=80, unique=True),
)
def test_the_fit_gives_alpha_and_beta_back(alpha: float, beta: float, sizes: list[int]) -> None:
    sizes = [1, *sizes, 4 * 10**8]
    found_alpha, found_beta, residual = bandwidth.fit(sizes, [alpha + beta * size for size in sizes])
    assert found_alpha == pytest.approx(alpha, rel=1e-5)
    assert found_beta == pytest.approx(beta, rel=1e-5)
    assert residual < 1e-6


def test_the_fit_minimises_relative_errors_and_never_gives_negative_times() -> None:
    alpha, beta, residual = bandwidth.fit([10, 10], [1.0, 2.0])  # two times for one size
    errors = [(alpha + 10 * beta) / t - 1 for t in (1.0, 2.0)]
    assert alpha + 10 * beta == pytest.approx(1.2)  # minimises (x - 1)^2 + (x / 2 - 1)^2
    assert residual == pytest.approx(math.sqrt(sum(e * e for e in errors) / 2))
    falling = bandwidth.fit([1, 100], [2.0, 1.0])
    assert falling[0] == pytest.approx(1.2) and falling[1] == 0
    steep = bandwidth.fit([100, 200], [1.0, 4.0])  # a line through both meets 0 bytes below 0 s
    assert steep[0] == 0 and 0.01 < steep[1] < 0.02


@pytest.mark.parametrize(
    ("name", "two", "eight"),
    [
        ("all_reduce", 1.0, 1.75),
        ("all_gather", 0.5, 0.875),
        ("reduce_scatter", 0.5, 0.875),
        ("all_to_all", 0.5, 0.875),
        ("broadcast", 1.0, 1.0),
    ],
)
def test_bus_bandwidth_factors_are_those_of_nccl_tests(name: str, two: float, eight: float) -> None:
    assert (bandwidth.bus_factor(name, 2), bandwidth.bus_factor(name, 8)) == (two, eight)


def test_a_row_s_percentiles_are_numpy_s_of_the_slowest_and_the_fastest_ranks() -> None:
    slowest, fastest = [float(n) for n in range(1, 102)], [0.5, 2.0, 9.0]
    about: dict[str, Any] = {"collective": "all_reduce", "workers": 4, "bytes": 102}
    row = bandwidth.times(slowest, fastest=fastest, wrong=0, **about)
    names = ("min_s", "mean_s", "p50_s", "p95_s", "p99_s", "max_s", "fastest_p50_s")
    assert [row[name] for name in names] == pytest.approx([1, 51, 51, 96, 100, 101, 2.0])
    assert (row["algbw_bytes_per_s"], row["busbw_bytes_per_s"]) == pytest.approx((2.0, 3.0))


def synthetic(backend: str, *, busbw: float = 1e9) -> list[dict[str, Any]]:
    """Return a table of one pair whose largest message reaches `busbw`."""
    pair = {"backend": backend, "device": "cpu", "workers": 2, "dtype": "float32"}
    pair |= {"collective": "all_reduce"}
    rows = [
        bandwidth.times([1e-4 + size / busbw] * 3, wrong=0, **pair, size=size, elements=size, bytes=size)
        for size in (4, 1000, 10**6, 4 * 10**8)
    ]
    return [*rows, bandwidth.fitted(rows, **pair)]


def test_the_terminal_has_the_columns_of_nccl_tests_the_fit_and_why_something_is_missing() -> None:
    table = synthetic("gloo")
    table.append({**bandwidth.row("skipped", **{k: table[0][k] for k in ("backend", "device", "workers")}),
                  "collective": "broadcast", "dtype": "bfloat16", "reason": "no kernel"})  # fmt: skip
    console = Console(width=200, record=True, file=StringIO())
    console.print(report.terminal(table, network_gbit_per_s=16.0))
    text = console.export_text()
    (heading,) = [line.split() for line in text.splitlines() if "redop" in line]
    assert heading == ["collective", "size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong"]
    rows = [line.split() for line in text.splitlines() if line.startswith("  all_reduce")]
    assert len(rows) == 4 and all(row[-1] == "0" for row in rows)
    assert rows[-1][1:7] == ["400", "MB", "400,000,000", "float32", "sum", "400"]
    assert "100 us, bandwidth 1 GB/s" in text and "50.0 % of the" in text
    assert "skipped: gloo" in text and "broadcast bfloat16: no" in text


def test_the_charts_have_a_line_a_backend_and_the_line_rate() -> None:
    tables = {"": synthetic("gloo") + synthetic("nccl", busbw=1e10)}
    times, rates, _ = report.charts(tables, about="two workers", network_gbit_per_s=100.0)
    assert list(series(times)) == ["gloo x2, float32", "nccl x2, float32"]
    gloo, _, line_rate = series(rates).values()
    assert gloo[-1]["x"] == 4e8 and gloo[-1]["y"] == pytest.approx(1e9, rel=1e-3)
    assert column(line_rate, "y") == [12.5e9, 12.5e9]


def test_there_are_charts_of_each_collective_with_the_median_of_repeated_runs() -> None:
    runs = [synthetic("gloo", busbw=busbw) for busbw in (1e9, 8e9, 2e9)]
    other = [{**row, "collective": "broadcast"} for row in synthetic("gloo")]
    charts = report.charts({"2 workers": [row for run in [*runs, other] for row in run]}, about="")
    names = ["all_reduce_time", "all_reduce_bandwidth", "broadcast_time", "broadcast_bandwidth"]
    names.append("all_reduce_published")
    assert [chart.name for chart in charts] == names
    (rows,) = series(charts[1]).values()
    assert column(rows, "x") == [4, 1000, 10**6, 4 * 10**8]
    assert rows[-1]["y"] == pytest.approx(2e9, rel=1e-3)


def test_ranks_of_gpus_meet_on_the_device_behind_work_in_which_the_host_queues_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a stand-in whose every kernel lasts a millisecond: of it all only the operation's three count."""
    gpu = Gpu()
    gpu.install(monkeypatch)
    monkeypatch.setattr(collectives, "DELAY_BYTES", 64)
    monkeypatch.setattr(collectives, "DELAY_S", 4e-3)
    monkeypatch.setattr(dist, "all_reduce", lambda number: gpu.log.append("all_reduce") or number.add_(0))
    with gpu:
        worker = Worker(device=CUDA, timer=PhaseTimer("cuda"))
        barrier = collectives.DeviceBarrier(worker)
        message = torch.zeros(4, device="cuda")
        gpu.log.clear()
        times = worker.timer.benchmark(
            lambda: message.add_(1).mul_(2).sub_(1), 2, prepare=lambda: message.fill_(0), barrier=barrier
        )
    assert times == [3e-3, 3e-3]
    once = ["fill_", "wait", *["zero_"] * 4, "all_reduce", "add_", "record", "add_", "mul_", "sub_", "record"]
    assert gpu.log == [*once, *once, "wait"], "the host waits for nothing from the delay to the call's end"
    assert gpu.faults == []


def measure_cuda(worker: Worker, overrides: list[str]) -> Any:
    from mlbench.training.timer import PhaseTimer

    worker.device, worker.timer = torch.device("cuda", 0), PhaseTimer("cuda")
    return measure(worker, overrides)


@pytest.mark.gpu
def test_gloo_moves_tensors_of_a_gpu_or_says_what_it_lacks() -> None:
    status, table, _ = run_ranks(measure_cuda, 2, TINY)[0]
    assert status == "completed"
    assert all(row["device"] == "cuda" for row in table)
    assert any(row["kind"] == "times" for row in table)
