"""What the league says of runs whose times are known, and that it goes on where it stopped."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mlbench.config.compose import compose
from mlbench.config.errors import UserError

league: Any = import_module("league")
pytestmark = pytest.mark.plugin("emulation")


def run(
    strategy: str, mbit_s: float, seed: int, seconds: float, status: str = "goal_reached"
) -> dict[str, Any]:
    measured = {"seconds": seconds, "steps": 100, "bytes": 250_000_000}
    steps = {"step_s": seconds / 100, "exposed_s": seconds / 200}
    return {"strategy": strategy, "mbit_s": mbit_s, "seed": seed, "status": status, **measured, **steps}


def runs(strategy: str, *times: float, status: str = "goal_reached") -> list[dict[str, Any]]:
    """Return five runs a bandwidth, which differ by some percent."""
    cells = zip((200, 1000, 5000), times, strict=True)
    return [run(strategy, rate, n, s * (1 + n / 100), status) for rate, s in cells for n in range(5)]


def test_a_break_even_lies_where_the_quotient_of_the_times_is_one() -> None:
    """Times as a power of the bandwidth cross at 447 Mbit/s: the middle of 200 and 1,000 on a log axis."""
    measured = runs("DDP", 20, 10, 5) + runs("top-k, 5 %", 14.142, 14.142, 14.142)
    (line,) = league.verdicts(league.cells(measured))
    assert line.startswith("below 447 Mbit/s (95 % interval 4")
    assert "% beats DDP" in line and "1.41 times at 200 Mbit/s" in line
    (line,) = league.verdicts(league.cells(runs("DDP", 20, 12, 6) + runs("top-k, 5 %", 9, 9, 9)))
    assert line.startswith("below 1,950 Mbit/s")


def test_a_missed_loss_is_infinite_time_and_told(snapshot: SnapshotAssertion) -> None:
    measured = runs("DDP", 20, 10, 5) + runs("FSDP2", 30, 15, 5, status="goal_not_reached")
    *_, last = league.table(measured)
    assert "| FSDP2 | 0 of 15 |" in last and last.count("not reached") == 3
    (line,) = league.verdicts(league.cells(measured))
    assert line.startswith("no break-even: FSDP2") and "(inf" in line
    some = measured[:15] + runs("FSDP2", 10, 10, 10)[:10] + measured[-5:]
    (line,) = league.verdicts(league.cells(some))
    assert line == snapshot


def test_what_was_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, calls = tmp_path / "league.jsonl", []

    def measure(mbit_s: float, seed: int, names: list[str], options: Any) -> None:
        calls.append((mbit_s, seed, len(names)))
        if mbit_s == 1000 and len(calls) < 3:
            raise UserError("the links are off their profile")
        with options.output.open("a") as file:
            file.writelines(json.dumps(run(name, mbit_s, seed, 9.0)) + "\n" for name in names)

    monkeypatch.setattr(league, "measure", measure)
    monkeypatch.setattr(league.registry, "load", lambda _: type("Task", (), {"prepare": print}))
    arguments = ["--rounds", "1", "--output", str(output)]
    assert league.main(arguments) == 1
    assert league.main(arguments) == 0
    assert calls == [(200, 1, 6), (1000, 1, 6), (2500, 1, 6), (1000, 1, 6)]


def test_every_strategy_is_one_that_a_run_can_have() -> None:
    names = {compose([*league.TASK, *overrides]).sync.name for overrides in league.STRATEGIES.values()}
    assert names == {"ddp", "fsdp", "compression", "local_sgd"}
