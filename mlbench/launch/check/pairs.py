"""What two machines send each other: rate over TCP both ways, round trip, and packets that are lost."""

import socket
import statistics
import threading
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist

from mlbench import clock
from mlbench.training.worker import Worker

PINGS = 21  # round trips
PROBE_BYTES = 2**20  # of the message that tells how long the measured one may be
STREAM_S, MOST_BYTES = 0.5, 2**27  # s that the measured message is to take, and its largest size
REPEATS = 3  # of that message, of which the fastest counts: what else a machine does only adds
PACKETS, PACKET_BYTES, PACKETS_S = 2000, 1400, 4.0  # datagrams that are sent, at most for so many s
LOSS_RATE = 0.5  # share of the rate over TCP at which they are sent, so that none waits in a queue
SILENCE_S = 1.0  # s without a datagram after which none is on its way any more


class MachinePair(NamedTuple):
    """What machine `source` measured of `target`, as the receiver saw it."""

    source: int
    target: int
    round_trip_s: float
    bytes_per_s: float
    lost: float  # share of the datagrams


def rounds(machines: int) -> Iterator[list[tuple[int, int]]]:
    """Yield disjoint pairs, each pair once in all (the circle method of round-robin tournaments)."""
    seats = [*range(machines), *([-1] if machines % 2 else [])]
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(pair), max(pair)) for pair in pairs if -1 not in pair]
        seats.insert(1, seats.pop())


def better(pair: MachinePair, other: MachinePair) -> MachinePair:
    """Return the best that two measurements of a pair saw: what else goes on there only makes it worse."""
    return pair._replace(
        round_trip_s=min(pair.round_trip_s, other.round_trip_s),
        bytes_per_s=max(pair.bytes_per_s, other.bytes_per_s),
        lost=min(pair.lost, other.lost),
    )


def measure(worker: Worker, peer: int, addresses: list[str]) -> MachinePair:
    """Return what this machine receives from `peer`; both call it at once."""
    first = worker.rank < peer
    round_trip_s = _round_trip(peer, first=first)
    rates = {}
    for sends in (first, not first):
        rates[sends] = _rate(peer, sends=sends)
    lost = {sends: _lost(peer, addresses, worker, rates[sends], sends=sends) for sends in (first, not first)}
    return MachinePair(peer, worker.rank, round_trip_s, rates[False], lost[False])


def _round_trip(peer: int, *, first: bool) -> float:
    number, times = torch.zeros(1), []
    for _ in range(PINGS):
        begin = clock.monotonic()
        for sends in (first, not first):
            dist.send(number, peer) if sends else dist.recv(number, peer)
        times.append(clock.monotonic() - begin)
    return statistics.median(times)


def _rate(peer: int, *, sends: bool) -> float:
    """Return the bytes a second of a message, as its receiver measured them; both ends know it then."""
    probe = torch.zeros(PROBE_BYTES, dtype=torch.uint8)
    seconds = min(_seconds(probe, peer, sends=sends) for _ in range(2))
    size = min(MOST_BYTES, max(PROBE_BYTES, round(STREAM_S * PROBE_BYTES / seconds)))
    message = torch.zeros(size, dtype=torch.uint8)
    return size / min(_seconds(message, peer, sends=sends) for _ in range(REPEATS))


def _seconds(message: torch.Tensor, peer: int, *, sends: bool) -> float:
    """Return how long a message took, by the clock of its sender, who waits for an answer."""
    took = torch.zeros(1, dtype=torch.float64)
    if sends:
        begin = clock.monotonic()
        dist.send(message, peer)
        dist.recv(took, peer)  # which the receiver sends when it has all
        took[0] = clock.monotonic() - begin
        dist.send(took, peer)
    else:
        dist.recv(message, peer)
        dist.send(took, peer)
        dist.recv(took, peer)
    return max(took.item(), 1e-9)


def _lost(peer: int, addresses: list[str], worker: Worker, rate: float, *, sends: bool) -> float:
    """Return the share of datagrams that did not arrive; the sender learns of it, too."""
    share, port = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        if sends:
            dist.recv(port, peer)
            end.connect((addresses[peer], int(port.item())))
            sent = _send(end, LOSS_RATE * rate)
            dist.send(torch.tensor([sent], dtype=torch.int64), peer)
            dist.recv(share, peer)
            return share.item()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
        end.bind((addresses[worker.rank], 0))
        end.settimeout(SILENCE_S)
        arrived: list[int] = []
        done = threading.Event()
        thread = threading.Thread(target=_receive, args=(end, arrived, done), name="datagrams")
        thread.start()
        dist.send(torch.tensor([end.getsockname()[1]], dtype=torch.int64), peer)
        sent = torch.zeros(1, dtype=torch.int64)
        dist.recv(sent, peer)
        done.set()
        thread.join()
    share[0] = 1 - len(arrived) / max(1, int(sent.item()))
    dist.send(share, peer)
    return share.item()


def _send(end: socket.socket, bytes_per_s: float) -> int:
    """Send datagrams evenly; return how many."""
    pause, data, sent = PACKET_BYTES / bytes_per_s, bytes(PACKET_BYTES), 0
    begin = clock.monotonic()
    while sent < PACKETS and (passed := clock.monotonic() - begin) < PACKETS_S:
        if sent * pause <= passed:
            end.send(data)
            sent += 1
    return sent


def _receive(end: socket.socket, arrived: list[int], done: threading.Event) -> None:
    while True:
        try:
            arrived.append(end.recv_into(bytearray(PACKET_BYTES)))
        except TimeoutError:
            if done.is_set():
                return
