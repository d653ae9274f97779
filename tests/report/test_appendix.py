"""The artifact appendix says what the records say."""

from pathlib import Path

import pytest
import sample

from mlbench import results


def test_a_study_s_appendix_is_filled_from_its_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "appendix.md"
    words = ["appendix", sample.STUDY, f"output_root={sample.SAMPLE}", f"to={path}"]
    assert results.main(words) == 0 and capsys.readouterr().out.strip() == str(path)
    text = path.read_text()
    for heading in ("Abstract", "Artifact check-list", "Installation", "Experiment workflow", "Notes"):
        assert f"## {heading}" in text
    assert "python -m mlbench.sweep task=logreg,resnet20 workers=1,2" in text
    assert "12 runs, one after the other" in text and text.count("Fastest to") == 2
    assert "to be filled in by the authors" in text and "None" not in text


def test_a_study_that_is_not_there_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert results.main(["appendix", "nosuch", f"output_root={sample.SAMPLE}"]) == 2
    assert "there is no study 'nosuch'" in capsys.readouterr().err
