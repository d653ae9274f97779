"""From where on a disturbance counts, and what is said of it."""

import pytest
from syrupy.assertion import SnapshotAssertion

from mlbench.record.noise import Interference, calibration_outliers, disturbances

QUIET = Interference(seconds=10, cpus=2, others=0.1, steal=0.01)


def test_a_quiet_machine_is_not_mentioned() -> None:
    assert [*disturbances("a", during=QUIET, before=QUIET)] == []
    assert [*disturbances("a", during=None)] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"others": 0.21},
        {"others": 1.5},
        {"steal": 0.05},
        {"throttled": 0.5},
        {"throttled": 0.04},
        {"others": 0.2},
        {"steal": 0.04},
        {"others": 1.5, "seconds": 0.4},  # too short to tell
        {"others": 1.5, "seconds": 0.5},
        {"others": 1.5, "cpus": 64},  # few of many
    ],
)
def test_others_and_steal_count_from_a_share_of_the_cpus(changes: dict, snapshot: SnapshotAssertion) -> None:
    during = QUIET.model_copy(update=changes)
    assert [*disturbances("a", during=during)] == snapshot


def test_the_start_and_another_run_have_sentences_of_their_own(snapshot: SnapshotAssertion) -> None:
    busy = QUIET.model_copy(update={"others": 1.0})
    assert [*disturbances("a", during=QUIET, before=busy, shared=True)] == snapshot


def test_a_node_at_half_speed_stands_out_among_its_like_and_two_do_not_tell() -> None:
    assert calibration_outliers([200, 100, 210]) == [None, -0.5, None]
    assert calibration_outliers([100, 100, 116]) == [None, None, pytest.approx(0.16)]
    assert calibration_outliers([100, 100, 115]) == [None, None, None]
    assert calibration_outliers([200, None, 100]) == [None, None, None]
    assert calibration_outliers([200, None, 100, 200]) == [None, None, -0.5, None]
