"""Reads a metric from the lines that a script prints, and refuses what people would read otherwise.

A share may be printed as `1215/10000`, as `12 %` or as `0.12`. A goal is compared on its own scale: one above
1 is in per cent. What two people would read as two numbers is no value, and a sentence quotes the line.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from math import inf, isnan

from mlbench.config.goal import Goal

# After a metric's name, also as torch, NumPy 2 and the tables of rich print it; not the 1 of 1,234.5.
FINITE = r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?![.,]?[0-9]))(?:[eE][-+]?[0-9]+)?"
ALONE = r"\[ *(?=[^][\s,]+ *\])"  # the bracket before a number that has no other beside it
BEFORE = rf"""(?:["'\s:=|,]|│|┃)*(?:(?:tensor|array|np\.\w+)\()?(?:{ALONE})?"""
NUMBER = rf"\b{BEFORE}({FINITE}|(?:nan|[-+]?inf)\b)"

STYLE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")  # ECMA-48, OSC
# What launchers put before a rank's line: torchrun --tee, mpirun --tag-output.
LABEL = re.compile(rb"^\[(?P<role>[A-Za-z_]\w*?)(\d+)\]:|^\[\d+,(\d+)\]<std(?:out|err)>:?")
SRUN_LABEL = re.compile(rb"^ *(\d+): ")  # srun --label
PER_CENT = re.compile(rb"\s*%")
WHOLE = re.compile(rb"\s*/\s*([0-9]+)(?![0-9.])")  # the m of n/m
OTHER = re.compile(rb"\s*/\s*[0-9.]")  # 0.95/0.93: two numbers
SECOND = re.compile(rb"\s*%?\s*[(\[]\s*[-+]?[0-9][0-9.]*(?:[eE][-+]?[0-9]+)?\s*%?\s*[)\]]")  # 75.1 (70.1)
SHARE = re.compile(
    r"(?i)(?<![a-z])(acc|accuracy|top[-_ ]?[0-9]|auc|auroc|f1|precision|recall|iou|miou|dice|map)(?![a-z])"
)
SMALLER = re.compile(r"(?i)(?<![a-z])(loss|error|perplexity|ppl|wer|cer|mse|rmse|mae|nll)(?![a-z])")
QUOTED = 120  # characters of a line that a sentence repeats


class PrintedMetric:
    """Finds the values of one metric.

    - pattern: a regular expression whose last group that matched is the number. name: of the metric.
    - goal: what ends the run, if anything does. on_value, on_doubt: called with each value, and once with
      each kind of sentence.
    - srun: whether the command labels its lines as `srun --label` does. world: returns how many ranks are
      known: with two, `[epoch3]:` labels no rank.
    """

    def __init__(
        self,
        pattern: str,
        name: str,
        goal: Goal | None,
        *,
        on_value: Callable[[float], object],
        on_doubt: Callable[[str], object] = lambda _: None,
        srun: bool = False,
        world: Callable[[], float] = lambda: inf,
    ) -> None:
        self._world = world
        self._pattern, self._name, self._goal = re.compile(pattern.encode()), name, goal
        self._explicit = not pattern.endswith(NUMBER)  # an expression of the user's, which decides
        self._stem = pattern.removesuffix(NUMBER)
        self._on_value, self._on_doubt, self._srun = on_value, on_doubt, srun
        if goal is not None and goal.direction == "max" and SMALLER.search(name):
            on_doubt(f"a larger {name} is taken as better: give task.direction=min if it is not")
        self._doubted: set[str] = set()
        self._kinds: set[str] = set()

    def look(self, line: bytes) -> None:
        """Take the value of a line, if it has one."""
        text = STYLE.sub(b"", line)
        label = LABEL.match(text) or (SRUN_LABEL.match(text) if self._srun else None)
        if label:
            rank = int(label[label.lastindex or 0])
            if label.re is LABEL and label["role"] and rank >= max(self._world(), 1):
                rank = 0  # a label of the script's own
            if rank:
                return
            text = text[label.end() :]
        match = self._pattern.search(text)
        if match is None:
            return
        group = match.lastindex or 0
        with suppress(ValueError, TypeError):
            number = float(match.group(group).rstrip(b"."))
            rest = text[match.end(group) :] if match.end() == match.end(group) else b""
            value = self._read(number, match.group(group), rest, text)
            if value is not None:
                self._on_value(value)

    def _read(self, number: float, digits: bytes, rest: bytes, line: bytes) -> float | None:
        """Return the value on the goal's scale; None after a sentence why the line has none."""
        per_cent = self._goal is not None and self._goal.target > 1
        whole = WHOLE.match(rest) if digits.isdigit() else None
        if whole is not None:
            if not number <= float(whole[1]) > 0:
                return self._doubt("whole", line, f"{digits.decode()}/{whole[1].decode()} is not a share")
            self._see("n/m", line)
            return number / float(whole[1]) * (100 if per_cent else 1)
        if OTHER.match(rest) or not self._explicit and SECOND.match(rest):
            return self._doubt("several", line, f"it has several numbers: {self._expressions(rest)}")
        if PER_CENT.match(rest):
            self._see("per cent", line)
            if not 0 <= number <= 100 and SHARE.search(self._name):
                return self._doubt("above", line, f"{number:g} % is not a share")
            # Where a smaller value is better the sign stays unscaled: 0.8 % must not reach a goal of 0.5.
            scaled = self._goal is not None and self._goal.direction == "max" and not per_cent
            return number / 100 if scaled else number
        if self._goal is not None and self._goal.direction == "max" and SHARE.search(self._name):
            most = 100 if per_cent else 1
            if number > most:
                way = (
                    f"is it in per cent? goal={100 * self._goal.target:g}"
                    if not per_cent
                    else "is it a count?"
                )
                return self._doubt("above", line, f"{number:g} is above {most}: {way}")
        if isnan(number) and "nan" not in self._doubted:
            self._doubted.add("nan")
            self._on_doubt(f"{self._name} was nan: the training has diverged")
        self._see("number", line)
        return number

    def _see(self, kind: str, line: bytes) -> None:
        """Warn of values of which some have a per-cent sign and others have none, unless the goal scales."""
        self._kinds.add(kind)
        if "per cent" in self._kinds and len(self._kinds) > 1 and self._goal is None:
            self._doubt("mixed", line, "some values have a per-cent sign and others have none", taken=True)

    def _doubt(self, kind: str, line: bytes, why: str, *, taken: bool = False) -> None:
        if kind not in self._doubted:
            self._doubted.add(kind)
            text = line.decode(errors="replace").strip()
            text = text if len(text) <= QUOTED else f"{text[:QUOTED]} ..."
            verdict = "" if taken else "was not taken "
            self._on_doubt(f"task.metric={self._name} {verdict}from the line {text!r}: {why}")

    def _expressions(self, rest: bytes) -> str:
        """Return the expressions of which each takes one of two numbers."""
        opening = re.search(rb"[(\[/]", rest)
        between = rf"[^(]*\{opening[0].decode()} *" if opening else " *"
        number, name = "([0-9.]+)", self._stem
        first = f"{name}[ :=]*{number}"
        second = f"{name}[ :=]*[0-9.]+{between}{number}"
        return f"task.metric='{first}' takes the first, task.metric='{second}' the second"
