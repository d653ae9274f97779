"""The same seed gives the validation values that were recorded, for four tasks at mini scale."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import mini_worker, run_ranks

from mlbench.clusters import node
from mlbench.config.compose import compose
from mlbench.contract.by_hand import beginning
from mlbench.tasks import registry
from mlbench.training import loop
from mlbench.training.worker import Worker

RECORDED = json.loads(Path(__file__).with_name("recorded_values.json").read_text())
EPOCHS = {"logreg": 2, "resnet20": 2, "awdlstm": 2, "gnmt": 1}
STEPS = 16


def values(worker: Worker, root: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what each task is validated with after its first steps."""
    results = {}
    for name, epochs in EPOCHS.items():
        task = compose([f"task={name}", "goal=none", "division=open", f"task.epochs={epochs}"]).task
        setup = registry.build(task, mini_worker(worker, root))
        whole = setup.steps
        changes: dict[str, Any] = {"epochs": 1, "validate_at": (1.0,)}
        changes["steps"] = lambda data, epoch, whole=whole: beginning(whole(data, epoch), STEPS)
        result = loop.train(replace(setup, **changes), worker)
        fields = ("epoch", "step", "train_loss", "metrics")
        results[name] = [{field: each[field] for field in fields} for each in result.validations]
    return results


@pytest.mark.slow
def test_the_same_seed_gives_the_recorded_values(data_root: Path) -> None:
    """To the last digits where they were recorded; another CPU or torch adds in another order.

    Who changes them on purpose (other data, another recipe) records them anew, with the commit.
    """
    here = (node.describe().cpu_model, torch.__version__) == (RECORDED["cpu_model"], RECORDED["torch"])
    for rank in run_ranks(values, 2, data_root):
        for name, recorded in RECORDED["workers"]["2"].items():
            (validation,), (expected,) = rank[name], recorded
            assert (validation["epoch"], validation["step"]) == (expected["epoch"], expected["step"])
            loss = pytest.approx(expected["train_loss"], rel=1e-5 if here else 0.05)
            assert validation["train_loss"] == loss, name
            assert not here or validation["metrics"] == pytest.approx(expected["metrics"], rel=1e-5), name
