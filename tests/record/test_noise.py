"""From where on a disturbance counts, and what is said of it."""

import pytest

from mlbench.record.noise import Interference, calibration_outliers, disturbances

QUIET = Interference(seconds=10, cpus=2, others=0.1, steal=0.01)


def test_a_quiet_machine_is_not_mentioned() -> None:
    assert [*disturbances("a", during=QUIET, before=QUIET)] == []
    assert [*disturbances("a", during=None)] == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"others": 0.21}, "other processes used 0.21 of the 2 CPUs of a while it trained"),
        ({"others": 1.5}, "other processes used 1.5 of the 2 CPUs of a while it trained"),
        ({"steal": 0.05}, "the hypervisor took 0.05 of the 2 CPUs of a while it trained"),
        ({"others": 0.2}, None),
        ({"steal": 0.04}, None),
        ({"others": 1.5, "seconds": 0.4}, None),  # too short to tell
        ({"others": 1.5, "seconds": 0.5}, "other processes used 1.5 of the 2 CPUs of a while it trained"),
        ({"others": 1.5, "cpus": 64}, None),  # few of many
    ],
)
def test_others_and_steal_count_from_a_share_of_the_cpus(changes: dict, sentence: str | None) -> None:
    during = QUIET.model_copy(update=changes)
    assert [*disturbances("a", during=during)] == ([sentence] if sentence else [])


def test_the_start_and_another_run_have_sentences_of_their_own() -> None:
    busy = QUIET.model_copy(update={"others": 1.0})
    assert [*disturbances("a", during=QUIET, before=busy, shared=True)] == [
        "another run of mlbench measured on a at the same time",
        "other processes used 1 of the 2 CPUs of a when the run began",
    ]


def test_a_node_at_half_speed_stands_out_among_its_like_and_two_do_not_tell() -> None:
    assert calibration_outliers([200, 100, 210]) == [None, -0.5, None]
    assert calibration_outliers([100, 100, 116]) == [None, None, pytest.approx(0.16)]
    assert calibration_outliers([100, 100, 115]) == [None, None, None]
    assert calibration_outliers([200, None, 100]) == [None, None, None]
    assert calibration_outliers([200, None, 100, 200]) == [None, None, -0.5, None]
