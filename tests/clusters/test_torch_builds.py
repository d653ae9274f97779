"""A torchvision that does not fit torch, as an install from two indexes leaves it."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT
from syrupy.assertion import SnapshotAssertion

from mlbench import doctor
from mlbench.clusters import torch_builds

NMS = "operator torchvision::nms does not exist"
METADATA = "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\nRequires-Dist: torch ==2.13.0\n"


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A torchvision in front of any other, whose import fails as that of another build does."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").write_text(f"raise RuntimeError({NMS!r})\n")
    (tmp_path / "torchvision-0.28.0.dist-info").mkdir()
    (tmp_path / "torchvision-0.28.0.dist-info/METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith("torchvision")}
    yield tmp_path
    sys.modules.pop("torchvision", None)
    sys.modules.update(loaded)


def test_the_doctor_names_a_torchvision_that_does_not_fit(broken):
    fault = torch_builds.torchvision_fault()
    assert fault is not None
    assert fault[0].startswith("0.28.0 fails with torch ") and NMS in fault[0]
    assert "--force-reinstall torch==" in fault[1]
    (check,) = [check for check in doctor.checks(broken, broken) if check.name == "torchvision"]
    assert check.state == "broken" and NMS in check.detail and check.way == fault[1]


def test_a_torchvision_that_fits_is_not_mentioned(broken):
    (broken / "torchvision/__init__.py").write_text("")
    assert torch_builds.torchvision_fault() is None


def test_the_readme_installs_both_from_one_index():
    text = "".join((ROOT / f"requirements{name}.txt").read_text() for name in ("", "-dev"))
    pins = dict(re.findall(r"^(torch|torchvision)==([\d.]+)", text, re.M))
    both = " ".join(f"{name}=={version}" for name, version in pins.items())
    assert f"pip install {both} --index-url {torch_builds.CPU_INDEX}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("adapter", ["huggingface", "lightning"])
def test_an_adapter_without_its_library_is_a_sentence(adapter, tmp_path):
    hide = "import sys\nsys.modules['transformers'] = sys.modules['lightning'] = None\n"
    ended = subprocess.run(
        [sys.executable, "-c", f"{hide}import mlbench.adapters.{adapter}"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ") and "mlbench-suite[adapters]" in last


def test_a_flow_without_metaflow_is_a_sentence(snapshot: SnapshotAssertion):
    hide = "import sys, runpy\nsys.modules['metaflow'] = None\nsys.path.insert(0, 'pipelines')\n"
    ended = subprocess.run(
        [sys.executable, "-c", f"{hide}runpy.run_path('pipelines/scaling.py', run_name='__main__')"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr == snapshot
