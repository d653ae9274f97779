"""What is released: the same bytes from every machine, whole, and of the commit alone."""

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.version import Version

setuptools = pytest.importorskip("setuptools")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(Version(setuptools.__version__) < Version("77"), reason="setuptools is too old"),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout"),
]


def build(to: Path, **variables: str) -> dict[str, str]:
    """Run the documented command under another mask, zone and language; return the SHA-256 of each file."""
    command = [sys.executable, str(ROOT / "tools" / "distribution.py"), str(to)]
    mask = int(variables.pop("MASK"), 8)
    subprocess.run(command, env=os.environ | variables, umask=mask, check=True, capture_output=True)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in to.iterdir()}


def test_it_is_the_same_bytes_twice_and_has_every_module(tmp_path: Path) -> None:
    first = build(tmp_path / "first", MASK="022", TZ="UTC")
    assert first == build(tmp_path / "second", MASK="077", TZ="Asia/Tokyo", LC_ALL="C", SOURCE_DATE_EPOCH="1")
    sdist, wheel = sorted((tmp_path / "first").iterdir(), key=lambda path: path.suffix != ".gz")
    with tarfile.open(sdist) as tar:
        members = tar.getmembers()
        assert len({(member.mtime, member.uid, member.gid, member.uname) for member in members}) == 1
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    command = ["git", "ls-tree", "-r", "--name-only", "HEAD", "mlbench"]
    head = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    python = {name for name in head if name.endswith(".py")}
    assert len(python) > 100 and python <= names, python - names
