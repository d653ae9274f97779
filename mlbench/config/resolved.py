"""An experiment as it travels to another machine: values that were composed once, never a path of the sender.

Whatever reads it there needs no file of the sender's: hardware profiles, prices, recipes and deviations are
in it. It is an environment variable of the command, in base64. This protects it from Ray's job command, which
hands a command line to a shell with its quotes unprotected (ray/dashboard/modules/job/cli.py, list2cmdline).
"""

import base64
import json
import os
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from mlbench.config import field_errors, plugins
from mlbench.config.compose import PLUGIN_GROUPS
from mlbench.config.division import Deviation
from mlbench.config.errors import ConfigurationError
from mlbench.config.experiment import Experiment

VARIABLE = "MLBENCH_EXPERIMENT"


def dumps(experiment: Experiment, words: Sequence[str]) -> str:
    """Return an experiment and the words that it was composed from, without credentials, as JSON."""
    deviations = [deviation.model_dump(mode="json") for deviation in experiment.deviations]
    return json.dumps({"words": list(words), "experiment": experiment.plain(), "deviations": deviations})


def loads(text: str) -> tuple[Experiment, list[str]]:
    """Return the experiment and its words. Raise UserError for values that this version does not take."""
    values = json.loads(text)
    parts: dict[str, Any] = dict(values["experiment"])
    try:
        for group, base in PLUGIN_GROUPS.items():
            module = plugins.load(group, parts[group]["name"])
            model = getattr(module, "Config", base)
            parts[group] = model.model_validate(parts[group], context={"resolved": True})
        experiment = Experiment.model_validate(parts)
    except ValidationError as error:
        sentences = field_errors.sentences([("", error)], values["experiment"])
        raise ConfigurationError(
            f"the submitted configuration does not fit this version of mlbench: {'; '.join(sentences)}",
            hint="submit with the version in the image",
        ) from error
    deviations = tuple(map(Deviation.model_validate, values["deviations"]))
    return experiment.model_copy(update={"deviations": deviations}), values["words"]


def assignment(experiment: Experiment, words: Sequence[str]) -> str:
    """Return VARIABLE=VALUE, which hands an experiment to a command of mlbench."""
    return f"{VARIABLE}={base64.b64encode(dumps(experiment, words).encode()).decode()}"


def received() -> tuple[Experiment, list[str]] | None:
    """Return what was handed to this process, once: no process that it starts gets it, too."""
    text = os.environ.pop(VARIABLE, None)
    return loads(base64.b64decode(text).decode()) if text else None
