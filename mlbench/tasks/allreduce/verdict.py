"""From measurements to names: which machine, GPU or link is slow or loses packets."""

import statistics
from collections.abc import Mapping, Sequence

from mlbench.record.format import with_prefix
from mlbench.tasks.allreduce.links import MachinePair

# By how the name of a rate begins: what has it, and its unit.
DEVICES = {
    "cpu": ("CPU does", "FLOP/s"),
    "cuda": ("slowest GPU does", "FLOP/s"),
    "gpu": ("GPUs reduce at", "B/s"),
}
SLOW_LINK = 0.7  # of the expected rate. TCP on a healthy link stays above it, chosen 2026-11-24
SLOW_CPU = 0.8  # of the machines' median, likewise
LOST = 0.003  # share of 2,000 datagrams, from which on a link loses, likewise


def faults(
    hosts: Sequence[str],
    calibrations: Sequence[Mapping[str, float]],
    gpus: Sequence[Sequence[str]],
    pairs: Sequence[MachinePair],
    *,
    expected_bytes_per_s: float | None,
) -> list[str]:
    """Return one sentence for each fault, none for healthy machines.

    - calibrations: the rates of each machine. gpus: what each found about its GPUs.
    - expected_bytes_per_s: of a link by the hardware profile. None: what most of the machines reach.
    """
    return [
        *_slow_machines(hosts, calibrations),
        *(f"{host}: {sentence}" for host, some in zip(hosts, gpus, strict=True) for sentence in some),
        *_links(hosts, pairs, expected_bytes_per_s),
    ]


def _slow_machines(hosts: Sequence[str], calibrations: Sequence[Mapping[str, float]]) -> list[str]:
    sentences = []
    for name in dict.fromkeys(name for rates in calibrations for name in rates):
        if not name.endswith(
            ("_flops_per_s", "_busbw_per_s")
        ):  # the fastest block, which others disturb least
            continue
        does, unit = DEVICES[name.partition("_")[0]]
        # Of two machines the faster is what the other should be.
        reached = [rates[name] for rates in calibrations if name in rates]
        usual = statistics.median_high(reached)
        sentences += [
            f"{host} is slow: its {does} {with_prefix(rates[name], unit)}, the others "
            f"{with_prefix(usual, unit)}"
            for host, rates in zip(hosts, calibrations, strict=True)
            if name in rates and rates[name] < SLOW_CPU * usual
        ]
    return sentences


def _links(hosts: Sequence[str], pairs: Sequence[MachinePair], expected: float | None) -> list[str]:
    """Name a machine if all of its pairs are bad, and a pair if its machines are not."""
    lossy = _named(hosts, pairs, {pair: pair.lost > LOST for pair in pairs})
    sentences = []
    for who, some in lossy.items():
        lost = statistics.median(pair.lost for pair in some)
        sentences.append(f"{who} loses {100 * lost:.2g} % of the packets")
    # A rate over TCP shows nothing about a link that loses packets, nor do the pairs that one is part of.
    sound = [pair for pair in pairs if pair.lost <= LOST]
    if not sound:
        return sentences
    usual = expected or statistics.median_high(_best(sound))
    slow = _named(hosts, sound, {pair: pair.bytes_per_s < SLOW_LINK * usual for pair in sound})
    for who, some in slow.items():
        rate = statistics.median(pair.bytes_per_s for pair in some)
        of = "the profile's" if expected else "the others'"
        sentences.append(
            f"{who} is slow: {with_prefix(8 * rate, 'bit/s')} of {of} {with_prefix(8 * usual, 'bit/s')}"
        )
    return sentences


def _best(pairs: Sequence[MachinePair]) -> list[float]:
    """Return the best rate of the pairs of each machine: what its link can do."""
    best: dict[int, float] = {}
    for pair in pairs:
        for end in pair.source, pair.target:
            best[end] = max(best.get(end, 0.0), pair.bytes_per_s)
    return list(best.values())


def _named(
    hosts: Sequence[str], pairs: Sequence[MachinePair], bad: Mapping[MachinePair, bool]
) -> dict[str, list[MachinePair]]:
    """Return the bad pairs by name. A machine's link is named if it is bad in one direction to all others."""
    groups: dict[str, list[MachinePair]] = {}
    explained: set[MachinePair] = set()
    for machine, host in enumerate(hosts):
        for way in ("source", "target"):
            own = [pair for pair in pairs if getattr(pair, way) == machine]
            if len(own) > 1 and all(bad[pair] for pair in own):
                groups.setdefault(f"the link of {host}", []).extend(own)
                explained.update(own)
    for pair in pairs:
        if bad[pair] and pair not in explained:
            groups.setdefault(f"the link from {hosts[pair.source]} to {hosts[pair.target]}", []).append(pair)
    return groups
