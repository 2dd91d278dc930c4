"""Random models: whatever becomes a table, the numbers stay, and no graph is refused."""

import numpy as np
import pytest

import stock_cases as cases
import support

SEEDS = range(24)


class Draw:
    """Builds a random model out of a seed; the same seed gives the same model."""

    def __init__(self, seed):
        self.random = np.random.RandomState(seed)
        self.tf = support.tf()
        self.v1 = self.tf.compat.v1

    def choose(self, *options):
        return options[self.random.randint(len(options))]

    def variable(self, number):
        v1 = self.v1
        kwargs = {"use_resource": self.choose(True, False)}
        if self.choose(True, False, False):
            kwargs["partitioner"] = v1.fixed_size_partitioner(self.choose(2, 3))
        maker = self.choose(v1.zeros_initializer, v1.glorot_uniform_initializer, v1.orthogonal_initializer)
        return v1.get_variable("v{}".format(number), [cases.ROWS, cases.DIM], initializer=maker(), **kwargs)

    def rows(self, variable, ids):
        """(b, DIM) out of a variable."""
        tf = self.tf
        column = ids[:, self.random.randint(3)]
        strategy = self.choose("mod", "div")
        how = self.choose("plain", "safe", "sparse", "whole", "cond", "twice")
        is_parted = not hasattr(variable, "op")
        if how in ("safe", "sparse"):
            sparse = tf.sparse.from_dense(tf.where(ids % 4 == 0, tf.zeros_like(ids), ids) if how == "safe" else ids + 1)
            sparse = tf.SparseTensor(sparse.indices, sparse.values - (how == "sparse"), sparse.dense_shape)
            combiner = self.choose("sum", "mean", "sqrtn")
            if how == "safe":
                return tf.nn.safe_embedding_lookup_sparse(
                    variable, sparse, combiner=combiner, default_id=self.choose(None, None, 7))
            return self.v1.nn.embedding_lookup_sparse(variable, sparse, None, combiner=combiner,
                                                      partition_strategy=strategy)
        if how == "whole" and not is_parted:
            return tf.nn.embedding_lookup(variable, column) + 0.01 * tf.reduce_mean(variable)
        if how == "cond" and not is_parted:
            return self.v1.cond(tf.reduce_sum(ids) % 2 > 0, lambda: tf.gather(variable, column),
                                lambda: tf.gather(variable, column) * 2.0)
        looked_up = tf.nn.embedding_lookup(variable, column, partition_strategy=strategy)
        if how == "twice":
            looked_up += tf.nn.embedding_lookup(variable, ids[:, 0], partition_strategy=strategy) * 0.5
        return looked_up

    def build(self, ids, labels):
        tf = self.tf
        made = [self.variable(number) for number in range(self.random.randint(1, 4))]
        total = 0.0
        for variable in made:
            for _ in range(self.random.randint(1, 3)):
                scale = tf.constant(self.random.randn(cases.DIM), tf.float32)
                total += tf.tensordot(self.rows(variable, ids), scale, 1)
        loss = tf.reduce_mean(tf.square(total - labels))
        if self.choose(True, False, False):
            loss += 0.001 * tf.nn.l2_loss(self.choose(*made)) if hasattr(made[0], "op") and len(made) == 1 else 0.0
        names = sorted(set(cases.optimizers()) - {"lazy_adam"})
        optimizer = cases.optimizers()[self.choose(*names)]()
        pairs = [(grad, variable) for grad, variable in optimizer.compute_gradients(loss) if grad is not None]
        if self.choose(True, False, False):
            grads, variables = zip(*pairs)
            pairs = list(zip(tf.clip_by_global_norm(grads, 0.3)[0], variables))
        parts = [part for variable in made for part in ([variable] if hasattr(variable, "op") else list(variable))]
        return loss, optimizer.apply_gradients(pairs), parts


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_model_gives_the_same_numbers(mx, seed):
    mx(stock_tables=".*")
    stock = cases.run(lambda *inputs: Draw(seed).build(*inputs), False, steps=40)
    tables = cases.run(lambda *inputs: Draw(seed).build(*inputs), True, steps=40)
    np.testing.assert_allclose(tables.losses, stock.losses, rtol=1e-4, atol=1e-5)
    for name, rows in stock.rows.items():
        np.testing.assert_allclose(tables.rows[name], rows, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", SEEDS[::2])
def test_a_random_model_whose_rows_are_admitted_gives_the_same_numbers(mx, seed):
    from mx_rec.util.stock_tables import StockTables

    mx(stock_tables=StockTables(
        least_rows=1, access_threshold=seed % 5, eviction_threshold=10 ** 6 if seed % 4 else None))
    stock = cases.run(lambda *inputs: Draw(seed).build(*inputs), False, steps=40)
    tables = cases.run(lambda *inputs: Draw(seed).build(*inputs), True, steps=40)
    np.testing.assert_allclose(tables.losses, stock.losses, rtol=1e-4, atol=1e-5)
    for name, rows in stock.rows.items():
        np.testing.assert_allclose(tables.rows[name], rows, rtol=1e-3, atol=1e-4)


def test_random_models_have_tables_and_variables(mx):
    mx(stock_tables=".*")
    plans = [plan for seed in SEEDS
             for plan in cases.run(lambda *inputs: Draw(seed).build(*inputs), True, steps=1).plans.values()]
    tables = sum(plan.converts for plan in plans)
    fused = sum(plan.pieces is not None for plan in plans)
    assert 15 < tables < len(plans) - 15 and 5 < fused < tables
