"""What `backend=mpi` means before any worker starts: its key, its variables, and that it is mlbench's own."""

import pytest

from mlbench.config.compose import compose
from mlbench.config.identity import key
from mlbench.launch.process_group import environment


@pytest.mark.parametrize("word", ["backend.algorithm=tsp_ring", "backend.provider=verbs"])
def test_a_way_to_communicate_is_in_the_key(word: str) -> None:
    assert key(compose(["backend=mpi", word])) != key(compose(["backend=mpi"]))


def test_the_library_is_handed_what_was_chosen() -> None:
    given = compose(["backend=mpi", "backend.algorithm=tsp_ring", "backend.provider=verbs"]).backend
    wanted = {"FI_PROVIDER": "verbs", "MPIR_CVAR_IALLREDUCE_INTRA_ALGORITHM": "tsp_ring"}
    assert environment(given) == wanted
    assert environment(compose(["backend=mpi"]).backend) == {}


def test_a_plugin_s_choice_is_mlbench_s_own() -> None:
    """Another package's would be a deviation, and no result official."""
    assert "backend" not in [
        deviation.field for deviation in compose(["backend=mpi", "division=open"]).deviations
    ]
