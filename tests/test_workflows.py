"""The workflow files: a linter reads them, and their shell steps run here, in a clone of a pushed branch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sample
import yaml
from conftest import ROOT

from submissions import hand_in

pytestmark = pytest.mark.slow
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LINTER = shutil.which("zizmor", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
SETTINGS = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")


def lint(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = [
        str(LINTER),
        "--offline",
        "--no-progress",
        "--pedantic",
        "--strict-collection",
        *map(str, paths),
    ]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.skipif(LINTER is None, reason="zizmor is not installed")
def test_the_linter_has_nothing_to_say(tmp_path: Path) -> None:
    done = lint(*WORKFLOWS)
    assert len(WORKFLOWS) >= 4 and done.returncode == 0, done.stdout + done.stderr
    text = (ROOT / ".github" / "workflows" / "submission.yml").read_text()
    for old, new in (
        ("steps:", "stepss:"),
        ("persist-credentials: false", ""),
        ("pull_request:", "pull_request_target:"),
    ):
        wrong = tmp_path / ".github" / "workflows" / "submission.yml"
        wrong.parent.mkdir(parents=True, exist_ok=True)
        wrong.write_text(text.replace(old, new))
        assert lint(wrong).returncode != 0, f"{new or 'no ' + old} is noticed"


def test_no_workflow_knows_a_secret_or_may_write() -> None:
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {} and "secrets." not in path.read_text()
        assert all(job["permissions"] == {"contents": "read"} for job in workflow["jobs"].values())
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def git(*arguments: str, at: Path) -> str:
    return subprocess.run(
        ["git", *SETTINGS, *arguments], cwd=at, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def author(tmp_path: Path) -> Path:
    """A clone of a bare repository with a base branch and a branch of results that is pushed."""
    git("init", "-q", "--bare", "-b", "main", "origin.git", at=tmp_path)
    git("clone", "-q", "origin.git", "author", at=tmp_path)
    clone = tmp_path / "author"
    git("checkout", "-q", "-b", "main", at=clone)
    (clone / "submissions").mkdir()
    (clone / "submissions" / "README.md").write_text("results\n")
    (clone / "notebooks" / "sample").mkdir(parents=True)
    run = next(sample.SAMPLE.glob("*-logreg-*"))
    shutil.copytree(run, clone / "notebooks" / "sample" / run.name)
    push(clone, "main")
    git("checkout", "-q", "-b", "results", at=clone)
    hand_in(clone / "submissions", tmp_path / "runs")
    push(clone, "results")
    return clone


def push(clone: Path, branch: str) -> None:
    git("add", "-A", at=clone)
    git("commit", "-qm", "change", at=clone)
    git("push", "-q", "origin", branch, at=clone)


def steps(name: str, author: Path) -> tuple[int, str, Path]:
    """Run a workflow's shell steps but for its installation; return code, summary and RUNNER_TEMP."""
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())["jobs"].values()
    folder = author.parent / f"runner-{len(list(author.parent.iterdir()))}"
    git("clone", "-q", "-b", "results", "origin.git", str(folder / "work"), at=author.parent)
    summary = folder / "summary.md"
    summary.touch()
    (folder / "tmp").mkdir()
    base = git("rev-parse", "origin/main", at=folder / "work")
    variables = {"RUNNER_TEMP": str(folder / "tmp"), "GITHUB_STEP_SUMMARY": str(summary), "BASE": base}
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    code = 0
    for step in job["steps"]:
        if "run" in step and step["name"] != "Install" and code == 0:
            script = folder / "step.sh"
            script.write_text(step["run"])
            command = ["bash", "--noprofile", "--norc", "-e", str(script)]
            done = subprocess.run(
                command, cwd=folder / "work", env=os.environ | variables, capture_output=True, text=True
            )
            code = done.returncode
            with summary.open("a") as text:
                text.write(done.stderr)
    return code, summary.read_text(), folder / "tmp"


def test_a_pushed_branch_of_results_is_checked_by_the_base_branch(author: Path, tmp_path: Path) -> None:
    code, summary, _ = steps("submission.yml", author)
    assert code == 0 and "### `lab-a/2026-11-24-two-cores`: accepted" in summary, summary
    (author / "README.md").write_text("mine\n")
    push(author, "results")
    code, summary, _ = steps("submission.yml", author)
    assert code == 1 and "Refused: a pull request" in summary, summary
    (author / "README.md").unlink()

    def faster(log: list[dict[str, Any]]) -> None:
        log[-2]["value"]["ended"] -= 3600

    hand_in(author / "submissions", tmp_path / "b", entity="lab-b", times=[6.25], first_seed=9, edit=faster)
    push(author, "results")
    code, summary, _ = steps("submission.yml", author)
    assert (
        code == 1 and "`lab-b/2026-11-24-two-cores`: refused" in summary and "contradicts itself" in summary
    ), summary
    assert "`lab-a/2026-11-24-two-cores`: accepted" in summary
