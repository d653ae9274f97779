"""How a worker's process begins: with torch, where the worker has this machine's files."""

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mlbench.clusters.connection import Connection
from mlbench.experiment.config import compose
from mlbench.launch import driver, ray_hooks, worker_entrypoint
from mlbench.launch.worker_process import WorkerSpec

SCRIPT = "import json, sys; print(json.dumps([__name__, 'torch' in sys.modules, sys.argv, sys.path[0]]))"


def test_torch_is_imported_before_the_script_of_a_worker(tmp_path: Path) -> None:
    script = tmp_path / "a worker.py"
    script.write_text(SCRIPT)
    line = f"exec {worker_entrypoint.command()} {shlex.quote(str(script))} --address=1"
    answer = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = ["__main__", True, [str(script), "--address=1"], os.fspath(tmp_path)]
    assert json.loads(answer.stdout) == expected


@pytest.mark.parametrize(
    ("cluster", "expected"), [("local", {"py_executable": worker_entrypoint.command()}), ("attached", {})]
)
def test_workers_that_share_files_begin_with_torch(
    cluster: str, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[Any] = []

    class Trainer:
        def __init__(self, *_: Any, run_config: Any, **__: Any) -> None:
            configs.append(run_config)

        def fit(self) -> None:
            pass

    monkeypatch.setattr(ray_hooks, "LeanTrainer", Trainer)
    experiment = compose(["task=logreg", f"cluster={cluster}"])
    spec = WorkerSpec(experiment, 1, 1, ("127.0.0.1", 1), "token", log=str(tmp_path / "log"), driver=None)
    connection = Connection({"CPU": 1}, "PACK", 1, False, host="127.0.0.1", job_id="1", node_ids=[])
    driver.run_workers(spec, connection, tmp_path)
    assert configs[0].worker_runtime_env == expected
