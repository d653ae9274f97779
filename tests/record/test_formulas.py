"""`results why`: every number of a run again, from nothing but what the command prints."""

import json
import math
import re
from pathlib import Path
from typing import Any

import driven
import pytest
from conftest import ROOT

from mlbench import results
from mlbench.record import fields, formulas, phases, reader
from mlbench.record.record import Record

SAMPLE = ROOT / "notebooks" / "sample"
PARTS = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


class Tree(dict[Any, Any]):
    """Values by the names and places of their paths."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)

    def __iter__(self) -> Any:
        keys = [*self.keys()]
        return iter(self.values()) if keys and isinstance(keys[0], int) else iter(keys)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(max(self.keys()) if key == -1 else key)

    def sum(self) -> float:
        return math.fsum(self.values())


def recomputed(printed: dict[str, Any]) -> float:
    """Return a number from its printed formulas and inputs alone."""
    tree = Tree()
    for each in printed["inputs"]:
        head, _, _ = re.match(r"(\w+)(.*)", each["path"]).groups() + ("",)  # type: ignore[union-attr]
        keys = [head, *(name or int(place) for name, place in PARTS.findall(each["path"][len(head) :]))]
        at = tree
        for key in keys[:-1]:
            at = at.setdefault(key, Tree())
        at[keys[-1]] = each["value"]
    count = max((len(each.keys()) for each in tree.get("times", Tree()).values()), default=1)
    tree.setdefault("start", Tree())

    class Names(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            if name in tree:
                return tree[name]
            formula = {known.replace("/", "_"): text for known, text in printed["formulas"].items()}.get(name)
            if formula is None and name in __builtins__:
                raise KeyError(name)
            return None if formula is None else eval(formula, self)

    def parts(group: str) -> list[Any]:
        inside = [name for name in printed["formulas"] if name.startswith(f"{group}/")]
        return [eval(printed["formulas"][name], names) for name in inside if "/rest" not in name]

    names = Names(
        ranks=range(count),
        mean=lambda values: math.fsum(listed := list(values)) / len(listed),
        ceil=math.ceil,
        parts=parts,
        percentiles=lambda some, less: phases.percentiles(
            [{int(n): count for n, count in each.items()} for each in some]
            + [{int(n): -count for n, count in each.items()} for each in less]
        ),
    )
    return eval(printed["formulas"][printed["name"]], names)


def check(record: Record, root: Path, capsys: Any) -> set[str]:
    """Compare every number that a run has; return the names of their fields."""
    checked = set[str]()
    for name, (value, _) in formulas.numbers(record).items():
        if value is None:
            continue
        assert results.main(["why", record.run_id, name, f"output_root={root}", "--json"]) == 0, name
        printed = json.loads(capsys.readouterr().out)
        assert printed["value"] == value and recomputed(printed) == pytest.approx(value, rel=1e-9), name
        lines = (root / record.run_id / "events.jsonl").read_text().splitlines()
        for each in printed["inputs"]:
            assert (
                each["line"] == 0
                or json.dumps(each["value"]) in lines[each["line"] - 1]
                or each["path"] in ("one_host", "status", "failures")
            ), each
        checked |= {name, name.rpartition("/")[0]}
    return checked


def test_every_number_of_a_run_follows_from_what_is_printed(tmp_path: Path, capsys: Any) -> None:
    run = driven.Run(tmp_path, "hardware=gcp_n1_t4", "backend=gloo")
    run.validate(60.0)
    run.validate(95.0)
    node = {"hostname": "a", "usable_cpus": 3, "data_cached": 0.5, "energy_j": {"cpu_packages": 7.0}}
    record = run.end(
        "goal_reached",
        flops_per_sample=10.0,
        gradient_bytes=100,
        peak_memory_bytes=5,
        data_rows={"train": 1000, "test": 10},
        nodes=[node, node],
        entered=driven.STARTED - 3,
        calibrated=driven.STARTED - 2,
        started_at=driven.STARTED,
    )
    checked = check(record, tmp_path, capsys)
    assert {"best", "phase/wait", "share", "train_time", "data_rows", "wall"} <= checked


def test_the_numbers_of_a_steady_state_leave_out_the_warm_up(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = driven.phase_times

    def with_warm_up(seconds: float) -> dict[str, Any]:
        times = whole(seconds)
        first = {name: each / 4 for name, each in times["phases"].items()}
        samples = times["samples"] // 4
        warm_up = {"phases": first, "seconds": sum(first.values()), "samples": samples, "steps": 1}
        return {**times, "warm_up": {**warm_up, "within": {"compilation": 0.125}}}

    monkeypatch.setattr(driven, "phase_times", with_warm_up)
    run = driven.Run(tmp_path, "backend=gloo")
    run.validate(60.0)
    run.validate(95.0)
    record = run.end("goal_reached")
    assert record.warm_up is not None and record.warm_up.steps == 1
    assert record.samples_per_s and record.samples_per_s != record.samples / record.validations[-1].elapsed
    checked = check(record, tmp_path, capsys)
    assert {"warm_up", "warm_up_steps", "warm_up_compilation", "samples", "samples_per_s", "phase"} <= checked


@pytest.mark.parametrize("run", ["resnet20-w2-69544d95"])
def test_every_number_of_a_real_run_does(run: str, capsys: Any) -> None:
    (folder,) = SAMPLE.glob(f"*{run}")
    checked = check(reader.load(folder / "record.json"), SAMPLE, capsys)
    assert {"batch/p50", "startup/command", "outside/validation", "time_to_accuracy"} <= checked


def test_every_number_of_the_list_has_a_formula() -> None:
    numeric = {each.name for each in fields.METRICS} | {"seed"}
    known = {name.split("/")[0] if name.startswith("phase/") else name for name in formulas.FORMULAS}
    assert numeric - known - {"startup", "cost/cluster_part_usd"} == set()
    assert "startup/rest" in formulas.FORMULAS
    names = {each.name for each in fields.FIELDS}
    assert {n for n in formulas.FORMULAS if n not in names and n.split("/")[0] not in names} == set()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("why 69544d95", "give a run and a quantity"),
        ("why 69544d95 time_to_acuracy", "did you mean time_to_accuracy?"),
        ("why 69544d95 mfu", "has no mfu"),
        ("why study:two-cores speedup", "why study:NAME explains only speedup"),
        ("why study:two-cores speedup workers=7", "has no speedup of 7 workers"),
    ],
)
def test_what_cannot_be_explained_is_one_sentence(line: str, told: str, capsys: Any) -> None:
    assert results.main([*line.split(), f"output_root={SAMPLE}"]) == 2
    assert told in (error := capsys.readouterr().err) and error.count("\n") == 1


def test_a_study_s_speedup_is_the_quotient_of_the_printed_medians(capsys: Any) -> None:
    from statistics import median

    line = ["why", "study:two-cores", "speedup", "workers=2", f"output_root={SAMPLE}", "--json"]
    assert results.main(line) == 0
    answers = json.loads(capsys.readouterr().out)
    assert len(answers) == 2
    for each in answers:
        one, two = each["inputs"]["1 worker"], each["inputs"]["2 workers"]
        assert each["value"] == pytest.approx(median(one.values()) / median(two.values()))
