"""The walks against the direction of data and along it: what tensors need, and what needs them."""

from collections import OrderedDict, deque
from typing import Callable, Container, Iterable, Iterator, List, Optional, Set, Tuple, Union

import tensorflow as tf


def upstream(tensors: Iterable[Union[tf.Tensor, tf.Operation]],
             stop: Optional[Callable[[tf.Operation], bool]] = None,
             control_inputs: bool = False,
             given: Container[str] = ()) -> Iterator[tf.Operation]:
    """Yields the ops that make tensors, and all ops that these depend on, each once.

    Args:
        tensors: Where to start; an op stands for its outputs.
        stop: Says of an op that nothing above it is wanted. The op itself is yielded.
        control_inputs: Whether an op depends on its control inputs, too.
        given: Names of tensors that are fed, which need no op, and of ops that are not wanted.

    Yields:
        The ops in breadth-first order: those that make `tensors` first, in their order.
    """
    waiting = deque(getattr(one, "op", one) for one in tensors if one.name not in given)
    seen = set()  # ops that were yielded
    while waiting:
        op = waiting.popleft()
        if op in seen:
            continue
        seen.add(op)
        yield op
        if stop is not None and stop(op):
            continue
        waiting.extend(tensor.op for tensor in op.inputs if tensor.name not in given)
        if control_inputs:
            waiting.extend(op.control_inputs)


def readings(tensor: tf.Tensor) -> List[Tuple[tf.Operation, int]]:
    """Returns the ops that take a tensor, each with the place among its inputs."""
    return [(op, place) for op in OrderedDict.fromkeys(tensor.consumers())
            for place, one in enumerate(op.inputs) if one is tensor]


def downstream(ops: Iterable[tf.Operation], control_outputs: bool = False) -> Set[tf.Operation]:
    """Returns ops and all that read what they give.

    Args:
        ops: Where to start.
        control_outputs: Whether what waits for an op depends on it, too.
    """
    seen = set()  # type: Set[tf.Operation]
    waiting = list(ops)
    while waiting:
        op = waiting.pop()
        if op not in seen:
            seen.add(op)
            waiting.extend(reader for output in op.outputs for reader in output.consumers())
            if control_outputs:
                waiting.extend(op._control_outputs)  # pylint: disable=protected-access
    return seen
