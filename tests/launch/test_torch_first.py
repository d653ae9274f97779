"""A worker's script finds torch imported, and its own arguments and path."""

import json
import os
import shlex
import subprocess
from pathlib import Path

from mlbench.launch import torch_first

SCRIPT = "import json, sys; print(json.dumps([__name__, 'torch' in sys.modules, sys.argv, sys.path[0]]))"


def test_torch_is_imported_before_the_script_of_a_worker(tmp_path: Path) -> None:
    script = tmp_path / "a worker.py"
    script.write_text(SCRIPT)
    line = f"exec {torch_first.command()} {shlex.quote(str(script))} --address=1"
    answer = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = ["__main__", True, [str(script), "--address=1"], os.fspath(tmp_path)]
    assert json.loads(answer.stdout) == expected
