"""The AWD-LSTM task: how text is read, validated and averaged, alone and with real gloo processes."""

import copy
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks import mini_worker, run_ranks
from torch import nn
from torch.distributed.tensor import DTensor

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.tasks import registry
from mlbench.tasks.awdlstm import bptt
from mlbench.tasks.awdlstm.model import AwdLstm
from mlbench.tasks.awdlstm.nt_asgd import Averaging
from mlbench.training import loop
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker

pytestmark = pytest.mark.slow

NO_DROPOUT = [f"task.dropouts.{name}=0" for name in ("output", "hidden", "input", "embedding", "recurrent")]
SMALL = [
    "task=awdlstm",
    "goal=none",
    "division=open",
    "task.embedding=6",
    "task.hidden=9",
    "task.min_count=1",
]


def config(*overrides: str) -> Any:
    return compose(["task=awdlstm", *overrides]).task


# Columns and chunks


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_with_their_own_columns_read_what_one_worker_reads(workers):
    text = torch.arange(1000, dtype=torch.int32)
    parts = [
        bptt.columns(text, Worker(rank=rank, world_size=workers), each=12 // workers)
        for rank in range(workers)
    ]
    together = torch.cat(parts, dim=1)
    assert together.shape == (84, 12)  # 83 words and what follows them
    assert torch.equal(together[0], torch.arange(12) * 83)
    assert torch.equal(together, together[0] + torch.arange(84)[:, None])


def test_pieces_follow_one_another_and_start_again_with_the_epoch():
    worker = Worker(seed=4)
    way = bptt.BpttIterator(bptt.columns(torch.arange(2001), worker, each=4), 20, worker)
    read, positions = [], []
    for epoch in (0, 1):
        way.states = [(torch.ones(1), torch.ones(1))]
        for update, [chunk] in enumerate(way.steps(epoch)):
            assert torch.equal(chunk.targets, chunk.inputs + 1)
            assert update or way.states is None  # what was before does not reach into the epoch
            assert way.length == len(chunk.inputs) >= 5
            positions.append(way.position)
            read.append(chunk.inputs)
    assert torch.equal(torch.cat(read)[:500], torch.arange(500)[:, None] + torch.arange(4) * 500)
    assert torch.equal(torch.cat(read)[500:], torch.cat(read)[:500])
    assert positions[0] == 0 and 1 in positions and positions == sorted(positions)
    lengths = [[len(chunk.inputs) for [chunk] in way.steps(epoch)] for epoch in (0, 0, 1)]
    assert lengths[0] == lengths[1] != lengths[2]
    assert len(way.steps(1)) == len(lengths[2])


def test_lengths_are_normal_around_bptt_and_seldom_around_its_half():
    lengths = bptt.bptt_lengths(5_000_000, bptt=70, generator=torch.Generator().manual_seed(1))[:-1]
    short = [length for length in lengths if length < 52]  # 3.5 deviations from both means
    usual = [length for length in lengths if length >= 52]
    assert len(short) / len(lengths) == pytest.approx(0.05, abs=0.005)
    # Whole numbers by cutting off, as the original: half a token below the mean.
    assert statistics.mean(usual) == pytest.approx(69.5, abs=0.1)
    assert statistics.mean(short) == pytest.approx(34.5, abs=0.5)
    assert statistics.stdev(usual) == pytest.approx(5, abs=0.1)


def test_ranks_read_pieces_of_the_same_lengths_with_masks_of_their_own():
    ways = []
    for rank in (0, 1, 0):
        worker = Worker(rank=rank, world_size=2, seed=4)
        ways.append(bptt.BpttIterator(bptt.columns(torch.arange(2001), worker, each=4), 20, worker))
    lengths = [[len(chunk.inputs) for [chunk] in way.steps(3)] for way in ways]
    assert lengths[0] == lengths[1]
    drawn = [torch.rand(5, generator=way.dropout_rng).tolist() for way in ways]
    assert drawn[0] == drawn[2] != drawn[1]
    next(iter(ways[2].steps(4)))
    assert drawn[0] != torch.rand(5, generator=ways[2].dropout_rng).tolist(), "another epoch, other masks"


def test_the_state_goes_on_from_piece_to_piece_without_its_history():
    torch.manual_seed(0)
    worker = Worker(seed=2)
    model = small_model()
    text = torch.randint(17, (401,), generator=torch.Generator().manual_seed(1))
    way = bptt.BpttIterator(bptt.columns(text, worker, each=4), 10, worker)
    outputs = [way.forward(model, chunk).logits for [chunk] in way.steps(0)]
    whole = model(way.text[:-1].long()).logits
    torch.testing.assert_close(torch.cat(outputs), whole)
    assert way.states is not None and not any(part.requires_grad for pair in way.states for part in pair)


def test_too_many_workers_for_a_text_are_told_so():
    with pytest.raises(UserError, match="32 workers x 80 columns leave 3"):
        bptt.columns(torch.arange(10_000), Worker(world_size=32), each=80)


# Rate and recipes


def test_the_rate_rises_over_three_epochs_a_worker_to_the_square_root_of_their_number():
    def rate(position: float, length: int = 70, workers: int = 4) -> float:
        return bptt.rate(position, length, base=30, bptt=70, workers=workers, warmup=3)

    assert [rate(epoch) for epoch in (0, 6, 12, 700)] == [30, 45, 60, 60]
    assert rate(6, length=35) == 22.5
    assert [rate(epoch, workers=1) for epoch in (0, 1, 5)] == [30, 30, 30]
    assert bptt.rate(0, 70, base=15, bptt=70, workers=4, warmup=0) == 30


# Averaging


def validation_weight(averaging: Averaging) -> torch.Tensor:
    """Return the weight that a validation would see."""
    with torch.no_grad(), averaging.validation_weights():
        return next(averaging.model.parameters()).detach().clone()


def switch_epoch(losses: list[float], patience: int) -> int | None:
    """Return after how many validations the average starts."""
    averaging = Averaging(nn.Linear(1, 1), patience=patience)
    for epoch, loss in enumerate(losses, start=1):
        averaging.after_validation({"loss": loss})
        if averaging.average is not None:
            return epoch
    return None


@pytest.mark.parametrize(
    ("losses", "epoch"),
    [
        ([9, 8, 7, 6, 5, 4, 3, 2, 1], None),
        ([5, 6, 6, 6, 6, 6], None),  # none is older than five yet
        ([5, 6, 6, 6, 6, 6, 6], 7),
        ([9, 5, 8, 8, 8, 8, 8, 8], 8),  # better than the first, but by then the second is old enough
        ([9, 5, 8, 8, 8, 8, 4.9, 4.8, 5.1], 9),
        ([5, 5, 5, 5, 5, 5, 5, 5], None),  # not worse: the authors' comparison is strict
    ],
)
def test_the_switch_comes_when_the_loss_is_worse_than_the_best_but_for_the_last_five(losses, epoch):
    plain = None
    for now in range(len(losses)):  # the rule of the paper's algorithm, written down once more
        older = losses[: max(0, now - 5)]
        if plain is None and older and losses[now] > min(older):
            plain = now + 1
    assert switch_epoch(losses, 5) == plain
    assert plain == epoch


def test_the_average_is_the_mean_of_all_weights_since_the_switch():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    averaging = Averaging(model, patience=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    seen = []
    for update in range(9):
        if update == 4:
            assert torch.equal(validation_weight(averaging), model.weight)
            for loss in (1.0, 1.0, 2.0):
                averaging.after_validation({"loss": loss})
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        averaging.after_step()
        seen.append(model.weight.detach().clone())
    torch.testing.assert_close(validation_weight(averaging), torch.stack(seen[4:]).mean(0))
    assert torch.equal(model.weight.detach(), seen[-1])


def averages(worker: Worker, commands: list[tuple[str, ...]]) -> list[tuple[torch.Tensor, ...]]:
    """Return by strategy the weights after each step, what a validation sees, and the weights after it."""
    results = []
    for overrides in commands:
        torch.manual_seed(0)
        model = nn.Linear(3, 2).double()
        averaging = Averaging(model, patience=1)
        seen: list[torch.Tensor] = []

        def whole(weight: Any) -> torch.Tensor:
            weight = weight.detach()
            return (weight.full_tensor() if isinstance(weight, DTensor) else weight).clone()

        def after_step(averaging=averaging, model=model, seen=seen) -> None:
            if averaging.average is None:  # the switch, which the losses would bring
                averaging._start()
            averaging.after_step()
            seen.append(whole(model.weight))

        def validate(model: nn.Module, _: Any, seen=seen) -> dict[str, float]:
            seen.append(whole(model.weight))
            return {"loss": 0.0}

        drawn = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(worker.rank))
        setup = TrainingSetup(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            epochs=1,
            steps=lambda *_, drawn=drawn: [[batch.double()] for batch in drawn],
            forward=lambda net, x: net(x),
            loss=lambda output, _: (output - 1).square().mean(),
            validate=validate,
            samples=len,
            after_step=after_step,
            validation_weights=averaging.validation_weights,
        )
        loop.train(setup, replace(worker, sync=compose([*overrides, "division=open"]).sync))
        results.append((torch.stack(seen[:-1]), seen[-1], whole(model.weight)))
    return results


def test_a_validation_sees_the_mean_of_all_workers_averages_with_every_strategy():
    """The mean over workers and steps; then each goes on with the weights that it trained."""
    commands = [("sync=ddp",), ("sync=zero1",), ("sync=fsdp",), ("sync=all_reduce", "sync.quantity=weights")]
    commands += [("sync=local_sgd", "sync.every=3"), ("sync=decentralised", "sync.consensus_lr=0.5")]
    for overrides, *ranks in zip(commands, *run_ranks(averages, 2, commands), strict=True):
        expected = torch.stack([steps for steps, _, _ in ranks]).mean((0, 1))
        for steps, seen, after in ranks:
            torch.testing.assert_close(seen, expected, rtol=1e-12, atol=0, msg=str(overrides))
            assert torch.equal(after, steps[-1]), overrides


# Validation


def small_model() -> AwdLstm:
    torch.manual_seed(1)
    dropouts = config(*SMALL[1:], *NO_DROPOUT).dropouts
    return AwdLstm(17, embedding=6, hidden=9, layers=3, dropouts=dropouts)


def test_validation_in_one_column_is_the_mean_loss_of_the_whole_text():
    model = small_model().eval()
    text = torch.randint(17, (203,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        metrics = bptt.validation(text, Worker(), count=1, bptt=10)(model)
        logits = model(text[:-1, None]).logits[:, 0]
    expected = F.cross_entropy(logits.double(), text[1:]).item()
    assert metrics["loss"] == pytest.approx(expected, rel=1e-6)
    assert metrics["perplexity"] == pytest.approx(math.exp(expected), rel=1e-6)


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 10, 13])
def test_every_word_but_the_first_is_predicted_once(workers):
    text = torch.arange(100, 305)
    pairs = []
    for rank in range(workers):
        part = bptt.validation(text, Worker(rank=rank, world_size=workers), count=10, bptt=7)
        counted = part.targets != bptt.IGNORED
        pairs += zip(part.inputs[counted].tolist(), part.targets[counted].tolist(), strict=True)
    assert sorted(pairs) == [(word, word + 1) for word in range(100, 304)]


# Training


def trained(worker: Worker, files: Path) -> dict[str, Any]:
    """Train a small model; return weights, metrics, and every epoch's checkpoint.

    The rate is too high to settle, so that validation gets worse at some time.
    """
    states: list[dict[str, Any]] = []
    worker.report_validation = lambda _, state: states.append(copy.deepcopy(state)) if state else None
    worker.keep_checkpoints = True
    own = [f"task.{split}_file={files / f'{split}.txt'}" for split in ("train", "valid")]
    fast = ["task.bptt=10", "task.epochs=8", "task.batch_size=4", "task.lr=12", "task.patience=1"]
    mini_worker(worker, files / "data", seed=1)
    outcome = loop.train(registry.build(compose([*SMALL, *own, *fast]).task, worker), worker, report_s=0)
    return {"metrics": [each["metrics"] for each in outcome.validations], "states": states}


def test_a_checkpoint_after_the_switch_continues_to_the_same_average(tmp_path: Path):
    drawn = torch.randint(2, (500,), generator=torch.Generator().manual_seed(1)).tolist()
    lines = [("red car stops\n", "blue sky falls\n")[which] for which in drawn]
    (tmp_path / "train.txt").write_text("".join(lines[:400]))
    (tmp_path / "valid.txt").write_text("".join(lines[400:]))
    whole = trained(Worker(), tmp_path)
    averages = [state["states"]["averaging"]["average"] is not None for state in whole["states"]]
    assert not averages[1] and averages[-3]
    at = whole["states"][averages.index(True)]
    resumed = trained(Worker(resume=copy.deepcopy(at)), tmp_path)
    assert resumed["metrics"] == whole["metrics"]
    last, again = (result["states"][-1]["states"] for result in (whole, resumed))
    for name, weights in last["model"].items():
        assert torch.equal(again["model"][name], weights)
    for name, weights in last["averaging"]["average"].items():
        assert torch.equal(again["averaging"]["average"][name], weights)
    assert not torch.equal(last["model"]["words"], last["averaging"]["average"]["words"])
