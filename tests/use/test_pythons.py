"""The main job in the Pythons of MLBENCH_PYTHONS, whose environments have requirements.txt installed.

`uv venv --python 3.13 .venv-313 && uv pip install --python .venv-313 -r requirements.txt` makes one of them.
"""

import os
import subprocess
from pathlib import Path

import pytest
from installed import Place, sources, wheel

pytestmark = pytest.mark.use
PYTHONS = [Path(path) for path in os.environ.get("MLBENCH_PYTHONS", "").split(os.pathsep) if path]


@pytest.mark.skipif(not PYTHONS, reason="MLBENCH_PYTHONS names no other Python; none was tried")
def test_the_main_job_runs_in_every_python(user: Place, tmp_path: Path) -> None:
    made = wheel(sources(tmp_path / "source"), tmp_path)
    for number, python in enumerate(PYTHONS):
        to = tmp_path / str(number)
        # In front of the environment's own packages, which stay as they are.
        line = f"{python} -m venv --without-pip {to}"
        subprocess.run(line.split(), check=True)
        (site,) = to.glob("lib/python3*/site-packages")
        subprocess.run(["unzip", "-q", made, "-d", site], check=True)
        others = subprocess.check_output(
            [python, "-c", "import site; print(site.getsitepackages()[0])"], text=True
        )
        (site / "environment.pth").write_text(others)
        shell = user.within(tmp_path / f"folder{number}").variables(
            PATH=f"{to / 'bin'}:{python.parent}:{os.environ['PATH']}", VIRTUAL_ENV=str(to)
        )
        record = shell.run("python -m mlbench.run seed=1")
        assert record.status == "goal_reached" and record.experiment.launcher == "ray"
