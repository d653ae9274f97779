"""Measure the links between emulated hosts with plain sockets before a run.

Both ends are sockets of one process: a socket stays in the namespace in which it was made. So no second
process has to wake up, and a round trip is that of the links alone. The process is separate from the driver,
because other threads of the driver would delay the measuring thread.

`python -m mlbench.plugins.emulation.probe` takes the arguments of `main` as a JSON object. It answers each
line of its standard input, a JSON list of a function's name, source and target, with one line of JSON.
"""

import json
import os
import socket
import statistics
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from mlbench import clock
from mlbench.config.network import Network
from mlbench.plugins.emulation import topology
from mlbench.plugins.emulation.measurement import LinkMeasurement
from mlbench.plugins.emulation.namespace import Namespace
from mlbench.plugins.emulation.packets import MTU, TCP_DATA_SHARE
from mlbench.plugins.emulation.topology import Path

PINGS = 51  # round trips
PINGS_S = 2.0  # s that they may take together, at least 5 of them
STREAM_S = 0.4  # s of a stream that are measured, at least
ROUND_TRIPS = 20  # of a stream that are measured, at least
WARM_UP = 0.4  # share of a stream that is not measured, while TCP finds its rate
CHUNK = 2**20  # bytes that are sent or received at once
UDP_HEADERS = 28  # bytes of IPv4 and UDP in a packet
SILENCE_S = 1.0  # s without a packet after which none is expected any more
TIMEOUT_S = 10.0  # s without an answer
PRIORITY = -15  # of the process (nice), so that others on a busy machine delay the measurement less
TOLERANCE = 0.1  # share by which a link may differ from its profile
UNDELAYED_MS = 0.2  # round trip up to which a link has no delay; 0.03 ms on a busy machine, 2026-11-26


def main(
    profile: dict[str, Any],
    workers: int,
    namespaces: Sequence[tuple[str, int, int]],
    addresses: Sequence[str],
) -> None:
    """Answer until standard input ends. `namespaces` are hosts as (name, inherited files)."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    network = Network.model_validate(profile)
    ways = {(path.source, path.target): path for path in topology.paths(network, workers)}
    hosts = [Namespace(*fields) for fields in namespaces]
    for line in sys.stdin:
        what, *pair = json.loads(line)
        source, target = map(int, pair)
        if what == "round_trips":
            answer = json.dumps(round_trips(hosts[source], hosts[target], addresses[target]))
        else:
            path, back = ways[source, target], ways[target, source]
            answer = measure(network, path, back, hosts, addresses).model_dump_json()
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def measure(
    network: Network, path: Path, back: Path, hosts: Sequence[Namespace], addresses: Sequence[str]
) -> LinkMeasurement:
    """Return round trip, bandwidth both ways and loss between the hosts of a path.

    `hosts` and `addresses` are in the order of the hosts' numbers. Bandwidth is counted on arrival, with
    packet headers as in a profile. It is that of one TCP stream or, since TCP does not reach the rate of a
    link with losses, of UDP.
    """
    rtt = round_trips(hosts[path.source], hosts[path.target], addresses[path.target])
    seconds = max(STREAM_S, ROUND_TRIPS * (path.delay_ms + back.delay_ms) / 1e3)
    lost: list[float] = []
    rates = []
    for way in (path, back):
        ends = hosts[way.source], hosts[way.target], addresses[way.target]
        if network.loss_percent:
            rate, share = datagrams(*ends, mbit_s=way.bandwidth_mbit_s, seconds=seconds)
            lost.append(share)
        else:
            rate = stream(*ends, seconds=seconds)
        rates.append(rate)
    return LinkMeasurement(
        source=path.source,
        target=path.target,
        round_trip_ms=statistics.median(rtt),
        round_trip_min_ms=min(rtt),
        bandwidth_mbit_s=rates[0],
        bandwidth_back_mbit_s=rates[1],
        lost_percent=100 * statistics.fmean(lost) if lost else None,
        expected_round_trip_ms=path.delay_ms + back.delay_ms,
        expected_bandwidth_mbit_s=path.bandwidth_mbit_s,
        expected_bandwidth_back_mbit_s=back.bandwidth_mbit_s,
    )


def deviations(measured: LinkMeasurement) -> list[str]:
    """Return the deviations from the profile above TOLERANCE, in words."""
    pairs = (
        ("the round trip", measured.round_trip_ms, measured.expected_round_trip_ms, "ms"),
        ("the bandwidth", measured.bandwidth_mbit_s, measured.expected_bandwidth_mbit_s, "Mbit/s"),
        (
            "the bandwidth back",
            measured.bandwidth_back_mbit_s,
            measured.expected_bandwidth_back_mbit_s,
            "Mbit/s",
        ),
    )
    return [
        f"{what} is {value:.4g} {unit} instead of {expected:.4g}"
        for what, value, expected, unit in pairs
        if abs(value - expected) > (TOLERANCE * expected or UNDELAYED_MS)
    ]


def round_trips(source: Namespace, target: Namespace, address: str) -> list[float]:
    """Return the times of round trips of one byte over TCP, ms."""
    times: list[float] = []
    with _connected(source, target, address) as (near, far):
        begin = clock.monotonic()
        while len(times) < PINGS and (len(times) < 5 or clock.monotonic() - begin < PINGS_S):
            before = clock.monotonic()
            near.sendall(b"p")
            far.recv(1)
            far.sendall(b"q")
            near.recv(1)
            times.append((clock.monotonic() - before) * 1e3)
    return times


def stream(source: Namespace, target: Namespace, address: str, *, seconds: float) -> float:
    """Return the arrival rate of one TCP connection's packets after its start, Mbit/s.

    The headers of full packets are added to its data. Neither end copies data (sendfile, MSG_TRUNC), so that
    the link alone is measured.
    """
    with _connected(source, target, address) as (near, far), open(os.memfd_create("probe"), "wb") as data:
        data.truncate(CHUNK)
        near.setblocking(True)

        def send() -> None:
            with suppress(OSError):  # the receiver has enough data
                while os.sendfile(near.fileno(), data.fileno(), 0, CHUNK):
                    pass

        thread = threading.Thread(target=send, name="probe")
        thread.start()
        try:
            buffer = bytearray(CHUNK)
            whole = seconds / (1 - WARM_UP)
            counted, first = 0, 0.0
            begin = now = clock.monotonic()
            while now - begin < whole:
                count = far.recv_into(buffer, CHUNK, socket.MSG_TRUNC)
                now = clock.monotonic()
                if now - begin < WARM_UP * whole:
                    first = now
                else:
                    counted += count
            return counted / TCP_DATA_SHARE * 8 / 1e6 / (now - first)
        finally:
            with suppress(OSError):
                near.shutdown(socket.SHUT_RDWR)
            far.close()
            thread.join()


def datagrams(
    source: Namespace, target: Namespace, address: str, *, mbit_s: float, seconds: float
) -> tuple[float, float]:
    """Return the rate at which packets arrive, Mbit/s with headers, and the share that was lost.

    They are first sent faster than the link. Then they are sent at half its rate, so that none waits and only
    the link loses packets.
    """
    arrived, _, span = _burst(source, target, address, mbit_s=1.5 * mbit_s, seconds=seconds)
    rate = (arrived - 1) * MTU * 8 / 1e6 / span
    arrived, sent, _ = _burst(source, target, address, mbit_s=0.5 * mbit_s, seconds=2 * seconds)
    return rate, 1 - arrived / sent


def _burst(
    source: Namespace, target: Namespace, address: str, *, mbit_s: float, seconds: float
) -> tuple[int, int, float]:
    """Send packets. Return the numbers of arrived and sent ones, and s from first to last arrival."""
    with _udp(source) as near, _udp(target) as far:
        far.bind((address, 0))
        far.settimeout(SILENCE_S)
        near.connect(far.getsockname())
        times: list[float] = []

        def receive() -> None:
            with suppress(TimeoutError):
                while far.recv(MTU):
                    times.append(clock.monotonic())

        thread = threading.Thread(target=receive, name="probe")
        thread.start()
        pause, sent, data = MTU * 8 / (mbit_s * 1e6), 0, bytes(MTU - UDP_HEADERS)
        begin = clock.monotonic()
        while (now := clock.monotonic()) - begin < seconds:
            while sent * pause <= now - begin:
                near.send(data)
                sent += 1
        thread.join()
    return len(times), sent, times[-1] - times[0]


@contextmanager
def _connected(
    source: Namespace, target: Namespace, address: str
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a TCP connection between two namespaces."""
    with target.entered():
        server = socket.create_server((address, 0))
    with server:
        with source.entered():
            near = socket.create_connection(server.getsockname(), timeout=TIMEOUT_S)
        with near, server.accept()[0] as far:
            for end in (near, far):
                end.settimeout(TIMEOUT_S)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield near, far


def _udp(namespace: Namespace) -> socket.socket:
    with namespace.entered():
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
