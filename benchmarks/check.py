"""How often `python -m mlbench.cluster check` names what is wrong with emulated machines, and nothing else.

    python benchmarks/check.py --runs 20          needs root, as network= does; two minutes a run
    python benchmarks/check.py --runs 1 slow_cpu

Four hosts whose links carry 100 Mbit/s in 1 ms; then one of them has a link of 40 Mbit/s, half a CPU where
the others have a whole, or a link that loses 2 % of the packets towards it.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from unittest import mock

from mlbench.clusters import reaper
from mlbench.config.compose import compose
from mlbench.plugins.emulation import cpu_share, links, user_space

MACHINES, ODD = 4, 2  # and the one with a fault, which differs from machine 0
LOSS = 0.02  # share of the packets
CARRY = "--carry"  # what the process of the links is started with
CASES = {  # by name, overrides of the network and what the only fault says
    "healthy": ((), ""),
    "slow_link": (("slow_bandwidth_mbit_s=40",), f"link of emulated{ODD} is slow"),
    "slow_cpu": (("slow_cpus=0.5",), f"emulated{ODD} is slow: its CPU"),
    "lossy_link": ((), f"link of emulated{ODD} loses"),
}


def faults(case: str) -> list[str]:
    """Check the emulated machines of a case once; return the faults that were named."""
    overrides = ["network=1gbit_1ms", "network.bandwidth_mbit_s=100", "network.cpus=1"]
    given = CASES[case][0]
    overrides += [f"network.{each}" for each in given] + [f"network.slow_rank={ODD}"] * bool(given)
    network = compose([*overrides, f"workers={MACHINES}"]).network
    lossy = case == "lossy_link"
    with ExitStack() as stack:
        if lossy:
            patch = mock.patch.object(user_space.Link, "command", lambda link: _words(link))
            stack.enter_context(patch)
        made = stack.enter_context(links.emulated(network, MACHINES, in_kernel=False if lossy else None))
        stack.callback(reaper.end, reaper.owner(), but=made.process.pid if made.process else None)
        processes = []
        for rank, host in enumerate(made.hosts):
            arguments = [sys.executable, "-m", "mlbench.cluster", "check", "--json", f"rank={rank}"]
            arguments += [f"machines={MACHINES}", f"address={made.addresses[0]}"]
            cpus = network.slow_cpus if rank == ODD and network.slow_cpus else network.cpus
            assert cpus is not None
            command = host.command(cpu_share.limited(arguments, host=rank, cpus=cpus))
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            processes.append(process)
        result = json.loads(processes[0].communicate()[0])
        codes = {process.wait() for process in processes}
        assert codes == {1 if result["faults"] else 0}, codes
        return result["faults"]


def _words(link: user_space.Link) -> list[str]:
    return [sys.executable, __file__, CARRY, json.dumps(asdict(link))]


class Lossy(user_space.CableQueue):
    """A cable that loses packets."""

    __slots__ = ()

    def end(self, arrival: float, size: int, before_s: float) -> float | None:
        return None if random.random() < LOSS else super().end(arrival, size, before_s)


def carry(link: user_space.Link) -> None:
    """Carry packets as the emulation's process does, over one cable that loses some."""
    names, cable = iter(link.rates), user_space.CableQueue
    lossy = f"host {ODD} down"
    made = lambda *values: (Lossy if next(names) == lossy else cable)(*values)  # noqa: E731
    with mock.patch.object(user_space, "CableQueue", made):
        user_space.main(link)


def right(case: str, sentences: Sequence[str]) -> bool:
    """Return whether the fault of a case was named, and nothing else."""
    expected = CASES[case][1]
    return len(sentences) == bool(expected) and all(expected in sentence for sentence in sentences)


def main(arguments: Sequence[str]) -> int:
    """Run each case so often and print how often the verdict was right; exit code 1 unless always."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: {' '.join(CASES)}")
    options = parser.parse_args(arguments)
    wrong = 0
    for case in options.cases or CASES:
        count = 0
        for _ in range(options.runs):
            sentences = faults(case)
            count += right(case, sentences)
            if not right(case, sentences):
                print(f"{case}: {sentences}", flush=True)
        print(f"{case}: right in {count} of {options.runs}", flush=True)
        wrong += options.runs - count
    return int(wrong > 0)


if __name__ == "__main__" and sys.argv[1] == CARRY:
    carry(user_space.Link(**json.loads(sys.argv[2])))
elif __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
