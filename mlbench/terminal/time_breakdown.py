"""Where a run's time went: the lines of the result card that are measurements."""

import math

from mlbench.analysis import stragglers
from mlbench.record import format
from mlbench.record.phases import EXPOSED
from mlbench.record.record import RankStats, Record

SHOWN_S = 1e-3  # s; shorter parts of the start-up are left out


def lines(record: Record) -> list[tuple[str, str | None]]:
    """Return label and text of each; the text is None where nothing was measured."""
    return [
        ("time to accuracy", _time_to_accuracy(record)),
        ("time breakdown", _where_time_went(record)),
        ("start-up", _startup(record)),
        ("whole command", format.duration(record.wall)),
        ("trained", _trained(record)),
        ("throughput", _throughput(record)),
        ("batch", _batch(record)),
        ("phases", _phases(record)),
        ("communication", _communication(record)),
        ("bytes sent", _bytes_sent(record)),
        ("straggler", _straggler(record)),
        ("arithmetic", _arithmetic(record)),
    ]


def _elapsed(record: Record) -> float | None:
    """Return the seconds on the run's clock at its last validation."""
    return record.validations[-1].elapsed if record.validations else None


def _time_to_accuracy(record: Record) -> str | None:
    if record.time_to_accuracy is not None:
        exact = f" ({record.time_to_accuracy:,.2f} s)" if record.time_to_accuracy >= format.MINUTE else ""
        time = format.duration(record.time_to_accuracy)
        return f"{time}{exact} from clock start (first access to training data) to the goal"
    elapsed = _elapsed(record)
    if elapsed is None:
        return None
    return f"none; {format.duration(elapsed)} from clock start to the last validation"


def _where_time_went(record: Record) -> str | None:
    """Return the parts of the run's clock as seconds of the mean rank, which add up to the whole."""
    elapsed = _elapsed(record)
    if elapsed is None:
        return None
    parts = {"batches": math.fsum(spread.mean for spread in record.phases.values())} if record.phases else {}
    parts |= {name: spread.mean for name, spread in record.outside.items()}
    rest = elapsed - math.fsum(parts.values())
    restarted = len(record.restarts) > (record.status == "failed")  # the last failure had no restart
    named = "rest, with what restarts lost" if restarted else "rest"
    if not record.phases:
        named = f"batches and {named}"
    texts = [f"{name} {format.duration(seconds)}" for name, seconds in parts.items()]
    if rest > 0:
        texts.append(f"{named} {format.duration(rest)}")
    text = ", ".join(texts)
    if record.train_time is not None:
        text += f"; train time as MLBench counts it {format.duration(record.train_time)}"
    return text


def _startup(record: Record) -> str | None:
    seconds = record.startup.parts()
    if record.startup_time is not None:
        seconds["rest"] = record.startup_time - math.fsum(seconds.values())
    parts = [f"{name.replace('_', ' ')} {format.duration(s)}" for name, s in seconds.items() if s > SHOWN_S]
    if not parts:
        return None
    if record.startup_time is None:
        return f"not finished: {', '.join(parts)}"
    whole = format.duration(record.startup_time)
    return f"{whole} from the command to clock start: {', '.join(parts)}"


def _trained(record: Record) -> str | None:
    if not record.steps:
        return None
    epochs = f"{record.epochs:g} {'epoch' if record.epochs == 1 else 'epochs'}"
    text = f"{epochs}, {format.counted(record.steps, 'step')}"
    return f"{text}, {record.samples:,} {record.sample_unit}" if record.samples else text


def _throughput(record: Record) -> str | None:
    if record.samples_per_s is None:
        return None
    text = f"{format.number(record.samples_per_s)} {record.sample_unit}/s"
    if record.workers == 1 or record.samples_per_s_per_worker is None:
        return text
    return f"{text}, {format.number(record.samples_per_s_per_worker)} per worker"


def _batch(record: Record) -> str | None:
    return ", ".join(f"{name} {format.duration(s)}" for name, s in record.step_s.items() if name != "p99")


def _share(spread: RankStats, whole: float) -> str:
    """Return a spread as % of the batch, with the range over ranks where the digits show one."""
    text = format.percent(spread.mean / whole)
    low, high = (f"{100 * end / whole:.1f}" for end in (spread.min, spread.max))
    return text if low == high else f"{text} ({low} to {high})"


def _phases(record: Record) -> str | None:
    """Return the phases as shares of the mean rank's batch."""
    whole = math.fsum(spread.mean for spread in record.phases.values())
    if not whole:
        return None
    shares = [f"{name.replace('_', ' ')} {_share(s, whole)}" for name, s in record.phases.items()]
    ranks = "; in brackets lowest to highest rank" if any("(" in share for share in shares) else ""
    return f"of the batch: {', '.join(shares)}{ranks}"


def _communication(record: Record) -> str | None:
    whole = math.fsum(spread.mean for spread in record.phases.values())
    if record.workers == 1 or record.exposed_communication_share is None or not whole:
        return None
    text = f"exposed {format.percent(record.exposed_communication_share)} of the batch"
    if "wait" in record.phases:
        parts = (f"{name} {_share(record.phases[name], whole)}" for name in EXPOSED)
        text += f" ({', '.join(parts)})"
    if record.overlapped_communication is None:
        return text
    return f"{text}, overlapped with backward {_share(record.overlapped_communication, whole)}"


def _bytes_sent(record: Record) -> str | None:
    """Return what a worker sends per step, and how that compares with its gradients."""
    sent = record.bytes_sent_per_step
    if sent is None:
        return None
    text = f"{format.with_prefix(sent.mean, 'B')} per step and worker"
    low, high = format.with_prefix(sent.min, "B"), format.with_prefix(sent.max, "B")
    text += f" ({low} to {high})" if low != high else ""
    if record.gradient_bytes:
        text += f", {format.number(sent.mean / record.gradient_bytes)} x its gradients"
    return f"{text}, by sync={record.experiment.sync.name}"


def _straggler(record: Record) -> str | None:
    late = stragglers.straggler(record.lateness, clock_error_s=record.clock_error_s)
    return stragglers.sentence(late) if late else None


def _arithmetic(record: Record) -> str | None:
    if record.model_flops_per_s is None:
        return None
    text = f"model FLOP/s (all workers) {format.with_prefix(record.model_flops_per_s, 'FLOP/s')}"
    return f"{text}, MFU {format.number(100 * record.mfu)} %" if record.mfu is not None else text
