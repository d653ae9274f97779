"""The answer of a duel: one sentence, its numbers as JSON, a picture of the pairs, and MLflow."""

from contextlib import suppress
from pathlib import Path
from typing import Literal

from mlbench.analysis import duel
from mlbench.config.credentials import without_credentials
from mlbench.config.experiment import FrozenModel
from mlbench.record import format
from mlbench.studies.duel import Contest, Quantity
from mlbench.studies.duel_notes import notes
from mlbench.tracking import parent_runs

TWICE = 2.0  # speeds from here on are printed as a factor


class JudgedRun(FrozenModel):
    """One run of a duel. `pair` 0 is the warm-up. `sha256`: of its record and log as they were at its end."""

    run: str
    side: Literal["A", "B"]
    pair: int
    first: bool
    value: float | None
    sha256: str


class Answer(FrozenModel):
    """What `mlbench duel --json` prints. `ratio`, `low`, `high`: B over A. `decision` is of B."""

    study: str
    sentence: str
    decision: Literal["faster", "slower", "same"] | None
    compare: str
    unit: str
    less_is_better: bool
    margin: float
    level: float
    pairs: int
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    a: list[str]
    b: list[str]
    notes: list[str]
    left_out: dict[int, str]
    runs: list[JudgedRun]


def answer(contest: Contest) -> Answer:
    """Return the answer that the pairs of a contest give."""
    quantity, verdict = contest.quantity, contest.verdict(ended=True)
    return Answer(
        study=contest.study,
        sentence=sentence(quantity, verdict, margin=contest.margin) if verdict else _too_few(contest),
        decision=verdict and verdict.decision,
        compare=quantity.name,
        unit=quantity.unit,
        less_is_better=quantity.less,
        margin=contest.margin,
        level=duel.LEVEL,
        pairs=len(contest.counted()),
        **{name: verdict and getattr(verdict, name) for name in ("ratio", "low", "high", "p")},
        a=without_credentials(list(contest.sides[0].words)),
        b=without_credentials(list(contest.sides[1].words)),
        notes=notes(contest),
        left_out=contest.left_out(),
        runs=[
            JudgedRun(
                run=run.record.run_id,
                sha256=run.digest,
                **{name: getattr(run, name) for name in ("side", "pair", "first", "value")},
            )
            for run in contest.runs
        ],
    )


def _too_few(contest: Contest) -> str:
    """Return that too few pairs counted, and what adds some."""
    if (why := contest.spoiled()) is not None:
        return f"Not decided: {why}."
    counted = f"{format.counted(len(contest.counted()), 'pair')} counted, and {duel.LOOKS[0]} are needed"
    more = "a quiet machine or --with-disturbed" if contest.left_out() else "a longer max_time="
    return f"Not decided: {counted} ({more} adds some)."


def sentence(quantity: Quantity, verdict: duel.Verdict, *, margin: float) -> str:
    """Return the answer of enough pairs in one sentence."""
    how = _difference(quantity, verdict)
    count = format.counted(verdict.pairs, "pair")
    if verdict.decision == "same":
        return f"A and B are the same within {_percent(margin)}: {how}, {count}."
    if verdict.decision is None:
        seen = f"a difference above {_percent(verdict.largest)} would have been seen"
        return f"Not decided: {how}, {count}. {seen}."
    p = "p < 0.0001" if verdict.p <= 1e-4 else f"p = {verdict.p:.2g}"
    return f"{how}, {p}, {count}."


def _difference(quantity: Quantity, verdict: duel.Verdict) -> str:
    """Return by how much B differs, with the interval."""
    values = (verdict.ratio, verdict.low, verdict.high)
    timed = quantity.unit == "s" or quantity.unit.endswith("/s")
    if timed and quantity.less:
        values = (1 / verdict.ratio, 1 / verdict.high, 1 / verdict.low)
    ratio, low, high = values
    if timed and not 1 / TWICE < ratio < TWICE:
        return f"B is {ratio:.3g} times as fast ({low:.3g} to {high:.3g})"
    words = ("faster", "slower") if timed else ("higher", "lower")
    slower = ratio < 1
    ends = sorted((low - 1, high - 1), reverse=slower)
    same_sign = (low < 1) == (high < 1)
    first, last = (f"{_percent(abs(end))}{'' if same_sign else f' {words[end < 0]}'}" for end in ends)
    who = "B is" if timed else f"{quantity.name} of B is"
    return f"{who} {_percent(abs(ratio - 1))} {words[slower]} ({first} to {last})"


def _percent(share: float) -> str:
    return f"{format.number(100 * share)} %"


def keep(contest: Contest, found: Answer, folder: Path, *, uri: str) -> None:
    """Write the answer and its picture into the study's folder and MLflow. Only the first may fail."""
    folder.mkdir(parents=True)
    (folder / "duel.json").write_text(found.model_dump_json(indent=2) + "\n")
    metrics = {f"duel_{name}": getattr(found, name) for name in ("ratio", "low", "high", "p")}
    with suppress(Exception):
        keep_picture(contest, found, folder)
    with suppress(Exception):
        parent_runs.write_answer(
            found.study, found.sentence, metrics, folder, output_root=contest.output_root, uri=uri
        )


def keep_picture(contest: Contest, found: Answer, folder: Path) -> None:
    """Write the picture of the pairs into a folder."""
    from mlbench.report.charts import pairs  # takes a second to import

    ratios = [b / a for a, b, *_ in contest.counted()]
    picture = pairs.pairs(
        ratios, contest.verdict(ended=True), title=found.study, about=found.sentence, quantity=found.compare
    )
    (folder / "pairs.png").write_bytes(picture)
