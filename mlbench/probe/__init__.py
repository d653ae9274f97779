"""Watches a training script from inside its own processes. Needs Python 3.9 and nothing of mlbench.

`startup/sitecustomize.py` loads this folder under its own name in each Python process of a measured command,
in any environment. Modules import the standard library and each other alone, as `from mlbench.probe import`:
the package `mlbench` itself may be missing.
"""
