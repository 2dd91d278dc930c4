"""Ids of any numeric type, made into what tables take."""

import tensorflow as tf

_TAKEN = (tf.int32, tf.int64)


def is_id_type(dtype: tf.DType) -> bool:
    """Returns whether ids may have a dtype: an integer type, or a float type."""
    return bool(dtype.is_integer or dtype.is_floating)


def as_ids(ids: tf.Tensor, table_name: str) -> tf.Tensor:
    """Returns ids as int32 or int64, in the present name scope.

    Other integers become int64; floats as well, for example those of tf.strings.to_number. All ops
    are stateless, so that graph modification may move them. A step whose ids hold a NaN, an
    infinity, a fraction or a number beyond int64 fails with tf.errors.InvalidArgumentError, which
    says so. A float32 holds whole numbers up to 2**24 exactly: greater ones were rounded before
    they came here.

    Args:
        ids: Tensor of any shape, of a dtype for which `is_id_type` holds.
        table_name: The table, for the message.

    Returns:
        The ids, of the same shape.
    """
    if ids.dtype in _TAKEN:
        return ids
    if not ids.dtype.is_floating:
        return tf.cast(ids, tf.int64, name="int64_ids")
    limit = tf.constant(2.0 ** 63, tf.float64)
    wide = tf.cast(ids, tf.float64)
    is_id = tf.logical_and(tf.equal(tf.floor(wide), wide),
                           tf.logical_and(wide >= -limit, wide < limit))
    wrong = tf.boolean_mask(tf.reshape(wide, [-1]), tf.logical_not(tf.reshape(is_id, [-1])))
    # Assert and CheckNumerics are stateful. This op fails with the text that is no number.
    first = tf.concat([wrong, tf.zeros([1], tf.float64)], 0)[0]
    text = tf.strings.join([
        "the ids {} of the table '{}' are {}, and hold a NaN, an infinity, a fraction or a number "
        "beyond int64: ".format(ids.name, table_name, ids.dtype.name), tf.strings.as_string(first)])
    zero = tf.strings.to_number(
        tf.compat.v1.where(tf.equal(tf.size(wrong), 0), "0", text), tf.int64)
    return tf.add(tf.cast(wide, tf.int64), zero, name="int64_ids")
