import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import mini_worker, run_ranks
from sklearn.linear_model import LogisticRegression

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.tasks import registry
from mlbench.tasks.logreg import data
from mlbench.tasks.logreg.model import Linear, correct, cross_entropy
from mlbench.tasks.logreg.torch import Convergence
from mlbench.training import loop
from mlbench.training.setup import TaskResult
from mlbench.training.worker import Worker

L2 = 1e-3


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(7)
    features = rng.normal(size=(400, 20))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = (features @ rng.normal(size=20) + 0.2 * rng.normal(size=400) > 0).astype(np.int64)
    return features, labels


def objective(features, labels, w):
    signs = 2 * labels - 1
    return np.logaddexp(0, -signs * (features @ w)).mean() + L2 / 2 * w @ w


def loss(logits: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor, l2: float) -> torch.Tensor:
    """Return the objective: mean cross-entropy + l2/2 * ||w||^2."""
    return cross_entropy(logits, labels) + l2 / 2 * weight.square().sum()


def test_the_step_is_that_of_torchs_sgd(data_root: Path) -> None:
    setup = registry.build(compose(["task=logreg"]).task, mini_worker(Worker(), data_root))
    copied = copy.deepcopy(setup.model)
    theirs = torch.optim.SGD(
        copied.parameters(), lr=3.0, weight_decay=setup.optimizer.defaults["weight_decay"]
    )
    setup.optimizer.param_groups[0]["lr"] = 3.0
    for weight in (*setup.model.parameters(), *copied.parameters()):
        weight.grad = torch.arange(len(weight)) / len(weight)
    assert setup.optimizer_step is not None
    setup.optimizer_step()
    theirs.step()
    for ours, expected in zip(setup.model.parameters(), copied.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


def test_loss_and_gradient_equal_the_closed_form(rows):
    features, labels = rows
    torch.manual_seed(1)
    model = Linear(20).double()
    value = loss(model(torch.from_numpy(features)), torch.from_numpy(labels), model.weight, L2)
    value.backward()
    w = model.weight.detach().numpy()
    probability = 1 / (1 + np.exp(-features @ w))
    gradient = features.T @ (probability - labels) / len(labels) + L2 * w
    assert value.shape == ()
    assert value.item() == pytest.approx(objective(features, labels, w), rel=1e-12)
    assert model.weight.grad is not None
    np.testing.assert_allclose(model.weight.grad.numpy(), gradient, rtol=1e-10, atol=1e-15)


def test_large_logits_stay_finite():
    logits = torch.tensor([1e4, -1e4])
    assert loss(logits, torch.tensor([0, 1]), torch.zeros(4), L2).item() == pytest.approx(1e4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_correct_counts_rows_by_the_sign_of_the_logit(dtype):
    logits = torch.tensor([3.0, -0.1, 0.0, 0.1, -2.0])
    assert correct(logits, torch.tensor([1, 0, 0, 0, 1]).to(dtype)).item() == 3


@pytest.mark.slow
def test_the_mini_recipe_ends_within_a_thousandth_of_scikit_learns_optimum(
    data_root: Path,
) -> None:
    task = compose(["task=logreg", "goal=none"]).task
    worker = mini_worker(Worker(), data_root)
    setup = registry.build(task, worker)
    loop.train(setup, worker)
    rows, _ = data.open_dataset(data_root / task.dataset)
    features, labels = rows.features.double().numpy(), rows.labels.numpy()
    l2 = vars(task)["l2"]
    fitted = LogisticRegression(C=1 / (len(labels) * l2), fit_intercept=False, tol=1e-8, max_iter=10_000)

    def objective(w: np.ndarray) -> float:
        return float(np.logaddexp(0, -(2 * labels - 1) * (features @ w)).mean() + l2 / 2 * w @ w)

    best = objective(fitted.fit(features, labels).coef_[0])
    ours = objective(setup.model.get_parameter("weight").detach().double().numpy())
    assert best <= ours <= best + 1e-3


def test_tuning_trains_on_four_fifths_of_the_training_rows_and_validates_on_the_rest(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["task=logreg", "goal=none", "division=open", "task.epochs=1", "task.validation=split"]
    with pytest.raises(UserError, match="rule R1"):
        compose([word for word in overrides if word != "division=open"])
    touched: list[torch.Tensor] = []
    select = torch.index_select

    def remember(
        rows: torch.Tensor, dim: int, chosen: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        if rows.dim() == 2 and len(rows) == 20_000:
            touched.append(chosen)
        return select(rows, dim, chosen, out=out)

    monkeypatch.setattr(torch.Tensor, "index_select", remember)
    monkeypatch.setattr(torch, "index_select", remember)
    result(overrides, Worker(), data_root)
    held, trained = touched[0], torch.cat(touched[1:])
    assert len(held) == 4_000 and len(trained) == 16_000
    assert torch.equal(torch.cat([held, trained]).sort().values, torch.arange(20_000))
    assert torch.equal(held, data.held_out(20_000)[1]), "the same rows for every seed"


def test_a_run_tells_its_distance_to_the_optimum_at_every_validation(data_root: Path) -> None:
    overrides = ["task=logreg", "goal=none", "division=open", "task.epochs=3"]
    setup = registry.build(compose(overrides).task, mini_worker(Worker(), data_root))
    seen: list[torch.Tensor] = []
    validate = setup.validate

    def remember(model: Any, rows: Any) -> dict[str, float]:
        seen.append(model.weight.detach().double().clone())
        return validate(model, rows)

    setup.validate = remember
    table = loop.train(setup, mini_worker(Worker(), data_root)).table
    rows = data.open_dataset(data.prepare_dataset(compose(overrides).task, data_root))[0]
    x, y = rows.features.double().numpy(), rows.labels.double().numpy()
    assert [row["validation"] for row in table] == [1, 2, 3]
    for row, weights in zip(table, seen, strict=True):
        logits = x @ weights.numpy()
        objective = np.mean(np.logaddexp(0, logits) - y * logits) + 2.5e-6 / 2 * float(weights @ weights)
        assert row["objective"] == pytest.approx(objective, rel=1e-12)
        assert row["distance_to_optimum"] == pytest.approx(objective - 0.2286323014, abs=1e-12)
    assert result([*overrides, "task.l2=1e-5"], Worker(), data_root).table == []


def test_weights_of_before_a_restart_join_those_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's are the host's; the meta device, which mixes with no other, stands in for a GPU."""
    device = torch.device("meta")
    convergence = Convergence()
    convergence.load_state_dict({"weights": [torch.ones(3)]})
    convergence.weights.append(torch.ones(3, device=device))
    rows = data.Rows(torch.ones(5, 3, device=device), torch.ones(5, device=device))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: [0.0] * len(tensor))
    assert len(convergence.table(rows, l2=0.0, optimum=0.0, worker=Worker(device=device))) == 2


def result(overrides: Sequence[str], worker: Worker, root: Path) -> TaskResult:
    worker = mini_worker(worker, root)
    return loop.train(registry.build(compose(overrides).task, worker), worker)


def validated(worker: Worker, root: Path, files: list[str]) -> dict[str, float]:
    overrides = ["task=logreg", "goal=none", "division=open", "task.epochs=1", "task.batch_size=2", *files]
    return result(overrides, worker, root).validations[-1]["metrics"]


@pytest.mark.slow
def test_a_worker_without_a_test_row_adds_nothing(tmp_path: Path) -> None:
    """Three workers share two test rows; the mean over no row is not a number."""
    (tmp_path / "train").write_text("".join(f"{row % 2} 1:{row % 5} 2:{row % 3}\n" for row in range(24)))
    (tmp_path / "test").write_text("0 1:1 2:1\n1 1:3 2:2\n")
    files = [f"task.{split}_file={tmp_path / split}" for split in ("train", "test")]
    shared = run_ranks(validated, 3, tmp_path, files)
    assert shared[0] == shared[1] == shared[2] and math.isfinite(shared[0]["loss"])
