import datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import strategies as st

from mlbench import cluster
from mlbench.config import compose as profiles
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import Hardware, Price
from mlbench.record.cost import bill, cost, nodes

PROFILES = sorted((Path(__file__).parents[2] / "conf" / "hardware").glob("*.yaml"))

seconds = st.just(0.0) | st.floats(1e-9, 1e7)  # a clock shows nothing shorter; near 1e-308 floats are coarse
prices = st.floats(0.01, 100)


def hardware(*, workers_per_node: int | None = 1, on_demand: float | None = 0.5592, spot=None):
    price = None
    if on_demand is not None:
        price = Price(usd_per_hour=on_demand, usd_per_hour_spot=spot, date="2020-12-07", source="a list")
    return Hardware(
        name="node",
        description="a node",
        cpus=3,
        gpus=1,
        gpu_model="T4",
        workers_per_node=workers_per_node,
        threads_per_worker=None,
        network_gbit_per_s=None,
        price=price,
        peak=None,
    )


def test_one_t4_node_for_mlbenchs_gnmt_run_costs_ten_dollars_thirteen():
    """65,207 s at $0.2092 + $0.35 an hour: MLBench's published run and prices, 2020."""
    result = cost(hardware(), 1, wall_s=65_207, time_to_accuracy_s=64_570)
    assert result is not None
    assert f"{result.wall_usd:.2f}" == "10.13"
    assert result.goal_usd == pytest.approx(64_570 * 0.5592 / 3600, rel=1e-15)
    assert (result.wall_usd_spot, result.goal_usd_spot) == (None, None)
    assert (result.date, result.source) == ("2020-12-07", "a list")


def test_hand_computed_cents():
    result = cost(
        hardware(workers_per_node=8, on_demand=21.60, spot=10.80),
        12,
        wall_s=600,
        time_to_accuracy_s=500,
    )
    assert result is not None
    assert result.nodes == 2
    assert [
        result.wall_usd,
        result.wall_usd_spot,
        result.goal_usd,
        result.goal_usd_spot,
    ] == pytest.approx([7.20, 3.60, 6.00, 3.00], rel=1e-12)


def test_no_price_is_no_cost_and_a_missed_goal_has_none():
    assert cost(hardware(on_demand=None), 4, wall_s=10, time_to_accuracy_s=5) is None
    missed = cost(hardware(spot=0.1), 4, wall_s=10, time_to_accuracy_s=None)
    assert missed is not None
    assert missed.wall_usd > 0
    assert (missed.goal_usd, missed.goal_usd_spot) == (None, None)


@pytest.mark.parametrize(
    ("workers", "per_node", "expected"),
    [(1, 1, 1), (8, 1, 8), (1, 8, 1), (8, 8, 1), (9, 8, 2), (16, 8, 2), (5, 4, 2)],
)
def test_a_partly_used_node_is_paid_for_as_a_whole(workers, per_node, expected):
    assert nodes(hardware(workers_per_node=per_node), workers) == expected


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_price_and_peak_says_where_and_when_it_was_read(path):
    """Each number stands on a line with its origin; the date is a day that has come."""
    text = path.read_text()
    profile = Hardware.model_validate(yaml.safe_load(text))
    for line in text.splitlines():
        name, _, rest = line.strip().partition(": ")
        number = rest.split("#")[0].strip()
        if name in ("usd_per_hour", "usd_per_hour_spot", "fp32", "fp16", "bf16") and number != "null":
            assert "#" in rest, f"{path.name}: {line.strip()} has no origin"
    if profile.price:
        assert datetime.date.fromisoformat(profile.price.date) <= datetime.date.today()
        assert profile.price.source
    if profile.peak:
        assert profile.peak.source


def test_the_whole_bill_of_two_t4_workers_for_an_hour_is_a_pencil_s():
    """Head, control plane, three disks and the NAT gateway beside the workers; the head is never on spot."""
    profile = compose(["hardware=gcp_n1_t4"]).hardware
    result = bill(profile, 2, wall_s=3000, provisioning_s=600)
    assert result is not None and result.billed_s == 3600 and result.provisioning_s == 600
    assert result.parts == pytest.approx(
        {
            "workers": 2 * 0.54,
            "head": 0.19,
            "control plane": 0.10,
            "disks": 3 * 100 * 0.10 / 730,
            "NAT gateway": 0.005 + 3 * 0.0014,
        }
    )
    assert result.usd == pytest.approx(sum(result.parts.values()))
    assert result.usd_spot == pytest.approx(result.usd - 2 * (0.54 - 0.2272))
    assert result.date == "2026-11-21" and "Cloud NAT" in result.source


def test_a_minute_is_the_least_that_is_billed_and_a_machine_of_nobody_s_has_no_bill():
    profile = compose(["hardware=gcp_n1_t4"]).hardware
    short, minute = (bill(profile, 1, wall_s=seconds) for seconds in (1, 60))
    assert short is not None and short == minute and short.provisioning_s is None
    assert bill(compose(["hardware=local"]).hardware, 1, wall_s=60) is None
    assert bill(compose(["hardware=gcp_g2_standard_4"]).hardware, 1, wall_s=60) is None  # no price was read


def test_a_gateway_s_price_stays_above_its_most_nodes_and_the_oldest_price_dates_the_bill():
    google = bill(compose(["hardware=gcp_n1_t4"]).hardware, 40, wall_s=3600)
    amazon = bill(compose(["hardware=aws_p3_2xlarge"]).hardware, 2, wall_s=3600)
    assert google is not None and google.parts["NAT gateway"] == pytest.approx(0.005 + 32 * 0.0014)
    assert amazon is not None and amazon.parts["NAT gateway"] == pytest.approx(0.05)
    assert (amazon.date, google.date) == ("2025-03-02", "2026-11-21")  # the worker's is of 2026-11-21


def test_a_user_s_price_file_stands_above_the_shipped_price(tmp_path, monkeypatch):
    file = tmp_path / "prices.yaml"
    monkeypatch.setenv("MLBENCH_PRICES", str(file))
    with pytest.raises(UserError, match="does not exist"):
        compose(["hardware=gcp_n1_t4"])
    file.write_text("gcp_n1_t4: {usd_per_hour: 0.3, usd_per_hour_spot: null, date: 2026-11-22, source: us}\n")
    with pytest.raises(UserError, match="not a price"):  # YAML reads a date where a text is asked for
        compose(["hardware=gcp_n1_t4"])
    file.write_text(file.read_text().replace("2026-11-22", "'2026-11-22'"))
    price = compose(["hardware=gcp_n1_t4"]).hardware.price
    assert price is not None and (price.usd_per_hour, price.source) == (0.3, "us")
    assert not compose(["hardware=gcp_n1_t4"]).deviations  # a price changes no measurement
    shipped = compose(["hardware=aws_m5_xlarge"]).hardware.price
    assert shipped is not None and shipped.usd_per_hour == 0.192


TWICE = b"gcp_n1_t4: {usd_per_hour: 1, usd_per_hour_spot: null, date: '2026-11-22', source: us}\n" * 2


@pytest.mark.parametrize("content", [None, b"gcp_n1_t4: {source: caf\xe9}\n", b"- gcp_n1_t4\n", TWICE])
def test_a_price_file_that_cannot_be_read_is_a_sentence(tmp_path, monkeypatch, content):
    file = tmp_path / "prices.yaml"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    monkeypatch.setenv("MLBENCH_PRICES", str(file))
    with pytest.raises(UserError, match=r"prices\.yaml is .*: \S"):
        compose(["hardware=gcp_n1_t4"])


def test_one_command_dates_prices_anew(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("MLBENCH_PRICES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    before = profiles.hardware("gcp_n1_t4").price, profiles.hardware("aws_g4dn_xlarge").price
    assert cluster.main(["prices", "gcp_n1_t4", "aws_g4dn_xlarge", "source=list", "date=2027-01-02"]) == 0
    after = profiles.hardware("gcp_n1_t4").price, profiles.hardware("aws_g4dn_xlarge").price
    assert after == tuple(
        price and price.model_copy(update={"date": "2027-01-02", "source": "list"}) for price in before
    )
    assert cluster.main(["prices", "gcp_n1_t4", "usd_per_hour=0.6", "source=invoice"]) == 0
    price = profiles.hardware("gcp_n1_t4").price
    assert price is not None and (price.usd_per_hour, price.usd_per_hour_spot) == (0.6, None)
    assert price.date == datetime.date.today().isoformat()
    assert profiles.hardware("aws_g4dn_xlarge").price == after[1]  # the file has both
    text = (tmp_path / "mlbench" / "prices.yaml").read_text()
    assert cluster.main(["prices", "gcp_n1_t4", "usd_per_hour=free", "source=a"]) == 2
    assert "gcp_n1_t4.usd_per_hour: " in capsys.readouterr().err
    assert (tmp_path / "mlbench" / "prices.yaml").read_text() == text
