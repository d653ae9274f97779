import bz2
import hashlib
import os
import pty
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from dataclasses import dataclass

import pytest
from conftest import ROOT
from mirror import Mirror, serve

from mlbench import data
from mlbench.config import compose
from mlbench.datasets import download
from mlbench.datasets.download import Archive
from mlbench.tasks.logreg import data as logreg

TEXT = b"".join(b"%d 1:0.%d 2:0.25 \n" % (i % 2 * 2 - 1, i + 1) for i in range(20))
FILES = {"epsilon_normalized.bz2": bz2.compress(TEXT), "epsilon_normalized.t.bz2": bz2.compress(TEXT[:150])}


@dataclass
class Ended:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> dict[tuple[str, str], list[str]]:
        """Return the lines of the list by task and scale, as words: the first, of the task's own data."""
        lines = [line.split() for line in self.out.splitlines()[1:]]
        return {(task, scale): columns for task, scale, *columns in reversed(lines)}


@pytest.fixture
def command(capfd):
    """Return what runs `mlbench data` in this process."""

    def run(*arguments: str) -> Ended:
        code = data.main(arguments)
        return Ended(code, *capfd.readouterr())

    return run


@pytest.fixture
def epsilon(monkeypatch):
    """Let the data set `epsilon` be 20 rows of two columns on a server of ours."""
    monkeypatch.setattr(download, "PAUSES_S", ())
    with serve() as mirror:
        mirror.files = dict(FILES)
        archives = {
            split: Archive((mirror.url + name,), name, hashlib.sha256(content).hexdigest())
            for split, (name, content) in zip(("train", "test"), FILES.items(), strict=True)
        }
        monkeypatch.setattr(logreg, "EPSILON_ARCHIVES", archives)
        monkeypatch.setattr(logreg, "EPSILON_LAYOUT", logreg.Layout((-1.0, 1.0), first=1, features=2))
        yield mirror


OFFICIAL = ("task=logreg", "scale=official")


def test_list_shows_every_task_at_both_scales(command, tmp_path):
    shown = command("list", f"data_root={tmp_path}")
    rows = shown.rows
    assert shown.out.count("libreoffice_help") == 2 and shown.out.count("fashion_mnist") == 2
    assert set(rows) == {(task, scale) for task in compose.choices("task") for scale in ("official", "mini")}
    official = ["cifar10", "no", "185", "MB", "170", "MB", "none", "stated", "by", "its", "publisher"]
    assert rows["resnet20", "official"] == official
    assert rows["logreg", "mini"] == ["epsilon_like", "no", "20.1", "MB", "0", "B", "CC0-1.0"]


def test_list_shows_what_is_prepared_and_what_is_damaged(command, tmp_path):
    root = f"data_root={tmp_path}"
    command("prepare", "task=resnet20", root)
    rows = command("list", root).rows
    assert rows["resnet20", "mini"] == ["digits", "yes", "5.54", "MB", "0", "B", "CC-BY-4.0"]
    assert rows["resnet20", "official"][1] == "no"
    (tmp_path / "digits" / "manifest.json").write_text("{")
    assert command("list", root).rows["resnet20", "mini"][1] == "damaged"


def test_prepare_tells_the_steps_and_the_result_and_does_nothing_twice(command, epsilon: Mirror, tmp_path):
    first = command("prepare", *OFFICIAL, f"data_root={tmp_path}")
    assert first.code == 0
    for name, content in FILES.items():
        assert f"fetch {name}: {len(content)} B of {len(content)} B\n" in first.err
    assert "read epsilon_normalized.bz2: " in first.err and "write train\n" in first.err
    assert f"{tmp_path / 'epsilon'}: train 20 rows, " in first.out and "test 10 rows, " in first.out
    epsilon.requests.clear()
    second = command("prepare", *OFFICIAL, f"data_root={tmp_path}")
    assert (second.code, second.out, second.err) == (0, first.out, "")
    assert epsilon.requests == []


def test_a_download_that_fails_is_one_sentence_too(command, epsilon: Mirror, tmp_path):
    epsilon.files["epsilon_normalized.t.bz2"] = b"<html>"
    done = command("prepare", *OFFICIAL, f"data_root={tmp_path}")
    assert done.code == 2
    assert "epsilon_normalized.t.bz2 cannot" in done.err.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".epsilon.lock", "downloads"]


def test_verify_hashes_all_or_the_one_of_a_task(command, tmp_path):
    root = f"data_root={tmp_path}"
    command("prepare", "task=resnet20", root)
    command("prepare", "task=logreg", root)
    done = command("verify", root)
    assert done.code == 0
    assert [line.split(":")[0] for line in done.out.splitlines()] == [
        str(tmp_path / "digits"),
        str(tmp_path / "epsilon_like"),
    ]
    damaged = tmp_path / "digits" / "train.arrow"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert command("verify", "task=logreg", root).code == 0
    for arguments in ([root], ["task=resnet20", root]):
        done = command("verify", *arguments)
        assert done.code == 2 and f"{damaged} is damaged" in done.err


def test_ctrl_c_during_a_download_ends_at_once_and_the_next_call_goes_on(command, epsilon: Mirror, tmp_path):
    name, content = "epsilon_normalized.bz2", FILES["epsilon_normalized.bz2"]
    sha256 = hashlib.sha256(content).hexdigest()
    epsilon.pauses_after = 50
    code = f"""
        from mlbench import data
        from mlbench.datasets import download
        from mlbench.tasks.logreg import data as logreg
        download.BLOCK = 10
        logreg.EPSILON_ARCHIVES = {{
            "train": download.Archive(({epsilon.url + name!r},), {name!r}, {sha256!r})
        }}
        raise SystemExit(data.main(["prepare", "task=logreg", "scale=official", "data_root={tmp_path}"]))
        """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stderr=subprocess.PIPE
    )
    part = tmp_path / "downloads" / (name + ".part")
    assert process.stderr and process.stderr.readline().startswith(b"fetch")
    while not part.exists() or part.stat().st_size < 50:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err.decode().splitlines()[-1].startswith("mlbench: interrupted")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".epsilon.lock", "downloads"]
    epsilon.pauses_after = None
    assert command("prepare", *OFFICIAL, f"data_root={tmp_path}").code == 0
    assert (name, "bytes=50-") in epsilon.requests


@pytest.mark.slow
def test_on_a_terminal_there_are_bars(tmp_path):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    command = [sys.executable, "-m", "mlbench.data", "prepare", "task=resnet20", f"data_root={tmp_path}"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # how Linux says that the other end was closed
            while chunk := os.read(ours, 4096):
                shown += chunk
        os.close(ours)
        assert process.stdout
        out = process.stdout.read().decode()
    assert out.startswith(f"{tmp_path / 'digits'}: train 1,415 rows, ") and "test 382 rows, 5.54 MB" in out
    for part in ("write train", "1,415 rows", "\x1b["):
        assert part in shown.decode()


def test_a_task_and_a_scale_choose_lines_of_the_list(command):
    rows = command("list", "task=logreg,resnet20", "scale=mini").rows
    assert set(rows) == {("logreg", "mini"), ("resnet20", "mini")}


def test_several_tasks_are_prepared_and_verified_by_one_command(command, tmp_path):
    overrides = ("task=allreduce,resnet20", f"data_root={tmp_path}")
    ended = command("prepare", *overrides)
    assert ended.code == 0 and "allreduce needs no" in ended.out
    assert f"{tmp_path}/digits: train 1,415 rows" in ended.out
    assert command("verify", "task=resnet20", overrides[1]).code == 0
