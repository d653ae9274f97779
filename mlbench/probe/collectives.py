"""Stamps the collectives of a script: when this rank launches one, and from when to when it waits for it.

DistributedDataParallel, functional collectives and compiled functions launch theirs without Python.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from mlbench.probe import torch_private
from mlbench.probe.device_moments import never_free
from mlbench.probe.recording import Recording
from mlbench.probe.stamps import ASIDE, COMPARED, MET, PARTLY, WHICH


class Collectives:
    """Stamps the collectives of torch.distributed's groups, none of which it waits for itself."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._launched: Any = None  # when that was whose wait is seen next
        self._begun: Any = None
        self._sync_begun: Any = None  # of a DistributedDataParallel's buffers
        self._works: WeakKeyDictionary[Any, tuple[Any, int]] = WeakKeyDictionary()  # launched, and which
        hooks = (self._stamp_launch, self._stamp_begin, self._keep, self._stamp_end)
        self._enter, self._begin, self._note, self._end = (
            recording.guarded(hook, eager=True) for hook in hooks
        )
        self._begin_sync = recording.guarded(self._stamp_sync_begin)
        self._end_sync = recording.guarded(self._stamp_sync_end)

    def watch(self) -> None:
        """Take the place of the methods by which torch.distributed launches and waits."""
        dist: Any = self._recording.torch.distributed
        if not dist.is_available():
            return
        for number, name in enumerate(torch_private.COLLECTIVES):
            if launch := getattr(dist.ProcessGroup, name, None):
                compared = COMPARED * (name not in torch_private.OF_SOME)
                setattr(dist.ProcessGroup, name, self._launching(launch, WHICH * number + compared))
        dist.Work.wait = self._waiting(dist.Work.wait)
        model: Any = self._recording.torch.nn.parallel.DistributedDataParallel
        if sync := getattr(model, torch_private.SYNC_BUFFERS, None):
            setattr(model, torch_private.SYNC_BUFFERS, self._syncing(sync))
        os.register_at_fork(after_in_child=lambda: never_free(dict(self._works)))

    def _launching(self, launch: Callable[..., Any], which: int) -> Callable[..., Any]:
        @wraps(launch)
        def launched(group: Any, *arguments: Any, **options: Any) -> Any:
            self._enter()
            work = launch(group, *arguments, **options)
            if self._launched is not None:
                self._note(group, work, which)
            return work

        return launched

    def _waiting(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(wait)
        def waited(work: Any, *arguments: Any, **options: Any) -> Any:
            known = self._works.pop(work, None)
            if known is None:
                return wait(work, *arguments, **options)
            self._begin()
            try:
                return wait(work, *arguments, **options)
            finally:
                self._end(*known)

        return waited

    def _syncing(self, sync: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(sync)
        def synced(model: Any, *arguments: Any, **options: Any) -> Any:
            self._begin_sync()
            try:
                return sync(model, *arguments, **options)
            finally:
                self._end_sync(model)

        return synced

    def _stamp_sync_begin(self) -> None:
        recording = self._recording
        mine = threading.get_ident() == recording.thread
        self._sync_begun = recording.now() if mine else None

    def _stamp_sync_end(self, model: Any) -> None:
        begin, self._sync_begun = self._sync_begun, None
        recording, dist = self._recording, self._recording.torch.distributed
        end = None if begin is None else recording.now()
        if end is not None and model.process_group.size() == dist.get_world_size() > 1:
            which = WHICH * len(torch_private.COLLECTIVES) + COMPARED + PARTLY
            recording.stamps.append((MET, begin, begin, end, which))
            recording.bound()

    def _stamp_launch(self) -> None:
        recording = self._recording
        mine = threading.get_ident() == recording.thread or recording.in_backward
        self._launched = recording.now() if mine and not recording.in_bucket else None

    def _keep(self, group: Any, work: Any, which: int) -> None:
        world = self._recording.torch.distributed.group.WORLD
        if world is None or group.size() != world.size():
            which &= ~COMPARED
        if work is None:  # on a GPU it is queued to the script's stream
            self._begun = self._launched
            self._stamp_end(self._launched, which)
        else:
            self._works[work] = self._launched, which
        self._launched = None

    def _stamp_begin(self) -> None:
        self._begun = self._recording.now()

    def _stamp_end(self, launched: Any, which: int) -> None:
        recording, begin, self._begun = self._recording, self._begun, None
        end = recording.now()
        if begin is None or end is None:  # in the capture of a CUDA graph
            return
        if recording.device is not None and recording.device.aside():
            which |= ASIDE
        recording.stamps.append((MET, launched, begin, end, which))
        if which & COMPARED and (recording.in_backward or "own_hook" not in recording.notes):
            recording.notes.add("collectives")
        recording.bound()
