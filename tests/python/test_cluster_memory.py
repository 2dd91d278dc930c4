"""The memory of a table on disk, shared among its parts on parameter servers."""

import numpy as np
import pytest

from mx_rec.cluster import tables

BUCKETS = 4096


def parts_of(keys, count):
    """The part of each key: a range of the buckets of fmix64."""
    bits = keys.astype(np.uint64)
    for factor in (0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53):
        bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(factor)
    bits ^= bits >> np.uint64(33)
    return (bits % np.uint64(BUCKETS)).astype(np.int64) * count // BUCKETS


@pytest.mark.parametrize("rows", [10, 400, 100000])
@pytest.mark.parametrize("count", [1, 4, 8, 64])
def test_a_batch_as_large_as_the_memory_fits_into_that_of_each_part(rows, count):
    # pylint: disable=protected-access
    share = tables._part_config({"capacity": 10 * rows, "tier": {"ram_rows": rows}}, count)["tier"]["ram_rows"]
    assert share <= rows and (share - 1) * count <= rows * (1 + 6 * (count / rows) ** 0.5) + 7 * count
    for first in range(5):
        keys = np.arange(rows) * 977 + first * 12345
        assert np.bincount(parts_of(keys, count), minlength=count).max() <= share
