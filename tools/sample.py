"""Makes a sample of a study that was really measured: `python tools/sample.py OUTPUT_ROOT [STUDY FOLDER]`.

Of each run it takes the event log and the record that follows from it, of the study plan and log. Only paths
are shortened: to `runs`, `data` and the last part of a command; the log is sealed anew.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from mlbench.record import events, reader, study
from mlbench.record.build_record import build_record

SAMPLE = Path(__file__).parents[1] / "notebooks" / "sample"
STUDY = "two-cores"
MOST_BYTES = (
    300_000  # of a run's log: 60 validations of two workers, as logreg mini has at most, at 4.7 kB each
)


def main(output_root: str, name: str = STUDY, to: str = "") -> None:
    source, target = Path(output_root).absolute(), Path(to) if to else SAMPLE
    plan = study.load(study.folder(source, name))
    assert plan is not None, f"{source} has no study {name}"
    runs = study.records(plan, source)
    busy = [run.run_id for run in runs if run.disturbances]
    assert not busy, f"measured on a machine that did something else: {busy}"
    for run in runs:
        outcome, why = reader.verdict(source / run.run_id)
        assert outcome == reader.VERDICTS[0], f"{run.run_id}: {outcome}: {why}"
    shutil.rmtree(target, ignore_errors=True)
    for run in runs:
        _take(source / run.run_id, target / run.run_id, source, run.experiment.data_root)
    folder = study.folder(target, name)
    folder.mkdir(parents=True)
    for file in (study.PLAN, study.LOG):
        text = (study.folder(source, name) / file).read_text()
        (folder / file).write_text(text.replace(str(source), "runs"))
    print(f"{len(runs)} runs in {target}")


def _take(folder: Path, to: Path, output_root: Path, data_root: Path) -> None:
    to.mkdir(parents=True)
    paths = {str(output_root): "runs", str(data_root): "data", f"{os.path.dirname(sys.executable)}/": ""}
    before = events.read(folder / events.NAME)
    log = events.resealed(before, [_shortened(event, paths) for event in before])
    lines = "".join(json.dumps(event) + "\n" for event in log)
    assert len(lines) <= MOST_BYTES, f"{folder.name}: a log of {len(lines):,} bytes"
    (to / events.NAME).write_text(lines)
    made = build_record(events.read(to / events.NAME))
    assert not made.contradictions, f"{folder.name}: {made.contradictions}"
    made.save(to)
    assert reader.load(to / "record.json").time_to_accuracy == made.time_to_accuracy


def _shortened(value: Any, paths: dict[str, str]) -> Any:
    if isinstance(value, str):
        for long, short in paths.items():
            value = value.replace(long, short)
        return value
    if isinstance(value, dict):
        return {name: _shortened(item, paths) for name, item in value.items()}
    return [_shortened(item, paths) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main(*sys.argv[1:])
