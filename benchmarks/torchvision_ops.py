"""Lets `import torchvision` work beside a torch without CUDA.

torchvision's wheel is built against CUDA. Beside a torch without it, the library of its own operators
does not load, which torchvision tolerates, except in one place: it attaches shape rules to two operators,
`nms` and `qnms`, that then do not exist (torchvision 0.28). This module declares the two, without code,
before that happens. Datasets, transforms and models need neither; calling one raises
NotImplementedError.
"""

import sys
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from importlib.util import find_spec
from types import ModuleType

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # torch forgets the operators of a Library that is collected


def load() -> ModuleType:
    """Import torchvision and return it, with the two operators declared if its own do not load."""
    if not _declared and "torchvision" not in sys.modules and not _operators_load():
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in SCHEMAS:
            library.define(schema)
        _declared.append(library)
    return import_module("torchvision")


def _operators_load() -> bool:
    """Load the library of torchvision's operators as torchvision is going to, if that is possible."""
    spec = find_spec("torchvision")
    (folder,) = (spec and spec.submodule_search_locations) or [""]
    library = FileFinder(folder, (ExtensionFileLoader, EXTENSION_SUFFIXES)).find_spec("_C")
    try:
        torch.ops.load_library(library.origin if library else None)
    except OSError:  # what it is linked against is not there
        return False
    return True
