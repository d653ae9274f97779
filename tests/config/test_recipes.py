"""Recipes and goals as they are resolved, against a file of all of them and against the tasks' definition.

A change that is meant raises Major.Minor (rule R9); then `python tests/config/test_recipes.py` writes the
file anew.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from mlbench.config import plugins
from mlbench.config.compose import choices, compose
from mlbench.config.errors import UserError
from mlbench.config.identity import flatten, listed

GOLDEN = Path(__file__).with_name("recipes.yaml")


def resolved() -> dict[str, dict[str, Any]]:
    """Return every value of every task, by task, recipe and scale; what all tasks share under `shared`."""
    values: dict[str, dict[str, Any]] = {}
    for task in sorted({*choices("task")} - {"script"}):  # whose recipe is the script
        recipes = yaml.safe_load(plugins.files("task")[task].read_text())["recipes"]
        for recipe in recipes:
            for scale in ("official", "mini"):
                overrides = [f"task={task}", f"task.recipe={recipe}", f"scale={scale}"]
                plain = compose(overrides).plain()
                values[f"{task} {recipe} {scale}"] = flatten(plain["task"])
    for group in ("sync", "division"):
        for choice in choices(group):
            overrides = (
                [f"{group}={choice}"] if group == "division" else [f"{group}={choice}", "division=open"]
            )
            values[f"{group} {choice}"] = flatten(compose(overrides).plain()[group])
    return values


def differences(values: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the first entry of each task and group, and of its others what differs from it."""
    first: dict[str, dict[str, Any]] = {}
    result = {}
    for name, entry in values.items():
        base = first.setdefault(name.split()[0], entry)
        lacking = {field: "absent" for field in base.keys() - entry.keys()}
        changed = {
            field: value for field, value in entry.items() if field not in base or base[field] != value
        }
        result[name] = entry if base is entry else changed | lacking
    return result


def test_every_recipe_is_as_recorded() -> None:
    now, golden = differences(resolved()), yaml.safe_load(GOLDEN.read_text())
    assert now.keys() == golden.keys()
    for name in golden:
        assert now[name] == golden[name], f"{name}: a change that is meant raises Major.Minor (rule R9)"


# Typed from the definition of the tasks: goals, then the recipes that are run by default.
GOALS = {
    "resnet20": ("top1_accuracy", "max", 80, 70),
    "resnet50": ("top1_accuracy", "max", 75.9, 60),
    "logreg": ("accuracy", "max", 89, 80),
    "awdlstm": ("perplexity", "min", 70, 90),
    "gnmt": ("bleu", "max", 24, 20),
    "transformer": ("bleu", "max", 25, 20),
    "gpt": ("cross_entropy", "min", 3.28, 3.425),
}
DEFINED = {
    "resnet20 mlbench2020": {
        "depth": 20, "variant": "v1", "shortcut": "projection", "width": 16, "batch_size": 128,
        "epochs": 164, "lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4,
        "decay_factor": 0.5, "patience": 2, "warmup_epochs": "log2", "decay": "plateau",
    },
    "resnet20 mlbench2018": {
        "batch_size": 32, "lr": 0.1 / 256 * 32, "warmup_epochs": 5, "decay": "steps", "decay_factor": 0.1,
        "decay_epochs": [82, 109],
    },
    "resnet50 large_batch": {
        "batch_size": 256, "max_global_batch": 8192, "momentum": 0.9, "label_smoothing": 0.1, "lr": 0.1,
        "warmup_epochs": 5, "epochs": 90, "weight_decay": 5e-5, "crop": 224, "resize": 256,
    },
    "logreg mlbench2020": {
        "batch_size": 128, "epochs": 164, "lr": 4, "decay_factor": 0.75, "patience": 2, "l2": 2.5e-6,
    },
    "logreg mlbench2018": {"batch_size": 100, "schedule": "sqrt", "alpha": None},
    "awdlstm mlbench2020": {
        "layers": 3, "embedding": 400, "hidden": 1150, "dropouts.output": 0.4, "dropouts.hidden": 0.2,
        "dropouts.input": 0.65, "dropouts.embedding": 0.1, "dropouts.recurrent": 0.5, "batch_size": 80,
        "bptt": 70, "lr": 30, "warmup_epochs": 3, "weight_decay": 1.2e-6, "max_grad_norm": 0.25, "ar": 2,
        "tar": 1, "patience": 5, "epochs": 750,
    },
    "awdlstm mlbench-gpu": {"batch_size": 20, "lr": 15},
    "gnmt mlbench2020": {
        "hidden": 1024, "layers": 4, "dropout": 0.2, "max_length": 75 - 2, "max_test_length": 150 - 2,
        "global_batch_size": 2048, "batch_size": 128, "lr": 2e-3, "betas": [0.9, 0.999], "warmup_steps": 200,
        "warmup_start": 0.01, "decay_start": 0.4, "decay_every": 0.05, "decay_factor": 0.5, "decay_times": 4,
        "label_smoothing": 0.1, "max_grad_norm": 5, "epochs": 8, "loss_scale": 2**10,
        "loss_scale_window": 128, "max_loss_scale": 2**13, "beam_size": 5, "length_penalty": 0.6,
        "coverage_penalty": 0.1, "validate_at": [0.3, 0.6, 0.9, 1],
    },
    "transformer mlbench2020": {
        "layers": 6, "d_model": 1024, "ffn": 4096, "heads": 16, "dropout": 0.1, "max_length": 80 - 1,
        "global_batch_size": 2**17, "batch_size": 8192, "lr": 1.976e-3, "betas": [0.9, 0.98], "eps": 1e-9,
        "warmup_steps": 1000, "label_smoothing": 0.1, "epochs": 10, "loss_scale": 2**7,
        "loss_scale_window": 2000, "beam_size": 4, "length_penalty": 0.6, "validate_at": [0.3, 0.6, 0.9, 1],
    },
    "gpt llmc": {
        "layers": 12, "d_model": 768, "heads": 12, "context": 1024, "vocabulary": 50304,
        "global_batch_size": 2**19 // 1024, "lr": 6e-4, "betas": [0.9, 0.95], "eps": 1e-8,
        "weight_decay": 0.1, "max_grad_norm": 1, "warmup_steps": 700, "epochs": 1,
    },
    "allreduce mlbench2020": {"sizes": 80, "repeats": 100, "warmups": 5},
    "allreduce quick": {"sizes": 9, "collectives": ["all_reduce"], "dtypes": ["float32"]},
    "allreduce check": {"sizes": 9, "collectives": ["links", "all_reduce"], "dtypes": ["float32"]},
}  # fmt: skip


@pytest.mark.parametrize("task", GOALS)
def test_official_goals_are_those_of_the_definition(task: str) -> None:
    config = compose([f"task={task}", "scale=official"]).task
    assert config.goals is not None
    assert (config.metric, config.direction, config.goals.official, config.goals.light) == GOALS[task]


@pytest.mark.parametrize("name", DEFINED)
def test_official_recipes_are_those_of_the_definition(name: str) -> None:
    task, recipe = name.split()
    plain = flatten(compose([f"task={task}", f"task.recipe={recipe}", "scale=official"]).plain()["task"])
    assert {field: plain[field] for field in DEFINED[name]} == DEFINED[name]


def test_every_official_recipe_is_compared() -> None:
    recipes = {" ".join(name.split()[:2]) for name in resolved() if name.endswith(" official")}
    assert recipes == DEFINED.keys()


@pytest.mark.parametrize("task", sorted({*GOALS, "allreduce"}))
def test_the_closed_division_holds_every_value_but_those_that_the_task_frees(task: str) -> None:
    experiment = compose([f"task={task}"])
    free = {field for field in flatten(experiment.plain()) if listed(field, experiment.division.free)}
    assert not any(field.startswith("task.") for field in free)
    field = "repeats" if task == "allreduce" else "epochs"
    with pytest.raises(UserError, match=rf"task.{field} is 9999.*rule R1"):
        compose([f"task={task}", f"task.{field}=9999"])


def test_precision_and_decoding_processes_are_free() -> None:
    assert compose(["task=resnet50", "task.precision=bf16", "task.dataloader_workers=3"]).deviations == ()


if __name__ == "__main__":
    GOLDEN.write_text(
        yaml.safe_dump(differences(resolved()), sort_keys=False, width=110, default_flow_style=None)
    )
