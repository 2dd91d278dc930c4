"""Wrong arguments of the ops of tables in parts: an error that names op and reason, and no row changes."""

import gc
import json

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.ops.optimizers import optimizer_named

DIM, PARTS = 4, 2
I, N, F, B = np.int64, np.int32, np.float32, np.uint8


def encoded(**changes):
    return np.frombuffer(json.dumps(dict(json.loads(support.table_config("parted", DIM)), **changes)).encode(), B)


def listed(*configs):
    return np.frombuffer(b"[" + b",".join(one.tobytes() for one in configs) + b"]", B)


def loose(value, dtype):
    """A tensor whose shape the graph does not know, so that the kernel has to check it."""
    return tf.compat.v1.placeholder_with_default(np.asarray(value, dtype), None)


def pull(o, request=(1, 5, 1, 2), configs=None, part=0, parts=PARTS, count=PARTS, create=1,
         requests=1):
    request = request if hasattr(request, "op") else loose(request, I)
    return o.mx_rec_pull(loose(listed(encoded()) if configs is None else configs, B), request, part=part,
                         parts=parts, count=count, create=create, requests=requests).rows


def observe(o, request=(1, 5, 1, 2), times=(1, 1), weight=1, timestamp=1000, access=2, eviction=60):
    return o.mx_rec_part_observe(listed(encoded()), loose(request, I), loose(times, N), loose(weight, N),
                                 loose(timestamp, I), part=0, parts=PARTS, count=PARTS, access_threshold=access,
                                 eviction_threshold=eviction)


def stitch(o, variable=np.zeros([0, DIM]), keys=(1, 2), counts=(1, 1), places=(0, 1, -1), rows=np.ones(2 * DIM),
           row_dtypes=()):
    return o.mx_rec_stitch([loose(variable, F)], [loose(keys, I)], [loose(counts, I)], [loose(places, N)],
                           [loose(one, N) for one in row_dtypes], loose(rows, F))[0]


def pack(o, grads=np.ones([2, DIM]), counts=(1, 1), part=0, count=PARTS):
    return o.mx_rec_pack_gradients([loose(grads, F)], [loose(counts, I)], part=part, count=count)


def split(o, ids=(1, 2, -1), parts=PARTS, together=1, limit=0):
    return o.mx_rec_distinct_split([loose(ids, I)], parts=parts, together=together, limit=limit).requests


def push_sgd(o, request=(1, 5, 1, 2), grads=np.ones(2 * DIM), hyper=(0.1, 0.0), configs=None, part=0, births=()):
    return o.mx_rec_push([loose(listed(encoded()) if configs is None else configs, B)], [loose(request, I)],
                         [loose(births, N)], loose(grads, F), loose(hyper, F), part=part, parts=PARTS, count=PARTS,
                         optimizer=optimizer_named("sgd").place)


def push_lazy_adam(o, hyper=(0.1, 0.9, 0.9, 0.9, 0.9, 1e-8)):
    return o.mx_rec_push([listed(encoded())], [loose([0, 0], I)], [loose([], N)], loose([], F), loose(hyper, F),
                         part=0, parts=PARTS, count=PARTS, optimizer=optimizer_named("lazy_adam").place)


def threshold(o, value=2):
    return o.mx_rec_set_threshold(o.mx_rec_part(encoded(), part=0, parts=PARTS).handle, loose(value, N))


def evict(o, config=None, part=0):
    return o.mx_rec_evict(o.mx_rec_part(encoded() if config is None else config, part=part, parts=PARTS).handle)


REQUESTS = ([], [1], [1, 2], [-1, 0], [2 ** 62, 0], [0, 2 ** 63 - 1], [1, 5, 0, 7], 0)
WRONG = (
    [(op, dict(request=value), "a request must be") for op in (pull, observe, push_sgd) for value in REQUESTS]
    + [(pull, dict(request=value, requests=requests), "a request must be") for value, requests in (
        ([1, 5, 1, 2], 2), ([1, 5, 1, 2, 0], 2), ([1, 5, 1, 2, 0, 0], 1), ([0, 0, 0, 0, 0, 0], 2), ([0, 0], 2 ** 31 - 1))]
    + [(op, dict(configs=value), message) for op in (pull, push_sgd) for value, message in (
        ([], "JSON list"), (encoded(), "JSON list"), (listed(), "tables=0"), (listed(encoded(), encoded()), "tables=4"),
        (listed(encoded(dim=5)), "setting=dim"))]
    + [(op, dict(part=5), "number of a part") for op in (pull, push_sgd, evict)]
    + [(pull, dict(count=value), "number of a part") for value in (3, 2 ** 31 - 1)]
    + [(op, dict(parts=5000), "4096 parts") for op in (pull, split)]
    + [(pull, dict(create=value), "create must be") for value in (-1, 4)]
    + [(observe, dict(times=value), "times must be") for value in ([], [1], [1, 2, 3], [1, -1])]
    + [(observe, dict(weight=value), "weight") for value in (-1, [1, 1])]
    + [(observe, dict(timestamp=value), "timestamp") for value in (0, -5, [1, 2], 2 ** 62)]
    + [(observe, dict(access=value), "access_threshold") for value in (-1, -5)]
    + [(observe, dict(eviction=-7), "eviction_threshold"), (observe, dict(request=[1, -1, 1, 2]), "padding")]
    + [(stitch, dict(variable=np.zeros(shape)), message) for shape, message in (
        ([0, 3], "rows of all parts"), ([DIM], "rank 2"), ([0, 0], "rows of all parts"))]
    + [(stitch, dict(keys=value), "those of the keys") for value in ([], [1], [1, 2, 3])]
    + [(stitch, dict(counts=value), message) for value, message in (
        ([], "those of the keys"), ([3], "those of the keys"), ([-1, 3], "a count, 0 or more"),
        ([2 ** 62, 2 ** 62], "those of the keys"))]
    + [(stitch, dict(places=value), "no row") for value in ([2], [-2], [2 ** 31 - 1])]
    + [(stitch, dict(rows=np.ones(value)), "rows of all parts") for value in (0, 7, 9)]
    + [(stitch, dict(row_dtypes=[value]), "row_dtypes") for value in ([], [3], [-1], [0, 0])]
    + [(stitch, dict(row_dtypes=[[1]]), "rows of all parts")]
    + [(pack, dict(grads=np.ones(shape)), message) for shape, message in (
        ([2], "rank 2"), ([3, DIM], "those of the rows"), ([], "rank 2"))]
    + [(pack, dict(counts=value), message) for value, message in (
        ([], "needs a count"), ([2], "needs a count"), ([3, -1], "a count, 0 or more"), ([1, 2], "those of the rows"),
        ([2 ** 62, 2 ** 62], "those of the rows"))]
    + [(pack, dict(part=value), "needs a count") for value in (1, 5, 2 ** 31 - 1)]
    + [(pack, dict(count=value), "4096 parts") for value in (4097, 2 ** 31 - 1)]
    + [(split, dict(parts=3, together=2), "multiple"), (split, dict(together=2 ** 31 - 1), "multiple"),
       (split, dict(limit=1), "distinct=2"), (split, dict(limit=-1), "limit")]
    + [(push_sgd, dict(grads=np.ones(value)), "grads must be") for value in (0, 7, 9, 2 ** 16)]
    + [(push_sgd, dict(births=value), "births must be") for value in ([0], [0] * 3, [0] * 5, [0] * 8)]
    + [(push_sgd, dict(hyper=value), message) for value, message in (
        ([0.1], "expected=lr, weight_decay"), ([], "expected=lr, weight_decay"), ([np.nan, 0], "lr"), ([-1, 0], "lr"), ([0.1, np.inf], "weight_decay"))]
    + [(push_lazy_adam, dict(hyper=value), message) for value, message in (
        ([0.1] * 5, "expected=lr, beta1_power, beta2_power, beta1, beta2, epsilon"), ([0.1, np.nan, 0.9, 0.9, 0.9, 1e-8], "beta1_power"))]
    + [(threshold, dict(value=value), "value") for value in (-1, -2 ** 31, [1])]
)


@pytest.mark.long
def test_a_wrong_argument_of_an_op_on_parts_is_an_error_that_says_what_and_changes_nothing(graph, session):
    o = support.ops()
    init = [o.mx_rec_part_init(o.mx_rec_part(encoded(), part=part, parts=PARTS).handle) for part in range(PARTS)]
    # Keys of which each part holds one.
    ids = loose([1, 2], I)
    keys = o.mx_rec_distinct_split([ids], parts=PARTS, together=PARTS)
    update = o.mx_rec_push([listed(encoded())], [keys.requests], [loose([], N)], loose(np.ones(2 * DIM), F),
                           loose([0.5, 0], F), part=0, parts=PARTS, count=PARTS,
                           optimizer=optimizer_named("sgd").place)
    make, rows = [pull(o, keys.requests, create=create) for create in (1, 0)]
    good = [call(o) for call in (pull, stitch, pack, split)]
    cases = [(call, arguments, message, call(o, **arguments)) for call, arguments, message in WRONG]
    nobody = evict(o, encoded(name="nobody"))
    replaced = push_sgd(o, births=[7, 0, 7, 0])
    sess = support.started(session(), init)
    sess.run(make)
    sess.run(update)
    before = sess.run(rows)
    assert before.any()
    for call, arguments, message, wrong in cases:
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            sess.run(wrong)
        text = str(error.value.message)
        assert message in text and text.startswith("MxRec") and "panic" not in text.lower(), (call, arguments, text)
    with pytest.raises(tf.errors.AbortedError, match="MxRecEvict on table 'nobody'"):
        sess.run(nobody)
    with pytest.raises(tf.errors.AbortedError, match="was replaced .restored or cleared. after this step"):
        sess.run(replaced)
    support.assert_same_bits(sess.run(rows), before)
    sess.run(good)


def test_a_handle_of_a_part_finds_what_is_there_when_it_is_used_and_only_for_ops_that_take_parts(graph, session):
    """The part is made anew, asked for by another configuration, and meant for one process by other ops."""
    o = support.ops()
    part = dict(part=1, parts=PARTS)
    name = "handles"
    config = encoded(name=name)
    make = o.mx_rec_push([listed(config)], [loose([1, 5], I)], [loose([], N)], loose(np.ones(DIM), F), loose([0.5, 0], F),
                         count=1, create=1, optimizer=optimizer_named("sgd").place, **part)
    mine, other = [o.mx_rec_part(one, **part) for one in (config, encoded(name=name, capacity=7))]
    init = o.mx_rec_part_init(mine.handle)
    handle = tf.compat.v1.placeholder(tf.int64, [])
    stats = o.mx_rec_table_stats(handle)
    refused = [o.mx_rec_clear(handle, [], [], []), o.mx_rec_export(handle, []).keys, o.mx_rec_assign(handle, [1], np.ones([1, DIM], F), [], [], []),
               o.mx_rec_id_offset([handle], [tf.constant([1], tf.int64)], [], [], create=1).offsets,
               o.mx_rec_load(handle, support.bytes_tensor("/nowhere"), []).rows]
    of_parts = [o.mx_rec_part_init(handle), o.mx_rec_part_stage(handle, support.bytes_tensor("/nowhere")),
                o.mx_rec_part_discard(handle), o.mx_rec_part_publish(handle)]
    table = support.Raw.new(DIM)
    closing = support.new_session()
    closed = closing.run(mine.handle)
    closing.close()
    del closing
    gc.collect()
    sess = session()
    number, wrong = sess.run([mine.handle, other.handle])
    assert number == sess.run(mine.handle) != wrong and sess.run(mine.ready) == 0
    for is_made in (False, True):
        if is_made:
            sess.run(init)
            sess.run(make)
            assert sess.run(stats, {handle: number})[0] == 1
            sess.run(init)
            assert sess.run(stats, {handle: number})[0] == 0
            ready, difference = sess.run(mine[1:])
            assert ready == 1 and not difference.size
            assert b"setting=capacity" in sess.run(other.difference).tobytes() and sess.run(other.ready) == 0
        for given, error in ((number, None if is_made else tf.errors.AbortedError), (closed, tf.errors.NotFoundError),
                             (wrong, tf.errors.InvalidArgumentError if is_made else tf.errors.AbortedError)):
            if error is not None:
                with pytest.raises(error, match="MxRecTableStats"):
                    sess.run(stats, {handle: given})
            for op in refused:
                with pytest.raises(tf.errors.NotFoundError, match="of no table"):
                    sess.run(op, {handle: given})
    for given in (closed, sess.run(table.handle), 0):
        for op in of_parts:
            with pytest.raises(tf.errors.NotFoundError, match="of no table"):
                sess.run(op, {handle: given})
