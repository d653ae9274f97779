"""Several blocks of `mlbench.measure(...)` in one script, and how a block ends."""

import subprocess
import sys
from pathlib import Path

import pytest
from commands import PATIENCE_S

from mlbench.record import events
from mlbench.record.build_record import build_record
from mlbench.record.record import Record

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_temporary_files")]
SCRIPT = str(Path(__file__).parent / "scripts" / "blocks.py")
PYTHON = [sys.executable]
TORCHRUN = [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(command: list[str], end: str, folder: Path) -> tuple[list[Record], int, str]:
    """Return the records that the logs give, first the first one's, the exit code, and what was printed."""
    line = [*command, SCRIPT, end]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    records = [build_record(events.read(log)) for log in folder.glob("runs/*/events.jsonl")]
    return sorted(records, key=lambda record: record.started_at), done.returncode, done.stdout + done.stderr


def test_each_block_is_a_run_of_its_own(tmp_path: Path) -> None:
    """Under torchrun; alone, see below. sys.exit(0) ends a block well."""
    records, code, said = run(TORCHRUN, "exit", tmp_path)
    assert code == 0, said
    assert [record.status for record in records] == ["completed"] * 2, said
    assert [(record.workers, record.steps, record.contradictions) for record in records] == [
        (2, 8, []),
        (2, 16, []),
    ]
    losses = [[validation.metrics["loss"] for validation in record.validations] for record in records]
    assert losses == [[1.0, 1.1], [2.0, 2.1]]
    for record in records:
        assert not [warning for warning in record.warnings if "not seen" in warning]
        assert record.phases["forward"].mean > 0 and record.phases["data_wait"].mean > 0
    assert records[1].started_at >= records[0].ended_at
    assert said.count("COMPLETED") == 2


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        ("fail", "failed", "SystemExit: no rows"),
        ("kill", "interrupted", None),
    ],
)
def test_how_a_block_ends_is_in_its_record(tmp_path: Path, end: str, status: str, error: str | None) -> None:
    records, code, said = run(PYTHON, end, tmp_path)
    assert (records[-1].status, records[-1].steps, len(records)) == (status, 16, 2), said
    assert code != 0 and (error is None or records[-1].error == error)
