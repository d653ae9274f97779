"""Task 4a: translation with GNMT. Recurrent, so bound by the length of sentences. 643 MB of gradients."""

from mlbench.config.experiment import LSTM_CPU_ONLY, PositiveFloat, PositiveInt
from mlbench.tasks.translation import data as translation
from mlbench.tasks.translation.config import Share, TranslationConfig

prepare, check = translation.prepare_dataset, translation.check
LIBRARIES = translation.LIBRARIES


class Config(TranslationConfig):
    """What conf/task/gnmt.yaml holds beyond the fields of every translation task."""

    CPU_ONLY = LSTM_CPU_ONLY

    hidden: PositiveInt
    warmup_start: PositiveFloat
    decay_factor: PositiveFloat
    decay_start: Share
    decay_every: Share
    decay_times: PositiveInt
