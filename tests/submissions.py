"""Submissions as others hand them in: sealed logs with numbers chosen here, and the plan of their study."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
import zips
from driven import STARTED, Run, sealed

from mlbench.record import events, study
from mlbench.record.build_record import build_record
from mlbench.report import mllog

Log = list[dict[str, Any]]
STUDY = "two-nodes"
ABOUT: dict[str, Any] = {
    "entity": "A Laboratory",
    "contact": "https://example.org/measured",
    "hardware": "a VM of two cores",
    "interconnect": {"name": "shared memory", "gbit_per_s": None},
    "price": {"usd_per_hour": 36.0, "date": "2026-11-24"},  # a cent a second
    "licence": "CC-BY-4.0",
}
TIMES = (4.0, 4.5, 5.0)  # s an epoch, one a seed


def run_log(scratch: Path, seed: int, epoch_s: float, *overrides: str) -> Log:
    """Return the log of a run of two epochs that reached its goal, without its checksum."""
    run = Run(scratch, "goal=85", "division=open", f"study={STUDY}", *overrides, seed=seed, epoch_s=epoch_s)
    run.validate(80.0)
    run.validate(86.5)
    host = run.end("goal_reached").nodes[0].hostname
    log = events.read(run.log)
    of(log, "run_result")["value"]["hostname"] = host
    start = {**log[0], "key": "run_start", "value": STARTED, "metadata": {"hostname": host}}
    return [log[0], start, *log[1:]]


def of(log: Log, key: str, index: int = 0) -> dict[str, Any]:
    return [event for event in log if event["key"] == key][index]


def zipped(log: Log, folder: Path) -> Path:
    """Write the zip that the editor of this log would write: checksum and record follow from it."""
    log = sealed(json.loads(json.dumps(log)))
    record = build_record(log)
    files = {
        "record.json": record.model_dump_json(),
        events.NAME: "".join(json.dumps(event) + "\n" for event in log),
        "mllog.txt": mllog.text(record, log),
    }
    return zips.write(folder / f"{record.run_id}.zip", files)


def hand_in(
    root: Path,
    scratch: Path,
    *overrides: str,
    entity: str = "lab-a",
    times: Sequence[float] = TIMES,
    first_seed: int = 1,
    edit: Callable[[Log], None] | None = None,
    **about: Any,
) -> Path:
    """Write a submission of one run a time, and return its folder; `edit` changes the last run's log."""
    folder = root / entity / "2026-11-24-two-cores"
    logs = [
        run_log(scratch / entity, seed, epoch_s, *overrides) for seed, epoch_s in enumerate(times, first_seed)
    ]
    if edit:
        edit(logs[-1])
    paths = [zipped(log, folder) for log in logs]
    (folder / "submission.yaml").write_text(yaml.safe_dump(ABOUT | about))
    key, seeds = logs[0][0]["value"]["key"], tuple(log[0]["value"]["seed"] for log in logs)
    point = study.StudyPoint(key=key, overrides=("task=logreg",), seeds=seeds, drawn=seeds)
    plan = study.new(STUDY, question="?").model_copy(update={"points": (point,)})
    study_folder = study.folder(folder, STUDY)
    study.save(plan, study_folder)
    for seed, path in zip(seeds, paths, strict=True):
        ended = {"trial": f"{key}-{seed:x}", "run_id": path.stem, "status": "goal_reached", "error": None}
        events.append(study_folder / study.LOG, study.ENDED, ended)
    return folder
