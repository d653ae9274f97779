"""Makes what the page "One GPU" shows of the results of benchmarks/gpu.py: tables and a roofline picture.

    python benchmarks/gpu_page.py gpu-results/gpu.json [--picture docs/images/roofline.svg]

Prints the tables as Markdown, with the machine and the commit below. The picture has each task's model FLOP
a byte against its model FLOP/s, below the roof of the calibrated rates. Bytes are those that the operators
of an eager step read and write, each by itself: a cache, and kernels that fuse operators, move fewer, so a
task may lie above its roof. Needs mlbench's own environment, altair included, for the picture.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HALF = ("bf16", "fp16")
HEADS = ("task", "compile", "rate", "step, ms", "MFU", "peak memory, GB", "reference", "ratio")
# Of the calibration, by precision; TF32's products are not calibrated.
GEMM = {"fp32": "cuda_gemm_flops_per_s", **dict.fromkeys(HALF, "cuda_half_gemm_flops_per_s")}
COPY = "cuda_copy_bytes_per_s"


def main(arguments: Sequence[str]) -> int:
    """Print the tables and draw the picture; exit code 2 without results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=Path, help="gpu.json")
    parser.add_argument("--picture", type=Path, help="an SVG file")
    options = parser.parse_args(arguments)
    try:
        result = json.loads(options.results.read_text())
    except (OSError, ValueError) as error:
        print(f"{options.results}: {error}", file=sys.stderr)
        return 2
    print(page(result))
    if options.picture is not None:
        options.picture.write_text(picture(result) + "\n", "utf-8")
    return 0


def page(result: dict[str, Any]) -> str:
    """Return the tables by precision, where a step's time goes, and what was measured on what."""
    lines: list[str] = []
    for number in dict.fromkeys(case["precision"] for case in result["cases"]):
        lines += [f"{number}:", "", f"| {' | '.join(HEADS)} |", "|---|---|" + "--:|" * (len(HEADS) - 2)]
        lines += [_row(case) for case in result["cases"] if case["precision"] == number] + [""]
    for task, kernels in (result.get("profile") or {}).items():
        lines += [f"Where a step of {task} goes, of the time on the device:", ""]
        lines += [f"- {each['share']:.1%}: `{each['kernel']}`" for each in kernels] + [""]
    lines.append(", ".join(f"{name} {value}" for name, value in result["machine"].items()))
    return "\n".join(lines)


def _row(case: dict[str, Any]) -> str:
    mode = f"{case['mode']} {case['words']}".strip()
    mfu = "-" if case["mfu"] is None else f"{case['mfu']:.1%}"
    rates = [f"{case[name]:,.0f}" for name in ("samples_per_s", "reference_per_s")]
    peak = "-" if case["peak_gb"] is None else f"{case['peak_gb']:g}"
    cells = [case["task"], mode, f"{rates[0]} {case['unit']}/s", f"{case['step_ms']:,g}", mfu, peak]
    return f"| {' | '.join([*cells, rates[1], format(case['ratio'], '.2f')])} |"


def points(result: dict[str, Any], number: str) -> dict[str, tuple[float, float, str]]:
    """Return by task FLOP a byte, FLOP/s and the value of `compile=` of its fastest case in a precision."""
    cases = [case for case in result["cases"] if case["precision"] == number]
    intensity = {case["task"]: case["flop_per_byte"] for case in cases if case["flop_per_byte"]}
    fastest: dict[str, tuple[float, float, str]] = {}
    for case in cases:
        if case["task"] in intensity:
            rate = case["flops_per_sample"] * case["samples_per_s"]
            if rate > fastest.get(case["task"], (0.0, 0.0, ""))[1]:
                fastest[case["task"]] = intensity[case["task"]], rate, case["mode"]
    return fastest


def roof(result: dict[str, Any], number: str) -> tuple[float, float] | None:
    """Return the calibrated FLOP/s and bytes/s; None where they were not measured."""
    rates = result.get("rates") or {}
    flops, copied = rates.get(GEMM.get(number, "")), rates.get(COPY)
    return None if flops is None or copied is None else (flops, copied)


def picture(result: dict[str, Any]) -> str:
    """Return the roofline of half precision as SVG."""
    from mlbench.analysis import marks
    from mlbench.report import render

    looks: dict[str, marks.Look] = {}
    named: list[marks.Row] = []
    for style, number in enumerate(HALF):
        for task, (x, y, mode) in points(result, number).items():
            looks[series := f"tasks in {number}"] = marks.look(style)
            text = f"{task} ({mode})"
            named.append({"series": series, "x": x, "y": y, "text": text, "annotation": task})
    layers = [*marks.points(named), *marks.texts(named)]
    limits = roof(result, HALF[0])
    if limits is not None and named:
        flops, copied = limits
        xs = [row["x"] for row in named]
        ends = [min(xs) / 2, flops / copied, max(*xs, flops / copied) * 2]
        heights = [min(flops, copied * end) for end in ends]
        looks["calibrated"] = marks.REFERENCE
        layers += marks.plain_line(
            [{"series": "calibrated", "x": x, "y": y} for x, y in zip(ends, heights, strict=True)]
        )
    chart = marks.chart(
        "roofline",
        "Model FLOP/s over FLOP a byte",
        layers,
        looks=looks,
        x=marks.axis("model FLOP / byte of an eager step", log=True),
        y=marks.axis("model FLOP / s", log=True),
        about=f"{result['machine'].get('gpu', 'CPU')}, {result['machine']['date']}",
    )
    return render.svg(render.specification(chart))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
