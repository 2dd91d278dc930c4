"""The side of FBGEMM's table-batched lookup on CPU: `python fbgemm_side.py CASE [--short]`.

Runs in an environment of its own (requirements/peer-fbgemm.txt). The one CASE is bags. Its tables
are arrays: an id is a row's number, nothing is hashed.
"""

import sys

import torch
import fbgemm_gpu  # noqa: F401 -- registers the ops
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

import work


def main():
    """Fills the tables and serves."""
    sizes = work.SHORT if "--short" in sys.argv else work.STANDARD
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(sizes.bag_rows, sizes.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * sizes.tables,
        optimizer=EmbOptimType.EXACT_SGD,
        pooling_mode=PoolingMode.SUM,
    )
    rows = torch.from_numpy(work.initial(sizes.bag_rows, sizes.dim))
    for weights in module.split_embedding_weights():
        weights.copy_(rows)
    batches = [torch.from_numpy(batch.reshape(-1)) for batch in work.bags(sizes)]
    count = sizes.tables * sizes.bags
    offsets = torch.arange(0, (count + 1) * sizes.length, sizes.length)

    def pooled(k):
        with torch.no_grad():
            return module(batches[k % len(batches)], offsets)

    def probe():
        return pooled(0)[:4].reshape(-1).tolist()

    work.serve(lambda k: float(pooled(k)[-1].sum()), probe)


if __name__ == "__main__":
    main()
