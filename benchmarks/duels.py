"""How often a duel is wrong, and how many pairs it needs: `python benchmarks/duels.py` prints the tables of
docs/statistics.md; `--levels` the constants of mlbench/analysis/duel.py; `--noise RUNS` uses recorded runs.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy.special import stdtr

from mlbench.analysis import duel
from mlbench.analysis.duel import Array

Noise = Callable[[tuple[int, int]], Array]  # of logarithmic ratios [duels, pairs]
CHUNK = 20_000


def nominal(logs: Array) -> Array:
    """Return the two-sided level of each look for duels of logarithmic ratios [duels, pairs]."""
    levels = []
    for look in duel.LOOKS:
        some = logs[:, :look]
        if look < duel.RANKED:
            error = np.maximum(some.std(axis=1, ddof=1), duel.FINEST) / np.sqrt(look)
            levels.append(2 * stdtr(look - 1, -np.abs(some.mean(axis=1)) / error))
        else:
            ranks = np.abs(some).argsort(axis=1).argsort(axis=1) + 1
            least = (look * (look + 1) / 2 - np.abs((ranks * np.sign(some)).sum(axis=1))) / 2
            shares = duel.signed_ranks(look)[np.ceil(least).astype(int)]
            levels.append(np.minimum(1.0, 2 * shares))
    return np.stack(levels, axis=1)


def pairs(noise: Noise, count: int, effect: float = 0.0) -> Iterator[Array]:
    """Yield the logarithmic ratios of duels, a block at a time."""
    for begin in range(0, count, CHUNK):
        yield noise((min(CHUNK, count - begin), duel.MOST_PAIRS)) + effect


def levels(count: int) -> dict[float, float]:
    """Return the level of each look for each share of duels of equal commands."""
    random = np.random.default_rng(1)
    least = np.concatenate([nominal(logs).min(axis=1) for logs in pairs(random.standard_normal, count)])
    return {share: float(np.quantile(least, share)) for share in duel.NOMINAL if share < 1}


def outcome(noise: Noise, count: int, effect: float = 0.0) -> tuple[float, float]:
    """Return the share of duels that are decided, and the mean number of pairs of all."""
    decided, used = [], []
    for logs in pairs(noise, count, effect):
        shown = nominal(logs) <= duel.NOMINAL_LEVEL
        decided.append(shown.any(axis=1))
        used.append(np.where(decided[-1], np.array(duel.LOOKS)[shown.argmax(axis=1)], duel.MOST_PAIRS))
    return float(np.concatenate(decided).mean()), float(np.concatenate(used).mean())


def noises(random: np.random.Generator, recorded: Array | None) -> dict[str, Noise]:
    """Return kinds of noise of a logarithmic ratio, each with a spread of 1."""

    def drift(shape: tuple[int, int]) -> Array:
        duels, count = shape
        speed = np.zeros((duels, 2 * count))
        shocks = random.standard_normal((duels, 2 * count)) * np.sqrt(1 - 0.95**2)
        for n in range(1, 2 * count):
            speed[:, n] = 0.95 * speed[:, n - 1] + shocks[:, n]
        flip = np.repeat(random.choice([-1, 1], size=(duels, (count + 1) // 2)), 2, axis=1)[:, :count]
        signs = flip * np.tile([1, -1], (count + 1) // 2)[:count]
        runs = speed * 5 + random.standard_normal(speed.shape)
        return signs * (runs[:, 1::2] - runs[:, ::2]) / np.sqrt(2)

    def pause(shape: tuple[int, int]) -> Array:
        stops = (random.random(shape) < 0.1) * random.exponential(6, shape) * random.choice([-1, 1], shape)
        return random.standard_normal(shape) + stops

    kinds: dict[str, Noise] = {
        "normal": random.standard_normal,
        "heavy tails (t, 3 degrees)": lambda shape: random.standard_t(3, size=shape),
        "one pair in ten with a pause": pause,
        "a speed that drifts (AR(1) 0.95)": drift,
    }
    if recorded is not None:

        def replay(shape: tuple[int, int]) -> Array:
            drawn = random.choice(recorded, size=(2, *shape))
            return drawn[0] - drawn[1]

        kinds["recorded runs"] = replay
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", action="store_true")
    parser.add_argument("--duels", type=int, default=100_000)
    parser.add_argument("--noise", type=Path, help="a text file with one time in s a line, of one command")
    words = parser.parse_args()
    if words.levels:
        for share, level in levels(words.duels).items():
            print(f"{share:g}: {level:.3g}")
        return
    random = np.random.default_rng(2)
    recorded = None if words.noise is None else np.log(np.loadtxt(words.noise))
    print("| noise | wrong, of equal commands |\n|---|--:|")
    for name, noise in noises(random, recorded).items():
        print(f"| {name} | {100 * outcome(noise, words.duels)[0]:.2f} % |")
    print("\n| difference / spread of a pair | decided | pairs |\n|--:|--:|--:|")
    for effect in (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0):
        share, used = outcome(random.standard_normal, words.duels // 10, effect)
        print(f"| {effect:g} | {100 * share:.1f} % | {used:.1f} |")


if __name__ == "__main__":
    main()
