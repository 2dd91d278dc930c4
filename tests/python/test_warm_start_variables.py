"""Every use that TensorFlow documents for WarmStartSettings, on a model that has a table beside its variables."""

import numpy as np
import pytest
import tensorflow as tf

import estimator_cases as cases
import support
from mx_rec.core.embedding import sparse_lookup
from mx_rec.optimizers.lazy_adam import create_hash_optimizer
from mx_rec.util.initialize import init, terminate_config_initializer
from mx_rec.util.variable import get_dense_and_sparse_variable

OLD, NEW = ["a", "b", "c", "d"], ["c", "x", "b"]
FILE = "input_layer/sc_vocab_file_embedding/embedding_weights"
LIST = "input_layer/sc_vocab_list_embedding/embedding_weights"
OLD_LIST = "input_layer/old_list_embedding/embedding_weights"
SCALARS = ("v1", "v2")


def train(directory, vocabulary, list_key="sc_vocab_list", classes=3, warm_start=None, steps=1):
    """Trains the model and returns its directory."""
    tf1 = tf.compat.v1
    random = np.random.RandomState(1)
    features = {"sc_vocab_file": random.choice(OLD + NEW, 64), list_key: random.choice(["p", "q"], 64),
                "user": random.randint(0, 20, 64).astype(np.int64)}
    labels = random.randint(0, 2, 64).astype(np.int64)

    def model_fn(features, labels, mode):
        column = tf.feature_column
        words = column.embedding_column(column.categorical_column_with_vocabulary_file(
            "sc_vocab_file", vocabulary, num_oov_buckets=1), 2)
        listed = column.embedding_column(column.categorical_column_with_vocabulary_list(list_key, ["p", "q"]), 2)
        table = support.make_table("user_table", 2, 100, tf1.random_normal_initializer(seed=2))
        user = sparse_lookup(table, features["user"], is_train=True, modify_graph=True)
        seen = tf.concat([tf1.feature_column.input_layer(features, [words, listed]), tf.reshape(user, [-1, 2])], axis=1)
        logits = tf1.layers.dense(seen, classes, name="logits")
        for name in SCALARS:
            logits += tf1.get_variable(name, [classes], initializer=tf1.zeros_initializer())
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        dense, sparse = get_dense_and_sparse_variable()
        gradients = tf.gradients(loss, dense + sparse)
        update = tf.group(
            tf1.train.MomentumOptimizer(0.5, 0.9).apply_gradients(
                zip(gradients, dense), global_step=tf1.train.get_global_step()),
            create_hash_optimizer(learning_rate=0.1).apply_gradients(zip(gradients[len(dense):], sparse)))
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=update)

    config = tf.estimator.RunConfig(model_dir=str(directory), save_checkpoints_steps=1000, log_step_count_steps=None)
    estimator = tf.estimator.Estimator(model_fn, config=config, warm_start_from=warm_start)
    estimator.train(lambda: tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(16), steps=steps)
    return str(directory)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A model of the old vocabulary: (its directory, vocabulary files by name)."""
    root = tmp_path_factory.mktemp("old")
    files = {}
    for name, words in (("old", OLD), ("new", NEW), ("classes", ["no", "yes", "perhaps"]), ("other", ["yes", "no"])):
        files[name] = str(root / (name + ".txt"))
        support.write(files[name], "\n".join(words) + "\n")
    init()
    directory = train(root / "model", files["old"], "old_list", steps=12)
    terminate_config_initializer()
    return directory, files


class Started:
    """What a model starts with, beside what the old one ended with.

    Args:
        old: The fixture.
        directory: Where to train.
        make: A function of (old directory, vocabulary files) that returns `warm_start_from`.
        model: More arguments of `train`.
    """

    def __init__(self, old, directory, make, vocabulary="new", **model):
        path = train(directory, old[1][vocabulary], warm_start=make(*old), **model)
        self.first = cases.checkpoint_steps(path)[0][0]
        self.mine, self.theirs = cases.saved_variables(path, self.first), cases.saved_variables(old[0])
        self.rows = cases.saved_tables(path, self.first)["user_table"]
        self._old_rows = cases.saved_tables(old[0])["user_table"]

    def warm(self):
        """Names of the variables that have the values of the old model."""
        return {name for name, value in self.mine.items() if name in self.theirs
                and value.shape == self.theirs[name].shape and np.array_equal(value, self.theirs[name])}

    def check_table(self, parts):
        """Asserts that the table has these parts of the old one's, or no rows for None."""
        if parts is None:
            assert not self.rows["embedding"]
            return
        assert sorted(self.rows) == sorted(parts)
        for part in parts:
            support.assert_same_tables(self.rows[part], self._old_rows[part])

    def check_words(self, words, absent=0.0):
        """Asserts that the rows of the new words are the old ones of `words`, and `absent` elsewhere."""
        for place, word in enumerate(NEW + [None]):
            expected = self.theirs[FILE][OLD.index(word)] if word in list(words) else np.full(2, absent, np.float32)
            support.assert_same_bits(self.mine[FILE][place], expected, word)


TRAINABLE = {LIST, FILE, "logits/kernel", "logits/bias", "v1", "v2"}
EMBEDDING = ["embedding"]
ALL = ["LazyAdam_momentum", "LazyAdam_velocity", "embedding"]


def settings(*args, **kwargs):
    return tf.estimator.WarmStartSettings(*args, **kwargs)


def vocabulary(files, size=-1, new="new", count=None, oov=1, **more):
    return tf.estimator.VocabInfo(
        new_vocab=files[new], new_vocab_size=len(NEW) if count is None else count, num_oov_buckets=oov,
        old_vocab=files[{"new": "old", "other": "classes"}[new]], old_vocab_size=size, **more)


SAME = dict(vocabulary="old", list_key="old_list")
MOMENTUM = {name + "/Momentum" for name in (TRAINABLE - {LIST}) | {OLD_LIST}}
EVERY = (TRAINABLE - {LIST}) | {OLD_LIST}


@pytest.mark.parametrize("make, expected, table", [
    (lambda path, _: settings(ckpt_to_initialize_from=path), EVERY, EMBEDDING),
    (lambda path, _: settings(ckpt_to_initialize_from=path + "/model.ckpt-12"), EVERY, EMBEDDING),
    (lambda path, _: path, EVERY, EMBEDDING),
    (lambda path, _: path.encode("utf-8"), EVERY, EMBEDDING),
    (lambda path, _: settings(path, vars_to_warm_start=".*input_layer.*"), {FILE, OLD_LIST}, None),
    (lambda path, _: settings(path, vars_to_warm_start=".*"), EVERY, EMBEDDING),
    (lambda path, _: settings(path, vars_to_warm_start=[".*"]), EVERY | MOMENTUM | {"global_step", "beta1_power", "beta2_power"}, ALL),
    (lambda path, _: settings(path, vars_to_warm_start=["v1", "v2[^/]"]), {"v1", "v1/Momentum", "v2"}, None),
    (lambda path, _: settings(path, vars_to_warm_start=["v1", "user_table"]), {"v1", "v1/Momentum"}, ALL),
], ids=["directory", "checkpoint", "path", "bytes", "input layer", "trainable", "all", "v1 and v2[^/]", "with a table"])
def test_a_model_of_the_same_shape(dynamic, old, tmp_path, make, expected, table):
    found = Started(old, tmp_path / "new", make, **SAME)
    assert found.warm() == expected
    found.check_table(table)
    assert found.first == (12 if "global_step" in expected else 0)


@pytest.mark.parametrize("several", [False, True], ids=["one path", "a list of paths"])
def test_another_vocabulary_and_another_name(dynamic, old, tmp_path, several):
    """Rows of the vocabulary follow their words; in a list of paths each has its own vocabularies and names."""

    def make(path, files):
        parts = path, ".*", {FILE: vocabulary(files)}, {LIST: OLD_LIST}
        return settings(*([part] for part in parts)) if several else settings(*parts)

    found = Started(old, tmp_path / "new", make)
    assert found.warm() == TRAINABLE - {LIST, FILE}
    support.assert_same_bits(found.mine[LIST], found.theirs[OLD_LIST])
    found.check_words("bc")
    found.check_table(EMBEDDING)


def test_another_vocabulary_and_no_other_variable(dynamic, old, tmp_path):
    found = Started(old, tmp_path / "new", lambda path, files: settings(
        path, vars_to_warm_start=None, var_name_to_vocab_info={FILE: vocabulary(files)}))
    assert found.warm() == set()
    found.check_words("bc")
    found.check_table(None)


def test_the_first_entries_of_the_old_vocabulary_and_an_initializer_for_the_rest(dynamic, old, tmp_path):
    ones = tf.compat.v1.ones_initializer()
    found = Started(old, tmp_path / "new", lambda path, files: settings(
        path, var_name_to_vocab_info={FILE: vocabulary(files, 2, backup_initializer=ones)}), list_key="old_list")
    assert found.warm() == EVERY - {FILE}
    found.check_words("b", absent=1.0)
    found.check_table(EMBEDDING)


def test_a_vocabulary_of_classes_in_the_columns_of_the_last_layer(dynamic, old, tmp_path):
    found = Started(old, tmp_path / "new", lambda path, files: settings(path, "logits/kernel|user", {
        "logits/kernel": vocabulary(files, new="other", count=2, oov=0, axis=1)}), classes=2, **SAME)
    support.assert_same_bits(found.mine["logits/kernel"], found.theirs["logits/kernel"][:, [1, 0]])
    found.check_table(EMBEDDING)


@pytest.mark.parametrize("where", ["vocabulary", "names"])
def test_settings_of_variables_that_are_not_warm_started_are_refused_by_tensorflow(dynamic, old, tmp_path, where):
    with pytest.raises(ValueError, match="not used.*no_such"):
        Started(old, tmp_path / "new", lambda path, files: settings(
            path, "v1", {"no_such": vocabulary(files)} if where == "vocabulary" else None,
            {"no_such": "v1"} if where == "names" else None), **SAME)
    with pytest.raises(ValueError, match=LIST + " is not found"):
        Started(old, tmp_path / "other", lambda path, files: settings(path, ".*input_layer.*list"))
