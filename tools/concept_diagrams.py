"""Draw the two diagrams of docs/concepts.md: `python tools/concept_diagrams.py`.

`concept-run.svg` shows one run from the command to MLflow, `concept-step.svg` one step on two ranks.
"""

from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
RUN = (  # title, lines below it
    ("mlbench run", "Hydra composes conf/", "and your overrides"),
    ("validation", "task, division, machine", "errors: exit code 2"),
    ("launcher", "Ray Train or torchrun", "starts one worker a rank"),
    ("workers", "prepare, load, train,", "validate until the goal"),
    ("event log", "events.jsonl: clocks,", "phases, validations"),
    ("record", "record.json, computed", "from the log alone"),
    ("card, report, MLflow", "show the record;", "results compare reads it"),
)
WIDTH, GAP, ROW = 172, 24, 4  # px, px, boxes a row
COLORS = {
    "data_wait": "#bab0ac", "forward": "#4c78a8", "loss": "#72b7b2", "backward": "#f58518", "wait": "#e45756",
    "transfer": "#b279a2", "optimizer": "#54a24b", "metrics": "#9d755d", "overlapped": "#d8b5cf",
}  # fmt: skip
STEP = {  # phase, begin and end in ms of an example
    "rank 0": [("data_wait", 0, 6), ("forward", 6, 26), ("loss", 26, 30), ("backward", 30, 62),
               ("wait", 62, 84), ("transfer", 84, 94), ("optimizer", 94, 102), ("metrics", 102, 106)],
    "network": [("overlapped", 48, 62), ("overlapped", 70, 84), ("transfer", 84, 94)],
    "rank 1": [("data_wait", 0, 6), ("forward", 6, 26), ("loss", 26, 30), ("backward", 30, 84),
               ("transfer", 84, 94), ("optimizer", 94, 102), ("metrics", 102, 106)],
}  # fmt: skip


def text(
    x: float, y: float, words: str, size: int = 13, anchor: str = "middle", weight: str = "normal"
) -> str:
    """Return one line of text."""
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{words}</text>'


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    """Return an SVG with a white ground and a title for screen readers."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" fill="#222" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *parts,
        "</svg>\n",
    ])  # fmt: skip


def run() -> str:
    """Return the diagram of a run: boxes in two rows, joined by arrows."""
    parts = ['<defs><marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
             '<path d="M0 0 8 4 0 8z"/></marker></defs>']  # fmt: skip
    places = [(10 + (WIDTH + GAP) * (number % ROW), 10 + 120 * (number // ROW)) for number in range(len(RUN))]
    for (title, *lines), (x, y) in zip(RUN, places, strict=True):
        place = f'x="{x}" y="{y}" width="{WIDTH}" height="80" rx="6"'
        parts.append(f'<rect {place} fill="#eef3f9" stroke="#4c78a8"/>')
        parts.append(text(x + WIDTH / 2, y + 24, title, weight="bold"))
        parts += [text(x + WIDTH / 2, y + 46 + 18 * line, words, size=12) for line, words in enumerate(lines)]
    for (x, y), (to_x, to_y) in zip(places, places[1:], strict=False):
        path = f"M{x + WIDTH} {y + 40}H{to_x}"
        if y != to_y:
            path = f"M{x + WIDTH / 2} {y + 80}V{y + 100}H{to_x + WIDTH / 2}V{to_y}"
        parts.append(f'<path d="{path}" stroke="#222" fill="none" marker-end="url(#a)"/>')
    title = "One run: " + ", ".join(name for name, *_ in RUN)
    return picture(10 + (WIDTH + GAP) * ROW, 220, title, parts)


def step() -> str:
    """Return the diagram of a step: a row per rank, the network between them, and a legend."""
    scale, left = 6.2, 75  # px per ms, px
    parts = []
    for row, (name, bars) in enumerate(STEP.items()):
        y = 12 + 46 * row
        parts.append(text(left - 8, y + 20, name, anchor="end"))
        for phase, begin, end in bars:
            x, width = left + scale * begin, scale * (end - begin)
            place = f'x="{x:g}" y="{y}" width="{width:g}" height="30"'
            parts.append(f'<rect {place} fill="{COLORS[phase]}" stroke="#fff"/>')
    for number, (phase, color) in enumerate(COLORS.items()):
        x, y = left + 140 * (number % 5), 170 + 24 * (number // 5)
        parts.append(f'<rect x="{x}" y="{y - 11}" width="14" height="14" fill="{color}"/>')
        name = phase.replace("overlapped", "overlapped comm.")
        parts.append(text(x + 20, y, name, anchor="start", size=12))
    title = "One step on two ranks: rank 1 is late, so rank 0 waits. The network also works during backward."
    return picture(770, 210, title, parts)


def main() -> None:
    """Write both files."""
    (IMAGES / "concept-run.svg").write_text(run())
    (IMAGES / "concept-step.svg").write_text(step())


if __name__ == "__main__":
    main()
