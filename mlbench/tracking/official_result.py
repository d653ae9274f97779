"""The result line that MLBench (2018-2021) put into its downloads, for tools that read it."""

from mlbench.experiment.phases import exposed
from mlbench.experiment.record import Record

_TASK_RESULT = {
    "top1_accuracy": "{target:g}% Top 1 Validation Accuracy",
    "accuracy": "{target:g}% Top 1 Validation Accuracy",
    "perplexity": "Validation Perplexity of {target:g}",
    "bleu": "Validation BLEU-Score of {target:g}",
}


def official_result(record: Record) -> str | None:
    """Return the line of `official_result.txt`; None where no goal was reached, as in the original.

    - The seconds are `time_to_accuracy`, the wall clock. The original's were its training time, which left
      out loading and validation; that number is the record's `train_time`.
    - The parts are means over the ranks, with exposed communication only, and data_wait as pre-processing.
      The original's were rank 0's. Without phase clocks (phase_timing=false) there are no parts.
    """
    if record.status != "goal_reached" or record.goal is None or record.time_to_accuracy is None:
        return None
    metric, target = record.goal.metric, record.goal.target
    text = _TASK_RESULT.get(metric, f"Validation {metric} of {{target:g}}").format(target=target)
    parts = [f"{text} reached in {record.time_to_accuracy:.3f} seconds"]
    mean = {phase: spread.mean for phase, spread in record.phases.items()}
    if mean:
        compute = sum(mean[phase] for phase in ("forward", "loss", "backward", "optimizer"))
        parts += [
            f"Compute: {compute} seconds",
            f"Communication: {exposed(mean)} seconds",
            f"Metrics Computation: {mean['metrics']} seconds",
            f"Pre-processing: {mean['data_wait']} seconds",
        ]
    return ", ".join(parts)
