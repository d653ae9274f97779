"""Installs the probe in a Python process of a measured command; runs the sitecustomize that it hides."""

import os
import sys

sys.path[:] = [
    path for path in sys.path if os.path.abspath(path) != os.path.dirname(os.path.abspath(__file__))
]
try:
    from mlbench.script import probe

    probe.install()
except ImportError:  # this Python has no mlbench; the command goes on, unmeasured
    pass
_this = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # noqa: F401
except ImportError as error:
    if error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _this)
