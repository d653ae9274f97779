"""Installs the probe in a Python process of a measured command; runs the sitecustomize that it hides."""

import os
import sys

_startup = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _startup]
try:
    if "mlbench.probe" not in sys.modules:
        from importlib.util import module_from_spec, spec_from_file_location

        _folder = os.path.dirname(_startup)  # alone, for this Python may have no mlbench, or another one
        _spec = spec_from_file_location(
            "mlbench.probe", os.path.join(_folder, "__init__.py"), submodule_search_locations=[_folder]
        )
        assert _spec is not None and _spec.loader is not None
        sys.modules["mlbench.probe"] = module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules["mlbench.probe"])
    _alone = "mlbench" not in sys.modules
    if _alone:  # Python looks for the package of a module that it imports
        sys.modules["mlbench"] = type(sys)("mlbench")
    try:
        from mlbench.probe import install
    finally:
        if _alone:
            del sys.modules["mlbench"]
    install.install()
except Exception as error:  # e.g. an older Python; the command goes on, unmeasured
    sys.stderr.write(f"mlbench: this Python process cannot be watched: {error!r}\n")
_this = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # noqa: F401
except ImportError as error:
    if error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _this)
