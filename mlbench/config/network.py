"""The network between the workers: the machines' network, or the links of emulated hosts on this machine."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt

Cpus = Annotated[float, Field(ge=0.1)]  # the kernel's least quota is 1 ms, in a period of 10 ms


class Network(BaseModel):
    """The properties of a link between two hosts. `bandwidth_mbit_s` None emulates nothing.

    A bandwidth is that of each direction and counts IP packets with their headers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    hosts: PositiveInt | None  # emulated hosts. None: one a worker
    bandwidth_mbit_s: PositiveFloat | None  # from a host into the network
    bandwidth_down_mbit_s: PositiveFloat | None  # from the network into a host. None: the same
    delay_ms: NonNegativeFloat  # one way, from host to host
    jitter_ms: NonNegativeFloat  # most by which a delay is shorter or longer
    loss_percent: Annotated[float, Field(ge=0, lt=100)]  # of the packets
    queue_ms: PositiveFloat  # most that a packet waits for a cable before it is dropped
    cpus: Cpus | None  # CPUs of a host. None: all hosts share this machine's
    racks: PositiveInt  # switches that the hosts are dealt out to. 1: all hosts on one
    rack_bandwidth_mbit_s: PositiveFloat | None  # of the cable between a rack and the others. None: a host's
    rack_delay_ms: NonNegativeFloat  # in addition, between hosts of two racks
    slow_rank: Annotated[int, Field(ge=0)] | None  # the rank whose host is slower than the others
    slow_bandwidth_mbit_s: PositiveFloat | None  # of its link
    slow_cpus: Cpus | None  # of its host

    @property
    def emulated(self) -> bool:
        """Whether the workers run on emulated hosts."""
        return self.bandwidth_mbit_s is not None

    def __str__(self) -> str:
        if self.bandwidth_mbit_s is None:
            return self.name
        parts = [f"{_rate(self.bandwidth_mbit_s)} and {self.delay_ms:g} ms"]
        if self.bandwidth_down_mbit_s not in (None, self.bandwidth_mbit_s):
            parts.append(f"{_rate(self.bandwidth_down_mbit_s)} down")
        parts += [f"jitter {self.jitter_ms:g} ms"] if self.jitter_ms else []
        parts += [f"loss {self.loss_percent:g} %"] if self.loss_percent else []
        parts += [f"{self.cpus:g} CPUs a host"] if self.cpus else []
        if self.racks > 1:
            rate = _rate(self.rack_bandwidth_mbit_s or self.bandwidth_mbit_s)
            parts.append(f"{self.racks} racks at {rate} and {self.rack_delay_ms:g} ms more")
        if self.slow_rank is not None:
            slow = [_rate(self.slow_bandwidth_mbit_s)] if self.slow_bandwidth_mbit_s else []
            slow += [f"{self.slow_cpus:g} CPUs"] if self.slow_cpus else []
            parts.append(f"rank {self.slow_rank} at {' and '.join(slow)}")
        return ", ".join(parts)


def idle(network: Network) -> str | None:
    """Return an error if a value describes links while none is emulated. None if all is well."""
    plain, values = HOST.model_dump(), network.model_dump(exclude={"name", "queue_ms"})
    names = [name for name, value in values.items() if value != plain[name]]
    if network.emulated or not names:
        return None
    return f"network.{names[0]}: network={network.name} does not emulate links: choose a network that does"


def _rate(mbit_s: float) -> str:
    return f"{mbit_s / 1000:g} Gbit/s" if mbit_s >= 1000 else f"{mbit_s:g} Mbit/s"


HOST = Network(  # of records from before there were emulated networks, as conf/network/host.yaml
    name="host",
    hosts=None,
    bandwidth_mbit_s=None,
    bandwidth_down_mbit_s=None,
    delay_ms=0,
    jitter_ms=0,
    loss_percent=0,
    queue_ms=100,
    cpus=None,
    racks=1,
    rack_bandwidth_mbit_s=None,
    rack_delay_ms=0,
    slow_rank=None,
    slow_bandwidth_mbit_s=None,
    slow_cpus=None,
)
