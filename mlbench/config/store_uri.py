"""Tracking URIs that MLflow can open, and the default store of runs that name none."""

import re
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from mlbench.config.credentials import without_credentials
from mlbench.config.errors import ConfigurationError

# MLflow's kinds of tracking URIs (mlflow.store.tracking, 3.17). A plain path is a folder.
STORES = {"file", "http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks"}
STORES |= {"databricks-uc", "uc"}
# SQLAlchemy's default driver of a database, the module of a driver of another name, and pip's name of it.
DRIVERS = {"postgresql": "psycopg", "mysql": "mysqldb", "mssql": "pyodbc"}
MODULES = {"mysqldb": "MySQLdb"}
PACKAGES = {"mysqldb": "mysqlclient", "psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary"}


def check_scheme(uri: str) -> str:
    """Return a URI. Raises ValueError if no MLflow store has its scheme."""
    scheme = urlsplit(uri).scheme.partition("+")[0] if "://" in uri else ""
    if scheme and scheme not in STORES and not entry_points(group="mlflow.tracking_store", name=scheme):
        raise ValueError(f"MLflow has no store of the kind {scheme}: {', '.join(sorted(STORES))}")
    return uri


def check_store(uri: str) -> None:
    """Raise UserError for a tracking URI that MLflow can never open, whatever is started or mounted."""
    stated = f"tracking_uri={without_credentials(uri)}"
    scheme, _, driver = urlsplit(uri).scheme.partition("+")
    if re.fullmatch(r"(localhost|[\w-]+(\.[\w-]+)*):\d+(/.*)?", uri):
        raise ConfigurationError(f"{stated} is not an address", hint=f"write tracking_uri=http://{uri}")
    if near := re.match(r"(https?)(:/|//|/|:)(?!/)", uri):
        hint = f"write tracking_uri={near[1]}://{uri.removeprefix(near[0])}"
        raise ConfigurationError(f"{stated} is not an address", hint=hint)
    if uri in ("sqlite://", "sqlite:///:memory:"):
        hint = "write tracking_uri=sqlite:///FILE"
        raise ConfigurationError(f"{stated} is a database in memory, which ends with the command", hint=hint)
    if scheme == "file" or not scheme and uri not in STORES:
        database = uri.removeprefix("file://").rstrip("/") + "/mlflow.db"
        hint = f"MLflow 3 does not write folders of files: give tracking_uri=sqlite:///{database}"
        raise ConfigurationError(f"{stated} is a folder", hint=hint)
    module = driver or DRIVERS.get(scheme)
    if module and scheme in DRIVERS and find_spec(MODULES.get(module, module)) is None:
        package = PACKAGES.get(module, module)
        raise ConfigurationError(f"{stated}: Python lacks its driver {module}", hint=f"pip install {package}")


def default_store(output_root: Path) -> str:
    """Return the tracking URI of runs that name none."""
    return f"sqlite:///{(output_root / 'mlflow.db').absolute()}"
