"""`mlbench COMMAND ...`, the same as `python -m mlbench.COMMAND ...`."""

import sys
from collections.abc import Sequence
from importlib import import_module

import mlbench
from mlbench.config.errors import suggest
from mlbench.terminal import streams

COMMANDS = {
    "run": "one run",
    "measure": "your training command",
    "duel": "which of two commands is faster",
    "sweep": "a study of many runs",
    "data": "list, prepare and verify data sets",
    "results": "list, compare, plot, export and import finished runs",
    "predict": "time and cost on more workers than were measured",
    "cluster": "a persistent Ray cluster",
    "doctor": "what this machine can run, and what is missing",
}
USER_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command by its name, and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with streams.ignore_broken_pipe():
        return _run(arguments)
    return 0  # the reader has left


def _run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print("usage: mlbench COMMAND ...\n")
        print("\n".join(f"  {name:10}{meaning}" for name, meaning in COMMANDS.items()))
        print(
            "\nType mlbench COMMAND --help for a command, and mlbench --completion bash for tab completion."
        )
        return 0 if arguments else USER_ERROR
    if arguments[0] == "--version":
        print(f"mlbench {mlbench.__version__}")
        return 0
    if arguments[0] in ("--completion", "--complete"):
        return _complete(*arguments)
    if arguments[0] not in COMMANDS:
        print(f"mlbench: {arguments[0]} is unknown{_meant(arguments[0])}", file=sys.stderr)
        return USER_ERROR
    return import_module(f"mlbench.{arguments[0]}").main(arguments[1:])


def _meant(word: str) -> str:
    """Return the end of the sentence about an unknown command: whose sub-command it is, or the nearest."""
    if "=" in word:
        return f". Write mlbench run {word}"
    if word.startswith("-"):
        return ". Options follow the command"
    owners = [name for name in ("results", "data", "cluster")
              if word in import_module(f"mlbench.{name}").COMMAND.verbs]  # fmt: skip
    if owners:
        return f": did you mean {' or '.join(f'mlbench {name} {word}' for name in owners)}?"
    return suggest(word, list(COMMANDS))


def _complete(option: str, shell: str = "", line: str = "") -> int:
    """Print the completion script of a shell, or the replies that such a script requests."""
    from mlbench.terminal import completion

    if shell not in completion.SHELLS:
        choices = " or ".join(completion.SHELLS)
        print(f"mlbench: {option} takes {choices}, got: {shell or 'nothing'}", file=sys.stderr)
        return USER_ERROR
    script = option == "--completion"
    print(completion.SHELLS[shell] if script else "\n".join(completion.replies(shell, line, list(COMMANDS))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
