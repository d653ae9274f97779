"""The package, installed elsewhere: it has all of its modules, and finds what another package brings."""

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow
EXAMPLE = ROOT / "tests" / "example_package"


def command(*arguments: str | Path, at: Path, **variables: str) -> str:
    """Run a command in a folder, without what this checkout puts on Python's path; return its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean |= {"XDG_CACHE_HOME": str(at / "cache"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"} | variables
    done = subprocess.run(list(map(str, arguments)), cwd=at, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty folder beside a new environment with mlbench's wheel and two packages of others.

    One is the example package, one is what `mlbench run --new` of that wheel writes. Third-party libraries
    are those of this environment, so that nothing is fetched.
    """
    root = tmp_path_factory.mktemp("package")
    source, empty = root / "source", root / "empty"
    empty.mkdir()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in tracked.stdout.splitlines():
        if name.startswith(
            ("mlbench/", "conf/", "pyproject", "setup.py", "README", "LICENSE", "tests/example")
        ):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "-q")
    venv.create(root / "venv", symlinks=True)
    python = root / "venv" / "bin" / "python"

    def install(folder: Path) -> None:
        wheels = root / "wheels" / folder.name
        command(sys.executable, "-m", "pip", "wheel", *offline, "-w", wheels, folder, at=root)
        (wheel,) = wheels.glob("*.whl")
        command(sys.executable, "-m", "pip", "--python", python, "install", *offline, wheel, at=root)

    install(source)
    site = Path(
        command(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", at=root).strip()
    )
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its own .pth files are not read
    command(root / "venv" / "bin" / "mlbench", "run", "--new", "task=blobs", at=root)
    install(root / "mlbench_blobs")
    install(source / "tests" / "example_package")
    where = command(python, "-c", "import mlbench; print(mlbench.__file__)", at=empty)
    assert Path(where.strip()).is_relative_to(root / "venv")
    return empty


def tool(folder: Path, name: str) -> Path:
    return folder.parent / "venv" / "bin" / name


def record(folder: Path, task: str) -> dict:
    (path,) = folder.glob(f"runs/*-{task}-*/record.json")
    return json.loads(path.read_text())


def test_the_wheel_has_every_module_configuration_licence_and_one_command(place: Path) -> None:
    """That the main job runs, of whose modules none is missing here, is shown by test_run_command.py."""
    with zipfile.ZipFile(next((place.parent / "wheels" / "source").glob("mlbench_suite-*"))) as wheel:
        packed = set(wheel.namelist())
    tracked = {path.relative_to(place.parent / "source") for path in (place.parent / "source").rglob("*.*")}
    python = {str(path) for path in tracked if path.parts[0] == "mlbench" and path.suffix == ".py"}
    assert len(python) > 100 and python <= packed, python - packed
    yaml = {f"mlbench/{path}" for path in tracked if path.parts[0] == "conf" and path.suffix == ".yaml"}
    assert len(yaml) > 20 and yaml <= packed, yaml - packed
    assert "resnet20" in command(tool(place, "mlbench"), "data", "list", at=place)
    licences = (place.parent / "venv").rglob("mlbench_suite-*.dist-info/licenses/LICENSE")
    assert [path.read_bytes() for path in licences] == [(ROOT / "LICENSE").read_bytes()]
    shown = command(tool(place, "mlbench"), "run", "--cfg", "job", at=place)
    assert "resnet20" in shown
    planned = command(tool(place, "mlbench"), "cluster", "plan", "aws", "workers=8", at=place)
    assert "price an hour: 4.65 USD" in planned
    (module,) = (place.parent / "venv").rglob("provisioning/terraform/main.tf")
    assert 'version = "5.100.0"' in module.read_text()


def test_another_package_s_task_strategy_and_cluster_run_with_one_command(place: Path) -> None:
    """Only a run on Ray shows that its workers find an installed package; the only one that calibrates."""
    overrides = [
        "task=blobs",
        "sync=model_average",
        "cluster=few_cpus",
        "division=open",
        "workers=2",
        "seed=1",
    ]
    command(tool(place, "mlbench"), "run", *overrides, at=place, MLBENCH_CALIBRATION_S="0.1")
    result = record(place, "blobs")
    assert result["status"] == "goal_reached" and result["eligible"] is False
    assert result["experiment"]["cluster"]["cpus"] == 2 and result["experiment"]["sync"]["every"] == 4
    assert {"task", "cluster", "sync"} <= {deviation["field"] for deviation in result["deviations"]}
    assert result["nodes"][0]["calibration"]["cpu_gemm_flops_per_s"] > 1e9


def test_other_packages_pass_the_contract(place: Path) -> None:
    options = ("--task=mlbench_blobs", "--sync=model_average", "--cluster=few_cpus")
    python = tool(place, "python")
    output = command(python, "-m", "pytest", "-q", "--pyargs", "mlbench.contract", *options, at=place)
    assert "passed" in output and ("skipped" in output) == (importlib.util.find_spec("jax") is None)
