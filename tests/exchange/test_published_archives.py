"""What MLBench published becomes records with the same totals; what is no result is refused unharmed."""

import io
import json
import os
import shutil
import stat
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zips

from mlbench import results
from mlbench.exchange import archive, intake, published
from mlbench.exchange.export import export
from mlbench.experiment import events
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import Record
from mlbench.terminal import result_card

CIFAR = "torch-1.7.0/image-recognition/cifar10-resnet20-all-reduce"
DDP = "torch-1.7.0/image-recognition/cifar10-resnet20-ddp"
GNMT = "torch-1.7.0/nlp/translation/wmt16-gnmt-all-reduce"
TRANSFORMER = "torch-1.7.0/nlp/translation/wmt17-transformer-all-reduce"
LANGUAGE = "torch-1.7.0/nlp/language-modeling/wikitext2-lstm-all-reduce"
PUBLISHED = os.environ.get("MLBENCH_PUBLISHED_RESULTS")  # the folder with all of MLBench's result zips


def cifar(workers: int = 2, **changes: Any) -> dict[str, str]:
    given: dict[str, Any] = {"workers": workers, "official": "80% Top 1 Validation Accuracy"} | changes
    return zips.training("Prec@1", [60.0, 70.0, 81.5], **given)


def converted(path: Path, **given: str) -> Record:
    opened = archive.read(path)
    return published.convert(opened, published.origin(path, given))


def test_totals_are_those_of_rank_0_and_add_up(tmp_path: Path) -> None:
    record = converted(zips.write(tmp_path / CIFAR / "metrics_gloo-2.zip", cifar()))
    assert (record.source, record.workers, record.status) == ("mlbench-published", 2, "goal_reached")
    seconds = {phase: spread.mean for phase, spread in record.phases.items()}
    assert seconds == {
        "data_wait": 0.75, "forward": 9.0, "loss": 0.375, "backward": 12.0, "communication": 6.0,
        "optimizer": 3.0, "metrics": 2.25,
    }  # fmt: skip
    between = sum(spread.mean for spread in record.outside.values())
    assert record.time_to_accuracy == record.train_time == sum(seconds.values()) + between == 35.0625
    assert record.exposed_communication_share == 6.0 / 35.0625
    assert record.cost and record.cost["nodes"] == 2
    assert record.cost["goal_usd"] == pytest.approx(2 * 35.0625 / 3600 * 0.54)  # conf/hardware/gcp_n1_t4.yaml


def test_the_course_has_the_published_values_and_times(tmp_path: Path) -> None:
    record = converted(zips.write(tmp_path / CIFAR / "metrics_gloo-2.zip", cifar()))
    assert [v["metrics"]["top1_accuracy"] for v in record.validations] == [60.0, 70.0, 81.5]
    assert [v["epoch"] for v in record.validations] == [1.0, 2.0, 3.0] and record.epochs == 3.0
    assert [v["goal_reached"] for v in record.validations] == [False, False, True]
    # The first batch was logged EPOCH_S / 4 after BEGUN, the validations at 1, 2 and 3 EPOCH_S.
    assert [v["elapsed"] for v in record.validations] == pytest.approx([15.0, 35.0, 55.0], abs=0.002)
    assert [v["train_loss"] for v in record.validations] == pytest.approx([1.5, 1.5, None])
    assert (record.best, record.goal) == (81.5, "top1_accuracy >= 80")


def test_configuration_and_caveats_say_what_is_known(tmp_path: Path) -> None:
    record = converted(zips.write(tmp_path / CIFAR / "metrics_mpi-2.zip", cifar()))
    experiment = record.experiment
    assert experiment["backend"]["name"] == "mpi" and experiment["hardware"]["name"] == "gcp_n1_t4"
    assert experiment["division"]["name"] == "published" and not record.official
    assert record.software["packages"]["torch"] == "1.7.0"
    said = " ".join(record.caveats)
    assert "one run" in said and "without waiting for the GPU" in said and "validation" in said
    assert "communicates with nobody" not in said
    alone = converted(zips.write(tmp_path / CIFAR / "metrics_mpi-1.zip", cifar(1)))
    assert "communicates with nobody" in " ".join(alone.caveats)
    assert alone.key != record.key
    assert "GOAL REACHED" in result_card.plain(record)


def test_ddp_has_no_time_for_communication(tmp_path: Path) -> None:
    path = tmp_path / DDP / "metrics_nccl-2.zip"
    record = converted(zips.write(path, cifar(without=("agg", "batch_load"))))
    assert record.experiment["sync"]["name"] == "ddp"
    assert record.phases["communication"].mean == 0 and record.exposed_communication_share is None
    assert "was not measured" in " ".join(record.caveats)


def test_translation_validates_thrice_an_epoch_and_logs_its_last_value_twice(tmp_path: Path) -> None:
    values = [14.0, 18.0, 20.0, 21.0, 24.1, 24.1]
    line = "Validation BLEU-Score of 24"
    files = zips.training("BLEU-Score", values, workers=1, official=line, without=("comp_metrics",), epochs=2)
    files["result_train_global_BLEU-Score @ 0.json"] = zips.entries([20.4])
    record = converted(zips.write(tmp_path / GNMT / "metrics_nccl-1.zip", files))
    assert [v["metrics"]["bleu"] for v in record.validations] == values[:-1]
    assert [v["epoch"] for v in record.validations] == pytest.approx([0.3, 0.6, 0.9, 1.3, 1.6])
    files["official_result.txt"] = files["official_result.txt"].replace("24 reached", "25 reached")
    other = converted(zips.write(tmp_path / TRANSFORMER / "metrics_nccl-1.zip", files))
    assert [v["epoch"] for v in other.validations] == pytest.approx([0.3, 0.6, 0.9, 1.0, 1.3])
    assert other.goal == "bleu >= 25"


def test_perplexity_falls_to_its_goal(tmp_path: Path) -> None:
    line = "Validation Perplexity of 70"
    files = zips.training("Perplexity", [120.0, 69.5], workers=1, official=line, without=("batch_load",))
    record = converted(zips.write(tmp_path / LANGUAGE / "metrics_nccl-1.zip", files))
    assert (record.goal, record.best, record.status) == ("perplexity <= 70", 69.5, "goal_reached")


def test_a_light_goal_is_the_light_goal(tmp_path: Path) -> None:
    files = cifar(official="70% Top 1 Validation Accuracy")
    record = converted(zips.write(tmp_path / CIFAR / "metrics_gloo-2.zip", files))
    assert record.experiment["goal"] == "light" and record.goal == "top1_accuracy >= 70"


def test_without_a_result_the_goal_was_not_reached(tmp_path: Path) -> None:
    record = converted(zips.write(tmp_path / CIFAR / "metrics_gloo-2.zip", cifar(official=None)))
    assert (record.status, record.time_to_accuracy, record.phases) == ("goal_not_reached", None, {})
    assert "whether the run had ended" in " ".join(record.caveats)


@pytest.mark.parametrize(
    ("name", "device"), [("metrics_mpi-2.zip", "cpu"), ("metrics_mpi-gpu-2.zip", "cuda")]
)
def test_backend_benchmark_is_the_table_of_allreduce(tmp_path: Path, name: str, device: str) -> None:
    files = zips.backends(2, cuda=device == "cuda")
    record = converted(zips.write(tmp_path / "backend_benchmark" / name, files))
    assert (record.status, record.goal) == ("completed", None)
    rows = {(row["dtype"], row["size"]): row for row in record.table}
    # Size 1 was measured twice, and rank 1 took 1 ms more: the mean over both.
    assert rows["float32", 1]["mean_s"] == pytest.approx((0.25 + 0.75) / 2 + 0.0005)
    assert rows["float16", 1]["mean_s"] == pytest.approx((0.5 + 1.0) / 2 + 0.0005)
    assert rows["float32", 100]["mean_s"] == pytest.approx(2.0005)
    assert rows["float16", 100]["bytes"] == 200 and rows["float32", 1]["repeats"] == 200
    assert all(row["device"] == device and row["p50_s"] is None for row in record.table)


def test_a_zip_from_elsewhere_needs_to_be_told_what_it_is(tmp_path: Path) -> None:
    path = zips.write(tmp_path / "results.zip", cifar())
    with pytest.raises(UserError, match="does not say its task or backend or hardware"):
        converted(path)
    record = converted(path, task="resnet20", backend="nccl", hardware="gcp_n1_t4")
    assert record.experiment["backend"]["name"] == "nccl" and record.time_to_accuracy == 35.0625
    with pytest.raises(UserError, match="backend=smoke is unknown"):
        converted(path, task="resnet20", backend="smoke", hardware="gcp_n1_t4")


def entry(value: Any, *, date: str = "2020-12-08T10:53:09.994Z") -> str:
    return json.dumps([{"date": date, "value": value, "cumulative": False}])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"result_train_loss @ 0.json": '[{"date": 1'}, "not valid JSON"),
        ({"result_train_loss @ 0.json": "[" * 100_000}, "not valid JSON"),
        ({"result_train_loss @ 0.json": '{"date": 1}'}, "is not a list"),
        ({"result_train_loss @ 0.json": "[1, 2]"}, "not a date and a value"),
        ({"result_train_loss @ 0.json": entry("high")}, "not a date and a value"),
        ({"result_train_loss @ 0.json": entry("1", date="yesterday")}, "not a date and a value"),
        ({"result_train_loss @ 0.json": entry("nan")}, "nan, which is no number"),
        ({"result_train_loss @ 0.json": '[{"date": "2020-12-08", "value": NaN}]'}, "NaN is no number"),
        ({"result_train_loss @ 0.json": entry("1e999")}, "inf, which is no number"),
        ({"w_cpu.json": entry("nan")}, "nan, which is no number"),
        ({"readme.md": "hello"}, "'readme.md' is no file of MLBench's results"),
        ({"official_result.txt": "Goal!"}, "official_result.txt is not of the form"),
        ({"official_result.txt": "80% Top 1 Validation Accuracy reached in 1.000 seconds"}, "say different"),
        ({"official_result.txt": "Validation Perplexity of 7 reached in 35.062 seconds"}, "about Perplexity"),
        ({"result_train_loss @ 2.json": entry("1")}, "its name says 2 workers, it holds 3"),
    ],
)  # fmt: skip
def test_wrong_shapes_are_refused_with_a_sentence(tmp_path: Path, changes: dict[str, str], told: str) -> None:
    path = zips.write(tmp_path / CIFAR / "metrics_gloo-2.zip", cifar() | changes)
    with pytest.raises(UserError, match=told) as refused:
        converted(path)
    assert "metrics_gloo-2.zip" in str(refused.value) and len(str(refused.value)) < 300


def forged(name: str, *, mode: int = 0, twice: bool = False, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip whose one entry is not what a result is."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as target, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile itself warns of names that come twice
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        info.compress_type = method
        for _ in range(2 if twice else 1):
            target.writestr(info, "[]")
    return buffer.getvalue()


def bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("result_train_loss @ 0.json", b"0" * (32 * 2**20))
    return buffer.getvalue()


def encrypted() -> bytes:
    whole = bytearray(forged("result_train_loss @ 0.json"))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = whole.index(signature) + offset
        whole[at : at + 2] = struct.pack("<H", 1)
    return bytes(whole)


def lying() -> bytes:
    """Return a zip whose directory says that an entry is smaller than it is."""
    whole = bytearray(forged("result_train_loss @ 0.json"))
    at = whole.index(b"PK\x01\x02") + 24
    whole[at : at + 4] = struct.pack("<I", 1)
    return bytes(whole)


def many() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for number in range(archive.MOST_ENTRIES + 1):
            target.writestr(f"{number}", "")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (forged("../../result_train_loss @ 0.json"), "is a path"),
        (forged("/etc/result_train_loss @ 0.json"), "is a path"),
        (forged("C:\\result_train_loss @ 0.json"), "is a path"),
        (forged("folder/"), "is a path"),
        (forged("result_x @ 0.json\x1b[2J"), "is a path"),
        (forged("result_x @ 0.json", mode=stat.S_IFLNK | 0o777), "is a link or another special file"),
        (forged("result_x @ 0.json", mode=stat.S_IFIFO | 0o777), "is a link or another special file"),
        (forged("result_x @ 0.json", twice=True), "is in it twice"),
        (forged("result_x @ 0.json", method=zipfile.ZIP_LZMA), "packed with a method"),
        (forged("result_x @ 0.json")[:-30], "damaged or no zip file"),
        (b"PK\x03\x04 and no more", "damaged or no zip file"),
        (b"", "damaged or no zip file"),
        (bomb(), "unpacks to more than 300 times its size"),
        (encrypted(), "is encrypted"),
        (lying(), "damaged or no zip file"),
        (many(), "entries, 20,000 are allowed"),
        (forged("result_x @ 0.json"), "its lists are empty"),
        (forged("w_cpu.json"), "holds no result of MLBench"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "zip",
)
def test_bad_zips_are_refused_and_write_nothing(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / CIFAR / "metrics_gloo-1.zip"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=told) as refused:
        converted(path)
    assert "\x1b" not in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = zips.write(tmp_path / CIFAR / "metrics_gloo-2.zip", cifar())
    whole = bytearray(path.read_bytes())
    whole[60] ^= 1  # inside the first entry's packed bytes
    path.write_bytes(bytes(whole))
    with pytest.raises(UserError, match="damaged"):
        converted(path)


def test_copies_of_one_run_are_told(tmp_path: Path) -> None:
    first = zips.write(tmp_path / CIFAR / "metrics_gloo-1.zip", cifar(1))
    shutil.copy(first, tmp_path / CIFAR / "metrics_nccl-1.zip")
    found = list(intake.read(intake.zips([str(tmp_path)]), {}))
    assert len(found) == 2
    for (path, record, _), other in zip(found, ("metrics_nccl-1.zip", "metrics_gloo-1.zip"), strict=True):
        assert isinstance(record, Record) and path.name != other
        assert any(f"published again as {other}" in caveat for caveat in record.caveats)


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")
def test_importing_a_folder_twice_adds_nothing(tmp_path: Path, empty_store: Path, capsys: Any) -> None:
    from mlflow.tracking import MlflowClient

    folder, root = tmp_path / "zips", zips.with_store(tmp_path / "runs", empty_store)
    zips.write(folder / CIFAR / "metrics_gloo-2.zip", cifar())
    zips.write(folder / "backend_benchmark" / "metrics_mpi-2.zip", zips.backends(2, cuda=False))
    (folder / CIFAR / "metrics_bad-2.zip").write_bytes(b"not a zip")
    words = ["import", str(folder), f"output_root={root}"]
    assert results.main(words) == 2
    shown = capsys.readouterr()
    assert "2 imported, 1 refused" in shown.out and "metrics_bad-2.zip is not imported" in shown.err
    (folder / CIFAR / "metrics_bad-2.zip").unlink()
    assert results.main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 present"
    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("mlbench")
    assert experiment is not None
    runs = {run.data.tags["task"]: run for run in client.search_runs([experiment.experiment_id])}
    assert sorted(runs) == ["allreduce", "resnet20"]
    run = runs["resnet20"]
    assert run.data.tags["source"] == "mlbench-published" and run.data.tags["backend"] == "gloo"
    assert run.data.metrics["time_to_accuracy"] == 35.0625 and run.data.metrics["phase/forward"] == 9.0
    history = client.get_metric_history(run.info.run_id, "validation/top1_accuracy")
    assert [point.value for point in history] == [60.0, 70.0, 81.5]
    assert history[0].timestamp == round((zips.BEGUN + zips.EPOCH_S) * 1000)
    assert "without repetition" in run.data.tags["caveats"]
    assert results.main(["sync", f"output_root={root}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 present"


def test_what_was_imported_can_be_exported_and_imported_again(tmp_path: Path) -> None:
    """It has values that no run of ours may have: no time-out, no size of buckets, no warm-ups."""
    zips.write(tmp_path / "zips" / CIFAR / "metrics_gloo-2.zip", cifar())
    zips.write(tmp_path / "zips" / "backend_benchmark" / "metrics_mpi-2.zip", zips.backends(2, cuda=False))
    read = list(intake.read(intake.zips([str(tmp_path / "zips")]), {}))
    assert len(read) == 2
    for _, found, log in read:
        assert isinstance(found, Record)
        folder = tmp_path / found.run_id
        folder.mkdir()
        found.save(folder)
        (folder / events.NAME).write_text("".join(json.dumps(event) + "\n" for event in log))
        ((_, again, _),) = intake.read([export(folder, tmp_path / f"{found.run_id}.zip")], {})
        assert isinstance(again, Record), again
        assert (again.experiment, again.table) == (found.experiment, found.table)


# Inventory of MLBench's results repository: total, compute, communication, metrics, load, forward, loss,
# backward, optimizer (s, rank 0), final metric, speed-up; as printed there, to its digits.
TOTALS = """
resnet20 gloo 1: 171.2 94.1 20.9 43.2 2.2 35.4 0.8 31.0 26.9 80.32 1.00
resnet20 gloo 2: 110.5 53.5 48.2 1.6 1.1 23.0 0.5 17.5 12.6 80.92 1.55
resnet20 gloo 4: 55.4 23.9 28.0 0.7 0.5 11.8 0.2 6.8 5.0 80.20 3.09
resnet20 gloo 8: 38.6 16.5 19.4 0.5 0.3 7.9 0.2 4.7 3.8 81.51 4.44
resnet20 gloo 16: 25.9 8.1 16.8 0.2 0.1 4.4 0.1 2.1 1.6 80.08 6.60
resnet20 mpi 1: 171.2 94.1 20.9 43.2 2.2 35.4 0.8 31.0 26.9 80.32 1.00
resnet20 mpi 2: 106.0 48.3 49.5 1.3 1.2 20.4 0.4 15.5 12.0 80.92 1.62
resnet20 mpi 4: 57.9 25.4 28.4 0.7 0.6 12.1 0.2 7.4 5.7 81.81 2.95
resnet20 mpi 8: 42.3 18.3 21.0 0.6 0.4 8.4 0.2 5.5 4.3 81.81 4.04
resnet20 mpi 16: 30.9 10.5 18.7 0.3 0.2 5.4 0.1 2.7 2.3 80.33 5.53
resnet20 nccl 1: 171.2 94.1 20.9 43.2 2.2 35.4 0.8 31.0 26.9 80.32 1.00
resnet20 nccl 2: 106.9 53.0 45.5 1.5 1.1 20.4 0.5 17.5 14.5 80.92 1.60
resnet20 nccl 4: 62.0 26.4 31.3 0.8 0.6 11.1 0.2 8.2 6.9 80.60 2.76
resnet20 nccl 8: 34.2 15.0 16.9 0.4 0.3 6.9 0.1 4.2 3.8 80.12 5.01
resnet20 nccl 16: 30.2 9.8 19.0 0.3 0.2 4.9 0.1 2.5 2.2 80.70 5.67
gnmt nccl 1: 65207 64570 21.4 0.0 601.3 2847 18717 42816 190.4 24.10 1.00
gnmt nccl 2: 37504 30701 6314 0.0 477.3 1280 8989 20269 162.9 24.04 1.74
gnmt nccl 4: 28848 16241 12107 0.0 486.8 732.6 4690 10607 211.1 24.01 2.26
gnmt nccl 8: 24819 7981 16354 0.0 466.4 404.7 2222 5141 213.7 24.01 2.63
gnmt nccl 16: 23526 4184 18870 0.0 457.8 189.7 1169 2614 211.4 24.07 2.77
"""


@pytest.mark.skipif(PUBLISHED is None, reason="MLBENCH_PUBLISHED_RESULTS names no folder")
def test_all_published_results_import_with_their_published_totals() -> None:
    assert PUBLISHED is not None
    paths = intake.zips([PUBLISHED])
    found = [one for _, one, _ in intake.read(paths, {})]
    records = [one for one in found if isinstance(one, Record)]
    assert len(records) == len(paths) > 0, [str(one) for one in found if isinstance(one, UserError)]
    trained = {
        f"{r.experiment['task']['name']} {r.experiment['backend']['name']} {r.workers}": r
        for r in records
        if not r.table
    }
    rows = {line.split(": ")[0]: line.split(": ")[1] for line in TOTALS.strip().splitlines()}
    assert sorted(trained) == sorted(rows)
    for name, row in rows.items():
        one = trained[name]
        part = {phase: spread.mean for phase, spread in one.phases.items()}
        compute = part["forward"] + part["loss"] + part["backward"] + part["optimizer"]
        task, backend, _ = name.split()
        base = trained[f"{task} {backend} 1"].time_to_accuracy
        assert one.time_to_accuracy and base and one.best is not None
        numbers = [one.time_to_accuracy, compute, part["communication"], part["metrics"], part["data_wait"]]
        numbers += [part["forward"], part["loss"], part["backward"], part["optimizer"], one.best]
        numbers.append(base / one.time_to_accuracy)
        printed = row.split()
        assert [f"{n:.{len(p.partition('.')[2])}f}" for n, p in zip(numbers, printed, strict=True)] == printed
    assert sum(bool(one.table) for one in records) == len(records) - len(trained) == 12
