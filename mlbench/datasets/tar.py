"""The module `tarfile` with the filters of PEP 706, which Python has from 3.11.4 on; Debian 12 has 3.11.2."""

import tarfile
from typing import TYPE_CHECKING

if not (TYPE_CHECKING or hasattr(tarfile, "data_filter")):
    from backports import tarfile

__all__ = ["tarfile"]
