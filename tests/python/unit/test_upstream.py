"""The walk from tensors to all ops that they depend on."""

import sys

import tensorflow as tf

from mx_rec.edits.upstream import upstream


def names(*args, **kwargs):
    return [op.name for op in upstream(*args, **kwargs)]


def test_ops_come_breadth_first_and_once(graph):
    one, two = tf.constant(1, name="one"), tf.constant(2, name="two")
    left = tf.add(one, two, name="left")
    right = tf.add(one, left, name="right")
    with tf.control_dependencies([tf.no_op("waited")]):
        top = tf.add(left, right, name="top")
    assert names([top]) == ["top", "left", "right", "one", "two"]
    assert names([top], control_inputs=True) == ["top", "left", "right", "waited", "one", "two"]
    assert names([left, right.op, left]) == ["left", "right", "one", "two"]
    assert names([top], stop=lambda op: op.name == "left") == ["top", "left", "right", "one"]
    assert names([]) == []


def test_loops_end(graph):
    end = tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0, name="zero")])
    found = names(tf.nest.flatten(end))
    assert "zero" in found and len(found) == len(set(found))


def test_a_graph_deeper_than_the_recursion_limit_is_walked(graph):
    value, depth = tf.constant(0), sys.getrecursionlimit() + 200
    for _ in range(depth):
        value = tf.identity(value)
    assert len(names([value])) == depth + 1
