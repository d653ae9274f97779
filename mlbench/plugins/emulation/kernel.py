"""Make the links of emulated hosts in the kernel: veth pairs, bridges, and the queueing discipline netem.

netem(8) of iproute2 adds bandwidth, delay, jitter and loss to packets that leave an interface. Not every
kernel has it. A path's delay, jitter and losses are on its first cable: the sum of two uniform jitters is not
uniform.
"""

import subprocess
from collections.abc import Iterator, Sequence

from mlbench.config.network import Network
from mlbench.plugins.emulation.namespace import Namespace
from mlbench.plugins.emulation.packets import ETHERNET_HEADER, MTU
from mlbench.plugins.emulation.topology import Path, rack_of


def has_netem(namespace: Namespace) -> bool:
    """Return whether the kernel has netem, tried on an interface of a namespace."""
    tried = subprocess.run(
        namespace.command(["tc", "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1us"]),
        capture_output=True,
    )
    subprocess.run(namespace.command(["tc", "qdisc", "del", "dev", "lo", "root"]), capture_output=True)
    return tried.returncode == 0


def commands(
    network: Network,
    paths: Sequence[Path],
    hosts: Sequence[Namespace],
    addresses: Sequence[str],
    interface: str,
) -> Iterator[tuple[Namespace | None, str]]:
    """Yield namespace (None: the switches') and line of each call of `ip` or `tc` that makes the links."""
    rates = {cable.name: cable.bandwidth_mbit_s for path in paths for cable in path.cables}
    racks = sorted({rack_of(host, network, len(hosts)) for host in range(len(hosts))})
    for rack in racks:
        yield None, f"ip link add rack{rack} type bridge"
        yield None, f"ip link set rack{rack} up"
    if len(racks) > 1:
        yield None, "ip link add core type bridge"
        yield None, "ip link set core up"
        for rack in racks:
            yield None, f"ip link add up{rack} type veth peer name down{rack}"
            yield None, f"ip link set up{rack} master rack{rack} up"
            yield None, f"ip link set down{rack} master core up"
            for end in ("up", "down"):
                rate = rates[f"rack {rack} {end}"]
                yield None, _netem(network, f"{end}{rack}", rate, network.rack_delay_ms / 2)
    for host, namespace in enumerate(hosts):
        rack = rack_of(host, network, len(hosts))
        yield None, f"ip link add host{host} type veth peer name {interface} netns {namespace.path}"
        yield None, f"ip link set host{host} master rack{rack} up"
        yield namespace, f"ip addr add {addresses[host]}/24 dev {interface}"
        # netem drops whole packets, which for TCP have up to 64 KiB. With losses they have one segment each.
        single = " gso_max_segs 1" if network.loss_percent else ""
        yield namespace, f"ip link set dev {interface}{single} up"
        up, down = rates[f"host {host} up"], rates[f"host {host} down"]
        yield namespace, _netem(network, interface, up, network.delay_ms, path=True)
        # Packets that leave a switch's port go down to the host.
        yield None, _netem(network, f"host{host}", down, 0.0)


def _netem(network: Network, interface: str, mbit_s: float, delay_ms: float, *, path: bool = False) -> str:
    jitter_ms, loss = (network.jitter_ms, network.loss_percent) if path else (0.0, 0.0)
    seconds = (network.queue_ms + delay_ms + jitter_ms) / 1e3
    limit = max(100, round(mbit_s * 1e6 / 8 / MTU * seconds))
    rate = mbit_s * 1e6 * (1 + ETHERNET_HEADER / MTU)
    command = f"tc qdisc add dev {interface} root netem rate {rate:.0f}bit limit {limit}"
    command += f" delay {delay_ms * 1e3:.0f}us" + (f" {jitter_ms * 1e3:.0f}us" if jitter_ms else "")
    return command + (f" loss {loss:.6f}%" if loss else "")
