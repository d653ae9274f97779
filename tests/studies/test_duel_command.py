"""Duels as typed: verdicts, exit codes, notes against cheats, and what a mistake leaves behind."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import driven
import jsonschema
import pytest
from commands import PATIENCE_S
from conftest import ROOT
from syrupy.assertion import SnapshotAssertion

from mlbench import duel, results
from mlbench.analysis.duel import Verdict
from mlbench.config.goal import Goal
from mlbench.launch.command_run import CommandRun
from mlbench.record.record import Record
from mlbench.studies import duel as contests
from mlbench.studies import duel_answer

SCHEMA = ROOT / "docs" / "schemas" / "duel.json"
PYTHON = sys.executable
KEPT = {"keep_picture": duel_answer.keep_picture, "write_answer": duel_answer.parent_runs.write_answer}
Change = Callable[[Record, CommandRun], tuple[Record, CommandRun]]


class Commands:
    """Stands in for measured commands: `true` is A and `false` B, each with its step times in turn."""

    def __init__(self) -> None:
        self.step_s = {"true": 0.1, "false": 0.1}
        self.change: dict[str, Change] = {}
        self.calls: list[tuple[str, str]] = []
        self.code, self.trains, self.writes = 0, True, dict[str, str]()

    def __call__(self, command: Any, overrides: Any, *, environment: Any, **_: Any) -> CommandRun:
        name = command[0]
        self.calls.append((name, os.getcwd()))
        self.environment = environment
        if self.code:
            return CommandRun(self.code, "the script ended", None, None)
        if not self.trains:
            return CommandRun(0, "no optimizer step was seen", None, None)
        if name in self.writes:
            Path(self.writes[name]).write_text(f"{len(self.calls)}" * len(self.calls))
        words = [word for word in overrides if word.partition("=")[0] in ("study", "tracking_uri")]
        root = Path(next(w for w in overrides if w.startswith("output_root=")).partition("=")[2])
        noise = 1 + 0.001 * (len(self.calls) % 2)  # on the first of a pair, which is each as often
        run = driven.Run(root, *words, name=f"run{len(self.calls)}")
        run.validate(80.0)
        record = run.end("completed")
        record = record.model_copy(update={"wall": 10 + record.steps * self.step_s[name]})
        ended = CommandRun(
            0, None, record, run.folder, [{"threads": 1, "cpus": [0, 1]}], [self.step_s[name] * noise] * 3
        )
        if name in self.change:
            record, ended = self.change[name](record, ended)
        return ended._replace(record=record)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    """What draws and uploads takes seconds to import, and is tried by a test of its own."""
    stand_in = Commands()
    monkeypatch.setattr(contests.command_run, "run", stand_in)
    monkeypatch.setattr(contests.importer, "delete", lambda folder, uri: shutil.rmtree(folder))
    monkeypatch.setattr(duel_answer, "keep_picture", lambda *_: None)
    monkeypatch.setattr(duel_answer.parent_runs, "write_answer", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    return stand_in


def typed(*words: str, capsys: Any) -> tuple[int, dict[str, Any]]:
    """Type a duel of `true` against `false`, by their steps; return the exit code and the JSON answer."""
    sides = ["true"] if "--aa" in words else ["true", "---", "false"]
    by = [] if any(word.startswith("compare=") for word in words) else ["compare=step"]
    code = duel.main([*by, "study=mine", "--json", *words, "--", *sides])
    return code, json.loads(capsys.readouterr().out)


def test_a_difference_is_decided_and_its_runs_are_kept_as_a_study(commands: Commands, capsys: Any) -> None:
    commands.step_s["false"] = 0.09
    code, answer = typed(capsys=capsys)
    jsonschema.validate(answer, json.loads(SCHEMA.read_text()))
    assert (code, answer["decision"], answer["pairs"]) == (0, "faster", 4)
    assert answer["ratio"] == pytest.approx(0.9, rel=0.01) and answer["p"] <= 0.01
    assert answer["sentence"].startswith("B is 11") and "4 pairs" in answer["sentence"]
    assert len(answer["runs"]) == 10 and [run["pair"] for run in answer["runs"]][:2] == [0, 0]
    assert {run["side"] for run in answer["runs"] if run["first"]} == {"A", "B"}
    assert results.main(["list", "study:mine", "--json"]) == 0
    listed = {row["run"] for row in json.loads(capsys.readouterr().out)}
    assert listed == {run["run"] for run in answer["runs"]}
    assert json.loads(Path("runs/studies/mine/duel.json").read_text()) == answer


@pytest.mark.slow
def test_mlflow_has_the_answer_and_its_picture_in_the_parent_of_the_runs(
    commands: Commands, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlbench.tracking.client import open_client

    for name, kept in KEPT.items():
        monkeypatch.setattr(duel_answer if name == "keep_picture" else duel_answer.parent_runs, name, kept)
    commands.step_s["false"] = 0.12
    _, answer = typed(capsys=capsys)
    client = open_client(f"sqlite:///{Path('runs/mlflow.db').absolute()}", artifacts=None)
    assert client is not None
    (parent,) = client.search("tags.study = 'mine'")
    assert parent.data.tags["mlflow.note.content"] == answer["sentence"]
    assert Path("runs/studies/mine/pairs.png").read_bytes().startswith(b"\x89PNG")
    assert parent.data.metrics["duel_ratio"] == pytest.approx(answer["ratio"])


def test_equal_commands_are_undecided_or_within_a_margin_the_same(commands: Commands, capsys: Any) -> None:
    code, answer = typed("max_pairs=7", capsys=capsys)
    assert (code, answer["decision"], answer["pairs"]) == (3, None, 7)
    assert "would have been" in answer["sentence"]
    shutil.rmtree("runs")
    code, answer = typed("margin=5%", capsys=capsys)
    assert (code, answer["decision"]) == (0, "same")
    assert "the same within 5 %" in answer["sentence"]


def test_a_command_against_itself_ends_well_only_without_a_difference(
    commands: Commands, capsys: Any
) -> None:
    code, answer = typed("--aa", "max_pairs=5", capsys=capsys)
    assert (code, answer["decision"], answer["a"], answer["b"]) == (0, None, ["true"], ["true"])
    shutil.rmtree("runs")

    def alternate(record: Record, ended: CommandRun) -> tuple[Record, CommandRun]:
        slow = "/B/" in commands.environment["TRITON_CACHE_DIR"]
        return record, ended._replace(step_s=[0.2 if slow else 0.1])

    commands.change["true"] = alternate
    code, answer = typed("--aa", capsys=capsys)
    assert (code, answer["decision"]) == (1, "slower")


def test_each_side_has_its_compiler_caches_and_nothing_of_them_stays(commands: Commands, capsys: Any) -> None:
    seen: dict[str, set[str]] = {}

    def note(record: Record, ended: CommandRun) -> tuple[Record, CommandRun]:
        name = commands.calls[-1][0]
        seen.setdefault(name, set()).update(commands.environment.values())
        return record, ended

    commands.change = {"true": note, "false": note}
    typed("max_pairs=4", capsys=capsys)
    assert not seen["true"] & seen["false"] and len(seen["true"]) == len(contests.CACHES)
    assert not any(Path(path).parent.parent.exists() for path in seen["true"])


MISTAKES = {
    "compare=wall true": "the -- before the command is missing",
    "true --- false": "the -- before the command is missing",
    "compare=wall": "missing -- before the commands",
    "-- true": "got no --- between two commands",
    "-- true --- sync=local": "one side is a command and the other is not",
    "-- true --- no-such-command": "command not found: no-such-command",
    "compare=stepp -- true --- false": "did you mean step?",
    "compare=printed:( -- true --- false": "not a regular expression",
    "max_pairs=3 -- true --- false": "max_pairs=3",
    "max_time=5 -- true --- false": "max_time=5 is not a duration",
    "margin=1 -- true --- false": "takes a percentage such as 5%",
    "--aa -- true --- false": "take one command",
    "--commits HEAD -- true": "is not a range of commits",
    "task=logreg -- sync=ddp --- sync=lokal": "sync=lokal is unknown",
    "task=logreg compare=step_p5 -- sync=ddp --- sync=zero1": "no single steps",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_nothing(line: str, commands: Commands, capsys: Any) -> None:
    assert duel.main(line.split()) == 2
    told = capsys.readouterr()
    assert MISTAKES[line] in told.err and told.err.count("\n") == 1 and not told.out
    assert commands.calls == [] and os.listdir() == []


def test_a_command_that_fails_ends_the_duel_with_its_code(
    commands: Commands, capsys: Any, snapshot: SnapshotAssertion
) -> None:
    commands.code = 7
    assert duel.main(["--", "true", "---", "false"]) == 7
    assert capsys.readouterr().err == snapshot
    assert len(commands.calls) == 1 and os.listdir() == []


def test_a_command_that_never_trains_is_refused(
    commands: Commands, capsys: Any, snapshot: SnapshotAssertion
) -> None:
    commands.trains = False
    assert duel.main(["--", "true", "---", "false"]) == 2
    assert capsys.readouterr().err == snapshot and os.listdir() == []


def test_two_commands_that_write_one_file_are_refused_and_their_runs_deleted(
    commands: Commands, capsys: Any
) -> None:
    commands.writes = {"true": "model.pt", "false": "model.pt"}
    assert duel.main(["--", "true", "---", "false"]) == 2
    assert "A and B both write" in (told := capsys.readouterr().err) and "model.pt" in told
    assert list(Path("runs").glob("*/record.json")) == [] and len(commands.calls) == 2


def test_disturbed_pairs_are_left_out_and_told(commands: Commands, capsys: Any) -> None:
    def disturb(record: Record, ended: CommandRun) -> tuple[Record, CommandRun]:
        noisy = len(commands.calls) in (5, 6)
        return record.model_copy(update={"disturbances": ["other processes ran"] * noisy}), ended

    commands.change["false"] = disturb
    commands.step_s["false"] = 0.08
    _, answer = typed(capsys=capsys)
    assert answer["left_out"] == {"2": "B: other processes ran"} and answer["pairs"] == 4
    assert any(
        "1 of 5 pairs left" in note and "0 runs and B in 1 (--with-disturbed" in note
        for note in answer["notes"]
    )
    shutil.rmtree("runs")
    commands.calls.clear()
    _, answer = typed("--with-disturbed", capsys=capsys)
    assert answer["left_out"] == {} and answer["pairs"] == 4


def test_a_duel_of_disturbed_pairs_advises_what_adds_pairs(commands: Commands, capsys: Any) -> None:
    for side in ("true", "false"):
        commands.change[side] = updated(disturbances=["other processes ran"])
    code, answer = typed("max_pairs=4", capsys=capsys)
    assert (code, answer["pairs"], len(answer["left_out"])) == (3, 0, 4)
    assert "--with-disturbed" in answer["sentence"] and "max_time" not in answer["sentence"]


def test_the_fast_steps_are_compared_whatever_slows_the_others(commands: Commands, capsys: Any) -> None:
    def slowed(fast_s: float, rest_s: float) -> Callable[[Record, CommandRun], tuple[Record, CommandRun]]:
        return lambda record, ended: (record, ended._replace(step_s=[fast_s] * 10 + [rest_s] * 90))

    commands.change = {"true": slowed(0.1, 0.2), "false": slowed(0.09, 0.3)}
    _, answer = typed("compare=step_p5", capsys=capsys)
    assert (answer["decision"], answer["ratio"]) == ("faster", pytest.approx(0.9))


def test_the_last_pair_decides_though_no_look_was_planned_there(commands: Commands, capsys: Any) -> None:
    ratios = iter([1.0, *(0.9 * (1 + 0.052 * (-1) ** pair) for pair in range(9))])
    commands.change = {
        "true": lambda record, ended: (record, ended._replace(step_s=[1.0])),
        "false": lambda record, ended: (record, ended._replace(step_s=[next(ratios)])),
    }
    code, answer = typed("max_pairs=9", capsys=capsys)
    assert (code, answer["decision"], answer["pairs"]) == (0, "faster", 9)


def test_a_duel_ends_with_the_first_run_without_a_value(commands: Commands, capsys: Any) -> None:
    commands.change["false"] = updated(time_to_accuracy=None, goal=Goal("top1", 90.0, "max"))
    commands.change["true"] = updated(time_to_accuracy=10.0, goal=Goal("top1", 90.0, "max"))
    code, answer = typed("compare=goal", capsys=capsys)
    assert (code, len(answer["runs"]), answer["decision"]) == (3, 4, None)
    assert answer["sentence"].startswith("Not decided: B has no time_to_accuracy in 1 of 1 runs")


def test_a_goal_that_was_not_given_ends_the_duel_with_its_first_run(commands: Commands, capsys: Any) -> None:
    commands.change["true"] = commands.change["false"] = updated(goal=None)
    assert duel.main(["compare=goal", "--", "true", "---", "false"]) == 2
    shown = capsys.readouterr()
    assert "goal=NUMBER" in shown.err and len(shown.err.splitlines()) == 1 and len(commands.calls) == 1
    assert list(Path("runs").glob("*/record.json")) == []


def test_a_signal_is_not_a_failure_of_a_side(commands: Commands, capsys: Any) -> None:
    def interrupt(record: Record, ended: CommandRun) -> tuple[Record, CommandRun]:
        return record.model_copy(update={"status": "interrupted"}), ended._replace(code=1, interrupted=True)

    commands.change["true"] = commands.change["false"] = interrupt
    assert duel.main(["--", "true", "---", "false"]) == 130
    assert "interrupted" in capsys.readouterr().err and len(commands.calls) == 1


def updated(**values: Any) -> Change:
    return lambda record, ended: (record.model_copy(update=values), ended)


def ranks(**values: Any) -> Change:
    return lambda record, ended: (record, ended._replace(ranks=[{**ended.ranks[0], **values}]))


def metric(value: float) -> Change:
    def change(record: Record, ended: CommandRun) -> tuple[Record, CommandRun]:
        last = record.validations[-1].model_copy(update={"metrics": {"val_acc": value}})
        return record.model_copy(update={"validations": [last]}), ended

    return change


# What B does, and what is said of it.
CHEATS = {
    "fewer steps": (updated(steps=10), "steps: A 20, B 10"),
    "fewer rows in a step": (updated(samples=64), "rows: A 5120, B 64"),
    "more workers": (updated(workers=4), "workers: A 2, B 4"),
    "more threads": (ranks(threads=2), "threads of each rank: A 1, B 2"),
    "the rival on one CPU": (ranks(cpus=[0]), "CPUs that each rank may use: A 2, B 1"),
    "other data": (metric(0.5), "val_acc at the end"),
    "a process left beside the rival": (
        lambda record, ended: (record, ended._replace(left=["burn (pid 1)"])),
        "B left burn (pid 1) running, which was ended",
    ),
    "work outside of the clock": (
        lambda record, ended: (record.model_copy(update={"wall": record.wall + 5}), ended),
        "B spends 5.0 s more outside of what step counts",
    ),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_what_one_side_does_otherwise_is_told(cheat: str, commands: Commands, capsys: Any) -> None:
    commands.step_s["false"] = 0.05
    commands.change["false"], told = CHEATS[cheat]
    _, answer = typed(capsys=capsys)
    assert any(told in note for note in answer["notes"]), answer["notes"]


def test_two_fair_commands_get_no_note(commands: Commands, capsys: Any) -> None:
    commands.step_s["false"] = 0.09
    _, answer = typed(capsys=capsys)
    assert answer["notes"] == []


@pytest.mark.slow
def test_a_file_that_a_side_leaves_for_its_next_run_is_named(commands: Commands, capsys: Any) -> None:
    commands.writes["false"] = "cache.bin"
    _, answer = typed(capsys=capsys)
    assert any("B writes" in note and "cache.bin" in note for note in answer["notes"])


def test_nothing_is_decided_of_a_script_that_changes(
    commands: Commands, capsys: Any, snapshot: SnapshotAssertion
) -> None:
    def edit(record: Record, ended: CommandRun) -> tuple[Record, CommandRun]:
        Path("false").write_text(str(len(commands.calls)))
        return record, ended

    commands.change["false"] = edit
    commands.step_s["false"] = 0.05
    code, answer = typed("max_pairs=4", capsys=capsys)
    assert (code, answer["decision"]) == (3, None)
    assert answer["notes"] == snapshot


def test_a_record_that_a_command_edits_later_does_not_move_the_verdict(
    commands: Commands, capsys: Any
) -> None:
    def forge(record: Record, ended: CommandRun) -> tuple[Record, CommandRun]:
        for path in Path("runs").glob("run1-*/record.json"):
            path.write_text("{}")
        return record, ended

    commands.change["false"] = forge
    commands.step_s["false"] = 0.2
    _, answer = typed(capsys=capsys)
    assert answer["decision"] == "slower"
    assert any("changed after" in note for note in answer["notes"])


def test_commits_are_compared_in_worktrees_that_are_removed(
    commands: Commands, capsys: Any, tmp_path: Path
) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for line in (["init", "-q"], ["add", "."], ["commit", "-qm", "1"], ["commit", "-qm", "2"]):
        (tmp_path / "version").write_text(str(line))
        subprocess.run([*git, *line, *(["-a"] if line[-1] == "2" else [])], check=True)
    seen: list[str] = []

    def look(record: Record, ended: CommandRun) -> tuple[Record, CommandRun]:
        seen.append(Path("version").read_text())
        return record, ended

    commands.change["true"] = look
    line = ["compare=step", "max_pairs=4", "--commits", "HEAD~1..HEAD", "--", "true"]
    assert duel.main(line) == 3, capsys.readouterr().err
    assert len(set(seen)) == 2 and seen.count(seen[0]) == 5
    listed = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) == 1 and not any(Path(path).exists() for _, path in commands.calls)


def test_a_printed_number_and_any_field_can_be_compared() -> None:
    record: Any = None
    found = contests.quantity("printed:tok/s", "")
    assert not found.less
    assert found.value(CommandRun(0, None, None, None, printed=b"tok/s: 10\ntok/s: 12.5\n"), record) == 12.5
    found = contests.quantity(r"printed:time (\d+)ms", "")
    assert found.less and found.value(CommandRun(0, None, None, None, printed=b"time 7ms"), record) == 7
    assert contests.quantity("memory", "").name == "peak_memory_bytes"
    assert contests.quantity("phase/wait", "").less and not contests.quantity("mfu", "").less
    assert contests.quantity("mfu", "less").less


@pytest.mark.parametrize(
    ("unit", "less", "ratios"),
    [
        ("s", True, (0.98, 0.97, 0.99)),
        ("rows/s", False, (1.1, 1.05, 1.2)),
        ("s", True, (0.4, 0.38, 0.42)),
        ("B", True, (0.9, 0.8, 0.95)),
    ],
)
def test_the_sentence(unit: str, less: bool, ratios: tuple[float, ...], snapshot: SnapshotAssertion) -> None:
    quantity = contests.Quantity("x", unit, less)
    verdict = Verdict(8, *ratios, p=0.005, decision="faster")
    assert duel_answer.sentence(quantity, verdict, margin=0.0) == snapshot


LEAVES = """
import os, subprocess, sys
exec(open(sys.argv[1]).read())
if float(sys.argv[3]) > 0.1:
    child = subprocess.Popen(["sleep", "1000"], env={}, start_new_session=True, stdout=-3, stderr=-3)
    open(os.environ["PID"], "w").write(str(child.pid))
"""


@pytest.mark.slow
def test_real_scripts(tmp_path: Path) -> None:
    """B sleeps in each step, and leaves a process that hides from its environment."""
    import psutil

    script, leaves, pid = (tmp_path / name for name in ("steps.py", "leaves.py", "../pid"))
    script.write_text(STEPS)
    leaves.write_text(LEAVES)
    line = f"compare=step max_pairs=8 --with-disturbed --json -- {PYTHON} {leaves} {script} 10 0.05"
    line += f" --- {PYTHON} {leaves} {script} 10 0.5"
    done = subprocess.run(
        [PYTHON, "-m", "mlbench.duel", *line.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PID": str(pid)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["decision"]) == (0, "slower"), done.stderr
    assert any("B left sleep" in note for note in answer["notes"]), answer["notes"]
    assert not psutil.pid_exists(int(pid.read_text()))


STEPS = """
import sys, time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(int(sys.argv[2])):
    time.sleep(float(sys.argv[3]))
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""
