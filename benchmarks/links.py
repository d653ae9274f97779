"""What the links of emulated hosts carry, a profile a row, and what the process that carries them takes.

    python benchmarks/links.py --rounds 5 100mbit_5ms 1gbit_1ms 7.5gbit

Needs what `network=` needs (docs/communication.md). Round trip and bandwidth as before every
run, then streams of 3 s one way and both ways at once: rates with headers, the longest time in which a
receiver got nothing, and the CPU time of the process in user space, of one CPU. Lowest and highest of the
rounds.
"""

import argparse
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
from origin import origin

from mlbench import clock
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.plugins.emulation.links import Links, emulated
from mlbench.plugins.emulation.packets import TCP_DATA_SHARE

STREAM_S = 3.0  # s; the kernel's limit of real-time processes acts once a second
CHUNK = 2**20  # bytes
COLUMNS = (
    "round trip, ms",
    "there, Mbit/s",
    "back, Mbit/s",
    "one stream, Mbit/s",
    "longest pause, ms",
    "CPU, user",
    "CPU, kernel",
    "both ways at once: each, Mbit/s",
    "longest pause, ms",
    "CPU, user",
    "CPU, kernel",
)


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table; exit code 1 where a profile cannot be emulated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("profiles", nargs="*", metavar="PROFILE")
    options = parser.parse_args(arguments)
    print(origin(__file__, arguments), end="\n\n")
    print(f"| profile | {' | '.join(COLUMNS)} |\n|---{'|--:' * len(COLUMNS)}|")
    status = 0
    for name in options.profiles or ["100mbit_5ms", "1gbit_1ms", "7.5gbit"]:
        rounds = []
        try:
            for _ in range(options.rounds):
                with emulated(compose([f"network={name}"]).network, 2) as links:
                    rounds.append(measure(links))
        except UserError as error:
            print(error, file=sys.stderr)
            status = 1
            continue
        cells = [span([value for row in rounds for value in row[column]]) for column in range(len(COLUMNS))]
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)
    return status


def measure(links: Links) -> list[list[float]]:
    """Return one round's values, a list a column."""
    (link,) = links.measure()
    row = [[link.round_trip_ms], [link.bandwidth_mbit_s], [link.bandwidth_back_mbit_s]]
    for ways in ([(0, 1)], [(0, 1), (1, 0)]):
        before, begin = cpu_times(links), clock.monotonic()
        with ThreadPoolExecutor(len(ways)) as threads:
            streams = list(threads.map(lambda way: stream(links, *way), ways))
        seconds = clock.monotonic() - begin
        shares = [(after - value) / seconds for after, value in zip(cpu_times(links), before, strict=True)]
        row += [list(values) for values in zip(*streams, strict=True)]
        row += [[share] for share in shares]
    return row


def stream(links: Links, source: int, target: int) -> tuple[float, float]:
    """Return the rate (Mbit/s, with headers) and the longest pause (ms) of a TCP stream between two hosts."""
    with links.hosts[target].entered():
        server = socket.create_server((links.addresses[target], 0))
    with links.hosts[source].entered():
        near = socket.create_connection(server.getsockname())
    far = server.accept()[0]
    with server, near, far, ThreadPoolExecutor(1) as sender:
        sender.submit(send, near)
        buffer, count, longest = bytearray(CHUNK), 0, 0.0
        begin = now = clock.monotonic()
        while now - begin < STREAM_S:
            count += far.recv_into(buffer, CHUNK, socket.MSG_TRUNC)  # tcp(7): counted, not copied
            last, now = now, clock.monotonic()
            longest = max(longest, now - last)
        near.shutdown(socket.SHUT_RDWR)
    return count / TCP_DATA_SHARE * 8 / 1e6 / (now - begin), longest * 1e3


def send(near: socket.socket) -> None:
    """Send until the connection ends."""
    data = bytes(CHUNK)
    with suppress(OSError):
        while True:
            near.sendall(data)


def cpu_times(links: Links) -> tuple[float, float]:
    """Return the CPU time that the process in user space has had, s in its own code and in the kernel."""
    if links.process is None:  # netem
        return 0.0, 0.0
    times = psutil.Process(links.process.pid).cpu_times()
    return times.user, times.system


def span(values: Sequence[float]) -> str:
    """Return the lowest and highest of some values."""
    lowest, highest = (
        f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (min(values), max(values))
    )
    return lowest if lowest == highest else f"{lowest} to {highest}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
