"""Ways to an official result that is none, and what is said against each: `python tests/record/forgeries.py`.

Prints a table of name and reason; exit code 1 if one of them is official. What is swapped on disk while a run
looks at it, and what runs before mlbench, is tried by test_forgeries.py and test_startup_code.py.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from driven import sealed
from test_build_record import FROZEN, RESULT, SOFTWARE, built, log, phase_times

import mlbench
from mlbench.config import compose
from mlbench.config.errors import UserError
from mlbench.record import events, official
from mlbench.record.build_record import build_record
from mlbench.record.reader import load

OFFICIAL = "scale=official"
NODE = RESULT["nodes"][0]
# By name: what the run measured or was, and the reason.
FORGERIES: dict[str, tuple[dict[str, Any], str]] = {
    "other data": ({"result": RESULT | {"data_files": {"train": "3"}}}, "prepared files of the data set"),
    "fewer rows": ({"result": RESULT | {"data_rows": {"train": 519, "test": 2}}}, "rows of the data set"),
    "other inputs": ({"result": RESULT | {"data_inputs": {}}}, "input files of the data set"),
    "data edited while it trained": ({"result": RESULT | {"data_changed": True}}, "data set changed while"),
    "edited code": (
        {"begun": {"software": SOFTWARE | {"sources": "6" * 64}},
         "result": RESULT | {"nodes": [NODE | {"sources": "6" * 64}]}}, "sources are not those",
    ),
    "uncommitted code": (
        {"begun": {"software": SOFTWARE | {"git": {"sha": "a", "dirty": True}}}}, "uncommitted changes",
    ),
    "another version": (
        {"begun": {"mlbench": "0.1.9", "software": SOFTWARE | {"mlbench": "0.1.9"}}},
        "measured by mlbench 0.1.9",
    ),
    "driver's precision": (
        {"begun": {"software": SOFTWARE | {"environment": {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}}}},
        "ONEDNN_DEFAULT_FPMATH_MODE=BF16 lowers the precision",
    ),
    "worker's precision": (
        {"result": RESULT | {"nodes": [NODE | {"environment": {"NVIDIA_TF32_OVERRIDE": "1"}}]}},
        "NVIDIA_TF32_OVERRIDE=1 lowers the precision",
    ),
    "other libraries": (
        {"result": RESULT | {"nodes": [NODE | {"environment": {"LD_PRELOAD": "x.so"}}]}}, "LD_PRELOAD",
    ),
    "other code by the driver's environment": (
        {"begun": {"software": SOFTWARE | {"environment": {"PYTHONPATH": "site"}}}}, "PYTHONPATH puts",
    ),
    "other code by a worker's environment": (
        {"result": RESULT | {"nodes": [NODE | {"environment": {"PYTHONPATH": "site"}}]}}, "PYTHONPATH",
    ),
    "another mlbench on a node": (
        {"result": RESULT | {"nodes": [NODE, NODE | {"hostname": "m", "sources": "6" * 64}]}},
        "m ran other sources than the command",
    ),
    "a node that does not tell its mlbench": (
        {"result": RESULT | {"nodes": [NODE | {"sources": None}]}}, "n ran other sources",
    ),
    "data that nobody tells": ({"result": RESULT | {"data_files": {}}}, "prepared files of the data set"),
    "the second node's precision": (
        {"result": RESULT | {"nodes": [NODE, NODE | {"environment": {"NVIDIA_TF32_OVERRIDE": "1"}}]}},
        "NVIDIA_TF32_OVERRIDE=1",
    ),
    "sources that nobody tells": (
        {"begun": {"software": SOFTWARE | {"sources": None}},
         "result": RESULT | {"nodes": [NODE | {"sources": None}]}}, "sources are not those",
    ),
    "busy machine": (
        {"begun": {"warnings": ["the load average was 30.0 on 2 CPUs before the run began"]}},
        "the machine was busy",
    ),
    "oversubscribed": ({"oversubscribed": True}, "CPU"),
    "imported": ({"begun": {"imported": {"file": "x.zip", "sha256": "0"}}}, "imported"),
}  # fmt: skip

# Words of the command line, and the reason.
WORDS: list[tuple[list[str], str]] = [
    ([OFFICIAL, "hardware=gcp_n1_t4", "hardware.gpu_model=null"], "deviation: hardware.gpu_model"),
    ([OFFICIAL, "division=open", "task.batch_size=4096"], "division=open"),
    ([OFFICIAL, "goal=light"], "goal=light"),
    ([OFFICIAL, "backend.module=their_backend"], "deviation: backend.module"),
    (["scale=mini"], "scale=mini"),
]
Log = list[dict[str, Any]]


def of(log: Log, key: str, index: int = 0) -> dict[str, Any]:
    """Return one of the events with this key."""
    return [event for event in log if event["key"] == key][index]


def value(key: str, index: int = 0, **changes: Any) -> Callable[[Log], None]:
    """Return an edit of the value of an event."""
    return lambda log: of(log, key, index)["value"].update(changes)


def rank(number: int, index: int = 0, **changes: Any) -> Callable[[Log], None]:
    """Return an edit of what a rank measured up to a validation."""
    return lambda log: of(log, "validation", index)["metadata"]["phase_times"][number].update(changes)


def node(**changes: Any) -> Callable[[Log], None]:
    """Return an edit of the first node."""
    return lambda log: of(log, "run_result")["value"]["result"]["nodes"][0].update(changes)


def begun(log: Log, **changes: Any) -> None:
    log[0]["value"]["software"] = {**log[0]["value"]["software"], **changes}


def faster(log: Log) -> None:
    """Divide all times of the last validation by 100, its wall clock too, and nothing else."""
    last = of(log, "validation", -1)["value"]
    last["elapsed"] /= 100
    last["wall"] = 112.0 + last["elapsed"]


def no_phases(log: Log) -> None:
    for times in of(log, "validation")["metadata"]["phase_times"]:
        times["phases"] = dict.fromkeys(times["phases"], 0.0)


def samples(log: Log) -> None:
    for event in log:
        for times in event["metadata"].get("phase_times", ()):
            times["samples"] *= 1000


def earlier_end(log: Log) -> None:
    of(log, "run_result")["value"]["ended"] -= 3600


def half_of_the_ranks(log: Log) -> None:
    for event in log:
        event["metadata"]["phase_times"] = event["metadata"].get("phase_times", [])[:1]


def without_the_first(log: Log) -> None:
    log.remove(of(log, "validation"))


def swapped(log: Log) -> None:
    first, last = (index for index, event in enumerate(log) if event["key"] == "validation")
    log[first], log[last] = log[last], log[first]


def other_result(log: Log) -> None:
    """Add the workers' own event, which says something else."""
    result = {**of(log, "run_result")["value"]["result"], "flops_per_sample": 1.0}
    log.insert(-1, {**log[-2], "key": "worker_result", "value": result, "metadata": {}})


def whole_clock(log: Log) -> None:
    """Let rank 0 load for less time, and agree with that in its own clock."""
    times = of(log, "validation")["metadata"]["phase_times"][0]
    times["outside"]["loading"] -= 1.0
    times["elapsed"] -= 1.0


def calibrated(rate: float) -> Callable[[Log], None]:
    return node(calibration={"cpu_gemm_flops_per_s": rate})


def failed(*, before: int) -> Callable[[Log], None]:
    """Return an edit that tells of a failure of the workers, `before` events from the end."""

    def edit(log: Log) -> None:
        log.insert(
            len(log) - before, {**log[-2], "key": "worker_failure", "value": {"1": "x"}, "metadata": {}}
        )

    return edit


BUSY = {"seconds": 90.0, "cpus": 2.0, "others": 14.0, "steal": 0.0}
# By name: an edit of an official run's log, and what is said against it although its checksum was made anew.
EDITS: dict[str, tuple[Callable[[Log], None], str]] = {
    "elapsed / 100": (faster, "ends before the one before it"),
    "elapsed of the first / 100": (value("validation", elapsed=0.4), "the clocks of rank 0"),
    "negative elapsed": (value("validation", -1, elapsed=-5.0), "ends before the one before it"),
    "an early epoch": (value("validation", -1, epoch=1.01), "epochs do not follow"),
    "twice as many rows": (
        lambda log: of(log, "run_result")["value"]["result"].update(data_rows={"train": 1040, "test": 2}),
        "its epochs do not follow from its steps and the rows of its data",
    ),
    "an epoch beyond the last": (value("validation", -1, epoch=500.0), "is at epoch 500"),
    "fewer steps": (value("validation", -1, step=3), "follows 2 steps, which contradicts its position"),
    "no phases": (no_phases, "add up to 0 s"),
    "samples x 1000": (samples, "its configuration gives 256"),
    "samples of a rank": (rank(1, samples=9), "its steps take"),
    "steps of a rank": (rank(1, steps=9), "other numbers of steps on other ranks"),
    "phases of a rank": (rank(1, phases={**phase_times(1.0)["phases"], "wait": 0.0}), "the phases of rank 1"),
    "seconds of a rank": (rank(1, seconds=1.0), "rank 1 at step 2 accounts for"),
    "time outside of a rank": (rank(1, outside={"validation": 9.0}), "rank 1 at step 2 accounts for"),
    "negative time outside": (rank(1, outside={"validation": -9.0}), "has a negative time"),
    "clock of a rank": (rank(1, elapsed=9.0), "the clocks of rank 1"),
    "clock of rank 0": (whole_clock, "the clocks of rank 0"),
    "ranks": (half_of_the_ranks, "has 1 ranks of 2"),
    "the goal was reached before": (
        lambda log: of(log, "validation")["value"]["metrics"].update(top1_accuracy=98.0),
        "and the goal contradict each other",
    ),
    "a goal that was reached without": (
        value("validation", -1, metrics={"top1_accuracy": 79.9}), "and the goal contradict each other",
    ),
    "a validation is left out": (without_the_first, "which contradicts its position"),
    "validations in another order": (swapped, "ends before the one before it"),
    "the wall clock": (value("validation", -1, wall=150.0), "is not the start's plus what elapsed"),
    "the first access to data": (
        lambda log: of(log, "run_start").update(value=113.0), "do not agree when training began",
    ),
    "the first access, for the workers": (
        lambda log: of(log, "run_result")["value"]["result"].update(started_at=111.9),
        "do not agree when training began",
    ),
    "an event before its validation": (
        lambda log: of(log, "validation", -1).update(time_ms=150_000), "is stamped before",
    ),
    "imports_end - 1 h": (value("startup", imports_end=109.5 - 3600), "part imports of its start-up is neg"),
    "ended - 1 h": (earlier_end, "it lasted 0 s, and its parts"),
    "begun + 95 s": (value("run_configuration", begun=195.0), "start-up is negative"),
    "ended just after the goal": (value("run_result", ended=150.0), "it lasted 50.0 s, and its parts"),
    "hostname": (node(hostname="another"), "rank 0 began on n"),
    "hostname of rank 0": (
        lambda log: of(log, "run_start")["metadata"].update(hostname="m"), "rank 0 began on m",
    ),
    "the driver's host": (
        value("run_result", hostname="m"), "cluster=local is one machine, and it names m, n",
    ),
    "the workers' result": (other_result, "is repeated and differs"),
    "14 of 2 CPUs": (node(interference=BUSY), "cannot have used 14 of the 2 CPUs of n"),
    "a million CPUs": (
        node(logical_cpus=2, interference={**BUSY, "cpus": 1e6}), "the run cannot have used 1e+06 of the 2",
    ),
    "no node": (
        lambda log: of(log, "run_result")["value"]["result"].update(nodes=[]), "it describes no node",
    ),
    "an accuracy of 250 %": (
        value("validation", -1, metrics={"top1_accuracy": 250.0}), "is 250, which it cannot be",
    ),
    "a negative energy": (node(energy_j={"cpu": -1.0}), "energy of n is negative"),
    "tokens": (
        lambda log: of(log, "validation")["metadata"].update(unit="tokens"), "samples are images and tokens",
    ),
    "the key": (lambda log: begun(log, packages={"torch": "2.13.0"}), "its key k is not that of its config"),
    "an edited profile": (
        lambda log: log[0]["value"]["experiment"]["hardware"].update(cpus=1), "hardware.cpus differs from",
    ),
    "the configuration's seed": (
        lambda log: log[0]["value"]["experiment"].update(seed=99), "has the seed 99, and the run 1",
    ),
    "two versions": (lambda log: begun(log, mlbench="0.2.1"), "two versions of mlbench, 0.2.1 and 0.2.0"),
    "a failure that may not be": (failed(before=2), "failed 1 times, and max_failures is 0"),
    "2 threads of 2 workers on 2 CPUs": (node(threads_per_worker=2), "more threads than there were CPUs"),
    "a short watch": (node(interference={**BUSY, "seconds": 0.4, "others": 0.0}), "n was watched for 400"),
    "a rate beyond the machine": (calibrated(1e5), "the clock of one of them was wrong"),
    "cpu_model": (node(cpu_model="another"), ""),
    "seed": (value("run_configuration", seed=2), ""),
    "the driver's variables": (lambda log: begun(log, environment={"LD_AUDIT": "x.so"}), "LD_AUDIT puts"),
    "a node's variables": (node(environment={"PYTHONPYCACHEPREFIX": "x"}), "PYTHONPYCACHEPREFIX puts"),
    "user site": (node(environment={"PYTHONUSERBASE": "x"}), "PYTHONUSERBASE puts"),
    "optimised Python": (node(environment={"PYTHONOPTIMIZE": "1"}), "PYTHONOPTIMIZE puts"),
    "other libraries": (node(environment={"LD_LIBRARY_PATH": "x"}), "LD_LIBRARY_PATH puts"),
    "libraries beside GKE's driver": (
        node(environment={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/x"}), "LD_LIBRARY_PATH puts",
    ),
    "another lock": (node(environment={"MLBENCH_MACHINE_LOCK": "x"}), "MLBENCH_MACHINE_LOCK changes"),
    "other prices": (lambda log: begun(log, environment={"MLBENCH_PRICES": "x"}), "MLBENCH_PRICES changes"),
    "no calibration": (node(environment={"MLBENCH_CALIBRATION_S": "0"}), "MLBENCH_CALIBRATION_S changes"),
    "emulated arithmetic": (node(environment={"CUBLAS_EMULATE_FP32": "1"}), "CUBLAS_EMULATE_FP32 changes"),
    "other convolutions": (node(environment={"CUDNN_FRONTEND_X": "1"}), "CUDNN_FRONTEND_X changes"),
    "TORCH_*": (node(environment={"TORCH_BLAS_PREFER_CUBLASLT": "1"}), "TORCH_BLAS_PREFER_CUBLASLT changes"),
    "XLA's flags": (node(environment={"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}), "XLA_FLAGS changes"),
    "inductor's settings": (node(environment={"TORCHINDUCTOR_X": "1"}), "TORCHINDUCTOR_X changes"),
    "Ray's hook": (node(environment={"RAY_RUNTIME_ENV_HOOK": "m.f"}), "RAY_RUNTIME_ENV_HOOK puts"),
    "sitecustomize": (node(startup_code={"site-packages/sitecustomize.py": "0"}), "sitecustomize.py runs"),
    "a Hydra plugin": (lambda log: begun(log, startup_code={"hydra_plugins/x.py": "0"}), "x.py runs before"),
    "flags": (node(startup_code={"sys.flags.optimize": "2"}), "sys.flags.optimize runs"),
}  # fmt: skip
# What no relation tells once the whole log has a new checksum; its edit has "" for a reason.
UNSEEN = "agrees with itself (RULES.md)"


def folder_of(root: Path, name: str, *overrides: str) -> Path:
    """Write the folder of a run: its event log, and the record that follows from it."""
    folder = root / name
    folder.mkdir()
    written = log(compose.compose(list(overrides)))
    lines = [json.dumps(event) + "\n" for event in written]
    (folder / events.NAME).write_text("".join(lines))
    build_record(events.read(folder / events.NAME)).save(folder)
    return folder


def record_fields(**changes: Any) -> Callable[[Path], None]:
    """Return an edit of the record in a run's folder."""

    def edit(folder: Path) -> None:
        path = folder / "record.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def without_log(folder: Path) -> None:
    (folder / events.NAME).unlink()


def copied(folder: Path) -> None:
    """Put an official run's record in the place of a mini run's."""
    other = folder_of(folder.parent, "other", OFFICIAL)
    (folder / "record.json").write_bytes((other / "record.json").read_bytes())


# By name: the words of a run, an edit of its folder, and what is said when its record is read.
FOLDERS: dict[str, tuple[tuple[str, ...], Callable[[Path], None], str]] = {
    "a mini run's record calls itself eligible": (
        (), record_fields(eligible=True, official_reasons=[]), "of the record and of the event log differ",
    ),
    "a mini run's record has no reason": (
        (), record_fields(official_reasons=[]), "its eligible is False, which its other fields make True",
    ),
    "a better time": ((OFFICIAL,), record_fields(time_to_accuracy=1.0), "its time_to_accuracy is 1"),
    "a better time of a mini run": ((), record_fields(time_to_accuracy=1.0), "its time_to_accuracy is 1"),
    "a version that nobody has": (
        (), record_fields(eligible=True, official_reasons=[], mlbench="0.2.99"),
        "of the record and of the event log differ",
    ),
    "a mini run's record misses the goal alone": (
        (), record_fields(official_reasons=[official.MISSED]), "of the record and of the event log differ",
    ),
    "another run's record": ((), copied, "of the record and of the event log differ"),
    "a log that was removed": ((OFFICIAL,), without_log, "No such file"),
}  # fmt: skip


def said_of(folder: Path) -> list[str]:
    """Return why the record in a folder is not official; empty where it is."""
    try:
        record = load(folder / "record.json")
    except UserError as error:
        return [str(error)]
    return [] if record.eligible else record.official_reasons


def tried() -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield kind, name, expected reason and all reasons of every forgery; without any it is official."""
    for name, (run, reason) in FORGERIES.items():
        yield "run", name, reason, built(OFFICIAL, **run).official_reasons
    for overrides, reason in WORDS:
        yield "command line", " ".join(overrides), reason, built(*overrides).official_reasons
    for name, (edit, reason) in EDITS.items():
        edited = log(compose.compose([OFFICIAL]))
        edit(edited)
        yield "log", name, "lines", build_record(edited).official_reasons
        yield "log sealed anew", name, reason, build_record(sealed(edited)).official_reasons
    for name, (overrides, edit, reason) in FOLDERS.items():
        with tempfile.TemporaryDirectory() as root:
            folder = folder_of(Path(root), "run", *overrides)
            edit(folder)
            yield "record", name, reason, [sentence.replace(f"{root}/", "") for sentence in said_of(folder)]


def main() -> int:
    """Print what is said against each forgery."""
    mlbench.__version__, official.reference = FROZEN.version, lambda version="": FROZEN
    rows = list(tried())
    print("| forgery of | name | reason |\n|---|---|---|")
    for kind, name, expected, reasons in rows:
        said = next((reason for reason in reasons if expected and expected in reason), "OFFICIAL")
        print(f"| {kind} | {name} | {said if expected else UNSEEN} |")
    unseen = [name for *_, name, expected, reasons in rows if not expected and not reasons]
    wrong = [name for _, name, expected, reasons in rows if not any(expected in reason for reason in reasons)]
    print(f"\n{len(rows)} tried, {len(rows) - len(wrong)} with their reason; {UNSEEN}: {', '.join(unseen)}")
    return 0 if wrong == unseen else 1


if __name__ == "__main__":
    sys.exit(main())
