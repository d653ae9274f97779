"""The page cache: what lies in memory is told, and asking brings nothing there."""

import os
from pathlib import Path

import psutil
import pytest
from records import record
from syrupy.assertion import SnapshotAssertion

from mlbench.analysis.pooling import mixture
from mlbench.datasets import page_cache
from mlbench.record.record import Node
from mlbench.terminal import full_card

BLOCK = 4 << 20  # bytes


def forget(path: Path) -> None:
    """Have the kernel drop a file from memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_a_file_that_was_read_is_warm_one_that_was_dropped_is_cold_and_sizes_weigh(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(os.urandom(BLOCK))
    large.write_bytes(os.urandom(3 * BLOCK))
    (tmp_path / "empty").touch()
    assert page_cache.share([small, large, tmp_path / "empty"]) == 1.0
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    mount = next(str(folder) for folder in tmp_path.resolve().parents if str(folder) in mounts)
    if mounts[mount] in ("tmpfs", "ramfs"):
        pytest.skip("this file system lies in memory")
    forget(large)
    assert page_cache.share([large]) == 0.0 == page_cache.share([large]), "asking has brought it there"
    assert page_cache.share([small, large]) == pytest.approx(0.25)
    assert page_cache.share([]) is None and page_cache.share([tmp_path / "none"]) is None


def test_a_file_of_somebody_else_s_has_no_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux says of each of its pages that it is in memory."""
    if os.geteuid():
        pytest.skip("only root can be two users")
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # the folders above are root's alone
    theirs, ours = Path("theirs"), Path("ours")
    for path in (theirs, ours):
        path.write_bytes(os.urandom(BLOCK))
        path.chmod(0o444)
    os.chown(ours, 65534, 65534)
    os.seteuid(65534)
    try:
        shares = [page_cache.share([path]) for path in (theirs, ours)]
    finally:
        os.seteuid(0)
    assert shares == [None, 1.0]


def test_a_point_of_cold_and_warm_runs_says_so_and_the_card_tells_which_it_was(
    snapshot: SnapshotAssertion,
) -> None:
    runs = [
        record(nodes=[Node(hostname="a", usable_cpus=2, data_cached=cached)], data_rows={"train": 1500})
        for cached in (1.0, 0.95, 0.2)
    ]
    assert mixture(runs[:2]) == () and mixture(runs) == snapshot
    line = dict(full_card.rows(runs[2]))["data"]
    assert line == snapshot
    assert "data" not in dict(full_card.rows(record(nodes=[])))
