"""Task 4b: translation with the Transformer; large products, bound by arithmetic; 843 MB of gradients."""

from mlbench.config.experiment import PositiveInt
from mlbench.tasks.transformer import data
from mlbench.tasks.translation.config import TranslationConfig

prepare, check = data.prepare_dataset, data.check


class Config(TranslationConfig):
    """What conf/task/transformer.yaml holds beyond the fields of every translation task."""

    d_model: PositiveInt
    ffn: PositiveInt
    heads: PositiveInt
