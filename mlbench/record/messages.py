"""Define the messages between the processes of a run: JSON, so the types are those of plain dicts.

Readers of a log get the same values typed and checked (`record.Validation`, `phases.PhaseTimes`).
"""

from typing import Any, NotRequired, TypedDict, final


class ValidationMessage(TypedDict):
    """One validation, as `record.Validation` explains it. A number that was not finite is None."""

    epoch: float
    step: int
    elapsed: float  # s
    wall: float  # s since 1970
    train_loss: Any
    metrics: dict[str, Any]
    goal_reached: bool


class RankValidation(TypedDict):
    """A validation with this rank's times up to it (`PhaseTimes.plain`)."""

    validation: ValidationMessage
    phase_times: dict[str, Any]


class Report(TypedDict):
    """The message of a rank to the controller: the validations since its last report."""

    started_at: float  # s since 1970, the first access to training data
    rank: int
    parts: list[RankValidation]
    system: list[dict[str, Any]]  # samples of its node, on a node's first rank
    unit: str  # of samples
    hostname: NotRequired[str]


@final
class Progress(TypedDict):
    """The progress of a worker's training."""

    rank: int
    epoch: float
    step: int
    loss: float | None  # mean of this rank since the last validation
    samples: int  # of this rank
    unit: NotRequired[str]  # of samples
    started_at: NotRequired[float]  # s since 1970


@final
class Activity(TypedDict):
    """A worker's activity other than training."""

    rank: NotRequired[int]
    doing: str


Heartbeat = Progress | Activity  # may get lost
