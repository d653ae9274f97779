"""Count how pages, docstrings and error sentences are written: python tools/prose.py [--list ROW] [PATH ...]

Prints a row per property with its rate per 1,000 words, without code, tables and link targets. With paths it
counts these pages alone and names the goals that each misses. `--check` exits with 1 if a goal is missed.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "mlbench").rglob("*.py"))
PAGES = ("README.md", "CONTRIBUTING.md", "RULES.md", "docs/*.md", "docs/measurements/*.md")
MOST = {  # row: what counts, the goal per 1,000 words
    "where": (r"\bwhere\b(?! (?:does|do|is|are|next|the time)\b)", 1.5),
    "semicolons": (r";", 3),
    "says": (r"\b(?:say|said|says|tells?|told|asks?|asked|knows?|wants?)\b", 0.5),
    "dialect": (r"\b(?:nobody|whoever|stands?|beside|anew|dear(?:er|est)?|heed\w*|(?<!your )own)\b", 0.5),
}
ERRORS = ("UserError", "ConfigurationError", "DataError", "ClusterError", "ResultError", "unreadable")
YOU, WORDS_A_SENTENCE = (r"\b(?:you|yours?)\b", 6), 20  # at least, at most
NO_PROSE = (
    (re.compile(r"^(`{3,}).*?^\1`*$|<!--.*?-->", re.M | re.S), ""),
    (re.compile(r"^(?: {4}(?! *[-*]).*|\|.*)$", re.M), ""),
    (re.compile(r"!?\[([^]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"``.+?``|`[^`\n]*`|https?://\S+|[\w-]+(?:[/_.]\w[\w-]*)+"), "CODE"),
)
WORD = re.compile(r"\w[\w'-]*")
END = re.compile(r"(?<=[.!?])[\"'*)_]*(?=\s)|\n\s*\n|\n(?=\s*(?:[-*#>]|\d+\.)\s)")


def prose(text: str) -> str:
    """Return the text without code, tables and link targets, on the same lines."""
    for pattern, stand_in in NO_PROSE:
        text = pattern.sub(lambda m, by=stand_in: m.expand(by) + "\n" * m.group().count("\n"), text)
    return text


def strings(path: Path, what: str) -> Iterator[str]:
    """Yield the docstrings of a module, or the parts of its UserErrors of every kind."""
    for node in ast.walk(ast.parse(path.read_text())):
        if what == "docstrings":
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node) or ""
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ERRORS:
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and WORD.search(part.value):
                    yield part.value


def rates(texts: list[str]) -> dict[str, float]:
    """Return the rate of each row, the mean words of a sentence, and all words."""
    text = "\n\n".join(texts)
    words = len(WORD.findall(text)) or 1
    rows = (MOST | {"you": YOU}).items()
    found = {name: 1000 * len(re.findall(pattern, text, re.I)) / words for name, (pattern, _) in rows}
    parts = END.split(re.sub(r"^#.*$", "", text, flags=re.M))
    lengths = [length for part in parts if (length := len(WORD.findall(part))) > 1]
    return found | {"words a sentence": sum(lengths) / max(len(lengths), 1), "words": words}


def misses(found: dict[str, float], what: str = "pages") -> list[str]:
    """Return the rows that miss their goals. Only pages need a rate of "you"."""
    wrong = [name for name, (_, goal) in MOST.items() if found[name] >= goal]
    wrong += ["you"] * (what == "pages" and found["you"] < YOU[1])
    return wrong + ["words a sentence"] * (found["words a sentence"] >= WORDS_A_SENTENCE)


def main() -> int:
    """Print the table, or the places of one row."""
    parser = argparse.ArgumentParser(description="Count how pages and docstrings are written.")
    parser.add_argument("--list", choices=MOST, help="print the places of one row")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("paths", nargs="*", type=Path, help="pages (default: all, and docstrings and errors)")
    given = parser.parse_args()
    paths = given.paths or [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    pages = {path: prose(path.read_text()) for path in paths}
    if given.list:
        for path, text in pages.items():
            for number, line in enumerate(text.splitlines(), 1):
                if re.search(MOST[given.list][0], line, re.I):
                    print(f"{path}:{number}: {line.strip()}")
        return 0
    table = {"pages": rates(list(pages.values()))}
    for what in () if given.paths else ("docstrings", "errors"):
        table[what] = rates([prose(text) for path in MODULES for text in strings(path, what)])
    ends = {"you": f"> {YOU[1]}", "words a sentence": f"< {WORDS_A_SENTENCE}", "words": ""}
    goals = {name: f"< {goal}" for name, (_, goal) in MOST.items()} | ends
    print(f"{'per 1,000 words':<17}", *(f"{name:>11}" for name in table), "   goal")
    for name, goal in goals.items():
        print(f"{name:<17}", *(f"{column[name]:>11,.1f}" for column in table.values()), f"{goal:>7}")
    print(*(f"{path}: {', '.join(misses(rates([pages[path]])))}\n" for path in given.paths), sep="", end="")
    return int(given.check and any(misses(column, what) for what, column in table.items()))


if __name__ == "__main__":
    sys.exit(main())
