"""Times every collective, dtype and size, and checks every element."""

from collections.abc import Iterator
from typing import Any

import torch

from mlbench.tasks.allreduce import Config, bandwidth, check, survey
from mlbench.tasks.allreduce.collectives import CollectiveCase, DeviceBarrier, reason_to_skip, values
from mlbench.training.setup import TaskResult
from mlbench.training.worker import Worker


def measure(config: Config, worker: Worker) -> TaskResult:
    """Time every collective, dtype and size on the backend that the workers were started with.

    The table's rows (bandwidth.COLUMNS) are of three kinds. `times` is of one size. `skipped` is for a pair
    of collective and dtype that cannot be measured here, and `fit` for one that was. `links` has those of
    `survey` instead. The outcome's status is `failed` if an element was wrong. Raises UserError for a single
    worker.
    """
    check(config, workers=worker.world_size, folder=None)
    worker.barrier()
    worker.timer.start()
    table = list(_rows(config, worker))
    wrong = [row for row in table if row.get("wrong_elements")]
    named = sorted({f"{row['collective']} {row['dtype']}" for row in wrong})
    return TaskResult(
        status="failed" if wrong else "completed",
        error=f"elements came out wrong in {', '.join(named)}" if wrong else None,
        table=table,
        elapsed=worker.timer.elapsed(),
    )


def _rows(config: Config, worker: Worker) -> Iterator[dict[str, Any]]:
    sizes = bandwidth.sizes(config.sizes, config.max_elements)
    pairs = [(name, dtype) for dtype in config.dtypes for name in config.collectives]
    common = {"backend": worker.backend, "device": worker.device.type, "workers": worker.world_size}
    base = values(max(sizes), worker)
    align = DeviceBarrier(worker) if worker.device.type == "cuda" else None
    for number, (collective, dtype) in enumerate(pairs, start=1):
        pair = common | {"collective": collective, "dtype": dtype}
        if collective == "links":
            if number == 1:  # it has no dtype
                yield from survey.survey(worker, seconds=config.time_budget_s)
            continue
        reason = reason_to_skip(collective, getattr(torch, dtype), base, worker)
        if reason:
            yield bandwidth.row("skipped", **pair, reason=reason)
            continue
        points = []
        for size in sizes:
            exchange = CollectiveCase.of(collective, getattr(torch, dtype), size, base=base, worker=worker)
            if points and exchange.elements == points[-1]["elements"]:
                continue  # whole blocks made it the size before
            if worker.rank == 0 and worker.timer.heartbeat_due():
                doing = f"timing {collective} {dtype} ({number} of {len(pairs)})"
                worker.heartbeat({"doing": doing + bandwidth.magnitude(exchange.bytes)})
            exchange.align = align
            exchange.seconds(config.warmups, worker)
            seconds = exchange.seconds(config.repeats, worker)
            repeats = list(zip(*worker.gather(seconds), strict=True))
            slowest, fastest = list(map(max, repeats)), list(map(min, repeats))
            wrong = int(worker.sum(exchange.errors[None]).item())
            what = {"size": size, "elements": exchange.elements, "bytes": exchange.bytes}
            points.append(
                bandwidth.times(slowest, fastest=fastest, wrong=wrong, **pair, **what, repeats=config.repeats)
            )
        yield from points
        yield bandwidth.fitted(points, **pair)
