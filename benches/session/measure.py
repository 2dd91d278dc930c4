"""Interleaved timing of two or more sides, and the record of one figure."""

import json
import time

import numpy as np


class Measured(float):
    """Milliseconds that a side took by a clock of its own."""


def interleave(sides, batches, repetitions, warmup):
    """Times every side on every batch, one after the other, so that noise hits all alike.

    The side that goes first changes with each repetition.

    Args:
        sides: list of functions of the batch number; one that returns Measured has taken that time.
        batches: number of different batches.
        repetitions: measured repetitions.
        warmup: repetitions before them.

    Returns:
        float64 array of shape (len(sides), repetitions), milliseconds.
    """
    times = np.zeros((len(sides), repetitions))
    for step in range(warmup + repetitions):
        for turn in range(len(sides)):
            side = (step + turn) % len(sides)
            begin = time.perf_counter()
            done = sides[side](step % batches)
            taken = (time.perf_counter() - begin) * 1e3
            if step >= warmup:
                times[side, step - warmup] = done if isinstance(done, Measured) else taken
    return times


def blocks(sides, batches, count, length, warmup):
    """Times sides in turn, many steps of one at a time: what a side does beside its steps, or ahead
    of them, falls into its own time.

    Args:
        sides: list of functions of the batch number.
        batches: number of different batches.
        count: blocks of each side.
        length: measured steps of a block.
        warmup: steps before these.

    Returns:
        float64 array of shape (len(sides), count), milliseconds a step.
    """
    times = np.zeros((len(sides), count))
    for block in range(count):
        first = block * (length + warmup)
        for turn in range(len(sides)):
            side = (block + turn) % len(sides)
            for step in range(first, first + warmup):
                sides[side](step % batches)
            begin = time.perf_counter()
            done = [
                sides[side](step % batches)
                for step in range(first + warmup, first + warmup + length)
            ]
            taken = (time.perf_counter() - begin) * 1e3
            own = [one for one in done if isinstance(one, Measured)]
            times[side, block] = (sum(own) if own else taken) / length
    return times


def figure(number, what, ours, peer, target, at_least, peer_name):
    """One line of the table.

    Args:
        number: target, as "P1 u".
        what: words for the table.
        ours: milliseconds of our side, one per repetition.
        peer: milliseconds of the peer.
        target: the ratio wanted.
        at_least: True: ratio is speed (peer time / our time); False: it is time (ours / peer).
        peer_name: what stood beside us.

    Returns:
        dict that goes into the record.
    """
    our_median = float(np.median(ours))
    peer_median = float(np.median(peer))
    ratio = peer_median / our_median if at_least else our_median / peer_median
    best = np.min(peer) / np.min(ours) if at_least else np.min(ours) / np.min(peer)
    return {
        "id": number,
        "what": what,
        "peer_name": peer_name,
        "unit": "ms",
        "ours": round(our_median, 4),
        "ours_quartiles": [round(float(q), 4) for q in np.percentile(ours, [25, 75])],
        "peer": round(peer_median, 4),
        "peer_quartiles": [round(float(q), 4) for q in np.percentile(peer, [25, 75])],
        "ratio": round(ratio, 3),
        "best_ratio": round(float(best), 3),
        "target": target,
        "at_least": at_least,
        "met": bool(ratio >= target if at_least else ratio <= target),
        "repetitions": len(ours),
    }


def with_limit(item, limit, floor, times):
    """A figure with what this machine allows any engine.

    Args:
        item: what `figure` returned.
        limit: the `limits.Limit` of the same work.
        floor: milliseconds of the session without lookup and update, one per repetition.
        times: milliseconds of both sides of the limit: (2, repetitions), keyed and arrays.

    Returns:
        dict with limit, limit_ratio (ours / limit), at_best (the ratio of an engine at the limit),
        limit_arrays (the same work if ids were places), session_floor, and what one repetition
        moves: limit_lines, limit_bytes, and limit_gbs, the rate at which it did.
    """
    floor, keyed, arrays = (float(np.median(one)) for one in (floor, times[0], times[1]))
    whole = floor + keyed
    item = dict(item)
    item.update(
        limit=round(whole, 4),
        limit_ratio=round(item["ours"] / whole, 3),
        at_best=round(item["peer"] / whole if item["at_least"] else whole / item["peer"], 3),
        limit_arrays=round(floor + arrays, 4),
        session_floor=round(floor, 4),
        limit_lines=limit.lines,
        limit_bytes=limit.bytes,
        limit_gbs=round(limit.bytes / keyed / 1e6, 2),
    )
    return item


def emit(figures, path):
    """Appends figures to a file, one JSON object per line, and prints them."""
    with open(path, "a") as out:
        for item in figures:
            out.write(json.dumps(item) + "\n")
            print(
                "%-6s %-44s ours %9.3f  peer %9.3f ms  ratio %7.2f  of minima %7.2f"
                % tuple(item[k] for k in ("id", "what", "ours", "peer", "ratio", "best_ratio")),
                flush=True,
            )


def agree(name, ours, peer, tolerance):
    """Refuses a figure whose two sides did not compute the same.

    Args:
        name: what was compared.
        ours: array.
        peer: array of the same shape.
        tolerance: largest absolute difference allowed; 0 means bit for bit.

    Raises:
        RuntimeError: if they differ.
    """
    if ours.shape != peer.shape:
        raise RuntimeError("%s: shapes %s and %s differ" % (name, ours.shape, peer.shape))
    gap = float(np.max(np.abs(ours - peer))) if ours.size else 0.0
    if not gap <= tolerance:
        raise RuntimeError("%s: the two sides differ by %g, allowed is %g" % (name, gap, tolerance))
