"""From repeated times to percentiles, bandwidths and the line t = alpha + beta * bytes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

MAX_POWER = 8  # of ten elements, MLBench 2020
COLUMNS = (
    *("kind", "collective", "dtype", "backend", "device", "workers"),
    *("size", "elements", "bytes", "repeats"),  # size: requested. elements, bytes: see `bus_factor`
    *("min_s", "mean_s", "p50_s", "p95_s", "p99_s", "max_s"),
    "fastest_p50_s",  # of the fastest rank of each repeat. The others are of the slowest
    *("algbw_bytes_per_s", "busbw_bytes_per_s"),  # both from p50_s
    *("alpha_s", "beta_s_per_byte", "residual", "points"),
    *("wrong_elements", "reason"),
)


def sizes(points: int, largest: int) -> list[int]:
    """Return the distinct values of int(logspace(0, 8, points)) up to `largest`, in elements."""
    values = np.logspace(0, MAX_POWER, num=points).astype(np.int64)
    return [int(size) for size in np.unique(values) if size <= largest]


def magnitude(sent: int) -> str:
    """Return words on a message that takes its time: which power of ten of megabytes it exceeds."""
    megabytes = sent // 10**6
    return f", messages from {10 ** (len(str(megabytes)) - 1)} MB" if megabytes else ""


def bus_factor(collective: str, workers: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests defines them (its PERFORMANCE.md).

    It is the share of the bytes that must cross the slowest link with any algorithm. So bus bandwidth
    compares with the hardware's line rate for any number of workers. The bytes are those of the largest
    buffer: the whole result for all_gather, the whole input for reduce_scatter.
    """
    part = (workers - 1) / workers
    return {"all_reduce": 2 * part, "broadcast": 1.0}.get(collective, part)


def row(kind: str, **columns: Any) -> dict[str, Any]:
    """Return a row of the table: the same columns for every kind, None if one does not apply."""
    unknown = columns.keys() - set(COLUMNS)
    assert not unknown, unknown
    return dict.fromkeys(COLUMNS) | {"kind": kind} | columns


def times(
    slowest: Sequence[float], *, fastest: Sequence[float] | None = None, wrong: int, **columns: Any
) -> dict[str, Any]:
    """Return the row of one size from the slowest, and the fastest, rank's seconds of each repeat.

    A time in which `wrong` elements came out wrong is no time: the row then has the count alone.
    """
    if wrong:
        return row("times", **columns, wrong_elements=wrong, reason=f"{wrong:,} elements were wrong")
    p50, p95, p99 = (float(value) for value in np.percentile(slowest, (50, 95, 99)))
    algbw = columns["bytes"] / p50
    return row(
        "times",
        **columns,
        min_s=min(slowest),
        mean_s=float(np.mean(slowest)),
        p50_s=p50,
        p95_s=p95,
        p99_s=p99,
        max_s=max(slowest),
        fastest_p50_s=None if fastest is None else float(np.median(fastest)),
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * bus_factor(columns["collective"], columns["workers"]),
        wrong_elements=0,
    )


def fitted(points: Sequence[dict[str, Any]], **columns: Any) -> dict[str, Any]:
    """Return the row of the line through the median times of one collective and dtype."""
    right = [point for point in points if not point["wrong_elements"]]
    if len(right) < 2:
        return row("skipped", **columns, reason="fewer than two sizes to draw a line through")
    alpha, beta, residual = fit([p["bytes"] for p in right], [p["p50_s"] for p in right])
    line = {"alpha_s": alpha, "beta_s_per_byte": beta, "residual": residual}
    return row("fit", **columns, **line, points=len(right))


def fit(sent: Sequence[float], seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return alpha (s), beta (s a byte), none negative, and the relative residual of alpha + beta * bytes.

    Least squares of the relative errors (model - t) / t: the sizes span eight decades, and unweighted
    squares would see only the largest. The residual is the root of their mean square.
    """
    from scipy.optimize import nnls

    measured = np.asarray(seconds, np.float64)
    relative = np.stack([1 / measured, np.asarray(sent, np.float64) / measured], axis=1)
    scale = np.sqrt(np.square(relative).sum(axis=0))  # or the two columns differ by many decades
    alpha, beta = (nnls(relative / scale, np.ones(len(measured)))[0] / scale).tolist()
    errors = relative @ np.array([alpha, beta]) - 1
    return alpha, beta, float(np.sqrt(np.mean(errors**2)))
