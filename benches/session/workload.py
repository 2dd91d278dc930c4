"""The standard work: table sizes, batches of ids and the order in which keys are first seen."""

import numpy as np

ZIPF_EXPONENT = 1.05

# The environment variable with the path of the built example limit_bench; the runners set it.
LIMIT_BENCH = "MX_REC_LIMIT_BENCH"


class Sizes:
    """How much one run does.

    Attributes:
        rows: keys in the table, all present before anything is measured.
        dim: float32 columns of the embedding.
        batch: ids in a batch.
        batches: different batches, used in turn.
        repetitions: measured repetitions of each side.
        warmup: repetitions before the measured ones.
        calls: measured repetitions of the smallest call.
    """

    def __init__(self, rows, dim, batch, batches, repetitions, warmup, calls):
        self.rows = rows
        self.dim = dim
        self.batch = batch
        self.batches = batches
        self.repetitions = repetitions
        self.warmup = warmup
        self.calls = calls


STANDARD = Sizes(
    rows=4194304, dim=64, batch=65536, batches=64, repetitions=60, warmup=8, calls=3000
)
SHORT = Sizes(rows=65536, dim=64, batch=1024, batches=8, repetitions=5, warmup=2, calls=50)


def key_order(sizes):
    """The keys 0..rows-1 in the fixed random order in which they enter the tables.

    A dense variable wants ids in [0, rows); a random order of arrival keeps a growing table
    from having row number = key by luck.

    Returns:
        int64 array of shape (rows,).
    """
    return np.random.RandomState(1).permutation(sizes.rows).astype(np.int64)


def id_batches(sizes, distribution, seed=2, exponent=ZIPF_EXPONENT):
    """Batches of ids, the same for both sides.

    Args:
        sizes: a Sizes.
        distribution: "u" (uniform) or "z" (Zipf over all keys, popular keys scattered).
        seed: seed of the draw.
        exponent: of Zipf's law.

    Returns:
        int64 array of shape (batches, batch).

    Raises:
        ValueError: for another distribution.
    """
    random = np.random.RandomState(seed)
    shape = (sizes.batches, sizes.batch)
    if distribution == "u":
        return random.randint(0, sizes.rows, size=shape).astype(np.int64)
    if distribution == "z":
        weights = np.arange(1, sizes.rows + 1, dtype=np.float64) ** -exponent
        cumulated = np.cumsum(weights)
        ranks = np.searchsorted(cumulated, random.random_sample(shape) * cumulated[-1])
        names = np.random.RandomState(seed + 1).permutation(sizes.rows).astype(np.int64)
        return names[np.minimum(ranks, sizes.rows - 1)]
    raise ValueError("distribution is %r, should be 'u' or 'z'" % (distribution,))


def gradients(sizes, seed=4):
    """One gradient per id of a batch: float32 array of shape (batch, dim)."""
    random = np.random.RandomState(seed)
    return (random.standard_normal((sizes.batch, sizes.dim)) * 0.01).astype(np.float32)
