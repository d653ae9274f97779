"""A package with a custom task, complete and small, as a start for yours."""

import keyword
import re
from pathlib import Path

from mlbench.config import plugins
from mlbench.config.errors import UserError

TEMPLATE = Path(__file__).parent / "template"  # its files end with .in. The task's name replaces NAME


def write(name: str, parent: Path) -> Path:
    """Write the package of a new task into the folder `parent`/mlbench_NAME, and return that folder.

    Raises UserError for a name that no module can have, that a task has already, or whose folder is there.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(
            f"task={name}: a new task has a name of lower-case letters, digits and _", hint="task=my_task"
        )
    if name in plugins.files("task"):
        raise UserError(f"task={name} exists already", hint="give the new task another name")
    folder = parent / f"mlbench_{name}"
    if folder.exists():
        raise UserError(f"{folder} exists already", hint="remove it, or give the new task another name")
    for source in sorted(TEMPLATE.rglob("*.in")):
        path = str(source.relative_to(TEMPLATE)).removesuffix(".in")
        target = folder / path.replace("package", folder.name, 1).replace("NAME", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(re.sub(r"(?<![A-Z=])NAME", name, source.read_text()))
    return folder
