"""A finished run stands for another only with the same code and libraries on the same machine."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grimp
import installed
import pytest
from conftest import ROOT
from records import record, save
from syrupy.assertion import SnapshotAssertion

import mlbench
from mlbench import run
from mlbench.clusters import node
from mlbench.config import compose, identity, overrides, plugins
from mlbench.launch import cache, execute
from mlbench.record import provenance, reader
from mlbench.record.record import JobSubmission, Node
from tools.freeze import MEASURING

GPU = {"name": "NVIDIA T4"}


def here(**software: Any):
    return record(nodes=[node.describe()], software=provenance.software().model_copy(update=software))


def test_a_run_of_this_code_on_this_machine_stands() -> None:
    assert cache.obstacle(here()) is None


@pytest.mark.parametrize(
    ("software", "reason"),
    [
        ({"code": "other"}, "other code"),
        ({"code": None}, "other code"),
        ({"python": "3.0"}, "another Python"),
        ({"packages": provenance.software().packages | {"ray": "1.0"}}, "ray 1.0"),
        ({"packages": {}}, "None"),
        ({"environment": provenance.environment() | {"OMP_PLACES": "x"}}, "another OMP_PLACES"),
    ],
)
def test_other_code_or_libraries_do_not(software: dict[str, Any], reason: str) -> None:
    assert reason in (cache.obstacle(here(**software)) or "")


@pytest.mark.parametrize(
    "other", [{"hostname": "other"}, {"cpu_model": "Z80"}, {"usable_cpus": 4711}, {"gpus": [GPU]}]
)
def test_another_machine_does_not(other: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    plain = node.describe().model_dump()
    nodes = [Node.model_validate(values) for values in (plain, plain | other)]
    assert cache.obstacle(here().model_copy(update={"nodes": nodes})) == snapshot
    assert cache.obstacle(here().model_copy(update={"nodes": []})) == snapshot


def test_a_submitted_run_stands_for_one_in_the_same_image(snapshot: SnapshotAssertion) -> None:
    submitted = here(code="of the image").model_copy(
        update={"submission": JobSubmission(name="n", namespace="s", command="c", image="mlbench@sha256:1")}
    )
    assert cache.obstacle(submitted, image="mlbench@sha256:1") is None
    for other, image in ((submitted, "mlbench@sha256:2"), (here(), "mlbench@sha256:1")):
        assert cache.obstacle(other, image=image) == snapshot
    assert "other code" in (cache.obstacle(submitted) or ""), "here only for the same code"
    without = submitted.model_copy(update={"submission": JobSubmission(name="n", namespace="s", command="c")})
    assert "other code" in (cache.obstacle(without) or ""), "no image is not the same image"


WORDS = ("task=logreg", "hardware=gcp_n1_t4", "goal=none", "seed=3")
# What somebody edits between two calls: file, old text, new text. No number may change with the first.
NEUTRAL = [
    ("conf/hardware/gcp_n1_t4.yaml", "usd_per_hour: 0.54", "usd_per_hour: 0.99"),
    ("conf/hardware/mine.yaml", "", "name: mine\n"),
    ("conf/task/gnmt.yaml", "", "# read\n"),
    ("conf/task/resnet20.yaml", "momentum: 0.9", "momentum: 0.8"),
    ("conf/task/logreg.yaml", "", "# read\n"),
    ("mlbench/report/page.py", "", "\n"),
]
DECISIVE = {
    "a value of the recipe": ("conf/task/logreg.yaml", "decay_factor: 0.75", "decay_factor: 0.8"),
    "the loop": ("mlbench/training/loop.py", "", "\n"),
    "another task's code": ("mlbench/tasks/resnet20/model.py", "", "\n"),
    "what a goal is": ("mlbench/config/goal.py", "", "\n"),
    "code that is new": ("mlbench/training/more.py", "", "\n"),
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed.sources(tmp_path_factory.mktemp("checkout"))


@pytest.fixture
def copy(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the checkout, from which this process composes and hashes."""
    monkeypatch.setattr(mlbench, "__file__", str(checkout / "mlbench" / "__init__.py"))
    forget()
    yield checkout
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Empty the caches of files, as a new process has them."""
    for function in (*vars(provenance).values(), *vars(overrides).values()):
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def measured(output_root: Path, overrides: tuple[str, ...] = WORDS) -> str:
    """Leave a finished run with the code as it is; return its name."""
    experiment = compose.compose(overrides)
    name = f"2026-11-21T034501-123-logreg-w1-{3:x}"
    (output_root / name).mkdir(parents=True)
    record = here().model_copy(
        update={
            "run_id": name,
            "key": identity.key(experiment),
            "seed": 3,
            "experiment": experiment,
            "deviations": list(experiment.deviations),
            "goal": None,
            "status": "completed",
            "time_to_accuracy": None,
        }
    )
    save(record, output_root / name)
    return name


@contextmanager
def edited(copy: Path, *edits: tuple[str, str, str]) -> Iterator[None]:
    """Let files of the checkout be others, as a new process finds them."""
    before = {
        copy / file: (copy / file).read_text() if (copy / file).exists() else None for file, *_ in edits
    }
    for path, (_, old, new) in zip(before, edits, strict=True):
        text = before[path] or ""
        assert old in text
        path.write_text(text.replace(old, new, 1) if old else text + new)
    forget()
    try:
        yield
    finally:
        for path, text in before.items():
            path.unlink() if text is None else path.write_text(text)
        forget()


@pytest.mark.slow
def test_a_run_is_lost_with_what_may_change_its_number_and_with_nothing_else(
    copy: Path, tmp_path: Path
) -> None:
    overrides = [*WORDS, f"output_root={tmp_path}"]
    before = measured(tmp_path)

    def found() -> str | None:
        return getattr(cache.find_cached(compose.compose(overrides), data=None), "run_id", None)

    sources = provenance.sources()
    for edit in NEUTRAL:
        with edited(copy, edit):
            assert provenance.sources() != sources, "what is official rests on all of it"
    with edited(copy, *NEUTRAL):
        assert found() == before
    assert [name for name, edit in DECISIVE.items() if not lost(found, copy, edit)] == []


def lost(found: Callable[[], str | None], copy: Path, edit: tuple[str, str, str]) -> bool:
    with edited(copy, edit):
        return found() is None


@pytest.mark.parametrize("contradictions", [[], ["its phases do not add up"]])
def test_a_run_of_the_store_whose_log_contradicts_itself_stands_for_none(
    contradictions: list[str], copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts in no table either, so a sweep would take it for its trial for ever."""
    name = measured(tmp_path)
    record = reader.load(tmp_path / name / "record.json")
    shutil.rmtree(tmp_path / name)
    text = record.model_copy(update={"contradictions": contradictions}).model_dump_json()
    store = SimpleNamespace(records=lambda **_: [text])
    monkeypatch.setattr(cache, "open_client", lambda *_, **__: store)
    result = cache.find_cached(compose.compose([*WORDS, f"output_root={tmp_path}"]), data=None)
    assert (result is None) is bool(contradictions)


def test_a_price_edit_between_two_calls_with_one_seed_measures_once(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    measured(tmp_path)
    monkeypatch.setattr(execute, "check_data", lambda _: None)
    monkeypatch.setattr(execute, "new_folder", lambda *_: pytest.fail("it was measured again"))
    with edited(copy, NEUTRAL[0]):
        assert run.main([*WORDS, f"output_root={tmp_path}"]) == 0
    assert "already measured" in capsys.readouterr().err and len(list(tmp_path.iterdir())) == 1


def test_the_code_of_a_plug_in_is_part_of_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever edits a task of a package of their own measures anew."""
    package = tmp_path / "package_of_a_task"
    package.mkdir()
    for name in ("__init__.py", "helper.py"):
        (package / name).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("their_task", "package_of_a_task.their_task", "mlbench.tasks")
    monkeypatch.setattr(plugins, "_points", lambda group: (point,) if group == "mlbench.tasks" else ())
    forget()
    before = here()
    assert cache.obstacle(before) is None
    (package / "helper.py").write_text("x = 1\n")
    forget()
    assert "other code" in (cache.obstacle(before) or "")
    monkeypatch.undo()
    forget()


def test_a_run_that_now_deviates_otherwise_is_measured_again(copy: Path, tmp_path: Path) -> None:
    """The values are the same; the list of what differs from the reference is not."""
    overrides = (*WORDS, "division=open", "task.decay_factor=0.7", f"output_root={tmp_path}")
    measured(tmp_path, overrides)
    before = cache.find_cached(compose.compose(overrides), data=None)
    assert before is not None and before.deviations
    with edited(copy, ("conf/task/logreg.yaml", "decay_factor: 0.75", "decay_factor: 0.7")):
        again = compose.compose(overrides)
        assert identity.key(again) == before.key and cache.find_cached(again, data=None) is None


def test_workers_import_nothing_that_reuse_leaves_out() -> None:
    """Nor do the modules by which they find tasks, sync strategies and clusters."""
    graph = grimp.build_graph("mlbench", exclude_type_checking_imports=True)
    places = [path for path in plugins.packages() if path.is_relative_to(ROOT / "mlbench")]
    decisive = tuple(".".join(path.relative_to(ROOT).parts) for path in places)
    assert decisive, "those that decide numbers"
    begin = {
        module
        for module in graph.modules
        if module.startswith(
            ("mlbench.training", "mlbench.tasks", "mlbench.clusters", "mlbench.datasets", *decisive)
        )
        # A task's table and a study's convergence points; what a plugin makes of studies, and its commands.
        and not module.endswith((".report", ".rcp", ".networks", ".charts", ".findings", ".command"))
    } | {"mlbench.launch.worker_process", "mlbench.record.build_record"}
    imported = begin.union(*(graph.find_upstream_modules(module) for module in begin))
    left_out = {f"mlbench.{name.removesuffix('.py')}" for name in provenance.PRESENTATION}
    assert all((ROOT / "mlbench" / name).exists() for name in provenance.PRESENTATION)
    assert left_out <= graph.modules, "every name is one of a module"
    assert not {
        module
        for module in imported
        if ".".join(module.split(".")[:2]) in left_out and not module.startswith(decisive)
    }
    assert not {pattern.split("/")[0] for pattern in MEASURING} & set(provenance.PRESENTATION)
