"""Emulate a network of hosts in user space: one process carries packets between their TUN devices.

`python -m mlbench.plugins.emulation.user_space` takes a JSON object of `Link` as its argument. It ends when
its standard input does. A line on standard input is the overhead of the process itself on a path's delay, s,
which it then subtracts from the delay. The overhead is 0 before the first line.

- A cable passes one packet after the other at its bandwidth, which counts IP packets with their headers. It
  drops packets that would wait longer than the queue is long (drop-tail). A packet is on the next cable as
  soon as it is on the first (cut-through), so equal cables add no time.
- The delay comes after the cables. Jitter is uniform around it. A path never reorders.
- A loss is of single packets of the MTU. Without loss TCP's packets have up to 64 KiB: the kernel leaves
  their segmentation to the device (TSO, as with a network card). Only this makes Gbit/s possible here.

TUN: Documentation/networking/tuntap.rst. Header of its packets: linux/virtio_net.h.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from mlbench import clock
from mlbench.plugins.emulation.packets import TCP_HEADERS

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0  # linux/if_tun.h
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
HEADER = 10  # bytes of struct virtio_net_hdr before each packet
MOST_BYTES = HEADER + 2**16
BURST = 32  # packets read from one host before the others have their turn
EARLY_S = 2e-5  # s that a packet may leave early, less than a turn of the loop takes
# s up to which the process waits for a packet's time without sleeping, if a delay is that short. Waking up
# takes about as long, and round trips of 0.2 ms came out as 0.14 to 0.31 ms (virtual machine, 2026-11-22).
SPIN_S = 1.2e-4


@dataclass(frozen=True)
class Link:
    """The emulation of the process. `tuns` are inherited files, one a host, with the addresses `addresses`.

    - paths: (source, target, names of cables, s of delay) for each ordered pair of hosts.
    - rates: bytes/s of each cable.
    """

    tuns: Sequence[int]
    addresses: Sequence[str]
    paths: Sequence[tuple[int, int, Sequence[str], float]]
    rates: dict[str, float]
    queue_s: float
    jitter_s: float
    loss: float

    def command(self) -> list[str]:
        """Return the command."""
        return [sys.executable, "-m", __name__, json.dumps(asdict(self))]


def open_tun(name: str, *, large: bool) -> int:
    """Make a TUN device in this thread's namespace. If `large`, its packets may have up to 64 KiB."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tun, TUNSETOFFLOAD, TUN_F_CSUM | (TUN_F_TSO4 if large else 0))
    return tun


class CableQueue:
    """One direction of a cable. At `free`, in the clock's s, it has passed all packets so far."""

    __slots__ = ("free", "queue_s", "rate")

    def __init__(self, rate: float, queue_s: float) -> None:
        self.rate, self.queue_s, self.free = rate, queue_s, 0.0

    def end(self, arrival: float, size: int, before_s: float) -> float | None:
        """Return when the last byte of a packet has passed, or None if the queue is full.

        `before_s` is the time on the cable before: the first byte arrives that much before the last.
        """
        start = max(self.free, arrival - before_s)
        if start - arrival > self.queue_s:
            return None
        self.free = max(start + size / self.rate, arrival)
        return self.free


class Route:
    """The route of packets from one host to another."""

    __slots__ = ("cables", "delay_s", "last", "target")

    def __init__(self, cables: Sequence[CableQueue], delay_s: float, target: int) -> None:
        self.cables, self.delay_s, self.target, self.last = cables, delay_s, target, 0.0


class Forwarder:
    """Forwards the packets under way."""

    def __init__(self, link: Link) -> None:
        cables = {name: CableQueue(rate, link.queue_s) for name, rate in link.rates.items()}
        self.routes: dict[int, dict[bytes, Route]] = {tun: {} for tun in link.tuns}
        for source, target, names, delay_s in link.paths:
            route = Route([cables[name] for name in names], delay_s, link.tuns[target])
            self.routes[link.tuns[source]][socket.inet_aton(link.addresses[target])] = route
        self.jitter_s, self.loss, self.overhead_s = link.jitter_s, link.loss, 0.0
        self._events: list[tuple[float, int, int, float, Route, bytes, int]] = []
        self._number = 0

    def next(self) -> float:
        """Return the time of the next event, infinite while no packet is under way."""
        return self._events[0][0] if self._events else float("inf")

    def take(self, tun: int) -> None:
        """Read the packets of a host."""
        routes, now = self.routes[tun], clock.monotonic()
        for _ in range(BURST):
            try:
                packet = os.read(tun, MOST_BYTES)
            except OSError:
                return
            route = routes.get(packet[HEADER + 16 : HEADER + 20])
            if route is None or packet[HEADER] >> 4 != 4:
                continue
            if self.loss and random.random() < self.loss:
                continue
            self._pass(now, 0, 0.0, route, packet, wire_bytes(packet))

    def work(self) -> None:
        """Process all events that are due."""
        due = clock.monotonic() + EARLY_S
        events = self._events
        while events and events[0][0] <= due:
            time, _, stage, before_s, route, packet, size = heapq.heappop(events)
            if stage < len(route.cables):
                self._pass(time, stage, before_s, route, packet, size)
            else:
                try:
                    os.write(route.target, packet)
                except OSError:  # its device's queue is full, or the device is gone
                    continue

    def _pass(self, time: float, stage: int, before_s: float, route: Route, packet: bytes, size: int) -> None:
        cable = route.cables[stage]
        end = cable.end(time, size, before_s)
        if end is None:
            return
        if stage + 1 == len(route.cables):
            end += max(0.0, route.delay_s - self.overhead_s)
            if self.jitter_s:
                end = max(route.last, end + random.uniform(-self.jitter_s, self.jitter_s))
                route.last = end
        self._number += 1
        event = (end, self._number, stage + 1, size / cable.rate, route, packet, size)
        heapq.heappush(self._events, event)


def wire_bytes(packet: bytes) -> int:
    """Return the bytes of the IP packets that a packet of the device contains."""
    size = len(packet) - HEADER
    segment = packet[4] | packet[5] << 8  # gso_size: bytes of data a segment
    if packet[1] == 0 or not segment:
        return size
    return size + (-(-(size - TCP_HEADERS) // segment) - 1) * TCP_HEADERS


class Timer:
    """A timer as a file (timerfd, in Python from 3.13 on), more exact than a poll's time-out in ms."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._libc.timerfd_create(1, os.O_NONBLOCK | os.O_CLOEXEC)  # CLOCK_MONOTONIC

    def set(self, seconds: float) -> None:
        """Fire once, so many seconds from now."""
        whole, part = divmod(max(1, int(seconds * 1e9)), 10**9)
        self._libc.timerfd_settime(self.descriptor, 0, struct.pack("qqqq", 0, 0, whole, part), None)

    def clear(self) -> None:
        """Clear a timer that has fired."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, 8)


def main(link: Link) -> None:
    """Carry packets until standard input ends."""
    forwarder, timer, control = Forwarder(link), Timer(), sys.stdin.fileno()
    poll = select.epoll()
    for descriptor in (*link.tuns, timer.descriptor, control):
        poll.register(descriptor, select.EPOLLIN)
    spin_s = SPIN_S if min(delay_s for *_, delay_s in link.paths) < SPIN_S else 0.0
    with suppress(OSError, AttributeError):  # a delay must not depend on other processes on this machine
        if spin_s:
            # The kernel stops a real-time process that never sleeps for 50 ms of every second, so that others
            # can run on its CPU (sched(7)).
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        else:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.write(1, b"ready\n")
    armed, sleep = float("inf"), True
    while True:
        for descriptor, _ in poll.poll(None if sleep else 0):
            if descriptor == timer.descriptor:
                timer.clear()
                armed = float("inf")
            elif descriptor == control:
                lines = os.read(control, 4096).split()
                if not lines:
                    return
                forwarder.overhead_s = float(lines[-1])
            else:
                forwarder.take(descriptor)
        forwarder.work()
        due = forwarder.next()
        wait = due - clock.monotonic()
        sleep = wait > spin_s
        if sleep and due < armed:
            armed = due
            timer.set(wait)


if __name__ == "__main__":
    main(Link(**json.loads(sys.argv[1])))
