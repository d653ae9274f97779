"""What `framework=jax` means before any worker starts, and what a finished run of it shows."""

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import driven
import pytest
from drawings import column, series

from mlbench import results, run
from mlbench.analysis.points import points
from mlbench.config import identity, libraries, plugins
from mlbench.config.compose import compose
from mlbench.config.identity import key
from mlbench.record import events, reader
from mlbench.record.phases import PHASES, UNDIVIDED
from mlbench.record.record import Record
from mlbench.report import run_charts
from mlbench.terminal import full_card
from mlbench.tracking import mapping, run_files

# MLflow 3.17 uses what SQLAlchemy 2.1 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")
WORDS = ["task=logreg", "framework=jax"]


def test_a_framework_and_its_version_decide_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(compose(WORDS))
    assert before != key(compose(WORDS[:1]))
    versions = {"torch": "1", "jax": "2"}
    monkeypatch.setattr(identity, "version", versions.get)
    first = key(compose(WORDS)), key(compose(WORDS[:1]))
    versions["jax"] = "3"
    assert key(compose(WORDS)) != first[0] and key(compose(WORDS[:1])) == first[1]


def test_it_is_free_in_the_closed_division_but_for_another_package_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compose(WORDS).deviations == ()
    real = plugins._points
    theirs = EntryPoint("logreg", "their_package.logreg", "mlbench.frameworks.jax")
    monkeypatch.setattr(plugins, "_points", lambda group: (theirs,) if group == theirs.group else real(group))
    (deviation,) = compose(WORDS).deviations
    assert (deviation.field, deviation.given, deviation.declared) == ("framework", "jax", True)


def test_a_record_on_gpus_says_what_jax_computes_in() -> None:
    """It said bf16, the recipe's for torch there, of steps in fp32; its MFU was of bf16's peak."""
    for framework, precision in (("torch", "bf16"), ("jax", "fp32")):
        task: Any = compose(["task=gpt", "backend=nccl", f"framework={framework}"]).task
        assert task.precision == precision


def test_without_jax_one_sentence_says_how_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(libraries, "is_installed", lambda module: module != "jax")
    assert run.main([*WORDS, "workers=1", "--dry-run"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "framework=jax needs jax" in sentence and "pip install 'mlbench-suite[jax]'" in sentence


def test_commands_and_torch_s_path_import_nothing_of_jax() -> None:
    code = (
        "import sys, mlbench.run, mlbench.results, mlbench.sweep\n"
        "from mlbench.config.compose import compose\n"
        "compose(['task=logreg', 'framework=jax'])\n"
        "from mlbench.config import plugins\n"
        "import mlbench.training.loop, mlbench.launch.worker_process\n"
        "plugins.implementation('task', 'logreg')\n"
        "sys.exit(' '.join({'jax', 'jaxlib'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a run of each framework, jax's with the phases of a compiled step."""
    for number, framework in enumerate(("torch", "jax")):
        names = UNDIVIDED if framework == "jax" else PHASES
        monkeypatch.setattr(driven, "BATCH_S", dict.fromkeys(names, 0.1))
        made = driven.Run(tmp_path, f"framework={framework}", name=framework, epoch_s=4.0 + number)
        for value in (80.0, 90.0):
            made.validate(value)
        made.end("goal_reached")
    return tmp_path


def record(root: Path, name: str) -> Record:
    return reader.load(root / f"{name}-7" / "record.json")


def test_what_a_compiled_step_hides_is_absent(both: Path) -> None:
    jax_record, torchs = record(both, "jax"), record(both, "torch")
    assert tuple(jax_record.phases) == UNDIVIDED and tuple(torchs.phases) == PHASES
    assert jax_record.overlapped_communication is None and jax_record.exposed_communication_share is None
    metrics, _ = mapping.validation_metrics(events.read(both / "jax-7" / events.NAME))
    assert {"interval/train_step_s"} == {
        metric.name for metric in metrics if metric.name.startswith("interval/t")
    }
    assert "interval/overlapped_communication_s" not in {metric.name for metric in metrics}
    assert torchs.exposed_communication_share is not None
    ((point,), (other,)) = points([jax_record]), points([torchs])
    assert point.compute is None and point.exposed is None and other.compute is not None
    assert "Compute" not in str(run_files.official_result(jax_record))
    (phases,) = (chart for chart in run_charts.charts(jax_record) if chart.name == "phases")
    assert "train step" in {label for label, rows in series(phases).items() if any(column(rows, "y"))}
    rows = dict(full_card.rows(jax_record))
    assert "train_step" in rows["phases"].replace(" ", "_") and "communication" not in rows


def test_the_framework_is_told_where_it_is_not_torch(both: Path, capsys: Any) -> None:
    assert results.main(["list", f"output_root={both}", "--json"]) == 0
    assert [row["framework"] for row in json.loads(capsys.readouterr().out)] == ["jax", None]


def test_torch_and_jax_are_compared_in_a_sentence(both: Path, capsys: Any) -> None:
    assert results.main(["compare", "framework=torch", "framework=jax", f"output_root={both}"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("verdict: ") and "framework torch -> jax" in shown
