"""The loop with real gloo processes: same mathematics whatever the number of workers, honest phases."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import mini_worker, run_ranks
from torch import nn

from mlbench import tasks, training
from mlbench.config import choices, compose
from mlbench.goal import Goal
from mlbench.tasks.common import sampling
from mlbench.tracker import Tracker
from mlbench.training import Outcome, Parts, train
from mlbench.worker import Worker


class Problem:
    """A small regression: 96 rows of 5 features, in exact batches."""

    def __init__(self, worker: Worker, *, batch: int, epochs: int = 2) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(96, 5, generator=generator, dtype=torch.float64)
        self.y = torch.randn(96, 1, generator=generator, dtype=torch.float64)
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        self.worker, self.batch, self.epochs = worker, batch, epochs
        self.poison: int | None = None

    def parts(self, **changes: Any) -> Parts:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        values: dict[str, Any] = dict(
            model=self.model,
            optimizer=optimizer,
            epochs=self.epochs,
            updates=self.updates,
            forward=lambda model, batch: model(batch[0]),
            loss=lambda output, batch: (output - batch[1]).square().mean(),
            validate=self.validate,
            samples=lambda batch: len(batch[1]),
        )
        return Parts(**(values | changes))

    def updates(self, epoch: int) -> Any:
        rows = sampling.shuffled_rows(96, batch=self.batch, epoch=epoch, worker=self.worker)
        return sampling.RowUpdates(rows, lambda chosen: (self.x[chosen], self.y[chosen]))

    def validate(self, model: nn.Module) -> dict[str, float]:
        part = sampling.share(96, self.worker)
        error = (model(self.x[part]) - self.y[part]).square().sum().item()
        total, count = self.worker.sum([error, len(part)]).tolist()
        return {"error": total / count, "rows": count}

    def weights(self) -> list[float]:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()]).tolist()


def trained_weights(worker: Worker, batch: int) -> tuple[list[float], list[dict[str, Any]]]:
    problem = Problem(mini_worker(worker, Path()), batch=batch)
    outcome = train(problem.parts(), worker)
    return problem.weights(), outcome.validations


def test_two_workers_with_half_the_batch_train_the_same_weights() -> None:
    (one,) = run_ranks(trained_weights, 1, 16)
    two = run_ranks(trained_weights, 2, 8)
    assert one[0] == pytest.approx(two[0][0], abs=1e-9)
    assert two[0][0] == two[1][0]
    assert [v["metrics"] for v in one[1]] == [pytest.approx(v["metrics"]) for v in two[0][1]]


def logreg_weights(worker: Worker, batch: int, root: Path) -> tuple[list[float], Any]:
    """Train the real task for some epochs and return its weights and validations."""
    experiment = compose(["task=logreg", "goal=none", "division=open", f"task.batch_size={batch}",
                          "task.epochs=2", f"task.rate={4.0 / worker.world_size}"])  # fmt: skip
    kept: list[nn.Module] = []
    create = nn.Linear.__init__

    def remember(self: nn.Linear, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        kept.append(self)

    nn.Linear.__init__ = remember
    outcome = tasks.load("logreg").run(experiment.task, mini_worker(worker, root))
    weight: Any = kept[0].weight
    return weight.flatten().tolist(), [v["metrics"] for v in outcome.validations]


def test_logistic_regression_is_the_same_on_one_and_two_workers(data_root: Path) -> None:
    ((one, _),) = run_ranks(logreg_weights, 1, 128, data_root)
    (two, _), (other, _) = run_ranks(logreg_weights, 2, 64, data_root)
    assert two == other
    assert one == pytest.approx(two, abs=1e-6)


def validation_counts(worker: Worker, names: list[str], root: Path) -> list[dict[str, float]]:
    """Validate each task's untrained model: the same weights whatever k is."""

    def validate_only(parts: Parts, worker: Worker) -> Outcome:
        parts.model.eval()
        with torch.no_grad():
            return Outcome("completed", validations=[parts.validate(parts.model)])

    training.train = validate_only
    mini_worker(worker, root)
    composed = [compose([f"task={name}"]).task for name in names]
    return [tasks.load(task.name).run(task, worker).validations[0] for task in composed]


def test_validation_counts_every_sample_once_whatever_the_number_of_workers(data_root: Path) -> None:
    """Neither 5,000 rows nor 359 images divide by 3."""
    names = [name for name in choices("task") if compose([f"task={name}"]).task.goals]
    one, *more = [run_ranks(validation_counts, k, names, data_root)[0] for k in (1, 2, 3)]
    for other in more:
        for here, there in zip(one, other, strict=True):
            assert there.keys() == here.keys()
            for name, value in there.items():
                # Counts divide alike on any number of workers; sums of losses may differ in the last bits.
                exact = name not in ("loss", "perplexity")
                assert value == (here[name] if exact else pytest.approx(here[name], rel=1e-6))


@pytest.mark.parametrize("count", [0, 1, 7, 96, 1000])
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_shares_are_disjoint_complete_and_even(count: int, workers: int) -> None:
    shares = [sampling.share(count, Worker(rank=r, world_size=workers)) for r in range(workers)]
    assert [row for share in shares for row in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_an_epoch_is_disjoint_between_ranks_and_reshuffled() -> None:
    def rows(epoch: int, rank: int, workers: int = 3) -> torch.Tensor:
        worker = Worker(rank=rank, world_size=workers, seed=5)
        return sampling.shuffled_rows(100, batch=8, epoch=epoch, worker=worker)

    first = torch.cat([rows(0, rank).flatten() for rank in range(3)])
    assert len(first) == len(first.unique()) == 96
    assert not torch.equal(rows(0, 0), rows(1, 0))
    assert torch.equal(rows(0, 0), rows(0, 0))
    joined = sampling.shuffled_rows(100, batch=24, epoch=0, worker=Worker(seed=5))
    together = torch.cat([rows(0, rank) for rank in range(3)], dim=1)
    assert torch.equal(joined, together)


def test_the_goal_ends_the_run_at_the_validation_that_met_it() -> None:
    worker = Worker(goal=Goal("error", 1e9, "min"))
    outcome = train(Problem(worker, batch=8).parts(), worker)
    assert outcome.status == "goal_reached" and len(outcome.validations) == 1
    assert outcome.time_to_accuracy == outcome.validations[0]["elapsed"]


def test_a_missed_goal_and_no_goal_train_to_the_last_epoch() -> None:
    for goal, status in ((Goal("error", -1, "min"), "goal_not_reached"), (None, "completed")):
        worker = Worker(goal=goal)
        outcome = train(Problem(worker, batch=8, epochs=3).parts(), worker)
        assert outcome.status == status and outcome.updates == 36
        assert outcome.time_to_accuracy is None


def test_a_loss_that_is_not_finite_ends_as_diverged() -> None:
    worker = Worker(goal=Goal("error", 0, "min"))
    problem = Problem(worker, batch=8, epochs=50)
    outcome = train(
        problem.parts(loss=lambda output, batch: (output - batch[1]).square().mean() * math.inf), worker
    )
    assert outcome.status == "diverged"
    assert len(outcome.validations) == 1 and outcome.validations[0]["train_loss"] is None


def diverge_on_rank_one(worker: Worker) -> str:
    def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
        plain = (output - batch[1]).square().mean()
        return plain * math.nan if worker.rank == 1 else plain

    return train(Problem(worker, batch=8, epochs=9).parts(loss=loss), worker).status


def test_all_ranks_agree_that_one_diverged() -> None:
    assert run_ranks(diverge_on_rank_one, 2) == ["diverged", "diverged"]


def test_validations_inside_an_epoch_come_where_they_were_asked() -> None:
    worker = Worker()
    outcome = train(Problem(worker, batch=8).parts(validate_at=(0.3, 0.6, 0.9, 1.0)), worker)
    assert [v["epoch"] for v in outcome.validations] == [0.3, 0.6, 0.9, 1.0, 1.3, 1.6, 1.9, 2.0]
    assert [v["update"] for v in outcome.validations] == [4, 8, 11, 12, 16, 20, 23, 24]


def test_accumulated_micro_batches_are_one_update() -> None:
    def weights(parts: int) -> list[float]:
        worker = Worker(seed=1)
        problem = Problem(worker, batch=24)
        whole = problem.updates

        class Split:
            def __init__(self, epoch: int) -> None:
                self.epoch = epoch

            def __len__(self) -> int:
                return len(whole(self.epoch))

            def __iter__(self) -> Any:
                for ((x, y),) in whole(self.epoch):
                    yield list(zip(x.chunk(parts), y.chunk(parts), strict=True))

        outcome = train(
            problem.parts(
                updates=Split,
                loss=lambda output, batch: (output - batch[1]).square().mean() / parts,
            ),
            worker,
        )
        assert outcome.updates == 8
        return problem.weights()

    assert weights(1) == pytest.approx(weights(4), abs=1e-12)


def test_a_checkpoint_continues_to_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "REPORT_S", 0.0)

    def run(epochs: int, resume: dict[str, Any] | None, states: list[dict[str, Any]]) -> Any:
        def keep(message: dict[str, Any], state: dict[str, Any] | None) -> None:
            if state:
                states.append({**state, "states": {k: copied(v) for k, v in state["states"].items()}})

        worker = Worker(keep_checkpoints=True, report=keep, resume=resume)
        problem = Problem(worker, batch=8, epochs=epochs)
        return train(problem.parts(), worker), problem.weights()

    def copied(state: Any) -> Any:
        import copy

        return copy.deepcopy(state)

    states: list[dict[str, Any]] = []
    whole, weights = run(4, None, states)
    assert [state["epoch"] for state in states] == [0, 1, 2, 3, 4]
    resumed, again = run(4, states[2], [])
    assert again == pytest.approx(weights, abs=1e-12)
    assert resumed.updates == whole.updates
    assert [v["update"] for v in resumed.validations] == [v["update"] for v in whole.validations]
    assert resumed.elapsed >= whole.validations[1]["elapsed"]


def phases(worker: Worker) -> tuple[dict[str, float], float, float]:
    worker.tracker = Tracker()
    problem = Problem(worker, batch=8, epochs=20)
    problem.model = nn.Sequential(
        nn.Linear(5, 512), nn.Tanh(), nn.Linear(512, 512), nn.Linear(512, 1)
    ).double()
    outcome = train(problem.parts(), worker)
    totals = {p: sum(s.phases[p] for s in outcome.segments) for p in outcome.segments[0].phases}
    return totals, sum(sum(s.batch_s) for s in outcome.segments), outcome.elapsed


def test_one_worker_has_no_communication_and_phases_fill_the_batch() -> None:
    ((totals, batches, elapsed),) = run_ranks(phases, 1)
    assert totals["communication"] < 0.02 * batches
    assert sum(totals.values()) == pytest.approx(batches, rel=0.05)
    assert batches < elapsed


def test_two_workers_show_their_communication() -> None:
    for totals, batches, _ in run_ranks(phases, 2):
        assert 0 < totals["communication"] < batches
        assert sum(totals.values()) == pytest.approx(batches, rel=0.05)
