"""Make a cluster, delete it, and prove that nothing of it is left."""

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from mlbench import clock
from mlbench.clusters.processes import create_time, runs
from mlbench.config.errors import ClusterError, UserError
from mlbench.plugins.kuberay.provisioning import journal
from mlbench.plugins.kuberay.provisioning.journal import Journal
from mlbench.plugins.kuberay.provisioning.plan import provider
from mlbench.plugins.kuberay.provisioning.spec import ClusterSpec, ProvisioningStep, Resource
from mlbench.record import format, temporary_folder

Report = Callable[[str], None]
TOOLS = {  # source of each command
    "gcloud": "cloud.google.com/sdk/docs/install, with the component gke-gcloud-auth-plugin",
    "terraform": "developer.hashicorp.com/terraform/install",
    "aws": "docs.aws.amazon.com/cli",
    "kubectl": "kubernetes.io/docs/tasks/tools",
    "helm": "helm.sh/docs/intro/install",
    "kind": "kind.sigs.k8s.io",
}
RETRY_S = 20.0  # s between two tries of a step that another operation blocks
RETRIES = 90  # tries: 30 min, longer than any cloud takes to create or delete a cluster
# deletions by `down` of what it finds: dependents of a resource under deletion have to wait
ROUNDS = 15


def up(spec: ClusterSpec, report: Report) -> None:
    """Create the cluster. After a failed step its resources are deleted again.

    Raises UserError if a tool is missing, if something of that name exists already, and if a step fails.
    """
    steps = provider(spec).create(spec)
    needed = {step.argv[0] for step in steps} | {step.unless[0] for step in steps if step.unless}
    missing = sorted(tool for tool in needed if shutil.which(tool) is None)
    if missing:
        raise ClusterError(
            f"{', '.join(missing)} is not installed",
            hint="; ".join(f"{tool}: {TOOLS[tool]}" for tool in missing),
        )
    # Written first: whatever happens from here on, `down` and `reap` can find the cluster.
    log = journal.begin(spec, _this_command())
    try:
        prepare = getattr(provider(spec), "prepare", None)
        if prepare:
            prepare(spec)
        conflicts = getattr(provider(spec), "conflicts", provider(spec).inventory)
        if spec.provider != "existing" and (resources := conflicts(spec, run)):
            names = ", ".join(f"{resource.kind} {resource.name}" for resource in resources)
            raise ClusterError(
                f"{names} exists already and was not made by this command", hint="give name=OTHER"
            )
        for number, step in enumerate(steps, 1):
            if step.unless and run(step.unless).returncode == 0:
                report(f"{number}/{len(steps)} {step.purpose}: exists already")
                continue
            report(f"{number}/{len(steps)} {step.purpose}")
            perform(log, step)
        log.append(state="up")
    except UserError as error:
        if not any("step" in event for event in journal.load(spec.name).events):
            log.append(state="gone")  # nothing was begun, so there is nothing of ours
            raise
        report(f"failed: {error.message}")
        down(spec.name, report)
        raise ClusterError(
            f"{error.message} (the resources made so far are deleted)", hint=error.hint
        ) from error
    except KeyboardInterrupt:
        report("interrupted: deleting the resources made so far (a second Ctrl-C leaves that to `reap`)")
        down(spec.name, report)
        raise


def down(name: str, report: Report) -> None:
    """Delete all resources with the cluster's id, and check again until nothing is left.

    Raises UserError if a resource under the cluster's name is not ours, and if one is not deleted.
    """
    log = journal.load(name)
    if log.state == "gone":
        report(f"{name} is gone since {clock.iso(log.ended or 0)}")
        return
    module = provider(log.spec)
    _await_survivor(log, report)
    log.append(state="deleting", command=_this_command())
    resources: list[Resource] = []
    for attempt in range(ROUNDS):
        if attempt > 1:
            time.sleep(RETRY_S)
        resources = module.inventory(log.spec, run)
        foreign = [resource for resource in resources if not resource.ours]
        if foreign:
            names = ", ".join(f"{resource.kind} {resource.name}" for resource in foreign)
            raise ClusterError(
                f"{names} does not carry the id {log.spec.id} of cluster {name}, so it is not deleted",
                hint="delete it yourself if it is yours",
            )
        if not resources:
            break
        for resource in resources:
            report(f"delete {resource.kind} {resource.name}")
            perform(log, resource.delete, tolerant=True)
    if resources:
        names = ", ".join(f"{resource.kind} {resource.name}" for resource in resources)
        raise ClusterError(
            f"still exists and may be billed: {names}", hint="delete it in the cloud's console"
        )
    forget = getattr(module, "forget", None)
    if forget:
        forget(log.spec)
    log.append(state="gone")
    report(f"no resources of {name} remain")


def reap(report: Report, *, now: float) -> list[str]:
    """Delete expired clusters and those whose `up` or `down` was killed. Return their names.

    Clusters that a running command creates or deletes are skipped.
    """
    names: list[str] = []
    logs, faults = journal.journals()
    failed = list(map(str, faults.values()))
    for log in logs:
        if runs(*log.command):
            report(f"{log.spec.name} is left to the command that is at work on it (process {log.command[0]})")
        elif log.state in ("creating", "deleting") or (
            log.state == "up" and log.spec.billed and log.spec.expires <= now
        ):
            names.append(log.spec.name)
    for name in names:
        try:
            down(name, report)
        except UserError as error:
            failed.append(str(error))
    if failed:
        raise ClusterError("; ".join(failed))
    return names


def perform(log: Journal, step: ProvisioningStep, *, tolerant: bool = False) -> None:
    """Run one step between two lines of the journal. Raises UserError if it fails and is not `tolerant`.

    `down` is tolerant: it finds undeleted resources at its next check.
    """
    log.append(step=list(step.argv), begun=True)
    for attempt in range(RETRIES):
        done = run(
            step.argv, text=step.input, on_start=lambda pid: log.append(pid=pid, created=create_time(pid))
        )
        again = done.returncode and any(phrase in done.stderr for phrase in step.patience)
        if not again or attempt == RETRIES - 1:
            break
        time.sleep(RETRY_S)
    log.append(step=list(step.argv), exit=done.returncode)
    with (log.folder / "output.log").open("a") as file:
        file.write(f"$ {shlex.join(step.argv)}\n{done.stdout}{done.stderr}\n")
    if done.returncode and not tolerant:
        text = done.stderr or done.stdout
        lines = (line.strip("╷│╵ ") for line in text.splitlines())  # Terraform quotes its source after
        why = next((line for line in lines if line.startswith("Error: ")), format.last_line(text))
        raise ClusterError(
            f"{step.argv[0]} failed ({step.purpose}): {why}",
            hint=f"the complete output is in {log.folder}/output.log",
        )


def run(
    argv: Sequence[str], *, text: str | None = None, on_start: Callable[[int], None] = lambda pid: None
) -> subprocess.CompletedProcess[str]:
    """Run a command without a shell and return its output. A missing one fails as any other.

    Its temporary files are in a folder of ours: a killed Terraform leaves its plugins' sockets.
    """
    pipe = subprocess.PIPE
    stdin = subprocess.DEVNULL if text is None else pipe
    try:
        with temporary_folder.folder() as folder:
            env = os.environ | {"TMPDIR": str(folder)}
            with subprocess.Popen(
                list(argv), env=env, stdin=stdin, stdout=pipe, stderr=pipe, text=True
            ) as process:
                on_start(process.pid)
                output, errors = process.communicate(text)
    except OSError as error:
        return subprocess.CompletedProcess(list(argv), 127, "", f"{argv[0]}: {error.strerror}")
    return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)


def _this_command() -> tuple[int, float | None]:
    return os.getpid(), create_time(os.getpid())


def _await_survivor(log: Journal, report: Report) -> None:
    """Wait for the command that a killed `up` or `down` has left running: it may still create resources."""
    last = next((event for event in reversed(log.events) if "pid" in event or "exit" in event), {})
    while "pid" in last and runs(last["pid"], last["created"]):
        report(f"waits for a command of the killed one (process {last['pid']})")
        with suppress(psutil.Error):
            psutil.Process(last["pid"]).wait()
