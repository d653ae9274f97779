"""The order in which a sweep runs a study's trials."""

import hashlib

from mlbench.record.study import Study, Trial, trials


def ordered_trials(study: Study) -> list[Trial]:
    """Return all trials in the order in which they run.

    Every repeat is a block that has all points once, in an order of its own, so that a slow drift of the
    machine favours no point and a study that stops early is balanced. The order is that of a hash of
    order_seed, repeat and key: random, the same after a restart, and unmoved by points that come later.
    """
    return sorted(trials(study), key=lambda trial: (trial.repeat, _place(study.order_seed, trial)))


def _place(order_seed: int, trial: Trial) -> bytes:
    return hashlib.sha256(f"{order_seed}/{trial.repeat}/{trial.point.key}".encode()).digest()
