"""What programs of tf.keras do besides fit, evaluate and predict: the same numbers on tables as on variables."""

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.stock.convert import converted
from mx_rec.util.stock_tables import StockTables

ROWS, DIM, BATCH, COUNT = 50, 4, 16, 64
TOLERANCE = 64 * support.EPS
STARTS = range(0, COUNT, BATCH)

keras = tf.keras
_random = np.random.RandomState(1)
IDS, USERS = _random.randint(1, ROWS, [COUNT, 3]), _random.randint(0, ROWS, [COUNT, 1])
LABELS = np.sin(IDS.sum(1)).astype(np.float32)
VALUES = (0.3 * np.random.RandomState(5).randn(ROWS, DIM)).astype(np.float32)
OPTIMIZERS = {
    "adadelta": lambda: keras.optimizers.Adadelta(0.5), "adam": lambda: keras.optimizers.Adam(0.01),
    "nesterov": lambda: keras.optimizers.SGD(0.05, 0.9, True), "tf": lambda: tf.compat.v1.train.AdagradOptimizer(0.1),
}


def items(name="items", **arguments):
    return keras.layers.Embedding(ROWS, DIM, embeddings_initializer=keras.initializers.Constant(VALUES), name=name,
                                  **arguments)


def dense(units, activation=None, value=0.2, **arguments):
    return keras.layers.Dense(units, activation, kernel_initializer=keras.initializers.Constant(value), **arguments)


def net(optimizer):
    ids = keras.layers.Input([3], name="ids")
    hidden = dense(5, "tanh", 0.3)(keras.layers.Flatten()(items()(ids)))
    made = keras.Model(ids, dense(1)(hidden))
    made.compile(optimizer(), "mse", metrics=["mae"])
    return made


def epoch(made, epochs=1, **arguments):
    return made.fit(IDS, LABELS, BATCH, epochs, verbose=0, shuffle=False, **arguments).history["loss"]


def batch_by_batch(optimizer, path):
    made = net(optimizer)
    for at in STARTS:
        yield made.train_on_batch(IDS[at:at + BATCH], LABELS[at:at + BATCH])
        yield made.test_on_batch(IDS[:BATCH], LABELS[:BATCH])
    rows = keras.Model(made.input, made.layers[1].output)
    yield rows.predict(IDS[:5])
    yield epoch(made)
    yield rows.predict(IDS[:5])
    yield rows.predict_on_batch(IDS[:2])


def generators(optimizer, path):
    def batches():
        while True:
            for at in STARTS:
                yield IDS[at:at + BATCH], LABELS[at:at + BATCH]

    class Batches(keras.utils.Sequence):
        def __len__(self):
            return len(STARTS)

        def __getitem__(self, at):
            return IDS[at * BATCH:][:BATCH], LABELS[at * BATCH:][:BATCH]

    made = net(optimizer)
    yield made.fit_generator(batches(), 4, 2, verbose=0, validation_data=batches(), validation_steps=2,
                             workers=0).history["val_loss"]
    yield made.fit_generator(Batches(), epochs=2, verbose=0, shuffle=False, workers=2).history["loss"]
    yield made.evaluate_generator(batches(), 3, workers=0)
    yield made.predict_generator(Batches(), workers=2)


def estimator(optimizer, path):
    made = keras.estimator.model_to_estimator(net(optimizer), model_dir=path, config=tf.estimator.RunConfig(
        save_checkpoints_steps=5))
    data = tf.data.Dataset.from_tensor_slices
    for steps in (6, 5):
        made.train(lambda: data(({"ids": IDS}, LABELS)).batch(BATCH).repeat(), steps=steps)
        yield [value for _, value in sorted(made.evaluate(lambda: data(({"ids": IDS}, LABELS)).batch(BATCH)).items())]
    yield [list(one.values())[0] for one in made.predict(lambda: data({"ids": IDS}).batch(BATCH))]
    yield made.get_variable_value("items/embeddings")


def loaded_by_a_new_graph(optimizer, path):
    made = net(optimizer)
    epoch(made)
    made.save(path + ".h5")
    keras.backend.clear_session()
    made = keras.models.load_model(path + ".h5")
    yield made.predict(IDS[:4])
    yield epoch(made, 2)
    yield made.get_weights()


def loaded_beside_itself(optimizer, path):
    made = net(optimizer)
    epoch(made)
    made.save(path + ".h5")
    other = keras.models.load_model(path + ".h5")
    yield epoch(other)
    yield epoch(made)
    yield other.get_weights()
    yield made.get_weights()


def target_network(optimizer, path):
    made = net(optimizer)
    target = keras.models.clone_model(made)
    target.set_weights(made.get_weights())
    for at in STARTS:
        wanted = 0.5 * target.predict(IDS[at:at + BATCH])[:, 0] + LABELS[at:at + BATCH]
        yield made.train_on_batch(IDS[at:at + BATCH], wanted)
        if at // BATCH % 2:
            target.set_weights(made.get_weights())
    yield target.predict(IDS[:4])


def by_turns_with_a_model_of_the_same_layer(optimizer, path):
    layer, first, second = items(), keras.layers.Input([3]), keras.layers.Input([1])
    mean = keras.layers.GlobalAveragePooling1D()(layer(first))
    user = keras.layers.Flatten()(layer(second))
    both = keras.Model([first, second], dense(1)(keras.layers.Dot(1)([mean, user])))
    both.compile(optimizer(), "mse")
    one = keras.Model(first, dense(1, value=0.1)(mean))
    one.compile(optimizer(), "mse")
    for at in STARTS:
        yield both.train_on_batch([IDS[at:at + BATCH], USERS[at:at + BATCH]], LABELS[at:at + BATCH])
        yield one.train_on_batch(IDS[at:at + BATCH], LABELS[at:at + BATCH])
    yield keras.Model(second, user).predict(USERS[:4])


def frozen_for_a_time(optimizer, path):
    made = net(optimizer)
    for trains in (True, False, True):
        made.layers[1].trainable = trains
        made.compile(optimizer(), "mse")
        yield epoch(made)
        yield made.get_weights()


def adversaries(optimizer, path):
    ids, drawn = keras.layers.Input([3]), keras.layers.Input([4])
    maker = keras.Model(ids, dense(4, "tanh", 0.1)(keras.layers.Flatten()(items()(ids))))
    judge = keras.Model(drawn, dense(1, "sigmoid", 0.1)(drawn))
    judge.compile(optimizer(), "binary_crossentropy")
    judge.trainable = False
    whole = keras.Model(ids, judge(maker(ids)))
    whole.compile(optimizer(), "binary_crossentropy")
    yield whole.train_on_batch(IDS[:BATCH], np.ones(BATCH))
    for at in STARTS:
        made = maker.predict(IDS[at:at + BATCH])
        yield judge.train_on_batch(np.concatenate([made, np.ones_like(made)]), np.repeat([0.0, 1.0], BATCH))
        yield whole.train_on_batch(IDS[at:at + BATCH], np.ones(BATCH))


def functions_of_the_backend(optimizer, path):
    made = net(optimizer if hasattr(optimizer(), "get_updates") else OPTIMIZERS["adam"])
    labels = keras.backend.placeholder([None, 1])
    loss = tf.reduce_mean(tf.square(made.output - labels))
    train = keras.backend.function([made.input, labels], [loss], updates=made.optimizer.get_updates(
        loss, made.trainable_weights))
    predict = keras.backend.function([made.input], [made.output])
    for at in STARTS:
        yield train([IDS[at:at + BATCH], LABELS[at:at + BATCH, None]])
        yield predict([IDS[:3]])


def masked_sequences(optimizer, path):
    ids, start = keras.layers.Input([3]), keras.initializers.Constant(0.1)
    rows = keras.layers.LSTM(3, kernel_initializer=start, recurrent_initializer=start)(items(mask_zero=True)(ids))
    made = keras.Model(ids, dense(1)(rows))
    made.compile(optimizer(), "mse")
    padded = np.where(np.arange(3 * COUNT).reshape(COUNT, 3) % 7 == 2, 0, IDS)
    weights = np.linspace(0.5, 1.0, COUNT)
    yield made.fit(padded, LABELS, BATCH, 2, verbose=0, shuffle=False, sample_weight=weights).history["loss"]
    yield made.evaluate(padded, LABELS, verbose=0)


def bags_of_any_length(optimizer, path):
    ids = keras.layers.Input([None], dtype="int32")
    made = keras.Model(ids, dense(1)(keras.layers.GlobalMaxPooling1D()(items()(ids))))
    made.compile(optimizer(), "mse")
    for at, length in zip(STARTS, (1, 2, 3, 2)):
        yield made.train_on_batch(IDS[at:at + BATCH, :length], LABELS[at:at + BATCH])
    yield made.predict(IDS[:4])


def losses_that_are_added(optimizer, path):
    ids = keras.layers.Input([3])
    rows = items(activity_regularizer=keras.regularizers.l2(0.01))(ids)
    made = keras.Model(ids, dense(1)(keras.layers.Flatten()(rows)))
    made.add_loss(0.1 * tf.reduce_mean(tf.abs(rows)))
    made.compile(optimizer(), "mse")
    yield epoch(made, 2)
    yield made.get_weights()


def two_inputs_and_outputs(optimizer, path):
    ids, user = keras.layers.Input([3], name="ids"), keras.layers.Input([1], name="user")
    of_ids = keras.layers.Flatten()(items("items_a")(ids))
    of_user = keras.layers.Flatten()(items("items_b")(user))
    score = dense(1, name="score")(keras.layers.Concatenate()([of_ids, of_user]))
    made = keras.Model([ids, user], [score, dense(1, "sigmoid", name="likes")(of_user)])
    made.compile(optimizer(), {"score": "mse", "likes": "binary_crossentropy"}, loss_weights=[1.0, 0.3],
                 metrics={"likes": ["accuracy", keras.metrics.AUC()]})
    history = made.fit({"ids": IDS, "user": USERS}, {"score": LABELS, "likes": LABELS > 0}, BATCH, 2, verbose=0,
                       shuffle=False).history
    yield [history[name] for name in sorted(history)]


def a_layer_in_a_session_program(optimizer, path):
    v1 = tf.compat.v1
    ids, labels = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None])
    layer = items()
    scores = dense(1)(keras.layers.Flatten()(layer(ids)))
    loss = tf.reduce_mean(tf.square(scores[:, 0] - labels))
    train = v1.train.AdagradOptimizer(0.1).minimize(loss)
    session = keras.backend.get_session()
    session.run(v1.global_variables_initializer())
    for at in STARTS:
        yield session.run([loss, train], {ids: IDS[at:at + BATCH], labels: LABELS[at:at + BATCH]})[0]
    layer.set_weights([2.0 * one for one in layer.get_weights()])
    saver = v1.train.Saver()
    saved = saver.save(session, path)
    feed = {ids: IDS, labels: LABELS}
    yield session.run([loss, train], feed)[0]
    saver.restore(session, saved)
    yield session.run(loss, feed)
    yield v1.train.load_variable(saved, "items/embeddings")


def weights_between_epochs(optimizer, path):
    class Shrink(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.set_weights([0.9 * one for one in self.model.get_weights()])
            seen.append(self.model.evaluate(IDS, LABELS, verbose=0))

        def on_batch_end(self, batch, logs=None):
            seen.append(keras.backend.get_value(self.model.layers[1].embeddings)[3])

    seen = []
    yield epoch(net(optimizer), 2, callbacks=[Shrink()])
    yield seen


def variables_of_the_optimizer(optimizer, path):
    made = net(optimizer if hasattr(optimizer(), "get_weights") else OPTIMIZERS["adam"])
    epoch(made)
    values = made.optimizer.get_weights()
    yield [one for one in values if np.shape(one) == (ROWS, DIM)]
    made.optimizer.set_weights([0.5 * one for one in values])
    yield epoch(made)


def a_subclass_of_model(optimizer, path):
    class Scores(keras.Model):
        def __init__(self):
            super().__init__()
            self.items, self.flat, self.dense = items(), keras.layers.Flatten(), dense(1)

        def call(self, inputs):
            return self.dense(self.flat(self.items(inputs)))

    made = Scores()
    made.compile(optimizer(), "mse")
    yield epoch(made, 2)
    made.save_weights(path)
    epoch(made)
    made.load_weights(path)
    yield made.predict(IDS[:3])


def layers_that_start_again(optimizer, path):
    made = net(optimizer)
    yield epoch(made)
    for layer in made.layers:
        for variable in layer.weights:
            # The optimizer goes on.
            keras.backend.get_session().run(variable.initializer)
    yield made.get_weights()
    yield epoch(made, 2)
    keras.backend.get_session().run([one.initializer for one in made.weights])
    yield epoch(made)


def an_id_that_is_none_and_no_ids(optimizer, path):
    made = net(optimizer)
    yield made.train_on_batch(IDS[:BATCH], LABELS[:BATCH])
    with pytest.raises(tf.errors.InvalidArgumentError):
        made.train_on_batch(np.full([BATCH, 3], ROWS), LABELS[:BATCH])
    yield np.shape(keras.backend.get_session().run(made.output, {made.input: np.zeros([0, 3])}))
    yield made.train_on_batch(IDS[:1], LABELS[:1])


PROGRAMS = [
    batch_by_batch, generators, estimator, loaded_by_a_new_graph, loaded_beside_itself, target_network,
    by_turns_with_a_model_of_the_same_layer, frozen_for_a_time, adversaries, functions_of_the_backend, masked_sequences,
    bags_of_any_length, losses_that_are_added, two_inputs_and_outputs, a_layer_in_a_session_program,
    weights_between_epochs, variables_of_the_optimizer, a_subclass_of_model, layers_that_start_again,
    an_id_that_is_none_and_no_ids]
# Keras saves no compiled model with an optimizer of TensorFlow.
NOT_OF_TENSORFLOW = (loaded_by_a_new_graph, loaded_beside_itself)
# What both models share stays variables.
STAY = (by_turns_with_a_model_of_the_same_layer,)


def seen(program, optimizer, path):
    """What a program sees, each thing an array; and the names of variables that are tables at its end."""
    keras.backend.clear_session()
    tf.compat.v1.reset_default_graph()
    found = []
    for one in program(OPTIMIZERS[optimizer], path):
        found.extend(np.asarray(leaf, np.float64) for leaf in tf.nest.flatten(one))
    return found, [one.plan.name for one in converted(tf.compat.v1.get_default_graph())]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_a_program_sees_on_tables_what_it_sees_on_variables(mx, tmp_path, program, optimizer):
    if optimizer == "tf" and program in NOT_OF_TENSORFLOW:
        optimizer = "adam"
    expected, _ = seen(program, optimizer, str(tmp_path / "variables"))
    mx(stock_tables=StockTables(names=[".*items.*"], least_rows=1))
    found, names = seen(program, optimizer, str(tmp_path / "tables"))
    keras.backend.clear_session()
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
    if program is not estimator and program not in STAY:
        assert names, "no variable became a table"
