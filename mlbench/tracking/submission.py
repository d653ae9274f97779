"""Check a submission, a folder of results: who measured what, and whether all of it holds.

    ENTITY/DATE-HARDWARE/submission.yaml          who, on what, at what price, under which licence
    ENTITY/DATE-HARDWARE/*.zip                    the runs, as `results export` writes them
    ENTITY/DATE-HARDWARE/studies/NAME/...         the plans and logs of the studies that they belong to

A submission is read without trust, as archives are, and nothing is written.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationError

from mlbench.config import compose, strict_yaml
from mlbench.config.credentials import without_credentials
from mlbench.config.errors import ResultError, UserError, is_comparable
from mlbench.config.experiment import FrozenModel, PositiveFloat
from mlbench.config.identity import identity
from mlbench.record import log_consistency, study
from mlbench.record.attempts import History, results
from mlbench.record.format import counted
from mlbench.record.record import Record
from mlbench.tracking import archive

FILE = "submission.yaml"
FOLDER = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}-[a-z0-9][a-z0-9._-]{0,63}")  # DATE-HARDWARE
ENTITY = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
MAX_BYTES = 2**20  # of a YAML file or a study's log (a study of 1,000 trials has 0.4 MB)
STUDY_FILES = (study.PLAN, study.LOG)
MARKUP = re.compile(r"[<>`|\[\]]")  # what HTML and Markdown take for more than a letter
SAME_TIMES = 0.5  # share of a run's times that another run has to the last digit, none by chance


def _plain(text: str) -> str:
    if MARKUP.search(text) or not text.isprintable():
        raise ValueError("it holds markup or unprintable characters")
    return text


Text = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_plain)]
Date = Annotated[str, AfterValidator(lambda text: date.fromisoformat(text).isoformat())]


class Interconnect(FrozenModel):
    """The interconnect of the nodes, or of the processors of a single node."""

    name: Text
    gbit_per_s: PositiveFloat | None  # of one node (None: not measured)


class PricePaid(FrozenModel):
    """The price at which one node was really billed."""

    usd_per_hour: Annotated[float, Field(ge=1e-6, le=1e6)]
    date: Date  # of the bill


class Submission(FrozenModel):
    """The content of submission.yaml."""

    entity: Text
    contact: Text  # an address or a page
    hardware: Text
    interconnect: Interconnect
    price: PricePaid | None  # None: not for rent
    licence: Literal["CC0-1.0", "CC-BY-4.0"]  # of the results


@dataclass(frozen=True)
class Checked:
    """A submission, and the objections to it.

    - refusals: why it is not accepted, one sentence each. incomplete: why not every attempt is known.
    - histories: of points in its studies, by key.
    """

    entity: str  # the folder's name
    name: str  # likewise
    about: Submission | None
    records: Sequence[Record]
    refusals: Sequence[str]
    incomplete: Sequence[str]
    histories: Mapping[str, History]


def folders(path: Path) -> list[Path]:
    """Return the submissions at and below a path, in order."""
    return sorted(file.parent for file in path.rglob(FILE)) if path.is_dir() else []


def check(folder: Path) -> Checked:
    """Read a submission and check it against its logs, its studies and the other submissions with it.

    Every record is derived from its log again. Raises UserError if there is no such folder.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise ResultError(f"{folder} does not exist")
    refusals = [*_of_the_folder(folder)]
    if refusals:  # nothing in it is read
        return Checked(folder.parent.name, folder.name, None, [], refusals, [], {})
    about = _about(folder / FILE, refusals)
    records: list[Record] = []
    incomplete: list[str] = []
    for path, run, log in archive.load(sorted(folder.glob("*.zip"))):
        if isinstance(run, UserError):
            refusals.append(str(run))
            continue
        refusals += [f"{run.run_id}: {sentence}" for sentence in _of_a_run(run)]
        if path.stem != run.run_id:
            refusals.append(f"{path.name} must be named after its run {run.run_id}")
        if not log_consistency.sealed(log):
            incomplete.append(f"{run.run_id}: its event log has no checksum")
        records.append(run)
    if not records and not refusals:
        refusals.append("it has no run: results export writes them")
    refusals += _of_copies(folder, records)
    refusals += _of_keys(records)
    for name in sorted({run.experiment.study or "" for run in records}):
        _of_a_study(folder, name, records, refusals, incomplete)
    names = {run.run_id for run in records}
    histories = study.histories(folder, runs=names) if not refusals else {}
    return Checked(folder.parent.name, folder.name, about, records, refusals, incomplete, histories)


def export_studies(output_root: Path, records: Sequence[Record], to: Path) -> list[Path]:
    """Write the plans and logs of the records' studies as a submission has them. Return their paths."""
    written = []
    for name in sorted({run.experiment.study for run in records if run.experiment.study}):
        for file in STUDY_FILES:
            source = study.folder(output_root, name) / file
            if source.is_file():
                written.append(study.folder(to, name) / file)
                written[-1].parent.mkdir(parents=True, exist_ok=True)
                written[-1].write_text(without_credentials(source.read_text()))
    return written


def _of_the_folder(folder: Path) -> Iterator[str]:
    if not FOLDER.fullmatch(folder.name) and not (folder / FILE).is_file():
        yield f"{folder.name!r} is not a submission: neither its name is DATE-HARDWARE nor has it a {FILE}"
        return
    if not FOLDER.fullmatch(folder.name):
        yield f"the folder {folder.name!r} is not named DATE-HARDWARE, e.g. 2026-11-24-8xh100"
    if not ENTITY.fullmatch(folder.parent.name):
        yield f"the folder {folder.parent.name!r} is not a short name of the submitter, e.g. epfl-mlo"
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        valid = len(parts) == 1 and (parts[0] == FILE or path.suffix == ".zip")
        valid |= len(parts) == 3 and parts[0] == "studies" and parts[2] in STUDY_FILES
        if path.is_symlink() or not (path.is_dir() or valid and path.is_file()):
            yield f"{'/'.join(parts)!r} is not a file of a submission"
        elif path.is_file() and path.suffix != ".zip" and path.stat().st_size > MAX_BYTES:
            yield f"{'/'.join(parts)!r} is larger than {MAX_BYTES // 2**20} MiB"
        elif path.suffix == ".yaml" and path.is_file() and _has_aliases(path.read_bytes()):
            yield f"{'/'.join(parts)!r} has aliases (*NAME), which can fill the memory"


def _has_aliases(content: bytes) -> bool:
    try:
        return b"*" in content and any(isinstance(token, yaml.AliasToken) for token in yaml.scan(content))
    except Exception:  # what PyYAML raises on invalid values is reported at the reading
        return False


def _about(path: Path, refusals: list[str]) -> Submission | None:
    try:
        return Submission.model_validate(strict_yaml.load(path.read_bytes()[:MAX_BYTES]))
    except FileNotFoundError:
        refusals.append(f"it has no {FILE}")
    except ValidationError as error:
        for detail in error.errors():
            field = ".".join(map(str, detail["loc"])) or FILE
            reason = detail["msg"].removeprefix("Value error, ")
            refusals.append(f"{FILE}: {field}: {reason[:1].lower()}{reason[1:]}")
    except Exception:  # PyYAML raises IndexError, KeyError and others on values that are no YAML
        refusals.append(f"{FILE} is not valid YAML or has a repeated name")
    return None


def _of_a_run(run: Record) -> Iterator[str]:
    """Yield the objections to a run by itself."""
    for contradiction in run.contradictions[:1]:
        yield f"its log contradicts itself: {contradiction}"
    plain: dict[str, Any] = run.experiment.plain()
    names = [value["name"] for value in plain.values() if isinstance(value, dict) and "name" in value]
    for node in run.nodes:
        names += [node.hostname, node.cpu_model or "", *(gpu.name or "" for gpu in node.gpus)]
    for name in dict.fromkeys(names):
        if MARKUP.search(name):  # pages and tables show it
            yield f"{name!r} is not the name of a machine part"
    if is_comparable(run.mlbench):  # others had other references than the closed one of today
        for field in compose.undeclared(plain, run.deviations):
            yield f"it differs from the closed reference in {field} without naming it"


def _of_keys(records: Sequence[Record]) -> Iterator[str]:
    """Check that runs of one key have one configuration, because they are one point."""
    first: dict[str, Record] = {}
    for run in records:
        other = first.setdefault(run.key, run)
        names = [each.experiment.division.name for each in (other, run)]
        if identity(other.experiment.plain()) != identity(run.experiment.plain()):
            yield f"{run.run_id} has the key of {other.run_id} and another configuration"
        elif len(set(names)) > 1:
            yield f"{run.run_id} is of the point of {other.run_id} and of another division"


def _of_copies(folder: Path, records: Sequence[Record]) -> Iterator[str]:
    """Yield copies, which never count: runs of another submission, or one run under two names."""
    here = f"{folder.parent.name}/{folder.name}"
    own = [(here, run.run_id, archive.times(run.model_dump(include=archive.TIMES))) for run in records]
    names = {run.run_id for run in records}
    others = [
        (f"{other.parent.name}/{other.name}", name, times)
        for other in folders(folder.parent.parent)
        if other != folder
        for name, times in archive.elapsed(sorted(other.glob("*.zip")))
        if other.parent != folder.parent or name not in names  # who extends a study hands its runs in again
    ]
    for index, (_, name, times) in enumerate(own):
        for where, other, theirs in (*own[:index], *others):
            if other == name or len(times & theirs) > SAME_TIMES * len(times):
                yield f"{name} has the times of {other} of {where} to the last digit: it is a copy"
                break


def _of_a_study(
    folder: Path, name: str, records: Sequence[Record], refusals: list[str], incomplete: list[str]
) -> None:
    """Check runs against the plan and the log of the study that they name, and report a missing study."""
    runs = [run for run in records if (run.experiment.study or "") == name]
    study_folder = study.folder(folder, name)
    if not name or not (study_folder / study.PLAN).is_file():
        incomplete.append(
            f"{counted(len(runs), 'run')} without a study's plan, so the number of attempts is unknown"
        )
        return
    try:
        plan = study.load(study_folder)
        log = study.attempts_log(study_folder)
        ended = [event["value"] for event in log if event["key"] == study.ENDED]
        logged = study.logged_trials(log)
        attempts = {value["run_id"]: (value["trial"], value["status"]) for value in ended if value["run_id"]}
        begun = {event["value"]["run_id"] for event in log if event["key"] == study.RUN}
    except (UserError, LookupError, TypeError, OSError, RecursionError):
        refusals.append(f"the plan or the log of study {name} cannot be read")
        return
    trials = {(point.key, seed) for point in plan.points for seed in point.seeds} if plan else set()
    if plan is None or plan.name != name:
        refusals.append(f"the plan in studies/{name} is that of another study")
    for run in runs:
        if (run.key, run.seed) not in trials:
            refusals.append(f"{run.run_id}: the plan of study {name} has no such point and seed")
        trial = study.trial_id(run.key, run.seed)
        logged_trial, status = attempts.get(run.run_id, (trial, run.status))
        if logged_trial != trial:
            refusals.append(f"{run.run_id}: the log of study {name} has it as an attempt at {logged_trial}")
        if status != run.status:  # a sweep that was killed may not have seen the end
            incomplete.append(f"{run.run_id}: it is {run.status}, the log of study {name} has it as {status}")
        if log and trial not in logged:
            incomplete.append(f"{run.run_id}: the log of study {name} has no attempt")
    for gone in sorted((attempts.keys() | begun) - {run.run_id for run in records}, key=str):
        refusals.append(f"the attempt {gone} of study {name} is left out: submit every attempt")
    missing = trials - {(run.key, run.seed) for run in results(records)}
    if missing:
        incomplete.append(f"{counted(len(missing), 'planned run')} of study {name} without a result")
    if not log:
        incomplete.append(f"study {name} without its log {study.LOG}")
