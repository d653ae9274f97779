"""CUDA graphs: a replay of one that holds a whole step is a step, in which no hook is called."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from mlbench.probe.recording import Recording
from mlbench.probe.stamps import OPTIMIZER, REPLAYED


class Graphs:
    """The CUDA graphs that hold a whole step, and the rows of that."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._captured: Any = None  # the graph of which a capture has begun last
        self._rows: dict[int, int] = {}  # of each model, in that capture
        self._whole: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def add_rows(self, number: int, rows: int) -> None:
        """Count what a model was given in a capture."""
        self._rows[number] = self._rows.get(number, 0) + rows

    def hold_step(self) -> None:
        """Note that the graph which is captured holds a step of an optimizer."""
        self._recording.notes.add("graph")
        rows = max(self._rows.values(), default=0)
        self._whole[self._captured] = self._whole.get(self._captured, 0) + rows
        self._rows = {}

    def watch(self, graph: Any) -> None:
        """Stamp the replays of torch.cuda.CUDAGraph."""
        begin, replay, recording = graph.capture_begin, graph.replay, self._recording

        @wraps(begin)
        def capture_begin(graph: Any, *arguments: Any, **options: Any) -> None:
            self._captured, self._rows = graph, {}
            begin(graph, *arguments, **options)

        def ended(rows: int) -> None:
            if recording.mark(REPLAYED, rows) is not None:
                recording.end_step()

        before: Callable[..., None] = recording.guarded(recording.mark)
        after = recording.guarded(ended)

        @wraps(replay)
        def replayed(graph: Any) -> None:
            rows = self._whole.get(graph)
            if rows is not None:
                before(OPTIMIZER)
            replay(graph)
            if rows is not None:
                after(rows)

        graph.capture_begin, graph.replay = capture_begin, replayed
