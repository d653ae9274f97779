"""Why a published number of MLBench is not what its name says, one sentence a reason.

Each was verified in the original's code or in the archives themselves; docs/results-command.md has the list.
"""

from collections.abc import Sequence


def caveats(
    *,
    task: str,
    device: str,
    workers: int,
    steps: dict[str, float | None],
    total: float | None,
    copies: Sequence[str],
) -> list[str]:
    """Return the caveats of one archive.

    - steps: rank 0's seconds by the original's step names, None for a step it did not time.
    - total: its time to the goal in seconds, None without one.
    - copies: names of archives that hold the same bytes.
    """
    said = ["published as one run, without repetition: how much of it is chance is not known"]
    said.append("hyper-parameters, seed and hardware are not in the archive: shown are those of its recipe")
    if copies:
        said.append(f"the same run was published again as {', '.join(copies)}")
    if task == "allreduce":
        said.append("no warm-up, no barrier between calls, and only a mean of 100 calls a rank")
        return said
    if total is None:
        said.append("the archive holds no result: whether the run had ended is not known")
        return said
    said.append(
        "time to accuracy is rank 0's time inside batches: start-up, validation and waiting for data are not "
        "in it, and phases are rank 0's"
    )
    if device == "cuda":
        said.append(
            "steps were timed without waiting for the GPU: how time splits into phases is not to be trusted"
        )
    if workers == 1 and steps["agg"]:
        said.append("one worker communicates with nobody: its communication is other work, timed too late")
    elif workers > 1 and steps["agg"] is None:
        said.append("communication overlapped with the backward pass and was not measured: its 0 is no time")
    elif workers > 1:
        said.append("communication is gradients' aggregation as one step, with its copies and divisions")
    unmeasured = [name for name in ("batch_load", "comp_metrics") if steps[name] is None]
    if unmeasured:
        said.append(f"{' and '.join(unmeasured)} did not exist as a step: shown as 0")
    if task in ("gnmt", "transformer"):
        said.append("BLEU is the mean over batches of 64 sentences of the test set, not the corpus's")
    return said
