"""Scripts in the manner of well-known public ones, alone and under `mlbench measure`: nothing changes.

Each is typed twice, in two folders with the same files: exit code, both streams, the last loss and every file
that it leaves, byte for byte, have to be the same.
"""

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from installed import Answer, Place, shared

from mlbench.record.reader import load

pytestmark = pytest.mark.use
SCRIPTS = Path(__file__).parent / "scripts"
TWO = "torchrun --standalone --nproc-per-node 2"
# What is typed, and how many steps the record has; None: not held.
TYPED = [
    ("python nanogpt.py config_small.py --max_iters=30 --out_dir='small'", 30),
    ("python mnist.py --epochs 2 --save-model", 30),
    ("python imagenet.py", 16),
    ("python word_language_model.py", None),
    (f"{TWO} multigpu_torchrun.py 3 1", 12),
    (f"{TWO} multigpu_torchrun.py 2 1 && {TWO} multigpu_torchrun.py 4 1", None),
    (f"{TWO} fsdp2.py", 12),
    ("python trainer.py", 4),
    ("python lightning_fit.py", 12),
    ("accelerate launch --cpu --num_processes 1 accelerate_loop.py", 12),
    ("python dcgan.py", None),
    ("python dqn.py", None),
    ("python ppo.py", 32),
    ("python amp_accumulation.py", 12),
    ("python time_sequence_prediction.py", 3),
    ("python compiled.py", 20),
    ("python deploy.py", 12),
    ("python functional.py", None),
    ("echo 17 | env PYTHONPATH=lib python streams.py", None),
    ("echo 17 | bash train.sh", None),
]
ADAPTERS = all(map(find_spec, ("transformers", "lightning", "accelerate")))
LIBRARIES = {"trainer.py": "transformers", "lightning_fit.py": "lightning", "accelerate": "accelerate"}


@pytest.fixture(scope="module")
def shell(user: Place, installed_root: Path) -> Place:
    """Return the environment of scripts: torch, the trainers' libraries, and mlbench without its extras."""
    return user.activated(shared(installed_root, ("adapters",) if ADAPTERS else ()))


@pytest.fixture
def place(shell: Place, tmp_path: Path) -> Place:
    """Return an empty folder."""
    return shell.within(tmp_path / "empty")


def typed(place: Place, folder: Path, line: str) -> Answer:
    """Type a line in a new folder with the scripts, in a shell with one thread a process."""
    shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "TOKENIZERS_PARALLELISM": "false"}
    shell = place.within(folder).variables(**quiet)
    return shell.type(line, codes=range(256))


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def losses(text: str) -> list[str]:
    """Return each number that follows the word loss."""
    return re.findall(r"(?i)loss\w*[:=]?\s*([-+.\de]+)", text)


def measured(line: str) -> str:
    """Return the line with `mlbench measure` before its command, behind a pipe."""
    before, pipe, command = line.rpartition("| ")
    words = "output_root=../runs cluster.exclusive=false"
    if "&&" in command:
        command = f"bash -c '{command}'"
    return f"{before}{pipe}mlbench measure {words} -- {command}"


def missing(lines: list[str], among: list[str]) -> list[str]:
    """Return the lines that do not come in this order among others."""
    rest = iter(among)
    return [line for line in lines if line not in rest]


@pytest.mark.parametrize(("line", "steps"), TYPED, ids=[line for line, _ in TYPED])
def test_a_script_does_what_it_does_alone(place: Place, line: str, steps: int | None) -> None:
    for name, library in LIBRARIES.items():
        if name in line and not ADAPTERS:
            pytest.skip(f"needs {library}")
    alone = typed(place, place.folder / "alone" / "work", line)
    both = typed(place, place.folder / "under" / "work", measured(line))
    if alone.code not in (0, 7):
        alone.fail("the script itself fails")
    if both.code != alone.code:
        both.fail(f"exit code {both.code} instead of {alone.code}")
    if (alone.code == 7) != ("dqn" in line):
        alone.fail("another exit code than the script's")
    if both.stdout != alone.stdout:
        both.fail(f"another standard output than alone, which had:\n{alone.stdout}\n---")
    if lacking := missing(alone.stderr.splitlines(), both.stderr.splitlines()):
        both.fail(f"standard error lacks {lacking}")  # the card's lines are there besides
    assert losses(both.stdout)[-1:] == losses(alone.stdout)[-1:] != []
    before, after = files(place.folder / "alone" / "work"), files(place.folder / "under" / "work")
    assert after.keys() == before.keys()
    assert [name for name in before if after[name] != before[name]] == []
    paths = [*(place.folder / "under" / "runs").glob("*/record.json")]
    if not paths and steps is None and "mlbench: " in both.stderr:
        return  # a sentence says that nothing but the command was seen
    if len(paths) != 1:
        both.fail(f"{len(paths)} records")
    record = load(paths[0])
    if record.contradictions:
        both.fail(f"contradictions: {record.contradictions}")
    if steps is not None and record.steps != steps:
        both.fail(f"{record.steps} steps are recorded, {steps} were made")
