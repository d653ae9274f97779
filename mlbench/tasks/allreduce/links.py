"""What machines send each other by the backend that trains: rate both ways, round trip and lost packets.

All ranks of a machine send at once, each to the rank with its number on the other machine.
"""

import os
import platform
import socket
import statistics
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from mlbench import clock
from mlbench.training.worker import Worker

STREAMS = 8  # messages at once over gloo, each by one of its connections if it has so many
PINGS = 21  # round trips
PROBE_BYTES = 2**20  # of the message that shows how long the measured one may be
STREAM_S, MOST_BYTES = 0.5, {"cpu": 2**27, "cuda": 2**30}  # s of the measured message, and its largest size
REPEATS = 3  # of that message, of which the fastest counts: what else a machine does only adds
PACKETS, PACKET_BYTES, PACKETS_S = 2000, 1400, 4.0  # datagrams that are sent, at most for so many s
# Their share of the rate of the messages, so that none waits in a queue, and what Python can receive, B/s.
LOSS_RATE, LOSS_MOST = 0.5, 5e7
SILENCE_S = 1.0  # s without a datagram after which none is on its way any more
PAIR_S = 13.0  # s of a pair at most: messages, and datagrams both ways


class MachinePair(NamedTuple):
    """What machine `target` received from machine `source`."""

    source: int
    target: int
    round_trip_s: float
    bytes_per_s: float
    lost: float  # share of the datagrams


def machines(worker: Worker) -> tuple[list[str], list[list[int]]]:
    """Return the name and the ranks of each machine, alike on every rank, which all must call this.

    Ranks with one number on a host are two machines: a test's, or two pods with one name.
    """
    ranks: dict[tuple[str, int], list[int]] = {}
    seen = Counter[tuple[str, int]]()
    for rank, (host, local) in enumerate(worker.gather([platform.node(), worker.local_rank])):
        ranks.setdefault((host, seen[host, local]), []).append(rank)
        seen[host, local] += 1
    hosts = Counter(host for host, _ in ranks)
    names = [host if hosts[host] == 1 else f"{host} (rank {some[0]})" for (host, _), some in ranks.items()]
    return names, list(ranks.values())


def rounds(count: int) -> Iterator[list[tuple[int, int]]]:
    """Yield disjoint pairs, each pair once in all (the circle method of round-robin tournaments)."""
    seats = [*range(count), *([-1] if count % 2 else [])]
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(pair), max(pair)) for pair in pairs if -1 not in pair]
        seats.insert(1, seats.pop())


def look(worker: Worker, ranks: Sequence[Sequence[int]], seconds: float) -> list[MachinePair]:
    """Return what every two machines received from each other, in as many rounds as fit into `seconds`."""
    machine = {rank: (number, local) for number, some in enumerate(ranks) for local, rank in enumerate(some)}
    number, local = machine[worker.rank]
    addresses = worker.gather(_address())
    results: list[MachinePair] = []
    for pairs in islice(rounds(len(ranks)), max(1, int(seconds / PAIR_S))):
        other = next((sum(pair) - number for pair in pairs if number in pair), None)
        row = None
        if other is not None and local < len(ranks[other]):
            row = [other, number, *_measure(worker, ranks[other][local], addresses)]
        results += _joined(MachinePair(*each) for each in worker.gather(row) if each)
    return results


def better(pair: MachinePair, other: MachinePair) -> MachinePair:
    """Return the best that two looks saw of a pair: what else goes on there only makes it worse."""
    return pair._replace(
        round_trip_s=min(pair.round_trip_s, other.round_trip_s),
        bytes_per_s=max(pair.bytes_per_s, other.bytes_per_s),
        lost=min(pair.lost, other.lost),
    )


def _joined(rows: Iterable[MachinePair]) -> Iterator[MachinePair]:
    """Yield one pair a way, of what each of its ranks received: their rates add up."""
    ways: dict[tuple[int, int], list[MachinePair]] = {}
    for row in rows:
        ways.setdefault(row[:2], []).append(row)
    for way, some in ways.items():
        trips, rates, losses = zip(*(row[2:] for row in some), strict=True)
        yield MachinePair(*way, statistics.median(trips), sum(rates), max(losses))


def _address() -> str:
    """Return the address by which this rank reaches rank 0's."""
    head = os.environ["MASTER_ADDR"]
    with socket.socket(_family(head), socket.SOCK_DGRAM) as probe:
        probe.connect((head, 9))  # sends nothing
        return probe.getsockname()[0]


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _measure(worker: Worker, peer: int, addresses: list[str]) -> tuple[float, float, float]:
    """Return round trip, rate and loss of what this rank receives from `peer`. Both call it at once."""
    end = _End(worker, peer)
    first = worker.rank < peer
    turns = (first, not first)
    trip_s = end.round_trip(turns)
    rates = {sends: end.rate(sends=sends) for sends in turns}
    lost = {sends: _lost(end, addresses, rates[sends], sends=sends) for sends in turns}
    return trip_s, rates[False], lost[False]


class _End:
    """This rank's end of a pair. Messages travel as the backend sends tensors of its device."""

    def __init__(self, worker: Worker, peer: int) -> None:
        self.worker, self.peer = worker, peer
        self.device = worker.device
        self.streams = STREAMS if worker.backend == "gloo" else 1  # NCCL divides a message itself

    def exchange(self, value: float, *, sends: bool) -> float:
        """Return a number that one end sends to the other."""
        number = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.send(number, self.peer) if sends else dist.recv(number, self.peer)
        return number.item()

    def round_trip(self, turns: tuple[bool, bool]) -> float:
        times = []
        for _ in range(PINGS):
            begin = clock.monotonic()
            for sends in turns:
                self.exchange(0.0, sends=sends)
            times.append(clock.monotonic() - begin)
        return statistics.median(times)

    def rate(self, *, sends: bool) -> float:
        """Return the bytes a second of a message, by the clock of its sender. Both ends have it then."""
        probe = torch.zeros(PROBE_BYTES, dtype=torch.uint8, device=self.device)
        seconds = min(self._seconds(probe, sends=sends) for _ in range(2))
        most = MOST_BYTES[self.device.type]
        size = min(most, max(PROBE_BYTES, round(STREAM_S * PROBE_BYTES / seconds)))
        message = torch.zeros(size, dtype=torch.uint8, device=self.device)
        return size / min(self._seconds(message, sends=sends) for _ in range(REPEATS))

    def _seconds(self, message: torch.Tensor, *, sends: bool) -> float:
        """Return how long a message took, by the clock of its sender, which waits for an answer."""
        message[0].item()  # a GPU is idle then
        begin = clock.monotonic()
        move: Any = dist.isend if sends else dist.irecv
        for work in [move(part, self.peer, tag=tag) for tag, part in enumerate(message.chunk(self.streams))]:
            work.wait()
        self.exchange(0.0, sends=not sends)  # the receiver has all
        return max(self.exchange(clock.monotonic() - begin, sends=sends), 1e-9)


def _lost(end: _End, addresses: list[str], rate: float, *, sends: bool) -> float:
    """Return the share of datagrams that did not arrive. The sender receives it as well."""
    target = addresses[end.peer if sends else end.worker.rank]
    with socket.socket(_family(target), socket.SOCK_DGRAM) as datagrams:
        if sends:
            datagrams.connect((target, int(end.exchange(0.0, sends=False))))
            end.exchange(_send(datagrams, min(LOSS_MOST, LOSS_RATE * rate)), sends=True)
            return end.exchange(0.0, sends=False)
        datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
        datagrams.bind((target, 0))
        datagrams.settimeout(SILENCE_S)
        arrived, done = [0], threading.Event()
        thread = threading.Thread(target=_receive, args=(datagrams, arrived, done), name="datagrams")
        thread.start()
        end.exchange(datagrams.getsockname()[1], sends=True)
        sent = end.exchange(0.0, sends=False)
        done.set()
        thread.join()
    return end.exchange(1 - arrived[0] / max(1.0, sent), sends=True)


def _send(datagrams: socket.socket, bytes_per_s: float) -> int:
    """Send datagrams evenly. Return how many."""
    pause, data, sent = PACKET_BYTES / bytes_per_s, bytes(PACKET_BYTES), 0
    begin = clock.monotonic()
    while sent < PACKETS and (passed := clock.monotonic() - begin) < PACKETS_S:
        if sent * pause <= passed:
            datagrams.send(data)
            sent += 1
    return sent


def _receive(datagrams: socket.socket, arrived: list[int], done: threading.Event) -> None:
    buffer = bytearray(PACKET_BYTES)
    while True:
        try:
            datagrams.recv_into(buffer)
            arrived[0] += 1
        except TimeoutError:
            if done.is_set():
                return
