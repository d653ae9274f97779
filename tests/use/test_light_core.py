"""What users type where only torch, NumPy and mlbench-suite's own dependencies are installed."""

from pathlib import Path

import pytest
from conftest import ROOT
from installed import Place, closure, distributions, shared

from mlbench.analysis.stragglers import of_run
from mlbench.config import libraries
from mlbench.record.record import Record

pytestmark = pytest.mark.use
MOST_PACKAGES = 15  # that the core adds to an environment with torch and NumPy
DDP = ROOT / "tests/script/scripts/ddp.py"


def test_the_core_adds_few_packages_to_torch_and_numpy() -> None:
    assert len(distributions() - closure(["torch", "numpy"])) <= MOST_PACKAGES


@pytest.fixture(scope="module")
def light(user: Place, installed_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return an empty folder and the environment of the core."""
    return user.activated(shared(installed_root, ())).within(tmp_path_factory.mktemp("light"))


def test_nothing_optional_is_there(light: Place) -> None:
    names = sorted(set(libraries.EXTRAS) - {"jinja2"})  # torch's
    code = f"from importlib.util import find_spec; print([n for n in {names} if find_spec(n)])"
    assert light.type(f'python -c "{code}"').stdout == "[]\n"


def test_a_run_under_torchrun_reaches_its_goal_and_mentions_mlflow(light: Place) -> None:
    before = {*light.folder.glob("runs/*/record.json")}
    answer = light.type("mlbench run task=logreg launcher=torchrun seed=1")
    (path,) = {*light.folder.glob("runs/*/record.json")} - before
    assert Record.model_validate_json(path.read_text()).status == "goal_reached"
    assert "mlbench-suite[mlflow]" in answer.text
    assert "GOAL REACHED" in light.type("mlbench results show last").text


def test_a_command_is_measured_with_its_late_rank(light: Place) -> None:
    (light.folder / "ddp.py").write_bytes(DDP.read_bytes())
    record = light.run("mlbench measure -- torchrun --nproc-per-node 2 ddp.py 1 1 0.1 before")
    late = of_run(record)
    assert (record.status, record.workers, late and late.rank) == ("completed", 2, 1)
    assert "late rank" in light.type("mlbench results show last").text


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("mlbench run task=logreg", "ray"),
        ("mlbench run task=logreg launcher=torchrun tracking_uri=sqlite:///mlflow.db", "mlflow"),
        ("mlbench run launcher=torchrun", "image"),
        ("mlbench run task=resnet50 launcher=torchrun", "image"),
        ("mlbench run task=gnmt launcher=torchrun", "text"),
        ("mlbench run task=gpt launcher=torchrun", "text"),
        ("mlbench run task=allreduce launcher=torchrun", "report"),
        ("mlbench sweep task=logreg workers=1,2", "ray,report"),
        ("mlbench predict published:gnmt hardware=gcp_n1_t4 network=25gbit,30us", "report"),
        ("mlbench results sync", "mlflow"),
        ("mlbench results mlflow", "mlflow"),
        ("mlbench results plot last to=figures", "report"),
        ("mlbench cluster start", "ray"),
    ],
)
def test_what_is_missing_is_named_before_anything_starts(light: Place, line: str, extra: str) -> None:
    runs = {*light.folder.glob("runs/*")}
    answer = light.type(line, codes=[2])
    assert f"pip install 'mlbench-suite[{extra}]'" in answer.text
    assert {*light.folder.glob("runs/*")} == runs
    assert len(answer.stderr.splitlines()) == 1
