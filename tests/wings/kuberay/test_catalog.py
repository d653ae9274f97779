"""Prices of a public catalogue: what is plausible is taken over, what is not is told and left out."""

from pathlib import Path

import pytest

from mlbench import cluster
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.wings.kuberay.provisioning import catalog

HEAD = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone\n"
)
AWS = HEAD + (
    "m5.xlarge,,,4,16,0.20,0.09,us-east-1,us-east-1a\n"
    "m5.xlarge,,,4,16,0.20,0.08,us-east-1,us-east-1b\n"
    "m5.xlarge,,,4,16,0.99,0.50,eu-west-1,eu-west-1a\n"  # another region
    "g4dn.xlarge,T4,1,4,16,0.526,,us-east-1,us-east-1a\n"  # no spot price
    "p5.48xlarge,H100,8,192,2048,4.20,2.0,us-east-1,us-east-1a\n"  # another product's
    "c5.xlarge,,,4,8,0.17,0.18,us-east-1,us-east-1a\n"
    "c5.2xlarge,,,8,16,0,0,us-east-1,us-east-1a\n"
)
GCP = HEAD + (
    "n1-standard-4,,,4,15,0.19,0.05,us-central1,us-central1-a\n"
    ",T4,1,,,0.35,0.17,us-central1,us-central1-a\n"
    ",T4,4,,,1.40,0.68,us-central1,us-central1-a\n"
)


@pytest.fixture(autouse=True)
def price_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("MLBENCH_PRICES", raising=False)
    return tmp_path / "config" / "mlbench" / "prices.yaml"


@pytest.mark.slow
def test_plausible_prices_are_in_the_file_and_the_others_are_told(tmp_path, price_file, capsys) -> None:
    (tmp_path / "vms.csv").write_text(AWS)
    assert cluster.main(["prices", "import", str(tmp_path / "vms.csv"), "provider=aws"]) == 1
    output = capsys.readouterr().out
    assert "2 prices are in" in output
    assert "refused: aws_p5_48xlarge: 4.2 is more than 3 times off 55.04" in output
    assert "refused: aws_c5_xlarge: spot 0.18 is above on demand 0.17" in output
    assert "refused: aws_c5_2xlarge: a price that is not above 0" in output
    price = compose(["hardware=aws_m5_xlarge"]).hardware.price
    assert price is not None and (price.usd_per_hour, price.usd_per_hour_spot) == (0.20, 0.09)
    assert "vms.csv" in price.source
    t4 = compose(["hardware=aws_g4dn_xlarge"]).hardware.price
    assert t4 is not None and t4.usd_per_hour_spot is None
    assert price_file.exists()
    assert cluster.main(["prices"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("aws_m5_xlarge"))
    assert "price file" in line


@pytest.mark.slow
def test_google_s_machine_and_its_gpus_are_added(tmp_path) -> None:
    (tmp_path / "vms.csv").write_text(GCP)
    found = catalog.read(tmp_path / "vms.csv", "gke")
    prices = {name: (price.usd_per_hour, price.usd_per_hour_spot) for name, price in found.prices.items()}
    assert prices == {
        "gcp_n1_standard_4": (0.19, 0.05),
        "gcp_n1_t4": (pytest.approx(0.54), pytest.approx(0.22)),
    }
    assert found.refused == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "lacks the columns"),
        ("a,b\n1,2\n", "lacks the columns"),
        (HEAD + "x,,,1,1,1,1,r,z\n", "no price of"),
    ],
)
def test_another_file_is_a_mistake(tmp_path, text, sentence) -> None:
    (tmp_path / "vms.csv").write_text(text)
    with pytest.raises(UserError, match=sentence):
        catalog.read(tmp_path / "vms.csv", "aws")
