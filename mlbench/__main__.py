"""`mlbench COMMAND ...`, the same as `python -m mlbench.COMMAND ...`."""

import sys
from collections.abc import Sequence
from importlib import import_module

import mlbench
from mlbench.config.errors import suggest

COMMANDS = {
    "run": "one run",
    "measure": "a training command of your own",
    "sweep": "a study of many runs",
    "data": "list, prepare and verify data sets",
    "results": "list, compare, plot, export and import finished runs",
    "predict": "time and cost on more workers than were measured",
    "cluster": "a persistent Ray cluster",
    "doctor": "what this machine can run, and what is missing",
}
USER_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command by its name; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print("usage: mlbench COMMAND ...\n")
        print("\n".join(f"  {name:10}{meaning}" for name, meaning in COMMANDS.items()))
        print("\nmlbench COMMAND --help explains a command; mlbench --completion bash prints tab completion.")
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
        return f"; write mlbench run {word}"
    if word.startswith("-"):
        return "; options are written after the command"
    owners = [name for name in ("results", "data", "cluster")
              if word in import_module(f"mlbench.{name}").COMMAND.verbs]  # fmt: skip
    if owners:
        return f": did you mean {' or '.join(f'mlbench {name} {word}' for name in owners)}?"
    return suggest(word, list(COMMANDS))


def _complete(option: str, shell: str = "", line: str = "") -> int:
    """Print the completion script of a shell, or what such a script asks for."""
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
