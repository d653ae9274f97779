"""What the command line may say, and what it is told when it says something else."""

import re

import pytest
from conftest import ROOT

from mlbench.config import plugins
from mlbench.config.compose import choices, compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.config.plugins import GROUPS


@pytest.mark.slow
@pytest.mark.parametrize("group", [group for group in GROUPS if group != "task"])
def test_every_choice_of_every_group_composes(group: str) -> None:
    for choice in choices(group):
        overrides = [f"{group}={choice}", *(["division=open"] if group == "sync" else [])]
        assert getattr(compose(overrides), group).name == choice


# Counts and factors that their name explains; a recipe or scale repeats names explained above it.
PLAIN = {"epochs", "width", "momentum", "weight_decay", "decay_factor", "gpus", "cpus", "workers_per_node"}
PLAIN |= {
    "batch_size",
    "layers",
    "hidden",
    "dropout",
    "heads",
    "d_model",
    "ffn",
    "beam",
    "beta1",
    "beta2",
    "repeats",
}


def test_every_number_in_conf_says_what_it_is() -> None:
    bare = []
    for path in [*plugins.own_conf().rglob("*.yaml"), *(ROOT / "mlbench" / "plugins").rglob("*.yaml")]:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            number = re.fullmatch(r"-?[\d.]+(e-?\d+)?", value.strip())
            inner = name.startswith(" ") and path.parent.name != "hardware"
            if number and not inner and name.strip() not in PLAIN:
                bare.append(f"{path.name}: {line.strip()}")
    assert bare == []


@pytest.mark.parametrize("name", ["study", "output_root"])
@pytest.mark.parametrize("text", ["007", "1e3", "true"])
def test_a_name_that_looks_like_a_number_is_that_name(name: str, text: str) -> None:
    assert str(getattr(compose([f"{name}={text}"]), name)) == text


def test_two_mistakes_are_both_told() -> None:
    with pytest.raises(UserError) as caught:
        compose(["wrokers=3", "task.lr=fast", "workers=0", "task=gnm", "seed=x"])
    for name in ("wrokers", "task.lr", "workers=0", "task=gnm", "seed"):
        assert name in str(caught.value)


def test_the_closed_division_names_field_values_rule_and_way_out() -> None:
    with pytest.raises(UserError) as caught:
        compose(["task.momentum=0.5"])
    for part in ("task.momentum", "0.5", "0.9", "rule R1", "division=open"):
        assert part in str(caught.value)


def test_the_open_division_lists_what_differs() -> None:
    overrides = ["task.momentum=0.5", "division=open"]
    assert vars(compose(overrides).task)["momentum"] == 0.5
    (deviation,) = compose(overrides).deviations
    assert (deviation.field, deviation.given, deviation.reference) == ("task.momentum", 0.5, 0.9)


def test_no_division_changes_data_metric_or_goals() -> None:
    with pytest.raises(UserError, match="digits, fashion_mnist"):
        compose(["task.dataset=cifar10", "division=open"])
    for word in ("task.metric=loss", "task.goals.light=1", "task.direction=min"):
        with pytest.raises(UserError, match="rule R[12]"):
            compose([word, "division=open"])
    with pytest.raises(UserError, match="task.dataset is cifar10.*R2"):
        compose(["task=resnet50", "task.dataset=cifar10", "division=open"])


@pytest.mark.parametrize(
    ("division", "word"), [("closed", "division.free=['*']"), ("open", "division.fixed=[x]")]
)
def test_a_division_is_chosen_whole(division: str, word: str) -> None:
    with pytest.raises(UserError, match=f"{word.split('=')[0]} is .*rule R4"):
        compose([f"division={division}", word])
    with pytest.raises(UserError, match="task.goals.light is 1"):
        compose([f"division={division}", word, "task.goals.light=1"])


def test_a_price_of_ones_own_comes_with_its_origin() -> None:
    price = "hardware.price.usd_per_hour=0.5"
    origin = ("hardware.price.date=2026-11-20", "hardware.price.source=quote")
    price = compose(["hardware=gcp_n1_t4", price, *origin]).hardware.price
    assert price is not None and (price.usd_per_hour, price.source) == (0.5, "quote")


def test_a_price_and_a_peak_of_ones_own_take_nothing_of_the_profile_s_under_their_origin() -> None:
    """The list's spot price stood in the record as the quote's, and the data sheet's rates as measured."""
    origin = ["hardware.price.date=2026-11-20", "hardware.price.source=quote"]
    words = ["hardware=gcp_n1_t4", *origin, "hardware.peak.source=measured", "hardware.peak.fp32=7e12"]
    hardware = compose([*words, "hardware.price.usd_per_hour=0.1"]).hardware  # below the list's spot price
    assert hardware.price is not None and hardware.price.usd_per_hour_spot is None
    assert hardware.peak is not None and (hardware.peak.fp32, hardware.peak.fp16) == (7e12, None)
    both = [*words, "hardware.price.usd_per_hour=0.5", "hardware.price.usd_per_hour_spot=0.1"]
    price = compose(both).hardware.price
    assert price is not None and (price.usd_per_hour, price.usd_per_hour_spot) == (0.5, 0.1)
    listed = compose(["hardware=gcp_n1_t4"]).hardware.price
    redated = compose(["hardware=gcp_n1_t4", *origin]).hardware.price
    assert listed is not None and redated is not None and redated.source == "quote"
    assert redated.usd_per_hour_spot == listed.usd_per_hour_spot, "whoever dates the whole list anew says so"


@pytest.mark.parametrize("group", [*GROUPS])
def test_the_name_of_a_choice_is_not_set_by_itself(group: str) -> None:
    with pytest.raises(UserError, match=f"{group}.name cannot .*{group}=NAME"):
        compose([f"{group}.name=other", "division=open"])


@pytest.mark.parametrize("division", ["closed", "open"])
def test_an_overridden_hardware_profile_is_declared(division: str) -> None:
    overrides = [
        "hardware=gcp_n1_t4",
        f"division={division}",
        "hardware.gpu_model=null",
        "hardware.cpus=null",
    ]
    assert [deviation.field for deviation in compose(overrides).deviations] == [
        "hardware.cpus",
        "hardware.gpu_model",
    ]
    price = ["usd_per_hour=0.5", "date=2026-11-20", "source=quote"]
    free = [
        "hardware=gcp_n1_t4",
        "hardware.threads_per_worker=2",
        *(f"hardware.price.{setting}" for setting in price),
    ]
    assert compose([*free, f"division={division}"]).deviations == ()


def test_a_node_with_a_price_has_a_size() -> None:
    words = ["hardware=gcp_n1_t4", "hardware.workers_per_node=null", "workers=8", "backend=nccl"]
    with pytest.raises(UserError, match="add hardware.workers_per_node=N"):
        compose([*words, "cluster=attached"])


def test_a_timeout_is_a_whole_number_of_seconds() -> None:
    with pytest.raises(UserError, match="backend.timeout_s=0.5"):
        compose(["backend.timeout_s=0.5"])


def test_an_experiment_cannot_be_changed() -> None:
    experiment = compose()
    with pytest.raises(ValueError, match="frozen"):
        experiment.workers = 3  # type: ignore[misc]
    assert Experiment.model_validate(experiment.model_dump()) is not None


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("task.args='--a 1'", "--a 1"),
        ('task.args="--a 1"', "--a 1"),
        ("task.args='a b' c", "'a b' c"),
        ("task.args='x\\'", "x\\"),
    ],
)
def test_a_text_in_quotes_is_the_same_in_a_run_as_in_a_sweep(word: str, value: str) -> None:
    assert compose(["task=script", word]).task.model_dump()["args"] == value
