"""The list of mutations stays true while the code changes; `python tests/mutations.py` runs them."""

import shlex
from pathlib import Path

import mutations
import pytest
from conftest import ROOT

MUTATIONS = mutations.load()


def problem(mutation: mutations.Mutation) -> str:
    """Return why a mutation cannot be run any more; empty if it can."""
    try:
        mutation.applied(ROOT)
    except ValueError as error:
        return str(error)
    paths = [word for word in shlex.split(mutation.tests) if word.startswith("tests/")]
    if bool(paths) == bool(mutation.equivalent) or not all((ROOT / path).is_file() for path in paths):
        return f"mutation {mutation.number} names no tests, or some that are gone: {mutation.tests}"
    return ""


def test_every_mutation_still_applies() -> None:
    """Where its line was changed, change the mutation with it and run it again."""
    assert not [message for mutation in MUTATIONS if (message := problem(mutation))]


def test_the_review_s_mutations_and_more_of_our_own_are_there() -> None:
    assert [mutation.review for mutation in MUTATIONS if mutation.review] == list(range(1, 37))
    assert sum(not mutation.review for mutation in MUTATIONS) >= 60
    assert len({(mutation.file, mutation.old, mutation.new) for mutation in MUTATIONS}) == len(MUTATIONS)


def test_a_line_that_is_there_twice_or_not_at_all_is_an_error() -> None:
    mutation = mutations.Mutation(1, "mlbench/config/goal.py", "no such line", "", "nothing")
    with pytest.raises(ValueError, match="holds 0 times"):
        mutation.applied(ROOT)


def test_slow_tests_catch_mutations_too(tmp_path: Path) -> None:
    """The checkout's own options leave them out of a plain `pytest`."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not slow'\nmarkers = slow\n")
    test = "import pytest\n@pytest.mark.slow\ndef test_caught() -> None:\n    assert False\n"
    (tmp_path / "test_slow.py").write_text(test)
    code, output = mutations.pytest(tmp_path, ["test_slow.py"])
    assert code == 1 and "FAILED test_slow.py::test_caught" in output
