"""What a script consists of: its own file, and those beside it that it imports, by their content."""

import ast
import hashlib
from pathlib import Path


def files(script: Path, root: Path) -> list[Path]:
    """Return the script and the files below `root` that it or they import, found without running any."""
    queue, scripts = [script], {script: None}
    while queue:
        path = queue.pop()
        for name in _imports(path, root):
            for each in (root / f"{name}.py", root / name / "__init__.py"):
                if each.is_file() and each not in scripts:
                    scripts[each] = None
                    queue.append(each)
    return sorted(scripts)


def digest(script: Path, root: Path) -> str:
    """Return the SHA-256 of the script and of what it imports from `root`; OSError without a script."""
    hashed = hashlib.sha256()
    for path in files(script, root):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        hashed.update(f"{path.relative_to(root)} {content}\n".encode())
    return hashed.hexdigest()


def _imports(path: Path, root: Path) -> set[str]:
    """Return what a file imports, as paths below the folder: of a.b both a and a/b."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            folder = path.parents[node.level - 1] if node.level else root
            if not folder.is_relative_to(root):
                continue
            package = ".".join((*folder.relative_to(root).parts, *filter(None, [node.module])))
            names |= {package, *(f"{package}.{alias.name}".lstrip(".") for alias in node.names)}
    parts = [name.split(".") for name in names if name]
    return {"/".join(each[:count]) for each in parts for count in range(1, len(each) + 1)}
