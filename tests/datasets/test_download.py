import hashlib
import io
import os
import resource
import socket
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from commands import PATIENCE_S
from mirror import serve

from mlbench.config.errors import UserError
from mlbench.datasets import download as downloads
from mlbench.datasets import download as module
from mlbench.datasets.download import Archive, extract

CONTENT = os.urandom(3 << 20)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(module, "PAUSES_S", (0.0, 0.0))


def dead_mirror() -> str:
    """Return an address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/file"


def left(folder: Path) -> list[str]:
    """Return the names of a folder's files but for the lock, which stays: others may wait for it."""
    names = sorted(path.name for path in folder.iterdir())
    return [name for name in names if name != ".file.lock"]


def download(urls: list[str], target: Path, *, progress=None, **about) -> Path:
    return downloads.download(Archive(tuple(urls), target.name, **about), target, progress=progress)


def test_a_file_arrives_whole_with_progress(tmp_path):
    seen = []
    with serve(file=CONTENT) as mirror:
        target = download(
            [mirror.url + "file"],
            tmp_path / "deep" / "file",
            sha256=SHA256,
            md5=MD5,
            size=len(CONTENT),
            progress=lambda done, total: seen.append((done, total)),
        )
    assert target.read_bytes() == CONTENT
    assert seen[0] == (0, len(CONTENT)) and seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert left(target.parent) == ["file"]


def test_a_file_that_is_there_needs_no_network(tmp_path):
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "file").write_bytes(CONTENT)
    archive = Archive((dead_mirror(),), "file", sha256=SHA256, md5=MD5, size=len(CONTENT))
    assert downloads.download(archive, tmp_path / "downloads" / "file").read_bytes() == CONTENT


def test_a_wrong_file_that_is_there_is_refused_and_kept(tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    with serve(file=CONTENT) as mirror, pytest.raises(UserError, match="SHA256 .* instead of") as error:
        download([mirror.url + "file"], tmp_path / "file", sha256=SHA256)
    assert "remove it" in error.value.hint
    assert (tmp_path / "file").read_bytes() == b"mine"


def client(code: str) -> tuple[str, ...]:
    """Return a command in the place of a registry's client."""
    return (sys.executable, "-c", code)


def test_a_registry_s_client_brings_the_file_and_no_mirror_is_asked(tmp_path):
    (tmp_path / "source").write_bytes(CONTENT)
    seen = []
    code = f"import shutil; shutil.copy({str(tmp_path / 'source')!r}, 'file%3a1.deb')"
    archive = Archive((dead_mirror(),), "file", sha256=SHA256, size=len(CONTENT), command=client(code))
    target = tmp_path / "downloads" / "file"
    downloads.download(archive, target, progress=lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == CONTENT and left(target.parent) == ["file"]
    assert seen == [(0, len(CONTENT)), (len(CONTENT), len(CONTENT))]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("no-such-client", "download", "x"), "no-such-client download x: no-such-client is not installed"),
        (client("import sys; sys.exit('E: Version 1 was not found')"), "E: Version 1 was not found"),
        (client("raise SystemExit(7)"), "it ended with exit code 7"),
        (client("open('file', 'w').write('another')"), "what it brings has 7 bytes instead of"),
    ],
)
def test_where_the_client_fails_a_mirror_is_asked_and_else_both_reasons_are_told(tmp_path, command, reason):
    archive = Archive((), "file", sha256=SHA256, size=len(CONTENT), command=command)
    with pytest.raises(UserError) as error:
        downloads.download(archive, tmp_path / "downloads" / "file")
    assert reason in str(error.value) and f"{tmp_path / 'downloads' / 'file'}" in error.value.hint
    assert left(tmp_path / "downloads") == []
    with serve(file=CONTENT) as mirror:
        urls = (mirror.url + "file",)
        archive = Archive(urls, "file", sha256=SHA256, size=len(CONTENT), command=command)
        path = downloads.download(archive, tmp_path / "downloads" / "file")
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("cuts", [[1_000_000], [1_000_000, 500_000]])
def test_a_broken_transfer_goes_on_where_it_stopped(tmp_path, cuts):
    with serve(file=CONTENT) as mirror:
        mirror.breaks_after["file"] = list(cuts)
        target = download([mirror.url + "file"], tmp_path / "file", sha256=SHA256)
        ranges = [at for _, at in mirror.requests]
    assert target.read_bytes() == CONTENT
    stops = [f"bytes={sum(cuts[: n + 1])}-" for n in range(len(cuts))]
    assert ranges == [None, *stops]


def test_a_later_call_goes_on_too(tmp_path):
    with serve(file=CONTENT) as mirror:
        mirror.breaks_after["file"] = [1000, 1000, 1000]
        with pytest.raises(UserError, match="3,000 of 3,145,728 bytes") as error:
            download([mirror.url + "file"], tmp_path / "file", sha256=SHA256)
        assert "try again" in error.value.hint
        assert not (tmp_path / "file").exists()
        download([mirror.url + "file"], tmp_path / "file", sha256=SHA256)
        assert mirror.requests[-1] == ("file", "bytes=3000-")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_killed_process_leaves_a_part_that_the_next_one_finishes(tmp_path):
    with serve(file=CONTENT) as mirror:
        mirror.pauses_after = 2 << 20
        code = (
            "import sys; from pathlib import Path; from mlbench.datasets.download import Archive, download\n"
            "show = lambda done, total: print(done, flush=True)\n"
            f"archive = Archive(({mirror.url + 'file'!r},), 'file', {SHA256!r})\n"
            f"download(archive, Path({str(tmp_path / 'file')!r}), progress=show)"
        )
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout
        for line in process.stdout:
            if int(line) >= 2 << 20:
                break
        process.kill()
        process.communicate()
        assert left(tmp_path) == ["file.part"]
        mirror.pauses_after = None
        download([mirror.url + "file"], tmp_path / "file", sha256=SHA256)
        assert mirror.requests[-1] == ("file", f"bytes={2 << 20}-")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_of_two_processes_that_want_a_file_one_fetches_it_and_the_other_waits(tmp_path):
    """Both wrote into one .part, each its own bytes: wmt16 and wmt17 share archives."""
    code = (
        "from pathlib import Path; from mlbench.datasets.download import Archive, download\n"
        "print('asks', flush=True)\n"
        "show = lambda done, total: print(done, flush=True)\n"
        "archive = Archive(('{url}',), 'file', '{sha256}')\n"
        "print(download(archive, Path('{target}'), progress=show), flush=True)"
    )
    with serve(file=CONTENT) as mirror:
        mirror.pauses_after = 2 << 20
        code = code.format(url=mirror.url + "file", target=tmp_path / "file", sha256=SHA256)
        start = {"stdout": subprocess.PIPE, "text": True}
        first = subprocess.Popen([sys.executable, "-c", code], **start)
        assert first.stdout
        next(line for line in first.stdout if line == f"{2 << 20}\n")
        second = subprocess.Popen([sys.executable, "-c", code], **start)
        assert second.stdout and second.stdout.readline() == "asks\n"
        time.sleep(0.5)  # in which it would ask the mirror for the rest
        assert second.poll() is None and len(mirror.requests) == 1
        mirror.go_on.set()
        said = [process.communicate(timeout=PATIENCE_S)[0].splitlines()[-1] for process in (first, second)]
    assert said == [str(tmp_path / "file")] * 2
    assert mirror.requests == [("file", None)]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_without_a_checksum_pieces_are_not_joined(tmp_path):
    with serve(file=CONTENT) as mirror:
        mirror.breaks_after["file"] = [1000]
        download([mirror.url + "file"], tmp_path / "file")
        assert [at for _, at in mirror.requests] == [None, None]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_starts_over(tmp_path):
    with serve(file=CONTENT) as mirror:
        mirror.breaks_after["file"] = [1000]
        mirror.ignores_range = True
        download([mirror.url + "file"], tmp_path / "file", sha256=SHA256)
        assert [at for _, at in mirror.requests] == [None, "bytes=1000-"]
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("leftover", [b"x" * 1000, b"x" * (4 << 20)], ids=["shorter", "longer"])
def test_a_part_of_another_file_is_thrown_away(tmp_path, leftover):
    (tmp_path / "file.part").write_bytes(leftover)
    with serve(file=CONTENT) as mirror:
        download([mirror.url + "file"], tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"sha256": "0" * 64}, "SHA256 .* instead of 0000"),
        ({"md5": "0" * 32}, "MD5 .* instead of 0000"),
        ({"sha256": SHA256, "size": 7}, "3,145,728 bytes instead of 7"),
    ],
)
def test_a_file_that_is_not_the_wanted_one_is_refused_and_removed(tmp_path, wanted, said):
    with serve(file=CONTENT) as mirror, pytest.raises(UserError, match=said):
        download([mirror.url + "file"], tmp_path / "file", **wanted)
    assert left(tmp_path) == []


@pytest.mark.parametrize("first", ["dead", "missing", "wrong", "busy"])
def test_the_second_mirror_helps_when_the_first_does_not(tmp_path, first):
    with serve(file=CONTENT, wrong=b"something else", busy=CONTENT) as mirror:
        mirror.status["busy"] = [503, 503, 503]
        bad = dead_mirror() if first == "dead" else mirror.url + first
        download([bad, mirror.url + "file"], tmp_path / "file", sha256=SHA256)
        assert mirror.requests[-1] == ("file", None)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_busy_server_is_asked_again_but_not_one_without_the_file(tmp_path):
    with serve(busy=CONTENT) as mirror:
        mirror.status["busy"] = [503, 429]
        urls = [mirror.url + "missing", mirror.url + "busy"]
        download(urls, tmp_path / "file", sha256=SHA256)
        assert [name for name, _ in mirror.requests] == ["missing", "busy", "busy", "busy"]


def test_when_no_mirror_helps_each_is_named_with_its_reason(tmp_path):
    with serve(wrong=b"no") as mirror:
        urls = [dead_mirror(), mirror.url + "missing", mirror.url + "wrong", "nonsense"]
        with pytest.raises(UserError) as error:
            download(urls, tmp_path / "file", sha256=SHA256)
    for part in (*urls, "refused", "404", "SHA256", "unknown url type"):
        assert part in error.value.message
    assert str(tmp_path / "file") in error.value.hint


def test_a_full_disk_is_named(tmp_path):
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, {resource.RLIM_INFINITY}))"
    with serve(file=CONTENT) as mirror:
        code = (
            f"{limit}\nfrom pathlib import Path; from mlbench.datasets.download import Archive, download\n"
            f"archive = Archive(({mirror.url + 'file'!r},), 'file', {SHA256!r})\n"
            f"download(archive, Path({str(tmp_path / 'file')!r}))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert len(mirror.requests) == 1
    assert f"Error: cannot write {tmp_path / 'file.part'}: File too large" in done.stderr


# Archives


def tar_of(path: Path, **entries: bytes | tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in entries.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return path


def zip_of(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as pack:
        for name, content in entries.items():
            pack.writestr(name, content)
    return path


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


def test_archives_of_each_kind_are_unpacked(tmp_path):
    extract(tar_of(tmp_path / "a.tar.gz", **{"in/one": b"1"}), tmp_path / "tar")
    extract(zip_of(tmp_path / "a.zip", {"in/two": b"2"}), tmp_path / "zip")
    assert (tmp_path / "tar/in/one").read_bytes() == b"1"
    assert (tmp_path / "zip/in/two").read_bytes() == b"2"


@pytest.mark.parametrize(
    "entry",
    [
        {"../out": b"bad"},
        {"in/../../out": b"bad"},
        {"link": link("link", "../out", tarfile.SYMTYPE)},
        {"link": link("link", "/etc/passwd", tarfile.SYMTYPE)},
        {"link": link("link", "../out", tarfile.LNKTYPE)},
        {"pipe": link("pipe", "", tarfile.FIFOTYPE)},
    ],
    ids=["parent", "inner", "symlink", "absolute symlink", "hard link", "device"],
)
def test_a_tar_that_leads_out_of_its_folder_is_refused(tmp_path, entry, as_stored: Any):
    archive = tar_of(tmp_path / "a.tar.gz", good=b"good", **entry)
    with pytest.raises(UserError, check=as_stored):
        extract(archive, tmp_path / "in")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "in"]


def test_a_tar_that_writes_through_its_own_link_stays_inside(tmp_path):
    archive = tar_of(tmp_path / "a.tar.gz", d=link("d", ".", tarfile.SYMTYPE), **{"d/file": b"x"})
    extract(archive, tmp_path / "in")
    assert (tmp_path / "in" / "file").read_bytes() == b"x"


def test_entries_that_lead_out_of_the_folder_are_not_written(tmp_path):
    names = ("../out", f"{tmp_path}/out", "in/../../out", "..\\out")
    extract(zip_of(tmp_path / "a.zip", dict.fromkeys(names, b"bad") | {"good": b"good"}), tmp_path / "in")
    extract(tar_of(tmp_path / "a.tar.gz", **{f"{tmp_path}/out": b"absolute"}), tmp_path / "tar")
    assert not (tmp_path / "out").exists() and (tmp_path / "in/good").read_bytes() == b"good"
    assert (tmp_path / "tar" / str(tmp_path)[1:] / "out").read_bytes() == b"absolute"


@pytest.mark.parametrize(
    ("kind", "damage"),
    [(kind, "truncated") for kind in ("tar", "tar.gz", "tar.bz2", "tar.xz", "zip")]
    + [(kind, "overwritten") for kind in ("tar.gz", "tar.bz2", "tar.xz", "zip")],
)
def test_a_damaged_archive_is_named(tmp_path, kind, damage):
    path = tmp_path / f"a.{kind}"
    if kind == "zip":
        zip_of(path, {"file": CONTENT})
    else:
        packed: Any = f"w:{kind[4:]}"
        with tarfile.open(path, packed) as tar:
            entry = tarfile.TarInfo("file")
            entry.size = len(CONTENT)
            tar.addfile(entry, io.BytesIO(CONTENT))
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(
        whole[:half] if damage == "truncated" else whole[:half] + b"\0" * 9999 + whole[half + 9999 :]
    )
    with pytest.raises(UserError, match="damaged or truncated") as error:
        extract(path, tmp_path / "in")
    assert str(path) in error.value.message
