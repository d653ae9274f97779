"""What is told of clusters that were made here: their bill, their expiry."""

import os
from pathlib import Path

import pytest

from mlbench import clock
from mlbench.config.errors import UserError
from mlbench.plugins.kuberay.provisioning import journal, lifecycle, plan, status

SETTINGS = {name: "" for name in ("hardware", "spot", "place", "allow", "context")} | {
    "project": "demo", "workers": "8", "hours": "4", "max_usd": "20", "name": "lab",
}  # fmt: skip
HOUR = 8 * 0.2272 + 0.19 + 0.10 + 9 * 100 * 0.10 / 730 + 0.005 + 9 * 0.0014  # USD, eight spot workers


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> journal.Journal:
    """Return a cluster that has been up for half an hour."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    spec = plan.parse("gke", SETTINGS, creating=True)
    log = journal.begin(spec.model_copy(update={"created": clock.wall() - 1800}))
    log.append(state="up")
    return journal.load("lab")


def tool(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_the_bill_so_far_is_that_of_all_workers(lab: journal.Journal, tmp_path, monkeypatch) -> None:
    tool(tmp_path, "gcloud", "echo '[]'", monkeypatch)
    text = status.text("lab")
    assert f" {HOUR / 2:.2f} USD so far" in text and "cap 20.00 USD" in text
    assert status.usd_at_most(lab, lab.spec.created + 3600) == pytest.approx(HOUR)
    assert status.usd_at_most(lab, lab.spec.created + 1) == pytest.approx(HOUR / 60)  # a minute is the least


def test_only_what_has_expired_or_was_killed_is_reaped(lab: journal.Journal, monkeypatch) -> None:
    down: list[str] = []
    monkeypatch.setattr(lifecycle, "down", lambda name, report: down.append(name))
    assert lifecycle.reap(print, now=lab.spec.expires - 1) == []
    assert lifecycle.reap(print, now=lab.spec.expires + 1) == ["lab"]
    lab.append(state="deleting")  # and then its command was killed
    assert lifecycle.reap(print, now=lab.spec.created) == ["lab"]
    lab.append(state="gone")
    assert lifecycle.reap(print, now=lab.spec.expires + 1) == [] and down == ["lab", "lab"]
    assert status.rows() == []


def test_what_a_living_command_works_at_is_not_reaped(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    spec, reported = plan.parse("gke", SETTINGS, creating=True), list[str]()

    def inventory(spec, run) -> list:
        assert lifecycle.reap(reported.append, now=spec.expires + 1) == []
        return []

    monkeypatch.setattr("mlbench.plugins.kuberay.provisioning.gke.inventory", inventory)
    monkeypatch.setattr("mlbench.plugins.kuberay.provisioning.gke.create", lambda spec: [])
    lifecycle.up(spec, print)
    lifecycle.down("lab", print)
    assert len(reported) == 2 and all(f"(process {os.getpid()})" in line for line in reported)
    assert journal.load("lab").state == "gone"


def test_a_journal_that_a_crash_cut_off_is_read_to_there(lab: journal.Journal) -> None:
    with (lab.folder / journal.FILE).open("a") as file:
        file.write('{"state": "gon')
    assert journal.load("lab").state == "up"
    lab.append(state="gone")  # by a later command
    assert journal.load("lab").state == "gone"


def test_a_journal_that_cannot_be_read_keeps_no_other_cluster_from_being_reaped(
    lab: journal.Journal, monkeypatch
) -> None:
    monkeypatch.setattr(lifecycle, "down", lambda name, report: lab.append(state="gone"))
    broken = journal.root() / "broken"
    broken.mkdir()
    (broken / journal.FILE).write_text("{}\n")
    assert [row[0:3:2] for row in status.rows()] == [["lab", "up"], ["broken", "cannot be read"]]
    with pytest.raises(UserError, match=f"{broken / journal.FILE} "):
        lifecycle.reap(print, now=lab.spec.expires + 1)
    assert journal.load("lab").state == "gone"


def test_a_journal_whose_beginning_was_cut_off_blocks_no_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    spec = plan.parse("gke", SETTINGS, creating=True)
    folder = journal.root() / "lab"
    folder.mkdir(parents=True)
    (folder / "journal.part").write_text('{"at": 1, "spec": {"na')
    assert journal.journals() == ([], {})  # `list` and `reap` go on
    assert journal.begin(spec).spec == spec
    assert [path.name for path in folder.iterdir()] == [journal.FILE]
