"""Counts the FLOP in an execution trace of torch (docs/script-reference.md, "FLOP, tokens/s and MFU").

Formulas are those of what training needs: a multiplication and its addition are two FLOP, the backward pass
of attention takes twice its forward pass, and what is computed again counts once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import Any

SCHEMA = '"schema": "1.1.'  # of traces whose nodes have a line for each part
BEGIN = "mlbench: begin"  # a node, after which a trace counts
AGAIN = 2.01  # times a forward pass: more than its gradients take
FACTOR = {  # operators that multiply matrices, and which input is the first factor
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv", "aten::_scaled_mm"), 0),
    **dict.fromkeys(("aten::addmm", "aten::addmm_", "aten::_addmm_activation", "aten::addmv"), 1),
    **dict.fromkeys(("aten::baddbmm", "aten::baddbmm_"), 1),
}
CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")
ATTENTION = "aten::_scaled_dot_product_"
KNOWN = ("aten", "prim", "prims", "c10d", "_c10d_functional", "inductor", "fsdp", "profiler")
NO_FORMULA = (
    *("aten::_cudnn_rnn", "aten::mkldnn_rnn", "aten::miopen_rnn", "aten::_flash_attention", "aten::_fft_"),
    *("aten::_efficient_attention", "aten::_sparse", "aten::sparse_", "aten::_grouped_mm", "aten::_int_mm"),
    *("aten::_scaled_grouped_mm", "aten::mkldnn_linear", "aten::_linalg_", "aten::linalg_qr", "aten::_cslt"),
    *("aten::linalg_lu", "aten::linalg_cholesky", "aten::linalg_inv", "aten::_native_multi_head_attention"),
)
Node = dict[str, Any]


def read(path: str) -> list[Node]:
    """Return the nodes of a trace, each after its parent: id, name, ctrl_deps (the parent), operator, taped.

    Only those after the last `BEGIN`. Those that are counted have inputs and outputs. taped: whether autograd
    records it. Raises ValueError if the format is another.
    """
    nodes: list[Node] = []
    with open(path) as file:
        for line in file:
            text = line.strip().rstrip(",")
            if text.startswith('"id":'):
                nodes.append(json.loads("{" + text + "}"))
            elif text.startswith('"schema":') and not text.startswith(SCHEMA):
                raise ValueError(text)
            elif text.startswith(('"inputs":', '"outputs":')) and counts(nodes[-1]["name"]):
                nodes[-1].update(json.loads("{" + text + "}"))
            elif text.startswith('"attrs":'):
                nodes[-1]["taped"] = '"seq_id", "type": "int64", "value": -1}' not in text
                nodes[-1]["operator"] = '"op_schema", "type": "string", "value": ""}' not in text
    begin = max((node["id"] for node in nodes if node["name"] == BEGIN), default=0)
    return sorted((node for node in nodes if node["id"] > begin), key=lambda node: node["id"])


def count(nodes: Sequence[Node], *, recomputed: bool) -> dict[str, Any]:
    """Return FLOP by type, devices, and shapes that may be those of weights. Or `why` there are none.

    Shapes are those of second factors in the forward pass, and of products in the backward pass.

    recomputed: whether modules were called in a backward pass. What autograd records there is made again.
    """
    known = {node["id"]: node for node in nodes}
    backward, outside, within, composed = set[int](), set[int](), set[int](), set[int]()  # ids
    for node in nodes:
        number, name, parent = node["id"], node["name"], node["ctrl_deps"]
        if parent in backward or name.startswith("autograd::engine::evaluate_function"):
            backward.add(number)
        if parent in outside or name.startswith("Optimizer.step#"):
            outside.add(number)
        if parent in within or parent in known and counts(known[parent]["name"]):
            within.add(number)
        while counts(name) and parent in known and parent not in composed:
            composed.add(parent)  # of which the innermost operator counts: a tensor's class may have its own
            parent = known[parent]["ctrl_deps"]
    flops: dict[str, float] = {}
    devices, passes = set[str](), {True: 0.0, False: 0.0}
    shapes: dict[bool, list[Sequence[int]]] = {True: [], False: []}
    for node in nodes:
        number, name = node["id"], node["name"]
        if number in outside or number in composed:
            continue
        if not counts(name):
            foreign = node["operator"] and name.split("::")[0] not in KNOWN
            if number not in within and (foreign or name.startswith(NO_FORMULA)):
                return {"why": f"{name} has no formula"}
            continue
        if number in backward and node["taped"] and recomputed:
            continue
        value, kind, device, shape = _flops(node, backward=number in backward)
        passes[number in backward] += value
        flops[kind] = flops.get(kind, 0.0) + value
        devices.add(device)
        if shape:
            shapes[number in backward].append(shape)
    if passes[True] > AGAIN * passes[False]:
        return {"why": "its backward pass computes parts of its forward pass again, unseen"}
    return {"flops": flops, "devices": len(devices), "shapes": [*shapes.values()]}


def counts(name: str) -> bool:
    """Return whether an operator has a formula that is not 0."""
    return name in FACTOR or name in CONVOLUTIONS or name.startswith(ATTENTION) and "_math" not in name


def _flops(node: Node, *, backward: bool) -> tuple[float, str, str, Sequence[int]]:
    """Return an operator's FLOP, type, device, and the shape of what may be a weight or its gradient."""
    name, inputs = node["name"], node["inputs"]
    shapes, values = inputs["shapes"], inputs["values"]
    place = FACTOR.get(name, int(name.endswith("backward")))
    kind = inputs["types"][place].partition("(")[2].rstrip(")")
    shape: Sequence[int] = ()
    if name in FACTOR:
        left, right = shapes[place], shapes[place + 1]
        columns = right[-1] if len(right) > 1 else 1
        value = 2 * prod(left) * columns
        shape = (left[-2], columns) if backward else right[-2:] if len(right) > 1 else left
    elif name in CONVOLUTIONS:
        weight, kind = shapes[1 + place], f"convolution {kind}"
        given, made = (shapes[1], shapes[0]) if place else (shapes[0], node["outputs"]["shapes"][0])
        transposed, shape = values[6 + place], weight
        value = 2 * prod(given if transposed else made) * prod(weight[1:])
        if place:
            of_input, of_weight, _ = values[10]
            value, shape = value * (of_input + of_weight), weight if of_weight else ()
    else:
        query, key, row = shapes[place : place + 3]
        value = 2 * prod(query[:-1]) * key[-2] * (query[-1] + row[-1]) * (1 + place)
    return value, kind, str(values[place][-1]), shape
