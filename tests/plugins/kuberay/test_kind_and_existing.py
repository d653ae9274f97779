"""Clusters that no cloud bills: what is asked of kind, kubectl and helm, and that only our own is taken away.

The three tools are stubs that keep what they were asked to make; nothing here shows what the real ones do.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from syrupy.assertion import SnapshotAssertion

from mlbench.config.errors import UserError
from mlbench.plugins.kuberay.provisioning import journal, lifecycle, plan
from mlbench.record import temporary_folder

KIND = """case "$1 $2" in
"create cluster") cat > {here}/config.json; echo mlbench-lab >> {here}/clusters;;
"get clusters") cat {here}/clusters;;
"delete cluster") : > {here}/clusters;;
esac"""
KUBECTL = """case "$*" in
*"get crd"*) test -e {here}/crd && echo crd/rayjobs.ray.io;;
*"wait deployment"*"kuberay-operator,kuberay"*) test ! -e {here}/silent || exit 1
  test -e {here}/operator || test -s {here}/release;;
*"get nodes"*) grep -o '"mlbench-id": "[0-9a-f]*"' {here}/config.json | head -1 | grep -q "$(echo "$*" \
| sed 's/.*mlbench-id=//')" && echo node/lab || true;;
esac"""
HELM = """echo "$*" >> {here}/helm.log
case "$1" in
install) if test -s {here}/release; then
  echo 'Error: INSTALLATION FAILED: cannot re-use a name that is still in use' >&2; exit 1; fi
  touch {here}/crd; echo "$*" | sed 's/.*mlbench-id=//' > {here}/release;;
list) if test -s {here}/release && test "$(cat {here}/release)" = "$(echo "$*" | sed 's/.*mlbench-id=//')"
  then echo '[{{"name": "kuberay-operator", "namespace": "kuberay-system"}}]'; else echo '[]'; fi;;
uninstall) : > {here}/release;;
esac"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which the stubs keep their state."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("kind", KIND), ("kubectl", KUBECTL), ("helm", HELM)):
        (tools / name).write_text(f"#!/bin/sh\n{text.format(here=tmp_path)}\n")
        (tools / name).chmod(0o755)
    (tmp_path / "clusters").touch()
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(lifecycle, "RETRY_S", 0.0)
    return tmp_path


def up(provider: str, **settings: str) -> None:
    empty = ("hardware", "spot", "hours", "max_usd", "project", "place", "allow", "context")
    values = dict.fromkeys(empty, "") | {"workers": "2", "name": "lab"} | settings
    lifecycle.up(plan.parse(provider, values, creating=True), print)


def test_kind_gets_a_labelled_node_a_worker_and_loses_them(here: Path) -> None:
    up("kind")
    nodes = json.loads((here / "config.json").read_text())["nodes"]
    assert [node["role"] for node in nodes] == ["control-plane", "worker", "worker", "worker"]
    spec = journal.load("lab").spec
    assert all(node["labels"]["mlbench-id"] == spec.id for node in nodes)
    # kind takes the taint off a control plane that is alone, so the head has a node of its own
    assert [node["labels"].get("mlbench/role") for node in nodes] == [None, "system", "worker", "worker"]
    assert "kuberay-operator" in (here / "helm.log").read_text()
    lifecycle.down("lab", print)
    assert (here / "clusters").read_text() == "" and journal.load("lab").state == "gone"


def test_ctrl_c_takes_back_what_was_made(here: Path, snapshot: SnapshotAssertion) -> None:
    tool = here / "tools" / "kind"
    tool.write_text(tool.read_text().replace("/clusters;;", "/clusters; kill -INT $PPID; sleep 1;;", 1))
    command = [sys.executable, "-m", "mlbench.cluster", "up", "kind", "workers=2", "name=lab"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 130, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2:] == snapshot
    assert (here / "clusters").read_text() == ""


def test_the_reason_of_a_step_that_fails_is_the_tool_s_own(here: Path) -> None:
    """Terraform quotes its source after it."""
    (here / "tools" / "helm").write_text(
        "#!/bin/sh\ntest $1 != install || printf '╷\\n│ Error: creating EKS Node Group: "
        "InsufficientInstanceCapacity\\n│ \\n│   on main.tf line 186:\\n│  186: \\n╵\\n' >&2\nexit 1\n"
    )
    with pytest.raises(UserError, match=": Error: creating .*: InsufficientInstanceCapacity"):
        up("kind")


def test_a_kind_cluster_of_somebody_else_s_is_left_alone(here: Path, as_stored: Any) -> None:
    (here / "clusters").write_text("mlbench-lab\n")
    (here / "config.json").write_text("{}")
    with pytest.raises(UserError, check=as_stored):
        up("kind")
    assert (here / "clusters").read_text() == "mlbench-lab\n"


def test_a_kind_cluster_that_took_the_name_is_not_deleted(here: Path) -> None:
    up("kind")
    (here / "config.json").write_text("{}")  # ours was deleted, and somebody has made another
    with pytest.raises(UserError, match=journal.load("lab").spec.id):
        lifecycle.down("lab", print)
    assert (here / "clusters").read_text() == "mlbench-lab\n"


def test_an_operator_that_was_there_stays(here: Path) -> None:
    (here / "operator").touch()
    up("existing", context="lab")
    lifecycle.down("lab", print)
    assert [line.split()[0] for line in (here / "helm.log").read_text().splitlines()] == ["list"]


def test_an_operator_of_ours_is_taken_away(here: Path) -> None:
    up("existing", context="lab")
    assert lifecycle.reap(print, now=journal.load("lab").spec.expires + 1) == []  # nobody pays for it
    lifecycle.down("lab", print)
    commands = [line.split()[0] for line in (here / "helm.log").read_text().splitlines()]
    assert commands == ["install", "list", "uninstall", "list"]
    assert (here / "crd").exists()  # helm leaves it, and an operator it is not
    up("existing", context="lab")
    assert (here / "helm.log").read_text().splitlines()[-1].startswith("install")


def test_an_operator_that_does_not_answer_now_is_neither_reset_nor_taken_away(here: Path) -> None:
    """Its name is in use in the namespace where ours would be."""
    (here / "release").write_text("of somebody else\n")
    (here / "silent").touch()
    with pytest.raises(UserError, match="still in use"):
        up("existing", context="lab")
    assert journal.load("lab").state == "gone"
    assert (here / "release").read_text() == "of somebody else\n"


def test_a_deletion_that_stops_halfway_goes_on_with_the_same_command(here: Path, as_stored: Any) -> None:
    """As where the cloud's credentials expire meanwhile."""
    up("kind")
    tool = here / "tools" / "kind"
    text = tool.read_text().replace(") : > ", f") touch {here}/expired; : > ")
    tool.write_text(text.replace(") cat /", f") test ! -e {here}/expired || exit 1; cat /"))
    with pytest.raises(UserError, check=as_stored) as stopped:
        lifecycle.down("lab", print)
    assert (here / "clusters").read_text() == "" and "nothing was deleted" not in stopped.value.hint
    (here / "expired").unlink()
    lifecycle.down("lab", print)
    assert journal.load("lab").state == "gone"


def test_the_temporary_files_of_a_command_go_with_it() -> None:
    """Those of a Terraform that is killed are its plugins' sockets."""
    code = "import tempfile; print(tempfile.mkstemp()[1])"
    output = lifecycle.run((sys.executable, "-c", code)).stdout
    assert output.startswith(f"{temporary_folder.root()}/{temporary_folder.PREFIX}")
    assert not Path(output.strip()).parent.exists()
