"""A script's folder as an archive: which of its files travel, the same bytes for the same files."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mlbench.config.errors import UserError
from mlbench.record.format import with_prefix

LIMIT = 1_000_000  # bytes of the archive; a ConfigMap holds 1 MiB (kubernetes.io/docs, "ConfigMaps")
MOST = 64_000_000  # bytes of the files before they are packed
IGNORE = (".mlbenchignore", ".gitignore")  # the first that is there names what stays here
ALWAYS = (".git/", "__pycache__/", "*.pyc", ".venv/", ".env", ".netrc")  # stays here in any case
State = tuple[Path, int, int]  # of a file: its bytes, and when it was written


class Archive(NamedTuple):
    """A packed folder and the SHA-256 of its files' names and contents."""

    data: bytes
    digest: str


def pack(root: Path, *, beside: Collection[Path]) -> Archive:
    """Return a folder's files as a tar file, without those below `beside`; UserError above LIMIT."""
    paths = _files(root, set(beside))
    states = tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    if sum(size for _, size, _ in states) > MOST:
        raise _too_large(root, states, "before they are packed", MOST)
    packed = _packed(root, states)
    if len(packed.data) > LIMIT:
        raise _too_large(root, states, f"{with_prefix(len(packed.data), 'B')} packed", LIMIT)
    return packed


def _files(root: Path, beside: set[Path]) -> list[Path]:
    from pathspec import GitIgnoreSpec

    named = next((root / name for name in IGNORE if (root / name).is_file()), None)
    lines = named.read_text().splitlines() if named else []
    spec = GitIgnoreSpec.from_lines([*lines, *ALWAYS])
    every = (root / name for name in spec.match_tree_files(root, negate=True, follow_links=False))
    kept = (path for path in every if not beside & {path, *path.parents} and path.is_file())
    return sorted(kept)


@cache  # the points of a sweep have the same files
def _packed(root: Path, states: tuple[State, ...]) -> Archive:
    digest, plain = hashlib.sha256(), io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for path, _, _ in states:
            content, entry = path.read_bytes(), tarfile.TarInfo(path.relative_to(root).as_posix())
            entry.size, entry.mode = len(content), 0o755 if path.stat().st_mode & 0o100 else 0o644
            digest.update(f"{entry.name} {entry.mode:o} {hashlib.sha256(content).hexdigest()}\n".encode())
            tar.addfile(entry, io.BytesIO(content))
    return Archive(gzip.compress(plain.getvalue(), mtime=0), digest.hexdigest())


def _too_large(root: Path, states: tuple[State, ...], what: str, limit: int) -> UserError:
    largest = sorted(states, key=lambda state: -state[1])[:3]
    named = ", ".join(f"{path.name} ({with_prefix(size, 'B')})" for path, size, _ in largest)
    return UserError(
        f"{root}: {len(states)} files, {what}, exceed the limit of {with_prefix(limit, 'B')} for "
        "sending. The "
        f"largest: {named}",
        hint="list what the script does not read in .mlbenchignore, and put data into cluster.data_claim or "
        "cluster.data_bucket",
    )
