"""A whole official run, in a release of its own on published data of its own, and forgeries of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import installed
import numpy as np
import pytest
from commands import PATIENCE_S
from conftest import ROOT
from zips import with_store

from mlbench.datasets import arrow
from mlbench.record import reader
from mlbench.record.record import Record
from mlbench.tasks.logreg.data import EPSILON

pytestmark = pytest.mark.slow
NOISE = ("the machine was busy", "caveat: other processes", "caveat: the hypervisor", "caveat: another run")


def published(root: Path, *, rows: int = 1024) -> Path:
    """Prepare an epsilon whose label is its first feature."""
    random = np.random.default_rng(1)

    def write(writer: arrow.DatasetWriter) -> None:
        for split in ("train", "test"):
            y = random.integers(0, 2, rows).astype(np.float32)
            x = 0.01 * random.standard_normal((rows, 2000)).astype(np.float32)
            x[:, 0] = 2 * y - 1
            writer.write(split, [arrow.record_batch({"features": x, "label": y})])

    return arrow.write_dataset(root / "epsilon", write, manifest={"name": "epsilon", **EPSILON})


def python(copy: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the release; what is imported with -m comes from there, also on the workers."""
    # Variables of the tests are reasons against a run, as anybody's are.
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MLBENCH_", "PYTHON"))}
    plain["XDG_CACHE_HOME"] = str(copy / "cache")  # where it is noted which Ray is the release's
    return subprocess.run(
        [sys.executable, *arguments], cwd=copy, env={**plain, **environment},
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip


def run(copy: Path, data: Path, output: Path, *more: str, **environment: str) -> tuple[Record | None, str]:
    overrides = ("task=logreg", "scale=official", "workers=1", f"data_root={data}", f"output_root={output}")
    done = python(copy, "-m", "mlbench.run", *overrides, *more, **environment)
    shown = done.stdout + done.stderr
    paths = sorted(output.glob("*/record.json"))
    return (reader.load(paths[-1]) if paths else None), shown


def reasons(record: Record | None) -> list[str]:
    assert record is not None and record.status == "goal_reached", record and record.error
    return [reason for reason in record.official_reasons if not reason.startswith(NOISE)]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Return a release, which is complete once it is frozen."""
    copy = tmp_path / "release"
    installed.sources(copy)
    version = copy / "mlbench" / "__init__.py"
    version.write_text(re.sub(r"\.dev\d+", "", version.read_text()))  # also between two releases
    return copy


def test_an_untampered_run_is_official_and_its_forgeries_are_not(
    release: Path, tmp_path: Path, empty_store: Path
) -> None:
    """Only whole runs show that all that the judgement asks for is recorded, and nothing against one."""
    copy, data = release, tmp_path / "data"
    folder = published(data)
    frozen = python(
        copy, str(ROOT / "tools/freeze.py"), "--release", "--data", str(folder), PYTHONPATH=str(copy)
    )
    assert frozen.returncode == 0, frozen.stderr
    record, _ = run(copy, data, with_store(tmp_path / "untampered", empty_store))
    assert reasons(record) == []
    assert record is not None and record.data_hash == arrow.manifest_hash(folder)
    other = tmp_path / "other"
    published(other, rows=512)
    task = copy / "conf/task/logreg.yaml"
    task.write_text(task.read_text().replace("official: 89", "official: 60"))
    output = with_store(tmp_path / "runs-other", empty_store)
    record, shown = run(copy, other, output, "launcher=torchrun", ONEDNN_DEFAULT_FPMATH_MODE="BF16")
    text = " ".join(reasons(record))
    assert "official yes" not in shown
    assert "the rows of" in text and "prepared files of" in text
    assert "goal of logreg" in text and "sources are not" in text
    assert "ONEDNN_DEFAULT_FPMATH_MODE=BF16" in text
    assert "MLBENCH_" not in text, "what mlbench itself sets for torchrun's workers"
    path = folder / "train.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    record, shown = run(copy, data, tmp_path / "runs-edited")
    assert record is None and "changed after it" in " ".join(shown.split())
