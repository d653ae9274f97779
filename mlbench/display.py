"""What a person sees."""

import sys
from typing import Any


def print_help() -> None:
    print("help")


class Progress:
    def __init__(self, experiment: Any, seed: int) -> None:
        self.experiment = experiment

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: Any) -> None: ...

    def say(self, text: str) -> None:
        print(text, file=sys.stderr)

    def connected(self, connection: Any) -> None:
        print(connection)

    def sign(self, sign: dict[str, Any]) -> None:
        print(sign)

    def event(self, event: dict[str, Any]) -> None:
        print(event["key"], event["value"])


def reused(record: Any, experiment: Any) -> None: ...


def show_card(record: Any, *, folder: Any, where: str | None, tracking_uri: str) -> None:
    print(
        record.model_dump_json(
            indent=1, exclude={"validations", "segments", "experiment", "software", "nodes"}
        )
    )
    print(folder, where, tracking_uri)
