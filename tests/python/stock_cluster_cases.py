"""Models that do not know mx_rec on parameter servers: their tasks, as `cluster_cases.Job` starts them."""

import json

import preloaded
from cluster_cases import INIT, TASK, Job


# The script of a task, up to its model. STOCK is what init gets, as Python.
STOCK = TASK.replace(INIT, """
from mx_rec.util.stock_tables import StockTables
init(stock_tables=eval(os.environ.get("STOCK", "['.*']")))
""")
assert STOCK != TASK

# Two variables of rows: of one of them a part of a pooled lookup, both clipped, and a dense layer. RUN trains it.
MODEL = """
from mx_rec.graph.modifier import modify_graph_and_start_emb_cache
from mx_rec.stock.select import convert_graph
v1 = tf.compat.v1
ROWS, DIM = int(os.environ.get("ROWS", 300)), 4
OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1, initial_accumulator_value=0.3),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01, l2_shrinkage_regularization_strength=0.01),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.02, momentum=0.5),
    "centered": lambda: v1.train.RMSPropOptimizer(v1.train.exponential_decay(0.02, step, 5, 0.7), epsilon=1e-3, centered=True),
    "adam": lambda: v1.train.AdamOptimizer(v1.train.exponential_decay(0.02, step, 5, 0.7)),
    "lazy_adam": lambda: tf.contrib.opt.LazyAdamOptimizer(v1.train.exponential_decay(0.02, step, 5, 0.7)),
}

def batch(number, size=24):
    random = np.random.RandomState(number)
    ids = random.zipf(1.3, [size, 3]) % ROWS
    return ids, np.sin(ids.sum(1)).astype(np.float32)

with tf.device(device):
    step = v1.train.get_or_create_global_step()
    ids = v1.placeholder(tf.int64, [None, 3], name="ids")
    labels = v1.placeholder(tf.float32, [None], name="labels")
    resource = os.environ.get("RESOURCE") == "1"
    parts = int(os.environ.get("PARTS", 0))
    partitioner = tf.compat.v1.fixed_size_partitioner(parts) if parts else None
    uniform = lambda: v1.constant_initializer(0.2) if os.environ.get("CONSTANT") else v1.random_uniform_initializer(-0.3, 0.3)
    items = v1.get_variable("items", [ROWS, DIM], initializer=uniform(), use_resource=resource, partitioner=partitioner)
    users = v1.get_variable("deep/users", [ROWS, 8], initializer=v1.constant_initializer(0.1), use_resource=resource)
    sparse = tf.SparseTensor(tf.stack([tf.range(tf.size(ids, out_type=tf.int64)) // 3,
                                       tf.range(tf.size(ids, out_type=tf.int64)) % 3], 1),
                             tf.reshape(ids, [-1]), tf.shape(ids, out_type=tf.int64))
    pooled = tf.nn.safe_embedding_lookup_sparse(items, sparse, combiner="mean")
    if resource:
        pooled.set_shape([None, DIM])
    found = tf.nn.embedding_lookup(users, ids[:, 0])
    joined = tf.concat([pooled, found], -1)
    weights = v1.get_variable("weights", [joined.shape[-1], 1], initializer=v1.constant_initializer(0.3))
    loss = tf.reduce_mean(tf.square(tf.squeeze(tf.matmul(joined, weights), 1) - labels))
    optimizer = OPTIMIZERS[os.environ.get("OPTIMIZER", "adagrad")]()
    pairs = optimizer.compute_gradients(loss)
    if os.environ.get("CLIP"):
        grads, _ = tf.clip_by_global_norm([grad for grad, _ in pairs], 0.5)
        pairs = list(zip(grads, [variable for _, variable in pairs]))
    train = optimizer.apply_gradients(pairs, global_step=step)
    every = [tf.nn.embedding_lookup(items, tf.range(ROWS, dtype=tf.int64), partition_strategy=os.environ.get("STRATEGY", "mod")),
             tf.nn.embedding_lookup(users, tf.range(ROWS, dtype=tf.int64))]
    plans = convert_graph(v1.get_default_graph(), True)

# How many ops of each type of ours a run of some tensors or ops has.
def ops_of(fetches):
    found, todo = {}, [getattr(one, "op", one) for one in fetches]
    while todo:
        op = todo.pop()
        if op.name not in found:
            found[op.name] = op.type
            todo += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    types = [kind for kind in found.values() if kind.startswith("MxRec")]
    return {kind: types.count(kind) for kind in types}

# The types of ops of TensorFlow that a run has on servers.
def on_servers(fetches):
    found, todo = {}, [getattr(one, "op", one) for one in fetches]
    while todo:
        op = todo.pop()
        if op.name not in found:
            found[op.name] = op
            todo += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return sorted({op.type for op in found.values() if "/job:ps" in op.device and not op.type.startswith("MxRec")})
"""

RUN = MODEL + """
first, last = int(os.environ.get("FIRST", 0)), int(os.environ.get("LAST", 30))
with v1.train.MonitoredTrainingSession(
        target, is_chief=is_chief, config=config, checkpoint_dir=os.environ.get("CHECKPOINTS"), log_step_count_steps=None,
        save_checkpoint_steps=int(os.environ.get("SAVE", 1000)), save_summaries_steps=None,
        stop_grace_period_secs=1) as sess:
    before = [value.tolist() for value in sess.run(every)] if os.environ.get("BEFORE") else None
    losses = []
    for number in range(first, last):
        losses.append(float(sess.run([loss, train], dict(zip([ids, labels], batch(number))))[0]))
    print(json.dumps({"losses": losses, "step": int(sess.run(step)), "plans": {plan.name: [plan.converts, plan.reason] for plan in plans},
                      "before": before, "ops": ops_of([loss, train]), "on_servers": on_servers([loss, train]),
                      "rows": [value.tolist() for value in sess.run(every)]}))
"""


class StockJob(Job):
    """The processes of one cluster whose models do not know mx_rec."""

    def __init__(self, code=RUN, **arguments):
        super().__init__(code, **arguments)
        self.task = STOCK

    def run(self, **variables):
        """Runs the first worker to its end; returns what it printed."""
        return json.loads(self.worker(**variables))


def run_alone(code=RUN, **variables):
    """Runs a worker's code without a cluster; returns what it printed."""
    return json.loads(preloaded.run_python(STOCK + code, JOB="worker", INDEX="0", **variables))
