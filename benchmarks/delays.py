"""How many one-way delays gloo's collectives take, over emulated links, by workers, racks and bytes.

    python benchmarks/delays.py
    python benchmarks/delays.py --collectives broadcast all_gather

Needs what `network=` needs (docs/communication.md). Calls follow each other without a barrier,
as steps do. An all_reduce is predicted as a ring of 2 (k - 1) hops (Thakur et al. 2005), each of two delays
and the bytes of a k-th part. Over racks the delay is that between two of them.
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
from mlbench.plugins.emulation import links
from mlbench.plugins.emulation.packets import TCP_DATA_SHARE

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
    parser.add_argument("--collectives", nargs="+", default=["all_reduce"], choices=COLLECTIVES)
    parser.add_argument("--rank", nargs=3, metavar=("RANK", "WORLD", "ADDRESS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank:
        rank(*options.rank, options=options)
        return 0
    print(origin(__file__, arguments), end="\n\n")
    print("| hosts | racks | delay, ms | collective | bytes | ms a call | ring | error |")
    print("|--:|--:|--:|---|--:|--:|--:|--:|", flush=True)
    for hosts, racks, inside_ms, more_ms in CASES:
        overrides = [f"delay_ms={inside_ms}", f"racks={racks}", f"rack_delay_ms={more_ms}"]
        overrides += [f"bandwidth_mbit_s={MBIT_S}"]
        network = compose(["network=1gbit_1ms", *(f"network.{word}" for word in overrides)]).network
        delay = f"{inside_ms:g} + {more_ms:g}" if more_ms else f"{inside_ms:g}"
        for (collective, size), call_s in measure(network, hosts, options).items():
            part_ms = 4 * size / hosts * 8 / (MBIT_S * 1e3 * TCP_DATA_SHARE)
            ring_ms = 2 * (hosts - 1) * (2 * (inside_ms + more_ms) + part_ms)
            cells = [hosts, racks, delay, collective, f"{4 * size:,}", f"{1e3 * call_s:.2f}"]
            if collective == "all_reduce":
                cells += [f"{ring_ms:.2f}", f"{ring_ms / (1e3 * call_s) - 1:+.0%}"]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return 0


def measure(network: links.Network, hosts: int, options: argparse.Namespace) -> dict[tuple[str, int], float]:
    """Return the seconds of a call by collective and number of elements, of the slowest rank."""
    command = [sys.executable, __file__, "--calls", str(options.calls), "--collectives", *options.collectives]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": links.INTERFACE}
    with links.emulated(network, hosts) as emulated:
        processes = [
            subprocess.Popen(
                host.command([*command, "--rank", str(i), str(hosts), emulated.addresses[0]]),
                env=environment, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True,
            )
            for i, host in enumerate(emulated.hosts)
        ]  # fmt: skip
        outputs = [process.communicate(timeout=600)[0].split() for process in processes]
    keys = [(collective, size) for collective in options.collectives for size in SIZES]
    return {key: max(float(output[i]) for output in outputs) for i, key in enumerate(keys)}


def rank(number: str, world: str, address: str, *, options: argparse.Namespace) -> None:
    """Print the median seconds of a call, one collective and size a line."""
    from time import perf_counter

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    arguments = {"init_method": f"tcp://{address}:29500", "rank": int(number), "world_size": int(world)}
    dist.init_process_group("gloo", **arguments)
    for collective in options.collectives:
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
            for _ in range(5 + options.calls):
                values.fill_(1)
                begin = perf_counter()
                call()
                times.append(perf_counter() - begin)
            print(median(times[5:]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
