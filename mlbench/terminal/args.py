"""What a user wrote after `python -m mlbench.results COMMAND`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlbench.experiment.errors import UserError

OPTIONS = {"--json": "", "--yes": "delete", "--fail-if-slower": "compare"}  # and the one command that has it


@dataclass(frozen=True)
class Given:
    """Words, name=value settings with their defaults, and options."""

    words: list[str]
    settings: dict[str, str]
    options: dict[str, str]

    @property
    def output_root(self) -> Path:
        return Path(self.settings["output_root"])

    @property
    def json(self) -> bool:
        return "--json" in self.options

    def share(self, option: str) -> float | None:
        """Return 0.05 for an option that is `5%`, None if it is not given."""
        if option not in self.options:
            return None
        text = self.options[option]
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text)
        if not found:
            raise UserError(f"{option} takes a percentage, given: {text or 'nothing'}", hint="e.g. 5%")
        return float(found[1]) / 100


def parse(name: str, arguments: Sequence[str], settings: dict[str, str]) -> Given:
    """Tell words, settings and options apart; `settings` are the command's, with their defaults.

    Raises UserError for an option that the command does not have.
    """
    given = Given([], dict(settings), {})
    left = iter(arguments)
    for word in left:
        name_given, equals, value = word.partition("=")
        if word.startswith("-"):
            if OPTIONS.get(name_given) not in ("", name):
                raise UserError(f"{name} has no option {name_given}", hint=f"{name} --help")
            if name_given == "--fail-if-slower" and not equals:
                value = next(left, "")
            given.options[name_given] = value
        elif equals and name_given in given.settings:
            given.settings[name_given] = value
        else:
            given.words.append(word)
    return given
