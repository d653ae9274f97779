"""Bring a script's folder to the pods as an archive in a ConfigMap. The hash of its files is the run's.

Without `cluster.working_dir` a script is a file of the image.
"""

import base64
from pathlib import Path

from mlbench.config.credentials import without_credentials
from mlbench.config.errors import ClusterError
from mlbench.config.experiment import Experiment
from mlbench.plugins.kuberay import pods
from mlbench.plugins.kuberay.config import Config
from mlbench.plugins.kuberay.pods import Object
from mlbench.script import archive
from mlbench.tasks import script


def complete(experiment: Experiment) -> Experiment:
    """Return the experiment with its script's hash. Raises UserError for a file that no pod has."""
    config, task = experiment.cluster, experiment.task
    assert isinstance(config, Config)
    if not isinstance(task, script.Config):
        if config.working_dir is not None:
            raise ClusterError(f"cluster.working_dir: task={task.name} has no script", hint="leave it out")
        return experiment
    if without_credentials(task.args) != task.args:
        raise ClusterError(
            "task.args holds a secret, which would be readable in the RayJob",
            hint="put it into the Secret of cluster.environment_secret: its keys are variables of the script",
        )
    if config.working_dir is not None:
        if task.path and Path(task.path).is_absolute():
            raise ClusterError(
                f"task.path={task.path} is a path of this machine", hint="give it from the current folder"
            )
        _inside(config, task)
        sources = _archive(experiment).digest
    elif task.sources is not None and not (task.path and Path(task.path).is_absolute()):
        raise ClusterError(
            f"task.{'path' if task.path else 'module'}={task.path or task.module} is a file of this machine, "
            "pods do not have it",
            hint="cluster.working_dir=. sends its folder, an absolute task.path= is a file of the image",
        )
    else:
        sources = f"{script.IMAGE}{(config.image or '').rpartition('@')[2]}"
    return experiment.model_copy(update={"task": task.model_copy(update={"sources": sources})})


def folder_in_pod(experiment: Experiment) -> str:
    """Return the folder in a pod in which the script starts."""
    config, task = experiment.cluster, experiment.task
    assert isinstance(config, Config) and isinstance(task, script.Config)
    return str(Path(pods.WORK) / _inside(config, task)) if config.working_dir else pods.WORK


def _inside(config: Config, task: script.Config) -> Path:
    root, folder = Path(config.working_dir or "").resolve(), Path(task.cwd or "").resolve()
    if not folder.is_relative_to(root):
        hint = "give the current folder or one above it, e.g. cluster.working_dir=."
        raise ClusterError(f"cluster.working_dir={config.working_dir} does not contain {folder}", hint=hint)
    return folder.relative_to(root)


def config_map(experiment: Experiment, group: str) -> Object | None:
    """Return the ConfigMap with the files. Raises UserError if they changed since the run was composed."""
    config, task = experiment.cluster, experiment.task
    assert isinstance(config, Config)
    if config.working_dir is None or not isinstance(task, script.Config):
        return None
    packed = _archive(experiment)
    if packed.digest != task.sources:
        raise ClusterError(
            f"files in cluster.working_dir={config.working_dir} changed after this command began",
            hint="repeat the command",
        )
    rest = {"immutable": True, "binaryData": {pods.ARCHIVE: base64.b64encode(packed.data).decode()}}
    return pods.resource(config, "v1", "ConfigMap", pods.files(group), labels={pods.RUN: group}, **rest)


def _archive(experiment: Experiment) -> archive.Archive:
    config = experiment.cluster
    assert isinstance(config, Config) and config.working_dir is not None
    places = (experiment.output_root.absolute(), experiment.data_root.absolute())
    return archive.pack(Path(config.working_dir).resolve(), beside=places)
