"""How many one-way delays gloo's collectives take, over emulated links, by workers, racks and bytes.

    python benchmarks/delays.py

Needs what `network=` needs (docs/measurements/communication.md). Calls follow each other without a barrier,
as steps do. Delays are a call's seconds, less what its bytes need on the link, over the delay: a ring whose
buffers are ready takes 2 (k - 1) (Thakur et al. 2005). Over racks the delay is that between two of them.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from origin import origin

from mlbench.config.compose import compose
from mlbench.wings.emulation import links
from mlbench.wings.emulation.packets import TCP_DATA_SHARE

SIZES = (200, 2_500, 25_000, 250_000, 1_000_000)  # float32 elements
COLLECTIVES = ("all_reduce", "broadcast", "all_gather")
MBIT_S = 1000
# hosts, racks, ms inside a rack, ms more between racks
CASES = ((2, 1, 0.5, 0.0), (2, 1, 5.0, 0.0), (3, 1, 5.0, 0.0), (4, 1, 0.5, 0.0), (4, 1, 5.0, 0.0))
CASES += ((4, 2, 0.5, 4.5), (8, 1, 5.0, 0.0), (8, 2, 0.5, 4.5))


def main(arguments: Sequence[str]) -> int:
    """Measure and print a row for each case, collective and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--rank", nargs=3, metavar=("RANK", "WORLD", "ADDRESS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank:
        rank(*options.rank, calls=options.calls)
        return 0
    print(origin(__file__, arguments), end="\n\n")
    print("| hosts | racks | delay, ms | collective | bytes | ms a call | delays | ring |")
    print("|--:|--:|--:|---|--:|--:|--:|--:|", flush=True)
    for hosts, racks, inside_ms, more_ms in CASES:
        words = [f"delay_ms={inside_ms}", f"racks={racks}", f"rack_delay_ms={more_ms}"]
        words += [f"bandwidth_mbit_s={MBIT_S}"]
        network = compose(["network=1gbit_1ms", *(f"network.{one}" for one in words)]).network
        seconds = measure(network, hosts, options.calls)
        delay_ms = inside_ms + more_ms
        for (collective, size), call_s in seconds.items():
            volume = {"all_reduce": 2 * (hosts - 1) / hosts, "broadcast": 1, "all_gather": hosts - 1}
            wire_ms = 4 * size * volume[collective] * 8 / (MBIT_S * 1e3 * TCP_DATA_SHARE)
            delays = (1e3 * call_s - wire_ms) / delay_ms
            cells = (hosts, racks, f"{inside_ms:g} + {more_ms:g}" if more_ms else f"{delay_ms:g}")
            row = (*cells, collective, f"{4 * size:,}", f"{1e3 * call_s:.2f}", f"{delays:.2f}")
            print(f"| {' | '.join(map(str, row))} | {2 * (hosts - 1)} |", flush=True)
    return 0


def measure(network: links.Network, hosts: int, calls: int) -> dict[tuple[str, int], float]:
    """Return the seconds of a call by collective and number of elements, of the slowest rank."""
    with links.emulated(network, hosts) as made:
        words = [sys.executable, __file__, "--calls", str(calls), "--rank"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": links.INTERFACE, "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                host.command([*words, str(number), str(hosts), made.addresses[0]]),
                env=environment, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True,
            )
            for number, host in enumerate(made.hosts)
        ]  # fmt: skip
        outputs = [process.communicate(timeout=600)[0].split() for process in processes]
    keys = [(collective, size) for collective in COLLECTIVES for size in SIZES]
    return {key: max(float(output[i]) for output in outputs) for i, key in enumerate(keys)}


def rank(number: str, world: str, address: str, *, calls: int) -> None:
    """Print the median seconds of a call, one collective and size a line."""
    from time import perf_counter

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    place = {"init_method": f"tcp://{address}:29500", "rank": int(number), "world_size": int(world)}
    dist.init_process_group("gloo", **place)
    for collective in COLLECTIVES:
        for size in SIZES:
            values = torch.ones(size)
            parts = [torch.empty(size) for _ in range(int(world))]
            call = {
                "all_reduce": lambda values=values: dist.all_reduce(values),
                "broadcast": lambda values=values: dist.broadcast(values, 0),
                "all_gather": lambda values=values, parts=parts: dist.all_gather(parts, values),
            }[collective]
            dist.barrier()
            times = []
            for _ in range(5 + calls):
                values.fill_(1)
                begin = perf_counter()
                call()
                times.append(perf_counter() - begin)
            print(median(times[5:]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
