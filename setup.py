"""What pyproject.toml cannot say: conf/ at the top of the repository is the package mlbench.conf."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["mlbench", "mlbench.*"]), "mlbench.conf"],
    package_dir={"mlbench.conf": "conf"},
)
