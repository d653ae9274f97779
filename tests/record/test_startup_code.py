"""What runs before mlbench in a process, found as Python finds it: in fresh interpreters."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT

from mlbench.record import startup_code

SAY = "import json; from mlbench.record import startup_code as s; print(json.dumps(s.files()))"


def names(*flags: str, **environment: str) -> list[str]:
    """Return the names of what a fresh interpreter finds."""
    result = subprocess.run(
        [sys.executable, *flags, "-c", SAY],
        env={**os.environ, **environment}, capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return sorted(json.loads(result.stdout))


def test_a_normal_installation_has_none() -> None:
    assert names() == []


@pytest.mark.parametrize("name", startup_code.CUSTOMIZE)
def test_customize_modules_are_told_unless_they_are_empty_or_a_distribution_s(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text("import time\nreal = time.perf_counter\ntime.perf_counter = lambda: real() / 10\n")
    variables = {"PYTHONPATH": str(tmp_path)}
    assert names(**variables) == [f"{tmp_path.name}/{name}.py"]
    for harmless in ("", "# nothing\n", f"# apport\n{startup_code.DEBIAN}"):
        path.write_text(harmless)
        assert names(**variables) == []


def test_lines_of_code_in_a_pth_file_are_told(tmp_path: Path) -> None:
    site = tmp_path / f"lib/python{sysconfig.get_python_version()}/site-packages"
    site.mkdir(parents=True)
    base = {"PYTHONUSERBASE": str(tmp_path)}
    (site / "paths.pth").write_text("# a comment\n/nowhere\n")
    (site / "distutils-precedence.pth").write_text(startup_code.INSTALLERS[0] + "\n")
    code = "import site; from mlbench.record import startup_code as s; site.ENABLE_USER_SITE = True; "
    code += f"site.USER_SITE = {str(site)!r}; print([p.name for p in s._paths()])"
    run = [sys.executable, "-c", code]
    (site / "fast.pth").write_text("import time; time.perf_counter = time.monotonic\n")
    result = subprocess.run(run, env={**os.environ, **base}, capture_output=True, text=True, check=True)
    assert (
        "fast.pth" in result.stdout and "paths.pth" not in result.stdout and "distutils" not in result.stdout
    )


@pytest.mark.slow
def test_flags_other_compiled_files_and_hydra_plugins_are_told(tmp_path: Path) -> None:
    assert names("-O") == ["sys.flags.optimize"] and names("-X", "dev") == ["sys.flags.dev_mode"]
    assert names(PYTHONPYCACHEPREFIX=str(tmp_path / "c")) == ["sys.pycache_prefix"]
    plugin = tmp_path / "hydra_plugins" / "cheap" / "__init__.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text("")
    assert names(PYTHONPATH=str(tmp_path)) == ["cheap/__init__.py"]


def test_modules_in_front_of_the_standard_library_s_and_preloaded_libraries_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heapq.py").write_text("import random\n")
    monkeypatch.setitem(sys.modules, "heapq", SimpleNamespace(__file__=str(tmp_path / "heapq.py")))
    assert startup_code._shadows() == [tmp_path / "heapq.py"]
    monkeypatch.undo()
    assert startup_code._shadows() == []
    (tmp_path / "preload").write_text("libfast.so\n")
    monkeypatch.setattr(startup_code, "PRELOAD", tmp_path / "preload")
    assert startup_code._paths() == [tmp_path / "preload"]


def test_a_compiled_file_that_python_never_checks_is_told(tmp_path: Path) -> None:
    import py_compile

    source = tmp_path / "timer.py"
    source.write_text("x = 1\n")
    for mode in py_compile.PycInvalidationMode:
        py_compile.compile(str(source), cfile=str(tmp_path / f"{mode.name}.pyc"), invalidation_mode=mode)
    assert [path.name for path in startup_code._unchecked(tmp_path)] == ["UNCHECKED_HASH.pyc"]


PLUGIN = """
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

class Cheap(SearchPathPlugin):
    def manipulate_search_path(self, search_path):
        search_path.prepend("cheap", "file://FOLDER")
"""
COMPOSE = "from mlbench.config.compose import compose; compose(['hardware=gcp_n1_t4'])"


def test_a_hydra_plugin_cannot_put_other_hardware_in_front_of_the_shipped(tmp_path: Path) -> None:
    package, conf = tmp_path / "hydra_plugins" / "cheap", tmp_path / "conf" / "hardware"
    package.mkdir(parents=True)
    conf.mkdir(parents=True)
    (package / "__init__.py").write_text(PLUGIN.replace("FOLDER", str(conf.parent)))
    text = (ROOT / "conf/hardware/gcp_n1_t4.yaml").read_text()
    (conf / "gcp_n1_t4.yaml").write_text(text.replace("usd_per_hour:", "usd_per_hour: 0.001 #"))
    result = subprocess.run(
        [sys.executable, "-c", COMPOSE],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert "hardware=gcp_n1_t4 does not" in result.stderr
