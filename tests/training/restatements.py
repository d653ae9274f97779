"""What the sync strategies do, again in plain NumPy: gradients and weights of all workers in one process.

The model is a matrix [12, 8] and a vector [5] that every worker pulls towards targets of its own, so a
gradient is weight - target. SGD with momentum 0.9 and rate 0.1, all in float64.
"""

from collections.abc import Callable

import numpy as np

SHAPES = ((12, 8), (5,))
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
LR, MOMENTUM = 0.1, 0.9
Vectors = np.ndarray  # [workers, SIZE], the matrix before the vector


def targets(workers: int, steps: int) -> np.ndarray:
    """Return what each worker pulls its weights to in each step, [workers, steps, SIZE]."""
    return np.random.default_rng(3).normal(1.0, 1.0, (workers, steps, SIZE))


def start() -> np.ndarray:
    """Return the first weights of every worker, [SIZE]."""
    return np.random.default_rng(5).normal(0.0, 1.0, SIZE)


def train(
    workers: int,
    steps: int,
    *,
    combine: Callable[[Vectors, int], Vectors] = lambda gradients, _: gradients,
    after: Callable[[Vectors, int], Vectors] = lambda weights, _: weights,
) -> Vectors:
    """Return every worker's weights; `combine` changes the gradients of a step, `after` its weights."""
    weights = np.tile(start(), (workers, 1))
    momentum = np.zeros_like(weights)
    pulls = targets(workers, steps)
    for step in range(steps):
        momentum = MOMENTUM * momentum + combine(weights - pulls[:, step], step)
        weights = after(weights - LR * momentum, step)
    return weights


def mean(vectors: Vectors, _: int = 0) -> Vectors:
    """Return the mean for every worker."""
    return np.broadcast_to(vectors.mean(axis=0), vectors.shape)


def compressed(compress: Callable[[np.ndarray, int, int], np.ndarray], memory: str) -> Callable:
    """Return a `combine` that averages compress(vector, step, worker), as its papers have it."""
    errors, estimates = 0.0, 0.0

    def combine(gradients: Vectors, step: int) -> Vectors:
        nonlocal errors, estimates

        def each(vectors: Vectors) -> Vectors:
            return np.stack([compress(vector, step, rank) for rank, vector in enumerate(vectors)])

        if memory == "ef21":
            estimates = estimates + each(gradients - estimates)
            return mean(estimates)
        wanted = gradients + (errors if memory == "error_feedback" else 0.0)
        sent = each(wanted)
        errors = wanted - sent
        return mean(sent)

    return combine


def top(vector: np.ndarray, count: int) -> np.ndarray:
    """Return the vector with all but the `count` largest magnitudes 0."""
    result = np.zeros_like(vector)
    chosen = np.argsort(-np.abs(vector))[:count]
    result[chosen] = vector[chosen]
    return result


def chosen(vector: np.ndarray, numbers: np.ndarray, factor: float) -> np.ndarray:
    """Return the vector with all but the coordinates `numbers` 0, times a factor."""
    result = np.zeros_like(vector)
    result[numbers] = factor * vector[numbers]
    return result


def sign(vector: np.ndarray) -> np.ndarray:
    """Return signs times the mean magnitude."""
    return np.where(vector >= 0, 1.0, -1.0) * np.abs(vector).sum() / len(vector)


def qsgd(vector: np.ndarray, drawn: np.ndarray, levels: int, block: int) -> np.ndarray:
    """Return magnitudes as whole levels of each block's norm, rounded up where `drawn` says so."""
    result = np.zeros_like(vector)
    for begin in range(0, len(vector), block):
        part = vector[begin : begin + block]
        norm = np.sqrt((part**2).sum())
        exact = levels * np.abs(part) / norm
        down = np.floor(exact)
        level = np.minimum(down + (drawn[begin : begin + len(part)] >= 1 - (exact - down)), levels)
        result[begin : begin + block] = norm * np.sign(part) * level / levels
    return result


def outer(
    every: int, start_step: int, lr: float, momentum: float, *, nesterov: bool
) -> tuple[Callable[[Vectors, int], Vectors], Callable[[Vectors, int], Vectors]]:
    """Return `combine` and `after` of local SGD: averaged gradients first, then outer steps."""
    anchor, velocity = start(), np.zeros(SIZE)

    def combine(gradients: Vectors, step: int) -> Vectors:
        return mean(gradients) if step < start_step else gradients

    def after(weights: Vectors, step: int) -> Vectors:
        nonlocal anchor, velocity
        if step + 1 == start_step:
            anchor = weights[0]
        if step + 1 <= start_step or (step + 1 - start_step) % every:
            return weights
        change = anchor - weights.mean(axis=0)
        velocity = momentum * velocity + change
        anchor = anchor - lr * (change + momentum * velocity if nesterov else velocity)
        return np.broadcast_to(anchor, weights.shape)

    return combine, after


# The neighbours of each of 2 and 4 workers, by hand; of graphs that change, one list a step.
RING = {2: [[1], [0]], 4: [[1, 3], [0, 2], [1, 3], [0, 2]]}
SENDERS = {
    "ring": {k: [graph] for k, graph in RING.items()},
    "torus": {4: [[[1, 2], [0, 3], [0, 3], [1, 2]]]},
    "exponential": {2: [RING[2]], 4: [[[3, 2], [0, 3], [1, 0], [2, 1]]]},
    "one_peer_exponential": {2: [RING[2]], 4: [[[3], [0], [1], [2]], [[2], [3], [0], [1]]]},
    "complete": {2: [RING[2]], 4: [[[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]]},
}


def mixing(graph: str, workers: int, step: int) -> np.ndarray:
    """Return the matrix W [workers, workers] whose row i averages worker i with those that send to it."""
    graphs = SENDERS[graph][workers]
    result = np.eye(workers)
    for rank, others in enumerate(graphs[step % len(graphs)]):
        result[rank, others] = 1.0
    return result / result.sum(axis=1, keepdims=True)


def gossip(graph: str, workers: int, lr: float) -> Callable[[Vectors, int], Vectors]:
    """Return D-PSGD's `after`."""

    def after(weights: Vectors, step: int) -> Vectors:
        return (1 - lr) * weights + lr * mixing(graph, workers, step) @ weights

    return after


def choco(
    graph: str, workers: int, lr: float, compress: Callable[[np.ndarray, int, int], np.ndarray]
) -> Callable[[Vectors, int], Vectors]:
    """Return CHOCO-SGD's `after`, with every worker's copy of every model as the paper has it."""
    copies = np.tile(start(), (workers, 1))

    def after(weights: Vectors, step: int) -> Vectors:
        nonlocal copies
        differences = weights - copies
        copies = copies + [compress(vector, step, rank) for rank, vector in enumerate(differences)]
        weight = mixing(graph, workers, step)
        pull = np.stack(
            [sum(weight[i, j] * (copies[j] - copies[i]) for j in range(workers)) for i in range(workers)]
        )
        return weights + lr * pull

    return after


def powersgd(first: np.ndarray, rank: int, *, feedback: bool) -> Callable:
    """Return a `combine` by Vogels et al. 2019, algorithms 1 and 2; `first` is Q at the start, [8, rank]."""
    rows, columns = SHAPES[0]
    right, errors = first, 0.0

    def combine(gradients: Vectors, _: int) -> Vectors:
        nonlocal right, errors
        result = mean(gradients).copy()  # the vector travels whole
        matrices = gradients[:, : rows * columns].reshape(-1, rows, columns) + (errors if feedback else 0.0)
        left = np.mean([matrix @ right for matrix in matrices], axis=0)
        left = np.linalg.qr(left)[0]
        right = np.mean([matrix.T @ left for matrix in matrices], axis=0)
        result[:, : rows * columns] = (left @ right.T).ravel()
        errors = matrices - left @ right.T
        return result

    return combine
