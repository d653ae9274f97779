"""Every form of RAY_ADDRESS gets an answer before Ray is asked."""

import pytest

from mlbench.clusters import attached
from mlbench.experiment.config import compose
from mlbench.experiment.errors import UserError


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("ray://head:10001", "Ray Client"),
        ("http://head:8265", "Ray Client or of a job server"),
        ("garbage", "not of the form HOST:PORT"),
        ("head:", "not of the form HOST:PORT"),
        ("head:0", "not of the form HOST:PORT"),
        ("head:65536", "not of the form HOST:PORT"),
        ("::1:6379", "not of the form HOST:PORT"),
        ("local", "not of the form HOST:PORT"),
        ("head:6379 ", "not of the form HOST:PORT"),
    ],
)
def test_an_address_that_no_driver_can_join_is_refused(address: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        attached.require_address(address)


@pytest.mark.parametrize("address", ["auto", "head:6379", "10.0.0.1:65535", "head.svc.local:1", "[::1]:6379"])
def test_an_address_of_a_server_is_taken(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
    attached.require_address(address)


def test_an_address_at_which_nobody_answers_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
    experiment = compose(["cluster=attached", "cluster.address=127.0.0.1:1"])
    with pytest.raises(UserError, match="found no Ray"), attached.connect(experiment):
        pass
