"""Energy: counters that wrap, nodes once, absent where unread; a fake powercap tree and a fake pynvml."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import driven
import pytest

from mlbench.analysis.points import points
from mlbench.clusters.energy_counters import EnergyMeter
from mlbench.clusters.monitor import NodeMonitor
from mlbench.config.compose import compose
from mlbench.record.energy import energy
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker

RANGE_UJ = 1_000_000_000


class NVMLError(Exception):
    """As pynvml's."""


def nvml(*joules: float | None) -> Any:
    """Return a pynvml whose GPUs have used so much; None: the model has no counter."""
    counters = list(joules)

    def total(gpu: int) -> int:
        joules = counters[gpu]
        if joules is None:
            raise NVMLError("not supported")
        return round(1e3 * joules)

    def by_uuid(uuid: str) -> int:
        index = int(uuid.removeprefix("GPU-"))
        if index >= len(counters):
            raise NVMLError("not found")
        return index

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(counters),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetTotalEnergyConsumption=total,
        counters=counters,
    )


def zone(root: Path, identifier: str, name: str, energy_uj: int) -> Path:
    folder = root / identifier
    folder.mkdir()
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    return folder


def test_packages_are_added_up_over_wraps_and_their_parts_and_copies_are_not(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 10_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 0)
    others = [("intel-rapl:0:0", "dram"), ("intel-rapl:2", "psys"), ("intel-rapl-mmio:0", "package-0")]
    more = [zone(tmp_path, identifier, name, 0) for identifier, name in others]
    meter = EnergyMeter(tmp_path, nvml())
    assert meter.read() == {"cpu_packages": 0.0}
    for folder in more:
        (folder / "energy_uj").write_text("500000000")
    (first / "energy_uj").write_text("5000000")  # 10 J to the end of its range, and 5 from there
    (second / "energy_uj").write_text("2000000")
    assert meter.read() == {"cpu_packages": pytest.approx(17.0)}
    (first / "energy_uj").write_text("4000000")  # nearly a whole range
    assert meter.read() == {"cpu_packages": pytest.approx(17.0 + 999.0)}


def test_a_package_that_cannot_be_read_makes_all_absent_and_a_missing_tree_too(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path, nvml()).read() == {}
    first, second = (zone(tmp_path, f"intel-rapl:{n}", f"package-{n}", 0) for n in range(2))
    meter = EnergyMeter(tmp_path, nvml())
    (second / "energy_uj").unlink()
    assert meter.read() == {} and EnergyMeter(tmp_path, nvml()).read() == {}
    assert first.exists()


def test_gpus_count_from_the_meter_s_start_and_one_without_a_counter_hides_all(tmp_path: Path) -> None:
    driver = nvml(1_000.0, 5_000.0)
    meter = EnergyMeter(tmp_path, driver)
    driver.counters[:] = [1_250.0, 5_050.0]
    assert meter.read() == {"gpus": pytest.approx(300.0)}
    assert EnergyMeter(tmp_path, nvml(1.0, None)).read() == {}


def test_of_a_shared_server_s_gpus_those_of_the_run_count_by_their_uuid(tmp_path: Path) -> None:
    driver = nvml(1_000.0, 5_000.0, None)
    meter = EnergyMeter(tmp_path, driver, gpus=["GPU-1"])
    driver.counters[:] = [9_000.0, 5_050.0, None]
    assert meter.read() == {"gpus": pytest.approx(50.0)}
    assert EnergyMeter(tmp_path, driver, gpus=[]).read() == {}, "a run on CPUs has no GPU's energy"
    assert EnergyMeter(tmp_path, driver, gpus=["GPU-0", "GPU-7"]).read() == {}, "one is not there"


def test_the_monitor_reads_along_so_that_no_wrap_is_missed() -> None:
    reads: list[int] = []
    meter: Any = SimpleNamespace(read=lambda: reads.append(1))
    with NodeMonitor(0.01, meter=meter):
        commands.until(lambda: len(reads) >= 2)


def hardware(*overrides: str) -> Any:
    return compose(overrides).hardware


def test_a_node_counts_once_and_what_one_could_not_read_is_absent() -> None:
    nodes = [{"cpu_packages": 30.0, "gpus": 100.0}, {"cpu_packages": 20.0, "gpus": 50.0}]
    result = energy(hardware(), nodes, on_gpu=False, reached=True, samples=400)
    assert result is not None and result.parts == {"cpu_packages": 50.0, "gpus": 150.0}
    assert result.joules == result.goal_joules == 200.0 and result.joules_per_sample == 0.5
    assert result.carbon_g is None
    del nodes[1]["gpus"]
    result = energy(hardware(), nodes, on_gpu=False, reached=False, samples=0)
    assert result is not None and result.parts == {"cpu_packages": 50.0}
    assert result.goal_joules is None and result.joules_per_sample is None
    assert energy(hardware(), nodes, on_gpu=True, reached=True, samples=1) is None
    assert energy(hardware(), [], on_gpu=False, reached=True, samples=1) is None


def test_a_point_has_an_energy_where_every_run_that_reached_its_goal_was_read(tmp_path: Path) -> None:
    def run(seed: int, value: float, joules: float | None) -> Any:
        driven_run = driven.Run(tmp_path, "goal=85", "division=open", seed=seed)
        driven_run.validate(value)
        read = {} if joules is None else {"energy_j": {"cpu_packages": joules}}
        node = {"hostname": "a", "usable_cpus": 2, **read}
        return driven_run.end("goal_reached" if value >= 85 else "goal_not_reached", nodes=[node])

    quick, slow, missed, unread = (
        run(1, 99.0, 10.0),
        run(2, 99.0, 30.0),
        run(3, 1.0, 90.0),
        run(4, 99.0, None),
    )
    (point,) = points([quick, slow])
    assert point.joules is not None and point.joules.value == 20.0
    (point,) = points([quick, slow, missed])
    assert point.joules is not None and point.joules.value == 30.0, "a missed goal takes infinitely much"
    (point,) = points([quick, slow, unread])
    assert point.joules is None, "one run without a number: not nothing, unknown"


GRID = "hardware.grid={g_per_kwh: 360, date: '2026-01-31', source: a grid operator}"


def test_carbon_needs_a_grid_with_date_and_source_and_changes_no_key() -> None:
    result = energy(hardware(GRID), [{"cpu_packages": 3.6e6}], on_gpu=False, reached=True, samples=1)
    assert result is not None and result.carbon_g == pytest.approx(360)
    assert result.carbon_source == "360 g/kWh, a grid operator, 2026-01-31"
    assert compose([GRID]).deviations == ()


def test_the_loop_counts_from_the_first_touch_of_data_to_the_last_validation() -> None:
    """What was used before the clock began, and what the task computes after its end, is not the run's."""
    import torch

    from mlbench.training.loop import train

    used = [1_000.0]  # J; nothing was measured up to here

    def uses(joules: float, result: Any = None) -> Any:
        def run(*_: Any) -> Any:
            used[0] += joules
            return result

        return run

    worker = Worker(read_energy=lambda: {"cpu_packages": used[0]})
    model = torch.nn.Linear(2, 1)
    setup = TrainingSetup(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        epochs=2,
        load=uses(7.0),
        steps=uses(20.0, [[torch.ones(1, 2)]]),
        forward=lambda net, x: net(x),
        loss=lambda output, _: output.sum(),
        validate=uses(300.0, {"loss": 0.0}),
        flops_per_sample=uses(5_000.0),
        table=uses(5_000.0, []),
        samples=len,
    )
    assert train(setup, worker).energy_j == {"cpu_packages": 7.0 + 2 * 20.0 + 2 * 300.0}
