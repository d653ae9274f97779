"""Both sides of benchmarks/steps.py do the same work: same size, losses and final weights."""

from contextlib import nullcontext
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mlbench.tasks import registry
from mlbench.training.worker import Worker

steps: Any = import_module("steps")
references: Any = import_module("references")
translation: Any = import_module("references.translation")

NO_DROPOUT = {
    "awdlstm": {"dropouts": {"output": 0, "hidden": 0, "input": 0, "embedding": 0, "recurrent": 0}},
    "gnmt": {"dropout": 0.0},
    "transformer": {"dropout": 0.0},
}
OFFICIAL_PARAMETERS = {  # as the READMEs of the tasks state them
    "logreg": 2_000,
    "resnet20": 272_474,
    "resnet50": 25_557_032,
    "awdlstm": 33_556_078,
    "gnmt": 160_671_297,
    "transformer": 210_808_832,
    "gpt": 124_475_904,
}
# Rows, classes or pieces of the official data.
OFFICIAL_SIZES = {"logreg": 2_000, "resnet20": 10, "resnet50": 1_000, "awdlstm": 33_278, "gpt": 50_304}
OFFICIAL_SIZES |= {"gnmt": 32_320, "transformer": 33_712}
STEPS = 3
SIZE = 40  # features, words or classes of a reference that trains on nothing


def copy(source: nn.Module, target: nn.Module) -> None:
    """Copy parameters by their order, which must have the same shapes."""
    pairs = zip(source.parameters(), target.parameters(), strict=True)
    for ours, theirs in pairs:
        assert ours.numel() == theirs.numel()
        theirs.data.copy_(ours.view_as(theirs))


def copy_gnmt(ours: Any, theirs: Any) -> None:
    attention = ours.decoder.attention
    theirs.direction.data.copy_(attention.direction)
    theirs.scale.data.copy_(attention.scale)
    for mine, other in (
        (ours.embedding, theirs.embedding),
        (ours.encoder.forward_lstm, theirs.forwards),
        (ours.encoder.backward_lstm, theirs.backwards),
        (ours.encoder.layers, theirs.encoder),
        (ours.decoder.first, theirs.first),
        (attention.query, theirs.query),
        (attention.key, theirs.key),
        (ours.decoder.layers, theirs.decoder),
        (ours.classifier, theirs.classifier),
    ):
        copy(mine, other)


def copy_attention(theirs: Any, inputs: list[torch.Tensor], output: nn.Module) -> None:
    theirs.in_proj_weight.data.copy_(torch.cat(inputs))
    copy(output, theirs.out_proj)


def copy_transformer(ours: Any, theirs: Any) -> None:
    copy(ours.embedding, theirs.embedding)
    copy(ours.encoder_norm, theirs.encoder.norm)
    copy(ours.decoder_norm, theirs.decoder.norm)
    for side in ("encoder", "decoder"):
        for mine, other in zip(getattr(ours, side), getattr(theirs, side).layers, strict=True):
            copy_attention(other.self_attn, [mine.self_attn.inputs.weight], mine.self_attn.output)
            if side == "decoder":
                across = mine.cross_attn
                copy_attention(
                    other.multihead_attn, [across.query.weight, across.memory.weight], across.output
                )
            copy(mine.ffn[0], other.linear1)
            copy(mine.ffn[3], other.linear2)
            for number, norm in enumerate(mine.norms, start=1):
                copy(norm, getattr(other, f"norm{number}"))


def copy_awdlstm(ours: Any, theirs: Any) -> None:
    theirs.embedding.weight.data.copy_(ours.words)
    theirs.decoder.bias.data.copy_(ours.bias)
    copy(ours.layers, theirs.layers)


def copy_gpt(ours: Any, theirs: Any) -> None:
    theirs.embedding.weight.data.copy_(ours.tokens)
    theirs.positions.weight.data.copy_(ours.positions)
    copy(ours.norm, theirs.norm)
    for mine, other in zip(ours.blocks, theirs.layers, strict=True):
        for name, part in (
            ("attention_norm", other.first),
            ("attention_inputs", other.qkv),
            ("attention_output", other.mix),
            ("mlp_norm", other.second),
            ("mlp_input", other.up),
            ("mlp_output", other.down),
        ):
            copy(getattr(mine, name), part)


COPIES: dict[str, Any] = {
    "logreg": copy,
    "resnet20": copy,
    "resnet50": copy,
    "awdlstm": copy_awdlstm,
    "gnmt": copy_gnmt,
    "transformer": copy_transformer,
    "gpt": copy_gpt,
}


def without_dropout(name: str) -> Any:
    config = steps.configuration(name, "mini")
    changes = NO_DROPOUT.get(name, {})
    return type(config).model_validate(config.model_dump() | changes)


def stepped(theirs: Any, micro_batches: Any) -> float:
    return references.train_step(theirs, theirs.model, micro_batches, nullcontext()).item()


def batch_on(device: str, name: str, config: Any) -> Any:
    """Return a micro-batch of a task's reference on a device; its content does not matter."""

    def words(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    if name in ("gnmt", "transformer"):
        return translation.Batch(
            words(4, 7), torch.full((4,), 7), words(4, 6), words(4, 6), 28, 24, 4.0, 24.0
        )
    if name == "gpt":
        return words(2, config.context + 1)
    if name == "awdlstm":
        return import_module("references.awdlstm").Chunk(words(9, 4), words(9, 4))
    if name == "logreg":
        rows = torch.zeros(8, SIZE, device=device), torch.zeros(8, device=device)
        return import_module("references.logreg").Rows(*rows)
    shape = (4, 3, 32, 32) if name == "resnet20" else (4, config.crop, config.crop, 3)
    return torch.zeros(shape, device=device), words(4)


@pytest.mark.parametrize("name", steps.TRAINED)
def test_a_reference_computes_on_the_device_of_its_model(name: str) -> None:
    """No tensor is made where no device is named: on a GPU that is another than the model's."""
    config = steps.configuration(name, "mini")
    theirs = references.build(config, SIZE, device="meta")
    theirs.loss(theirs.model, batch_on("meta", name, config)).backward()
    assert all(weight.grad is not None for weight in theirs.model.parameters())


@pytest.mark.parametrize("max_grad_norm", [None, 0.1])
def test_a_loss_scale_changes_no_step_of_a_reference(max_grad_norm: float | None) -> None:
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**12)):
        torch.manual_seed(0)
        model, rows = nn.Linear(8, 1), torch.randn(2, 16, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True)
        theirs = references.Reference(
            model, optimizer, lambda net, batch: net(batch).square().mean(), max_grad_norm
        )
        for _ in range(STEPS):
            references.train_step(theirs, model, list(rows), nullcontext(), scaler)
        ends.append(model.weight.detach())
    torch.testing.assert_close(*ends)


@pytest.mark.slow
@pytest.mark.parametrize("name", steps.TRAINED)
def test_both_sides_train_alike(name: str, data_root: Path) -> None:
    config, worker = without_dropout(name), Worker(seed=1, data_root=data_root)
    setup = registry.build(config, worker)
    ours = steps.Ours(setup, worker)
    size = references.size_of(name, setup.model)
    theirs = references.build(config, size)
    COPIES[name](setup.model, theirs.model)
    theirs.model.train()
    for micro_batches in islice(setup.steps(setup.load(), 0), STEPS):
        before = ours.trainer.losses.total()
        ours.train_steps([micro_batches])
        for group in theirs.optimizer.param_groups:
            group["lr"] = setup.optimizer.param_groups[0]["lr"]
        loss = ours.trainer.losses.total() - before
        assert loss == pytest.approx(stepped(theirs, micro_batches), rel=1e-4)
    setup.close()
    assert ours.step == STEPS
    again = references.build(config, size)
    COPIES[name](setup.model, again.model)
    for mine, other in zip(again.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-2, atol=2e-4)


@pytest.mark.parametrize("name", steps.TRAINED)
def test_the_official_reference_has_as_many_parameters_as_the_task(name: str) -> None:
    """What the tasks' models have is counted in tests/tasks."""
    theirs = references.build(steps.configuration(name, "official"), OFFICIAL_SIZES[name], device="meta")
    assert sum(weight.numel() for weight in theirs.model.parameters()) == OFFICIAL_PARAMETERS[name]


@pytest.mark.slow
def test_a_measurement_is_a_row_with_a_paired_ratio(data_root: Path, capsys: pytest.CaptureFixture) -> None:
    assert steps.main(["--rounds", "2", "--data", str(data_root), "logreg"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| logreg")]
    name, scale, step, count, side, ratio, ends, ours, theirs = (
        cell.strip() for cell in row[1:-1].split("|")
    )
    assert (name, scale, step, side) == ("logreg", "mini", "128 rows", "ours")
    assert int(count) > 10 and float(ratio) > 0 and float(ours) > 0 and float(theirs) > 0
    low, high = map(float, ends.split(" to "))
    assert low <= float(ratio) <= high
