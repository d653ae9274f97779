"""`results score`: what other frameworks have made of a task, judged by its own validation and goal."""

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import SGDClassifier
from syrupy.assertion import SnapshotAssertion

from mlbench import results
from mlbench.config.compose import compose
from mlbench.tasks import registry
from mlbench.tasks.logreg import data as logreg_data

EXAMPLE = '{"time": 12.5, "accuracy": 80.0}'


@pytest.fixture(scope="module")
def solved(data_root: Path) -> tuple[np.ndarray, float]:
    """Return scikit-learn's weights for the mini data, and its accuracy (%) by its own count."""
    task = compose(["task=logreg"]).task
    train, test = logreg_data.open_dataset(registry.load("logreg").prepare(task, data_root))[:2]
    settings: dict[str, Any] = {"loss": "log_loss", "alpha": 2.5e-6, "max_iter": 3, "tol": None}
    solver: Any = SGDClassifier(fit_intercept=False, random_state=1, **settings)
    solver.fit(train.features.numpy(), train.labels.numpy() > 0)
    accuracy = 100 * solver.score(test.features.numpy(), test.labels.numpy() > 0)
    return solver.coef_[0].astype(np.float32), float(accuracy)


def safetensors(weights: np.ndarray) -> bytes:
    """Return a file of one float32 vector, written from the format's description alone."""
    about = {"weight": {"dtype": "F32", "shape": list(weights.shape), "data_offsets": [0, weights.nbytes]}}
    header = json.dumps(about).encode()
    return struct.pack("<Q", len(header)) + header + weights.tobytes()


def score(*arguments: str) -> int:
    return results.main(["score", "task=logreg", *arguments])


@pytest.mark.parametrize("form", ["safetensors", "torch", "checkpoint of DDP"])
def test_a_model_of_another_framework_has_its_accuracy(
    form: str, solved: tuple[np.ndarray, float], data_root: Path, tmp_path: Path, capsys: Any
) -> None:
    weights, accuracy = solved
    path = tmp_path / "weights"
    if form == "safetensors":
        path.write_bytes(safetensors(weights))
    elif form == "torch":
        torch.save({"weight": torch.from_numpy(weights)}, path)
    else:
        torch.save({"epoch": 3, "state_dict": {"_orig_mod.module.weight": torch.from_numpy(weights)}}, path)
    arguments = (f"weights={path}", f"data_root={data_root}", "--json")
    assert score(*arguments, "goal=60") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metrics"]["accuracy"] == pytest.approx(accuracy, abs=0.05)  # a row at rounding's mercy
    assert (result["task"], result["scale"], result["reached"]) == ("logreg", "mini", True)
    assert score(*arguments, f"goal={accuracy + 1}") == 1  # the answer is no
    assert json.loads(capsys.readouterr().out)["reached"] is False


def test_a_log_becomes_time_to_accuracy(tmp_path: Path, capsys: Any, snapshot: SnapshotAssertion) -> None:
    path = tmp_path / "log.jsonl"
    times = [(0.5, 70.0), (1.25, 88.99999), (2.5, 89.0), (4.0, 90.5), (5.0, 88.0)]
    path.write_text(
        "".join(json.dumps({"time": at, "accuracy": value, "lr": 1}) + "\n" for at, value in times)
    )
    assert score(f"log={path}", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["seconds"], result["reached"], result["metrics"]) == (2.5, True, {"accuracy": 90.5})
    assert score(f"log={path}") == 0
    assert capsys.readouterr().out.splitlines() == snapshot
    assert score(f"log={path}", "goal=91") == 1
    assert capsys.readouterr().out.endswith("91 %: not reached\n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", f"has no line (e.g. {EXAMPLE})"),
        ('{"time": 1, "accuracy": 80}\naccuracy 80\n', "line 2 is not JSON"),
        ('{"time": 1}\n', f"line 1 has no number 'accuracy' (e.g. {EXAMPLE})"),
        ('{"time": NaN, "accuracy": 80}\n', "line 1 has no number 'time'"),
        ('{"time": 1, "accuracy": 980}\n', "line 1: accuracy 980 must be from 0 to 100"),
        (
            '{"time": 2, "accuracy": 80}\n{"time": 1, "accuracy": 90}\n',
            "line 2: its time 1 s is less than 2 s",
        ),
        (
            '{"time": 1, "accuracy": 0.97}\n',
            "accuracy is in %, and its best value is 0.97 (write 97 for 97 %)",
        ),
    ],
)
def test_a_log_that_says_nothing_is_refused(text: str, sentence: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    assert score(f"log={path}") == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


class Hostile:
    """What executes a command where a pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def test_nothing_in_a_file_is_executed(tmp_path: Path, data_root: Path, capsys: Any) -> None:
    trap = tmp_path / "executed"
    torch.save({"weight": Hostile(trap)}, tmp_path / "torch")
    for protocol in (2, 4):
        pickled = pickle.dumps({"weight": Hostile(trap)}, protocol=protocol)
        (tmp_path / f"pickle{protocol}").write_bytes(pickled)
    more = "is damaged or holds objects other than tensors, which are not loaded"
    for name, sentence in (("torch", more), ("pickle2", more), ("pickle4", "is not a valid weights file")):
        assert score(f"weights={tmp_path / name}", f"data_root={data_root}") == 2
        assert sentence in capsys.readouterr().err
    assert not trap.exists()


@pytest.mark.parametrize(
    "saved",
    [
        {"bias": torch.zeros(1)},
        {"weight": torch.zeros(3), "bias": torch.zeros(1)},
        {"weight": torch.zeros(3)},
        [1, 2],
    ],
)
def test_weights_of_another_model_are_refused(
    saved: Any, snapshot: SnapshotAssertion, tmp_path: Path, data_root: Path, capsys: Any
) -> None:
    torch.save(saved, tmp_path / "weights")
    assert score(f"weights={tmp_path / 'weights'}", f"data_root={data_root}") == 2
    assert capsys.readouterr().err == snapshot


def test_what_cannot_be_scored_is_a_sentence(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "text").write_text("no weights")
    for arguments, sentence in (
        ((), "score takes weights=FILE or log=FILE"),
        ((f"weights={tmp_path / 'absent'}",), "cannot use"),
        ((f"weights={tmp_path / 'text'}",), "is not a valid weights file"),
        (("task=allreduce", f"weights={tmp_path / 'text'}"), "task=allreduce trains no model"),
        (("scale=official", f"weights={tmp_path / 'text'}"), "is not a valid weights file"),
    ):
        given = (
            list(arguments) if arguments and arguments[0].startswith("task=") else ["task=logreg", *arguments]
        )
        assert results.main(["score", *given]) == 2
        assert sentence in capsys.readouterr().err
