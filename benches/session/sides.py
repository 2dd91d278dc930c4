"""What both sides of a session bench are made of: held arrays, a dense variable, a table of ours."""

import functools

import tensorflow as tf

CHUNK = 65536


class Held:
    """An array that lives in the graph as a variable, so that no repetition pays for feeding it.

    Batches are picked with `held.value[number]`: a view of the variable, not a copy. It is a
    resource variable: memory of one of the old kind is copied on its way into our ops, since an
    assignment writes into it, which ids that are fed or come from a pipeline are spared.
    """

    def __init__(self, array, name):
        self._array = array
        self._fed = tf.compat.v1.placeholder(array.dtype, array.shape)
        self.value = tf.Variable(
            tf.zeros(array.shape, array.dtype), trainable=False, name=name, use_resource=True
        )
        self._assign = tf.compat.v1.assign(self.value, self._fed).op

    def load(self, session):
        """Puts the array into the variable of this session."""
        session.run(self._assign, {self._fed: self._array})


def dense_variable(sizes, name):
    """TensorFlow's table: a float32 variable (rows, dim) with small uniform values."""
    initial = tf.random.uniform([sizes.rows, sizes.dim], -0.05, 0.05, seed=5)
    return tf.Variable(initial, name=name, use_resource=False)


def session():
    """A session with TensorFlow's default threads and graph optimizer."""
    return tf.compat.v1.Session()


class Ours:
    """A table of the plugin, through the package's public names where it has them.

    Attributes:
        ops: module with one function per op.
        table: what create_table gave.
        handle: int64 scalar tensor.
    """

    def __init__(self, sizes, name):
        from mx_rec.core.embedding import create_table
        from mx_rec.util.ops import import_host_pipeline_ops

        _start()
        self.ops = import_host_pipeline_ops()
        self.table = create_table(
            key_dtype=tf.int64,
            dim=sizes.dim,
            name=name,
            emb_initializer=tf.compat.v1.constant_initializer(0.0),
            device_vocabulary_size=sizes.rows + sizes.rows // 16,
        )
        self.variable = self.table.variable
        self.handle = self.table.variable.op.outputs[1]

    def lookup(self, ids, is_train, name, **admission):
        """The package's sparse_lookup on a plain tensor of ids, with thresholds if there are any."""
        from mx_rec.core.embedding import sparse_lookup

        return sparse_lookup(
            self.table,
            ids,
            is_train=is_train,
            name=name,
            modify_graph=True,
            access_and_evict_config=admission or None,
        )

    def assign(self, ids, rows):
        """Op output that creates or overwrites rows."""
        return self.ops.mx_rec_assign(self.handle, ids, rows, [], [], [])

    def find(self, ids):
        """Rows of ids, zeros where there is none; never creates."""
        variable = self.variable.op.outputs[0]
        return self.ops.mx_rec_find([self.handle], [variable], [ids], [], [], [], [], [])[0]


@functools.lru_cache(maxsize=None)
def _start():
    """Initialises the package, once a process."""
    from mx_rec.util.initialize import init

    init(use_dynamic=True)


class Filling:
    """Copies every row of the dense variable to the other side, key by key in key_order."""

    def __init__(self, dense, order, put):
        """put: function (ids, rows) -> tensor or op that stores them."""
        self._order = order
        self._ids = tf.compat.v1.placeholder(tf.int64, [None])
        self._put = put(self._ids, tf.gather(dense, self._ids))

    def run(self, session_):
        """Fills; a second run overwrites the same rows."""
        for begin in range(0, len(self._order), CHUNK):
            session_.run(self._put, {self._ids: self._order[begin : begin + CHUNK]})


def force(rows):
    """A scalar that needs `rows` to have been computed whole, and costs next to nothing itself.

    The sum of the last row: no pass of the graph optimizer can narrow a gather or one of our ops
    to it, and unlike a sum over everything it adds no equal amount of time to both sides, which
    would draw their ratio towards 1.
    """
    width = int(rows.shape[-1])
    return tf.reduce_sum(tf.reshape(rows, [-1, width])[-1])


def floor_of_lookups(ids):
    """A fetch that reads the ids as a lookup's graph does, and looks nothing up.

    Args:
        ids: int64 tensor.
    """
    return tf.reduce_sum(tf.cast(tf.reshape(ids, [-1])[-1:], tf.float32))


def floor_of_steps(ids, shapes):
    """Fetches of a step's loss and of its gradient, of embeddings that are already there.

    Args:
        ids: int64 tensor.
        shapes: of the embeddings that the loss is made of.
    """
    held = [
        tf.Variable(tf.zeros(shape), trainable=False, name="held_%d" % at, use_resource=True)
        for at, shape in enumerate(shapes)
    ]
    rows = [tf.identity(one) for one in held]
    loss = tf.add_n([tf.nn.l2_loss(one) for one in rows])
    gradients = [tf.reshape(one, [-1])[-1:] for one in tf.gradients(loss, rows)]
    return [loss, tf.add_n(gradients), floor_of_lookups(ids)]
