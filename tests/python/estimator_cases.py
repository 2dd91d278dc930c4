"""An Estimator on two tables, in three forms that must give the same numbers, and readers of what it leaves on disk.

The forms: "step" looks tensors up inside the training step, "ahead" is the same with GraphModifierHook, "specs" uses
FeatureSpecs that the input_fn makes.
"""

import functools
import glob
import os

import numpy as np

import support

FORMS = ("step", "ahead", "specs")
BATCH = 16
USERS, ITEMS = 30, 50
TABLES = ("user_table", "item_table")


def samples(count=5 * BATCH + 3, seed=0, users=USERS):
    """({"user": (n, 2) with padding, "item": (n), "price": (n)}, labels (n)); the last batch is a short one."""
    random = np.random.RandomState(seed)
    user = random.randint(0, users, [count, 2]).astype(np.int64) * 11 - 100
    user[random.rand(count) < 0.2, 1] = -1
    item = random.randint(0, ITEMS, count).astype(np.int64) * 10 ** 9
    price = random.rand(count).astype(np.float32)
    label = np.sin(user[:, 0]) + np.cos(item // 10 ** 9) + price
    return {"user": user, "item": item, "price": price}, label.astype(np.float32)


def dataset(data=None, repeat=1, batch=BATCH):
    """Batches of `samples()` or of `data`."""
    tf = support.tf()
    return tf.data.Dataset.from_tensor_slices(data or samples()).repeat(repeat).batch(batch)


class Recorder:
    """Keeps what each step fetched; `hook()` makes a new hook that adds to it."""

    def __init__(self, fetches):
        self.fetches = fetches
        self.values = []

    def hook(self):
        return support.fetching(lambda: self.fetches, self.values.append)


class Case:
    """One Estimator in one of the forms, and its input_fns and hooks.

    Args:
        form: One of FORMS.
        directory: The model_dir.
        config: More arguments of RunConfig.
        params: `capacity`, rows of each table; `dim`, floats of a row; `rename`, names of the tables in this model;
            `hooks(features)`, training hooks made in model_fn; `optimizer`, that of the tables.
        warm_start: The Estimator's `warm_start_from`.
    """

    def __init__(self, form, directory, params=None, warm_start=None, **config):
        tf = support.tf()
        assert form in FORMS
        self.form = form
        self.specs = []
        settings = dict(tf_random_seed=5, log_step_count_steps=None, save_checkpoints_steps=10, save_summary_steps=1000,
                        session_config=tf.compat.v1.ConfigProto(intra_op_parallelism_threads=2,
                                                                inter_op_parallelism_threads=2))
        settings.update(config)
        run = tf.estimator.RunConfig(model_dir=os.path.realpath(str(directory)), **settings)
        self.estimator = tf.estimator.Estimator(self.model_fn, config=run, params=params or {},
                                                warm_start_from=warm_start)

    @property
    def directory(self):
        return self.estimator.model_dir

    def hooks(self, *more):
        """Hooks for train, evaluate or predict."""
        from mx_rec.graph import GraphModifierHook

        if self.form == "step":
            return list(more)
        return [GraphModifierHook(modify_graph=self.form == "ahead")] + list(more)

    def input_fn(self, is_training, data=None, repeat=1, make=dataset):
        """An input_fn that returns a dataset; `make(data, repeat)` makes it."""

        def input_fn():
            from mx_rec.core.asc.helper import FeatureSpec, get_asc_insert_func

            batches = make(data, repeat)
            if self.form == "specs":
                self.specs = [FeatureSpec(name, table_name=table, index_key=name)
                              for name, table in zip(("user", "item"), TABLES)]
                batches = batches.map(get_asc_insert_func(self.specs, is_training=is_training))
            return batches.prefetch(2)

        return input_fn

    def model_fn(self, features, labels, mode, params):
        from mx_rec.core.embedding import sparse_lookup
        from mx_rec.optimizers.lazy_adam import create_hash_optimizer
        from mx_rec.util.variable import get_dense_and_sparse_variable

        tf = support.tf()
        is_train = mode == tf.estimator.ModeKeys.TRAIN
        renamed, dim = params.get("rename", {}), params.get("dim", 4)
        tables = [support.make_table(renamed.get(name, name), dim, params.get("capacity", 1000),
                                     tf.compat.v1.random_normal_initializer(stddev=0.3, seed=seed))
                  for seed, name in enumerate(TABLES)]
        if self.form == "specs":
            user, item = [sparse_lookup(table, spec, is_train=is_train, batch=features)
                          for table, spec in zip(tables, self.specs)]
        else:
            user, item = [sparse_lookup(table, features[name], is_train=is_train, modify_graph=True)
                          for table, name in zip(tables, ("user", "item"))]
        seen = tf.concat([tf.reduce_sum(user, axis=1), item, features["price"][:, None]], axis=1)
        seen.set_shape([None, 2 * dim + 1])
        dense = dict(kernel_initializer=tf.compat.v1.glorot_uniform_initializer(seed=9))
        hidden = tf.compat.v1.layers.dense(seen, 8, activation=tf.nn.relu, **dense)
        output = tf.compat.v1.layers.dense(hidden, 1, **dense)[:, 0]
        if mode == tf.estimator.ModeKeys.PREDICT:
            # Features go out beside the output, so that a caller can tell which sample it belongs to.
            return tf.estimator.EstimatorSpec(mode, predictions={
                "output": output, "user": features["user"], "item": features["item"], "price": features["price"]})
        loss = tf.reduce_mean(tf.square(output - labels), name="model_loss")
        if not is_train:
            metrics = {"error": tf.compat.v1.metrics.root_mean_squared_error(labels, output),
                       "mean_user": tf.compat.v1.metrics.mean(tf.cast(features["user"], tf.float32))}
            return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
        tf.compat.v1.summary.scalar("squared_error", loss)
        variables, sparse = get_dense_and_sparse_variable()
        # Gated: else TensorFlow may update a kernel before the gradient of the layer's input has read it, and two runs
        # of one graph differ.
        gradients = tf.gradients(loss, variables + sparse, gate_gradients=True)
        train = tf.group(
            tf.compat.v1.train.AdamOptimizer(0.01).apply_gradients(
                zip(gradients, variables), global_step=tf.compat.v1.train.get_global_step()),
            params.get("optimizer", create_hash_optimizer)(learning_rate=0.05).apply_gradients(zip(gradients[len(variables):], sparse)))
        hooks = params["hooks"](features) if "hooks" in params else []
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train, training_hooks=hooks)

    def train(self, data=None, repeat=None, hooks=(), make=dataset, **steps):
        """Trains and returns the loss of each step."""
        losses = Recorder("model_loss:0")
        self.estimator.train(self.input_fn(True, data, repeat, make), hooks=self.hooks(losses.hook(), *hooks), **steps)
        return losses.values

    def evaluate(self, data=None, **kwargs):
        return self.estimator.evaluate(self.input_fn(False, data), hooks=self.hooks(), **kwargs)

    def predict(self, data=None, batch=BATCH):
        """name -> array with the predictions of all samples; TensorFlow's products of matrices of other batches may differ in a bit."""
        make = functools.partial(dataset, batch=batch)
        found = list(self.estimator.predict(self.input_fn(False, data, make=make), hooks=self.hooks()))
        return {name: np.array([one[name] for one in found]) for name in found[0]}


def latest_step(directory):
    """Step of the newest checkpoint."""
    return int(support.tf().train.latest_checkpoint(directory).rsplit("-", 1)[1])


def checkpoint_steps(directory):
    """(steps of the dense checkpoints, steps of the tables' directories), both sorted."""
    dense = [name[:-len(".index")] for name in glob.glob(directory + "/model.ckpt-*.index")]
    sparse = glob.glob(directory + "/sparse-model.ckpt-*")
    return tuple(sorted(int(name.rsplit("-", 1)[1]) for name in names) for names in (dense, sparse))


def saved_tables(directory, step=None):
    """{table: {part: {key: row}}} as the files of a checkpoint have it, the newest one without `step`."""
    step = latest_step(directory) if step is None else step
    found = {}
    for path in glob.glob("{}/sparse-model.ckpt-{}/*/*/slice.data".format(directory, step)):
        table, part = path.split(os.sep)[-3:-1]
        if part != "key":
            keys = np.fromfile(os.path.dirname(os.path.dirname(path)) + "/key/slice.data", "<i8")
            dim = int(np.fromfile(os.path.dirname(path) + "/slice.attribute", "<i8")[1])
            rows = np.fromfile(path, "<f4").reshape(len(keys), dim)
            found.setdefault(table, {})[part] = dict(zip(keys.tolist(), rows))
    return found


def saved_variables(directory, step=None):
    """name -> value of the variables of a checkpoint."""
    path = directory if step is None else "{}/model.ckpt-{}".format(directory, step)
    reader = support.tf().train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def summary_values(directory, tag):
    """(steps, values) of a scalar summary, in the order of the steps."""
    found = {}
    for name in glob.glob(directory + "/*tfevents*"):
        for event in support.tf().compat.v1.train.summary_iterator(name):
            found.update({event.step: value.simple_value for value in event.summary.value if value.tag == tag})
    return sorted(found), [found[step] for step in sorted(found)]


def assert_same_checkpoints(actual, expected, step=None):
    """Asserts that two model directories hold the same tables, slots and variables, bit for bit, compared by key."""
    assert latest_step(actual) == latest_step(expected)
    mine, theirs = saved_tables(actual, step), saved_tables(expected, step)
    assert sorted(mine) == sorted(theirs) and theirs
    for table in theirs:
        assert sorted(mine[table]) == sorted(theirs[table]) and "embedding" in theirs[table]
        for part in theirs[table]:
            assert theirs[table][part], (table, part)
            support.assert_same_tables(mine[table][part], theirs[table][part], "{}/{}".format(table, part))
    mine, theirs = saved_variables(actual, step), saved_variables(expected, step)
    assert sorted(mine) == sorted(theirs)
    for name in theirs:
        assert mine[name].tobytes() == theirs[name].tobytes(), name
