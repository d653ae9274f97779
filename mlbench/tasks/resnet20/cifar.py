"""Reads the python version of CIFAR: pickles by Python 2, of which nothing is trusted.

A pickle can run any code. So a file is opened only if its MD5 is the published one, and even then it
gets no name but the three that numpy's arrays need.
"""

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from mlbench.experiment.errors import UserError

SIDE = 32  # pixels


def read_batch(path: Path, *, md5: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images [n, 3, 32, 32] uint8 and labels [n] int64 of one batch file.

    Raises UserError if the file is missing, has another MD5, or holds anything but such a batch.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"the archive has no {path.name}", hint="remove it and fetch it again") from error
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise UserError(
            f"{path.name} in the archive has MD5 {found} instead of {md5}",
            hint="remove the archive and fetch it again",
        )
    try:
        batch = ArraysOnly(io.BytesIO(content), encoding="latin1").load()
        pixels, labels = batch["data"], np.array(batch["labels"])
        if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3 * SIDE * SIDE):
            raise ValueError(f"its data are {pixels.dtype} {pixels.shape} for {len(labels)} labels")
        labels = labels.astype(np.int64, casting="safe")
    except Exception as error:  # a pickle of anything can fail in any way
        raise UserError(f"{path.name} is not a batch of CIFAR images: {error}") from error
    return pixels.reshape(-1, 3, SIDE, SIDE), labels


class ArraysOnly(pickle.Unpickler):
    """Makes numbers, strings, lists, dicts and numpy arrays; refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what an array is made with; numpy's module was renamed since these pickles."""
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np._core.multiarray._reconstruct  # pyright: ignore[reportAttributeAccessIssue]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it wants to load {module}.{name}")
