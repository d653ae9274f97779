"""docs/security.md: Ray asks for the user's token. That it listens on loopback alone: test_faults.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlbench.clusters import ray_env

pytestmark = pytest.mark.slow
STRANGER = """
import sys
from ray._raylet import GcsClient
print(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None))
"""


def test_ray_answers_nobody_without_the_token(kept_ray: dict[str, str], tmp_path: Path) -> None:
    status = [sys.executable, "-m", "mlbench.cluster", "status"]
    output = subprocess.run(status, env=kept_ray, capture_output=True, text=True, check=True).stdout
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ray_env.TOKEN).read_text()
    ask = [sys.executable, "-c", STRANGER, output.split()[-1]]
    answers = [
        subprocess.run(ask, env={**kept_ray, "RAY_AUTH_TOKEN": value}, capture_output=True, text=True)
        for value in (token, "0" * len(token))
    ]
    assert answers[0].returncode == 0, answers[0].stderr
    assert answers[1].returncode != 0 and answers[1].stdout == ""
