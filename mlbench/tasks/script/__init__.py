"""A training script that does not depend on mlbench, started as torchrun does (docs/your-own-script.md)."""

import os
import re
import shlex
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeGuard

from pydantic import Field, ValidationInfo, field_validator, model_validator

from mlbench.config.errors import UserError
from mlbench.config.experiment import PositiveFloat, TaskConfig
from mlbench.script import sources
from mlbench.script.printed_metric import NUMBER

OUTPUTS = "MLBENCH_OUTPUT_DIR"  # environment variable: the folder for a script's files that are to come home
SEED = "{seed}"  # in task.args: the seed of the run
IMAGE = "image "  # how the sources of a script begin that a container's image has
NAME = re.compile(r"[A-Za-z_][\w./ -]*")  # of a metric: the text of its regular expression before the number


class Config(TaskConfig):
    """What conf/task/script.yaml holds beyond the fields of every task."""

    OPEN: ClassVar[bool] = True
    REUSED: ClassVar[bool] = False  # a script reads settings from files that its sources do not name
    FREE: ClassVar[tuple[str, ...]] = (
        *("metric", "metric_unit", "direction", "path", "module", "args", "command", "pattern"),
        *("stop_at_goal", "stall_s", "cwd", "sources", "python"),
    )

    path: str | None
    module: Annotated[str, Field(pattern=r"^[\w.]+$")] | None
    args: str
    command: tuple[str, ...]
    pattern: str | None
    stop_at_goal: bool
    stall_s: PositiveFloat | None
    cwd: str | None
    sources: str | None
    python: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _resolved(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Part the metric's name from its regular expression, and look at the script's content."""
        if (info.context or {}).get("resolved"):  # on another machine
            return values
        values = {**values, "cwd": values["cwd"] or os.getcwd(), "args": str(values["args"])}
        if values["pattern"] is None and values["metric"] != "none":
            with suppress(re.error):
                values |= _metric(str(values["metric"]))
        if values["command"] and values["path"] is None and values["module"] is None:
            values |= _of_command([str(word) for word in values["command"]], Path(values["cwd"]))
        script = _script(values)
        if script is not None and script.is_file():
            root = script.parent if values["path"] else Path(values["cwd"])  # first in Python's sys.path
            values["sources"] = sources.digest(script, root)
        return values

    @field_validator("metric")
    @classmethod
    def _metric_is_a_pattern(cls, metric: str) -> str:
        try:
            re.compile(metric)
        except re.error as error:
            raise ValueError(f"{metric} is not a regular expression: {error}") from error
        return metric

    def command_line(self, python: str, seed: int) -> list[str]:
        """Return the command that starts the script by its interpreter, or else by `python`.

        Args:
            python: the interpreter of this process.
            seed: of the run, in the place of SEED in the arguments.
        """
        python = self.python or python
        what = ["-m", self.module] if self.module else [self.path or ""]
        return [python, *what, *(word.replace(SEED, str(seed)) for word in shlex.split(self.args))]


def is_script(task: TaskConfig) -> TypeGuard[Config]:
    """Return whether a task is a custom script of the user."""
    return isinstance(task, Config)


def _metric(text: str) -> dict[str, str]:
    """Return a metric's name and regular expression. For a mere name, one for the number that follows it."""
    if NAME.fullmatch(text):
        return {
            "pattern": rf"\b{re.escape(text)}{NUMBER}",
            "metric": text,
        }
    pattern = re.compile(text)
    if not pattern.groups:  # a name, with characters as in Acc@1
        return {"pattern": text + NUMBER, "metric": re.sub(r"[^\w./ -]", "_", text)}
    named = next(iter(pattern.groupindex), None)
    match = NAME.search(text.partition("(")[0])
    return {"pattern": text, "metric": named or (match[0].strip(" -./") if match else "metric")}


def _script(values: dict[str, Any]) -> Path | None:
    """Return the script that a task runs."""
    folder = Path(values["cwd"])
    if values["path"]:
        return folder / values["path"]
    if values["module"]:
        return _module(folder, values["module"])
    return None


def _of_command(command: list[str], folder: Path) -> dict[str, str]:
    """Return the script of a launcher's command line and its arguments. Launcher options decide nothing.

    It is the first file that is Python, else the first module of the folder. Without either the whole command
    line replaces the arguments.
    """
    for index, argument in enumerate(command):
        if argument.endswith(".py") and (folder / argument).is_file():
            return {"path": argument, "args": shlex.join(command[index + 1 :])}
    for index, (option, name) in enumerate(pairwise(command)):
        if option in ("-m", "--module") and _module(folder, name):
            return {"module": name, "args": shlex.join(command[index + 2 :])}
    return {"args": shlex.join(command)}


def _module(folder: Path, name: str) -> Path | None:
    """Return the file that `python -m NAME` runs in a folder, if it is there."""
    stem = folder.joinpath(*name.split("."))
    return next((path for path in (stem.with_suffix(".py"), stem / "__main__.py") if path.is_file()), None)


def check(config: Config, *, workers: int, folder: Path | None) -> None:
    """Raise UserError for a script that cannot be started."""
    if config.command:
        return
    if (config.path is None) == (config.module is None):
        raise UserError("task=script needs a script", hint="task.path=train.py or task.module=package.train")
    try:
        shlex.split(config.args)
    except ValueError as error:
        raise UserError(
            f"task.args={config.args} cannot be split: {error}", hint="close the quote"
        ) from error
    if (config.sources or "").startswith(IMAGE):
        return
    script = _script(config.model_dump())
    if script is None or not script.is_file():
        named = f"task.path={config.path}" if config.path else f"task.module={config.module}"
        raise UserError(
            f"{named} does not exist below {config.cwd}", hint="give its path relative to that folder"
        )
    try:
        compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{script} is not valid Python: {error}", hint="correct it") from error


def prepare(config: Config, root: Path, *, progress: Any = None) -> Path:
    """Return `root`: a script brings data itself."""
    return root
