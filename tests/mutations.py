"""Breaks the measuring code on purpose, one line at a time, and says which test notices.

    python tests/mutations.py [--only 3,17] [--jobs 1] [--results FILE] [--baseline]

mutations.yaml lists the mutations. Each is applied in a copy of the checkout, the tests that it names are run
there until the first failure, and a table is printed. A test that fails without the mutation, too, catches
nothing. With --results a later call leaves out what the file holds as caught, by the same tests.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

import yaml

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).with_name("mutations.yaml")
TIMEOUT_S = 300  # s; a mutation that makes the tests hang is caught
ALL_TIMEOUT_S = 3600  # s, for all catching tests together
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """One change that must not pass unnoticed.

    - old, new: text of `file`; `old` is in it exactly once.
    - tests: pytest's words, of the narrowest tests that notice.
    - review: its number in the review of 21 November 2026, 0 for a later one.
    - equivalent: why no test can notice; such a mutation is not run.
    """

    number: int
    file: str
    old: str
    new: str
    breaks: str
    tests: str = ""
    review: int = 0
    equivalent: str = ""

    def applied(self, root: Path) -> str:
        """Return the changed text of the file; ValueError where `old` is not in it exactly once."""
        text = (root / self.file).read_text()
        count = text.count(self.old)
        if count != 1 or self.old == self.new:
            raise ValueError(f"mutation {self.number}: {self.file} holds {count} times: {self.old!r}")
        return text.replace(self.old, self.new)

    @property
    def digest(self) -> str:
        """What a stored result must agree with to stand for this mutation."""
        return hashlib.sha256(json.dumps(asdict(self) | {"number": 0}).encode()).hexdigest()[:16]


@dataclass
class Result:
    """What became of a mutation: `caught` is the test that failed, empty where none did."""

    digest: str
    caught: str
    seconds: float


def load() -> list[Mutation]:
    """Return the mutations in their order, numbered from 1."""
    entries = yaml.safe_load(LIST.read_text())
    return [Mutation(number=number, **entry) for number, entry in enumerate(entries, start=1)]


def copied(target: Path) -> Path:
    """Copy the files that git knows, or does not ignore, to a folder."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def pytest(copy: Path, arguments: list[str], *, timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """Run tests in a copy, slow ones too, until one fails; return pytest's exit code and its output."""
    options = ["-m", "", "-n", "0", "-x", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return 1, "FAILED hangs"
    return done.returncode, done.stdout + done.stderr


def run(mutation: Mutation, copy: Path) -> Result:
    """Apply a mutation in a copy, run its tests, and undo it."""
    path = copy / mutation.file
    before, begin = path.read_text(), time.monotonic()
    path.write_text(mutation.applied(copy))
    # Python takes a compiled file for current by size and whole seconds.
    os.utime(path, (0, mutation.number))
    try:
        code, output = pytest(copy, shlex.split(mutation.tests))
    finally:
        path.write_text(before)
    if code not in (0, 1):
        raise RuntimeError(f"mutation {mutation.number}: pytest ends with {code}:\n{output[-2000:]}")
    match = FAILED.search(output)
    caught = match[1] if match else "?"
    return Result(mutation.digest, caught if code else "", round(time.monotonic() - begin, 1))


def flaky(results: list[Result], copy: Path) -> set[str]:
    """Return the tests among those that caught something which fail without any mutation, too."""
    tests = sorted({result.caught for result in results} - {"", "?", "hangs"})
    code, output = pytest(copy, ["--maxfail=0", *tests], timeout_s=ALL_TIMEOUT_S) if tests else (0, "")
    if code not in (0, 1):
        raise RuntimeError(f"pytest ends with {code}:\n{output[-2000:]}")
    return {*FAILED.findall(output)}


def table(mutations: list[Mutation], results: dict[str, Result]) -> str:
    """Return the lines of the table, and the counts below it."""
    lines, counts = [], {"caught": 0, "equivalent": 0, "SURVIVED": 0}
    for mutation in mutations:
        result = results.get(mutation.digest)
        if mutation.equivalent:
            outcome, seconds = "equivalent", ""
        elif result is None:
            continue
        else:
            outcome, seconds = ("caught" if result.caught else "SURVIVED"), f"{result.seconds:.0f}"
        counts[outcome] += 1
        what = mutation.equivalent or (result.caught if result else "")
        module = mutation.file.removeprefix("mlbench/").removesuffix(".py")
        review = f"R{mutation.review}" if mutation.review else ""
        lines.append(
            f"| {mutation.number} | {review} | {module} | {mutation.breaks} "
            f"| {outcome} | {what} | {seconds} |"
        )
    head = ["| # | review | module | mutation | result | test, or proof | s |", "|--:|--|--|--|--|--|--:|"]
    return "\n".join([*head, *lines, "", ", ".join(f"{n} {word}" for word, n in counts.items())])


def main() -> int:
    """Run the mutations that the words choose; 1 if one survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", help="numbers, e.g. 3,17 or 3-17")
    parser.add_argument("--jobs", type=int, default=1, help="copies that are tested at a time")
    parser.add_argument("--results", type=Path, help="JSON file to go on from")
    parser.add_argument("--baseline", action="store_true", help="repeat the catching tests unmutated")
    options = parser.parse_args()
    mutations = load()
    if options.only:
        ends = [part.partition("-")[::2] for part in options.only.split(",")]
        chosen = {n for low, high in ends for n in range(int(low), int(high or low) + 1)}
        mutations = [mutation for mutation in mutations if mutation.number in chosen]
    results: dict[str, Result] = {}
    if options.results and options.results.exists():
        results = {row["digest"]: Result(**row) for row in json.loads(options.results.read_text())}
    broken: list[int] = []
    caught = {digest for digest, result in results.items() if result.caught}
    left = [mutation for mutation in mutations if not mutation.equivalent and mutation.digest not in caught]
    with tempfile.TemporaryDirectory(prefix="mlbench-mutations-") as folder:
        copies: Queue[Path] = Queue()
        for number in range(options.jobs):
            copies.put(copied(Path(folder) / str(number)))

        def work(mutation: Mutation) -> None:
            copy = copies.get()
            try:
                result = results[mutation.digest] = run(mutation, copy)
            except RuntimeError as error:
                broken.append(mutation.number)
                print(error, file=sys.stderr)
                return
            finally:
                copies.put(copy)
            print(f"{mutation.number}: {result.caught or 'SURVIVED'} ({result.seconds} s)", file=sys.stderr)
            if options.results:
                text = json.dumps([asdict(result) for result in results.values()], indent=1)
                options.results.write_text(text)

        with ThreadPoolExecutor(options.jobs) as pool:
            for done in [pool.submit(work, mutation) for mutation in left]:
                done.result()
        print(table(mutations, results))
        shown = [results[mutation.digest] for mutation in mutations if mutation.digest in results]
        failing = flaky(shown, copies.get()) if options.baseline else set()
    for test in sorted(failing):
        print(f"fails without a mutation, too: {test}")
    return int(bool(failing or broken) or any(not result.caught for result in shown))


if __name__ == "__main__":
    sys.exit(main())
