"""Numbers of the house: python tools/house.py [CHECKOUT]

A room is a file or a folder right below mlbench; an arrow is that one imports from another. Older checkouts
come from `git archive COMMIT | tar x -C FOLDER`.
"""

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

import grimp

PATTERNS = {  # counted by text
    "dict[str, Any]": r"dict\[str, Any\]",
    "assert": r"^\s+assert ",
}
PATCHED = r"setattr\((?:steps\.)?(?:training|loop)\b|training\.train ="  # of the loop


def arrows(package: Path) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the rooms, and which imports from which."""
    sys.path.insert(0, str(package.parent))
    graph = grimp.build_graph(package.name, cache_dir=None)
    rooms = {module: module.split(".")[1] for module in graph.modules if "." in module}
    pairs = {
        (rooms[module], rooms[other])
        for module in rooms
        for other in graph.find_modules_directly_imported_by(module)
        if other in rooms and rooms[module] != rooms[other]
    }
    return set(rooms.values()), pairs


def main(checkout: Path) -> None:
    """Print the numbers of one checkout."""
    package = checkout / "mlbench"
    texts = {path: path.read_text() for path in sorted(package.rglob("*.py"))}
    lines: Counter[str] = Counter()
    for path, text in texts.items():
        lines[path.relative_to(package).parts[0]] += len(text.splitlines())
    rooms, edges = arrows(package)
    layers = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    named = {name.strip().removeprefix("mlbench.") for layer in layers["layers"] for name in layer.split("|")}
    print(f"rooms {len(rooms)}, arrows {len(edges)}, files {len(texts)}, lines {sum(lines.values())}")
    print("lines:", ", ".join(f"{name} {count}" for name, count in lines.most_common()))
    print("files outside folders:", len(list(package.glob("*.py"))))
    print("without a layer:", ", ".join(sorted(rooms - named)) or "none")
    for name, pattern in PATTERNS.items():
        print(f"{name}:", sum(len(re.findall(pattern, text, re.MULTILINE)) for text in texts.values()))
    users = [path for folder in ("tests", "pipelines") for path in (checkout / folder).rglob("*.py")]
    patches = [path for path in users for _ in re.findall(PATCHED, path.read_text())]
    print("places that patch the loop:", len(patches), *sorted({path.name for path in patches}))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
