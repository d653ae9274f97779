"""What the driver counts on a machine's GPUs while they work, as sentences (NVML API reference, 2026)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from mlbench.clusters import gpu_state, node
from mlbench.clusters.monitor import NodeMonitor
from mlbench.record import noise

SAMPLE_S = 0.5
LINKS = 18  # of NVLink that a GPU has at most (Hopper, Blackwell)
NOW = ("uncorrected ECC errors", "rows of memory that could not be replaced")  # however old


@contextmanager
def watched(host: str, found: list[str]) -> Iterator[None]:
    """Put a sentence into `found` for each fault that the driver has counted at the end of the block."""
    handles, nvml, events = tuple[Any, ...](), gpu_state.nvml(), None
    refusals = [nvml.NVMLError] if nvml else []  # e.g. a virtual GPU's, which reports no Xid
    with suppress(*refusals):
        handles = node.gpu_handles()
        events = nvml.nvmlEventSetCreate() if handles else None  # NVML keeps no older Xids
        for handle in handles:
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
    before = [counts(handle) for handle in handles]
    with NodeMonitor(SAMPLE_S) as monitor:
        yield
    with suppress(*refusals):  # until there are no more
        while events is not None:
            found.append(f"Xid {nvml.nvmlEventSetWait_v2(events, 0).eventData} of a GPU of {host}")
    found += noise.disturbances(host, during=None, gpus=monitor.gpu_use())
    found += sentences(host, before, [counts(handle) for handle in handles])


def counts(handle: Any) -> dict[str, int]:
    """Return what the driver has counted on a GPU, by name, without what this model does not count."""
    rows = gpu_state.ask("GetRemappedRows", handle)
    active, errors = 0, 0
    for link in range(LINKS):
        active += gpu_state.ask("GetNvLinkState", handle, link) or 0
        errors += sum(gpu_state.ask("GetNvLinkErrorCounter", handle, link, kind) or 0 for kind in range(3))
    ecc = gpu_state.ask("GetTotalEccErrors", handle, 1, 0)  # uncorrected, since the driver was loaded
    return {NOW[0]: ecc or 0, NOW[1]: int(rows[3]) if rows else 0, "NVLink errors": errors, "links": active}


def sentences(host: str, before: Sequence[dict[str, int]], after: Sequence[dict[str, int]]) -> list[str]:
    """Return what is wrong by the counts at the begin and at the end of the work."""
    most = max((each["links"] for each in after), default=0)
    texts = list[str]()
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        for name in (*NOW, "NVLink errors"):
            count = new[name] - (0 if name in NOW else old[name])
            texts += [f"GPU {number} of {host} has {count} {name}"] if count else []
        if new["links"] < most:
            texts.append(f"GPU {number} of {host} has {new['links']} of {most} NVLinks")
    return texts
