"""Write sdist and wheel of a commit, the same bytes whoever makes them: `python tools/distribution.py TO`.

The files are those of git's HEAD, in the order of their names, of the commit's time and of nobody. The wheel
is built from the sdist, so that the sdist has all of it. Needs setuptools as pyproject.toml says.
"""

import gzip
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta as b; getattr(b, f'build_{sys.argv[1]}')(sys.argv[2])"


def write(to: Path, *, root: Path = ROOT) -> list[Path]:
    """Write sdist and wheel of the commit that is checked out below `root` into `to`; return their paths."""
    to.mkdir(parents=True, exist_ok=True)
    epoch = _git("log", "-1", "--format=%ct", root=root).decode().strip()
    with TemporaryDirectory() as name:
        tree, parts = Path(name) / "tree", Path(name) / "parts"
        with tarfile.open(fileobj=io.BytesIO(_git("archive", "HEAD", root=root))) as tar:
            tar.extractall(tree, filter="data")
        _build("sdist", tree, parts, epoch)
        (made,) = parts.glob("*.tar.gz")
        sdist = to / made.name
        sdist.write_bytes(_plain(made, int(epoch)))
        with tarfile.open(sdist) as tar:
            tar.extractall(Path(name) / "unpacked", filter="data")
        (unpacked,) = (Path(name) / "unpacked").iterdir()
        _build("wheel", unpacked, to, epoch)
    return [sdist, *to.glob(f"{sdist.name.removesuffix('.tar.gz')}-*.whl")]


def _git(*arguments: str, root: Path) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True).stdout


def _build(what: str, tree: Path, to: Path, epoch: str) -> None:
    to.mkdir(exist_ok=True)
    command = [sys.executable, "-c", BUILD, what, str(to.resolve())]
    variables = os.environ | {"SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0", "LC_ALL": "C", "TZ": "UTC"}
    done = subprocess.run(command, cwd=tree, env=variables, umask=0o022, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def _plain(sdist: Path, epoch: int) -> bytes:
    """Return the archive with its members in the order of their names, of one time and of nobody."""
    content = io.BytesIO()
    form = tarfile.USTAR_FORMAT
    with tarfile.open(sdist) as source, tarfile.open(fileobj=content, mode="w", format=form) as out:
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            out.addfile(member, source.extractfile(member) if member.isfile() else None)
    return gzip.compress(content.getvalue(), mtime=epoch)


if __name__ == "__main__":
    for path in write(Path(sys.argv[1])):
        print(path)
