"""Emulate hosts on this machine: namespaces with a control network for Ray and emulated links.

As in testbeds like Emulab every host has two interfaces. `control` is fast and carries Ray's messages. `link`
carries the traffic between workers, and nothing else.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path as File
from typing import Any

from mlbench.clusters import reaper
from mlbench.config.errors import UserError
from mlbench.config.network import Network
from mlbench.plugins.emulation import kernel, namespace, probe, topology, user_space
from mlbench.plugins.emulation.measurement import LinkMeasurement
from mlbench.plugins.emulation.namespace import Namespace
from mlbench.plugins.emulation.packets import MTU

INTERFACE = "link"
CONTROL, DATA = "198.18.0", "198.19.0"  # RFC 2544 reserves 198.18.0.0/15 for benchmarks of networks
FIRST = 10  # last part of host 0's addresses
MOST_HOSTS = 200
CONGESTION_CONTROL = "cubic"  # Linux's default for TCP; with another one the comparison would change
CALIBRATIONS = 3  # rounds of measuring and correcting a delay
ATTEMPTS = 3  # of measuring the links until one is refused, since a busy machine delays packets at times
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "setpriv": "util-linux"}


@dataclass
class Links:
    """The hosts and their network. `switch` is the namespace of the control network's head.

    - kind: the emulation of the links, "netem" or "user space".
    - overhead_ms: the latest measured delay that the process in user space adds.
    """

    network: Network
    switch: Namespace
    hosts: list[Namespace]
    paths: list[topology.Path]
    kind: str
    process: subprocess.Popen[str] | None = None  # the links in user space
    prober: subprocess.Popen[str] | None = None
    overhead_ms: float = 0.0

    @property
    def addresses(self) -> list[str]:
        """The hosts' addresses on the emulated links."""
        return [address(DATA, host) for host in range(len(self.hosts))]

    def measure(self) -> list[LinkMeasurement]:
        """Measure every host's link, and every rack's. Raises UserError if one is off its profile."""
        pairs, wrong = _pairs(self.network, len(self.hosts)), []
        for attempt in range(ATTEMPTS):
            if attempt:
                self.calibrate()  # the overhead may have changed since the hosts started
            measurements = [self.probe(*pair) for pair in pairs]
            wrong = [measurement for measurement in measurements if probe.deviations(measurement)]
            if not wrong:
                return measurements
        raise UserError(
            f"network={self.network.name} cannot be emulated here now ({self.kind}): between hosts "
            f"{wrong[0].source} and {wrong[0].target} {', '.join(probe.deviations(wrong[0]))}",
            hint="a slower network, or a machine that is less busy or has more CPUs",
        )

    def probe(self, source: int, target: int) -> LinkMeasurement:
        """Measure the path between two hosts, both ways."""
        return LinkMeasurement.model_validate(self._ask("measure", source, target))

    def calibrate(self) -> None:
        """Subtract the overhead of the process in user space from the delay."""
        delay_ms = next(path.delay_ms for path in self.paths if (path.source, path.target) == (0, 1))
        for _ in range(CALIBRATIONS if self.process and delay_ms else 0):
            # The first quartile, since a busy machine slows some of them.
            quick, *_ = statistics.quantiles(self._ask("round_trips", 0, 1))
            self.overhead_ms = min(max(0.0, self.overhead_ms + quick / 2 - delay_ms), delay_ms)
            assert self.process is not None and self.process.stdin is not None
            self.process.stdin.write(f"{self.overhead_ms / 1e3}\n")
            self.process.stdin.flush()

    def _ask(self, *question: str | int) -> Any:
        """Return the answer of the measuring process."""
        assert self.prober is not None and self.prober.stdin is not None and self.prober.stdout is not None
        self.prober.stdin.write(json.dumps(question) + "\n")
        self.prober.stdin.flush()
        answer = self.prober.stdout.readline()
        if not answer:
            raise UserError("the links between the emulated hosts could not be measured", hint="see above")
        return json.loads(answer)


def address(subnet: str, host: int) -> str:
    """Return a host's address."""
    return f"{subnet}.{FIRST + host}"


HEAD = f"{CONTROL}.1"  # address of the driver and of Ray's head on the control network


def require(network: Network, workers: int) -> None:
    """Raise UserError if hosts cannot be emulated on this machine."""
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise UserError(f"network={network.name} needs the program {tool}", hint=f"install {package}")
    if topology.hosts(network, workers) > MOST_HOSTS:
        raise UserError(f"network={network.name}: at most {MOST_HOSTS} hosts", hint="give network.hosts=")
    namespace.create("probe").close()


@contextmanager
def emulated(network: Network, workers: int, *, in_kernel: bool | None = None) -> Iterator[Links]:
    """Make the hosts and their links. They end with the block, or with this process.

    `in_kernel`: emulation by the kernel's netem or in user space. None: by netem if the kernel has it.
    """
    require(network, workers)
    reaper.reap()
    count = topology.hosts(network, workers)
    with ExitStack() as stack:
        names = ("switch", *(f"emulated{host}" for host in range(count)))
        switch, *hosts = (stack.enter_context(closing(namespace.create(name))) for name in names)
        paths = list(topology.paths(network, workers))
        kind = "netem" if in_kernel or (in_kernel is None and kernel.has_netem(switch)) else "user space"
        links = Links(network, switch, hosts, paths, kind)
        connect(switch, hosts)
        if kind == "netem":
            lines = kernel.commands(network, paths, hosts, links.addresses, INTERFACE)
            for target, line in lines:
                _run(target or switch, line.split())
        else:
            _start_user_space(links, stack)
        for host in hosts:
            with host.entered(), suppress(OSError):
                File("/proc/sys/net/ipv4/tcp_congestion_control").write_text(CONGESTION_CONTROL)
        _start_prober(links, workers, stack)
        links.calibrate()
        yield links


def connect(switch: Namespace, hosts: Sequence[Namespace]) -> None:
    """Make the control network: a bridge in the switch's namespace with the head's address."""
    lines = ["link set lo up", "link add control type bridge", f"addr add {HEAD}/24 dev control"]
    lines.append("link set control up")
    for host, host_namespace in enumerate(hosts):
        lines += [
            f"link add control{host} type veth peer name control netns {host_namespace.path}",
            f"link set control{host} master control up",
        ]
    _ip(switch, lines)
    for host, host_namespace in enumerate(hosts):
        own = address(CONTROL, host)
        _ip(host_namespace, ["link set lo up", f"addr add {own}/24 dev control", "link set control up"])


def _start_user_space(links: Links, stack: ExitStack) -> None:
    """Start the process that carries packets between TUN devices. It ends with the stack."""
    network = links.network
    tuns: list[int] = []
    try:
        for host, own in zip(links.hosts, links.addresses, strict=True):
            with host.entered():
                tuns.append(user_space.open_tun(INTERFACE, large=not network.loss_percent))
            lines = [
                f"addr add {own}/24 dev {INTERFACE}",
                f"link set dev {INTERFACE} mtu {MTU} txqueuelen 2000 up",
            ]
            _ip(host, lines)
        command = user_space.Link(
            tuns=tuns,
            addresses=links.addresses,
            paths=[(p.source, p.target, [c.name for c in p.cables], p.delay_ms / 1e3) for p in links.paths],
            rates={c.name: c.bandwidth_mbit_s * 1e6 / 8 for path in links.paths for c in path.cables},
            queue_s=network.queue_ms / 1e3,
            jitter_s=network.jitter_ms / 1e3,
            loss=network.loss_percent / 100,
        ).command()
        process = stack.enter_context(_child_process(command, tuns))
    except OSError as error:
        raise UserError(
            f"network={network.name} needs TUN devices: {error.strerror or error}",
            hint="`modprobe tun`, and let this container use /dev/net/tun",
        ) from error
    finally:
        for tun in tuns:
            os.close(tun)
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        raise UserError("the links between the emulated hosts did not start", hint="read the lines above")
    links.process = process


def _start_prober(links: Links, workers: int, stack: ExitStack) -> None:
    """Start the process that measures the links. It ends with the stack."""
    arguments = {
        "profile": links.network.model_dump(),
        "workers": workers,
        "namespaces": [(host.hostname, host.net, host.uts) for host in links.hosts],
        "addresses": links.addresses,
    }
    command = [sys.executable, "-m", probe.__name__, json.dumps(arguments)]
    files = [file for host in links.hosts for file in (host.net, host.uts)]
    links.prober = stack.enter_context(_child_process(command, files))


@contextmanager
def _child_process(command: Sequence[str], files: Sequence[int]) -> Iterator[subprocess.Popen[str]]:
    """Run a process that inherits open files. It ends with the block, or with the thread that started it."""
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=files,
        env={**os.environ, **reaper.environment()},
        start_new_session=True,  # only the driver gets Ctrl-C, and it ends the links last
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            with suppress(OSError):  # input that is not sent yet
                pipe.close()


def _pairs(network: Network, count: int) -> list[tuple[int, int]]:
    """Return pairs that include every host, and two hosts of every two neighbouring racks."""
    pairs = [(host, host + 1) for host in range(0, count - 1, 2)]
    pairs += [(count - 1, 0)] if count % 2 else []
    first = {topology.rack_of(host, network, count): host for host in reversed(range(count))}
    pairs += [(first[a], first[b]) for a, b in pairwise(sorted(first))]
    return list(dict.fromkeys(pairs))


def _ip(target: Namespace, lines: Sequence[str]) -> None:
    """Run lines of `ip` in a namespace."""
    _run(target, ["ip", "-batch", "-"], "\n".join(lines))


def _run(target: Namespace, arguments: Sequence[str], text: str = "") -> None:
    done = subprocess.run(target.command(arguments), input=text, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise UserError(
            f"emulated hosts could not be connected: {reason}", hint="run it as root, with CAP_NET_ADMIN"
        )
