"""The walk against the direction of data: all ops that tensors depend on."""

from collections import deque
from typing import Callable, Iterable, Iterator, Optional, Union

import tensorflow as tf


def upstream(tensors: Iterable[Union[tf.Tensor, tf.Operation]],
             stop: Optional[Callable[[tf.Operation], bool]] = None,
             control_inputs: bool = False) -> Iterator[tf.Operation]:
    """Yields the ops that make tensors, and all ops that these depend on, each once.

    Args:
        tensors: Where to start; an op stands for its outputs.
        stop: Says of an op that nothing above it is wanted. The op itself is yielded.
        control_inputs: Whether an op depends on its control inputs, too.

    Yields:
        The ops in breadth-first order: those that make `tensors` first, in their order.
    """
    waiting = deque(getattr(one, "op", one) for one in tensors)
    seen = set()  # ops that were yielded
    while waiting:
        op = waiting.popleft()
        if op in seen:
            continue
        seen.add(op)
        yield op
        if stop is not None and stop(op):
            continue
        waiting.extend(tensor.op for tensor in op.inputs)
        if control_inputs:
            waiting.extend(op.control_inputs)
