"""Every JSON answer that SKILL.md names has a schema in docs/schemas, and keeps to it."""

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import ROOT

from mlbench import duel, predict, results
from mlbench.record.record import Record
from mlbench.studies.duel_answer import Answer

SCHEMAS = ROOT / "docs" / "schemas"
SAMPLE = f"output_root={ROOT}/notebooks/sample"
ANSWERS = {
    "record.json": "results show 69544d95 --json",
    "list.json": "results list --json",
    "why.json": "results why 69544d95 wait --json",
    "predict.json": "predict published:gnmt workers=1,2 --json",
}


@pytest.mark.parametrize("schema", ANSWERS)
def test_an_answer_keeps_to_its_schema(schema: str, capsys: Any) -> None:
    command, *words = shlex.split(ANSWERS[schema])
    if command == "predict":
        pytest.importorskip("mlbench.plugins.prediction.command")
    module: Any = {"results": results, "predict": predict}[command]
    assert module.main([*words, SAMPLE]) == 0
    answer = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, described := json.loads((SCHEMAS / schema).read_text()))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({}, described)


@pytest.mark.parametrize(("schema", "model"), [("duel.json", Answer), ("record.json", Record)])
def test_a_schema_is_that_of_its_model(schema: str, model: Any) -> None:
    """Else write it again: json.dumps(model.model_json_schema(mode="serialization"), indent=2)."""
    described = model.model_json_schema(mode="serialization")
    assert json.loads((SCHEMAS / schema).read_text()) == described


def test_the_skill_names_every_schema_and_commands_that_are_there() -> None:
    text = (ROOT / "SKILL.md").read_text()
    assert {*re.findall(r"schemas/(\w+\.json)", text)} == {path.name for path in SCHEMAS.glob("*.json")}
    assert {"duel.json", *ANSWERS} == {path.name for path in SCHEMAS.glob("*.json")}
    for line in re.findall(r"`mlbench ([^`]+)`", text):
        name = shlex.split(line)[0]
        assert find_spec(f"mlbench.{name}"), line
    assert "--json" in duel.OPTIONS and Path(SCHEMAS).is_dir()
