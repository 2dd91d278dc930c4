"""Brings what a checkpoint has into served models, piece by piece."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.export.plain_rows import KEYS_OF_PIECE
from mx_rec.export.plain_storage import STORAGES
from mx_rec.export.plain_updates import (APPLY_DELTA, APPLY_DENSE, BEGIN, VERSION, checksum,
                                         fingerprint)
from mx_rec.serving.changes import Changes, Contents, Piece, Saved, Unfit
from mx_rec.serving.servers import Server, ServerError, Unreachable, server_of, text_of, texts_of

# Seconds between attempts at a request: the first, and the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0


class Options(NamedTuple):
    """How a push goes.

    Attributes:
        rows: Rows of a piece at most, 1 to 65,536.
        pause: Seconds between pieces, so that lookups come in between.
        retries: How often a request is sent again that got no answer.
        timeout: Seconds that an answer may take.
        dry_run: Whether nothing is changed.
    """

    rows: int = 5000
    pause: float = 0.002
    retries: int = 5
    timeout: float = 30.0
    dry_run: bool = False


class Version(NamedTuple):
    """What a server says of its model.

    Attributes:
        held: Id of the checkpoint that it holds; "export:" and a number after the export.
        name: Its name, such as model.ckpt-100; empty after the export.
        push: Id of a push that has not ended, empty without one.
        target: Id of the checkpoint that the last push leads to.
        target_name: Its name.
        applied: Pieces of the last push that are applied.
        pieces: Its pieces.
        is_full: Whether a push that has not ended replaces all rows.
        rows: Rows of each table that have keys.
        spare_rows: Rows of each table that no key has had.
        new_keys: How many of the keys that were asked for have had no row.
        model: What the model takes: its tables and variables.
    """

    held: str
    name: str
    push: str
    target: str
    target_name: str
    applied: int
    pieces: int
    is_full: bool
    rows: Dict[str, int]
    spare_rows: Dict[str, int]
    new_keys: int
    model: Dict[str, Any]


class Outcome(NamedTuple):
    """What became of one server.

    Attributes:
        server: Its name.
        held: Name of the checkpoint that it holds, or was to hold with `dry_run`.
        changes: What was sent; None if it held the checkpoint, or an error came first.
        seconds: How long it took.
        error: Why it does not hold the checkpoint; None if it does.
    """

    server: str
    held: str
    changes: Optional[Changes]
    seconds: float
    error: Optional[str]


def push(checkpoint: str, servers: Iterable[Any], rows: int = 5000, pause: float = 0.002,
         retries: int = 5, timeout: float = 30.0, dry_run: bool = False) -> List[Outcome]:
    """Brings a checkpoint into served models that were exported with updates=True.

    Args:
        checkpoint: A checkpoint's prefix, or a directory, whose newest checkpoint is taken.
        servers: What `server_of` takes: addresses, sessions, loaded models.
        rows: Rows of a piece at most.
        pause: Seconds between pieces.
        retries: How often a request is sent again that got no answer.
        timeout: Seconds that an answer may take.
        dry_run: Whether nothing is changed.

    Returns:
        What became of each server, in their order.

    Raises:
        ValueError: If an argument does not fit.
        FileNotFoundError: If there is no checkpoint.
    """
    options = checked(Options(rows, pause, retries, timeout, dry_run))
    found = [server_of(server, timeout) for server in servers]
    prefix = newest(checkpoint)
    if prefix is None:
        raise FileNotFoundError("there is no checkpoint at {}".format(checkpoint))
    try:
        return Pusher(found, options).bring(prefix)
    finally:
        for server, given in zip(found, servers):
            if server is not given:
                server.close()


def checked(options: Options) -> Options:
    """Returns options.

    Raises:
        ValueError: If one of them does not fit.
    """
    if not 1 <= options.rows <= KEYS_OF_PIECE:
        raise ValueError("'rows' should be in [1, {}], but is {!r}".format(KEYS_OF_PIECE,
                                                                          options.rows))
    if options.pause < 0 or options.retries < 0 or options.timeout <= 0:
        raise ValueError("'pause' and 'retries' should be at least 0 and 'timeout' more, but they "
                         "are {!r}, {!r} and {!r}".format(options.pause, options.retries,
                                                          options.timeout))
    return options


def newest(path: str) -> Optional[str]:
    """Returns the prefix of the newest checkpoint of a directory, or a prefix itself; None without
    one."""
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return tf.train.latest_checkpoint(path)
    return path if os.path.isfile(path + ".index") else None


def version_of(server: Server, table: str = "", keys: Optional[np.ndarray] = None) -> Version:
    """Asks a server what its model holds.

    Args:
        server: The server.
        table: A table.
        keys: Keys of it that are counted if they have no row, int64.

    Raises:
        ServerError: If its model takes no updates.
        Unreachable: If it does not answer.
    """
    found = server.predict(VERSION, {
        "table": table, "keys": b"" if keys is None else keys.astype("<i8").tobytes()})
    tables = texts_of(found["tables"])
    pending = text_of(found["push"])
    return Version(
        text_of(found["held"]), text_of(found["name"]), pending,
        text_of(found["target"]), text_of(found["target_name"]), int(found["applied"]),
        int(found["pieces"]), bool(pending and int(found["full"])),
        dict(zip(tables, [int(one) for one in found["rows"]])),
        dict(zip(tables, [int(one) for one in found["spare_rows"]])), int(found["new_keys"]),
        json.loads(text_of(found["model"])))


class Pusher:
    """Brings checkpoints into servers, all at the same time.

    Args:
        servers: The servers.
        options: How it goes.
        tell: Is told a line for what was done; None for the log.
        contents: Reads checkpoints, also for other pushers; None for this one alone.
    """

    def __init__(self, servers: Sequence[Server], options: Options,
                 tell: Optional[Callable[[str], None]] = None,
                 contents: Optional[Contents] = None) -> None:
        self._servers, self._options = list(servers), options
        self._tell = tell or (lambda line: logger.info("%s", line))
        self._contents = contents or Contents()
        self._checksum = _Checksum()

    def bring(self, prefix: str) -> List[Outcome]:
        """Brings a checkpoint into each server that does not hold it.

        Args:
            prefix: The checkpoint's.

        Returns:
            What became of each server, in their order.
        """
        try:
            saved = Saved(prefix)
        except Unfit as error:
            return [Outcome(server.name, "", None, 0.0, str(error)) for server in self._servers]
        if len(self._servers) < 2:
            # Python waits at its end for the threads of a pool, but not for who follows a training.
            outcomes = [self._bring(saved, server) for server in self._servers]
        else:
            with ThreadPoolExecutor(len(self._servers)) as threads:
                outcomes = list(threads.map(lambda server: self._bring(saved, server),
                                            self._servers))
        self._contents.forget(saved)
        return outcomes

    def _bring(self, saved: Saved, server: Server) -> Outcome:
        """Brings a checkpoint into one server."""
        start = time.time()
        changes = None  # type: Optional[Changes]
        # A server that was restarted meanwhile, or into which another one pushes, is asked anew.
        for turn in range(self._options.retries + 1):
            error = None  # type: Optional[Exception]
            version = None  # type: Optional[Version]
            try:
                version = self._again(version_of, server)
                if version.held == saved.id and not version.push:
                    return Outcome(server.name, saved.name, changes, time.time() - start, None)
                changes = self._contents.changes(
                    saved, version.held, (version.push, version.target, version.is_full),
                    version.model, self._options.rows)
                self._tell("{}: {} by {}".format(server.name, saved.name, changes))
                if self._options.dry_run:
                    return Outcome(server.name, saved.name, changes, time.time() - start, None)
                self._send(saved, server, version, changes)
                return Outcome(server.name, saved.name, changes, time.time() - start, None)
            except Unfit as unfit:
                return Outcome(server.name, "", None, time.time() - start, str(unfit))
            except Unreachable as away:
                error = away
                break
            except ServerError as refused:
                error = refused
                if not self._has_moved(server, version):
                    break
                time.sleep(min(_FIRST_WAIT * 2 ** turn, _LONGEST_WAIT))
        return Outcome(server.name, "", None, time.time() - start,
                       "{}{}".format(error, self._left(server)))

    def _has_moved(self, server: Server, before: Optional[Version]) -> bool:
        """Whether a server holds something else than it did, so that it is worth another try."""
        try:
            now = version_of(server)
        except (ServerError, Unreachable):
            return False
        return before is None or now[:7] != before[:7]

    def _left(self, server: Server) -> str:
        """Returns in which state a server was left by a push that has failed."""
        try:
            version = version_of(server)
        except (ServerError, Unreachable):
            return "; it is not known what its model holds now"
        if not version.push:
            return "; its model holds {}".format(version.name or "what was exported")
        return "; its model is half updated: it has {} of {} pieces from {} to {}, and the next " \
            "push goes on".format(version.applied, version.pieces,
                                  version.name or "what was exported", version.target_name)

    def _send(self, saved: Saved, server: Server, version: Version, changes: Changes) -> None:
        """Begins a push, or goes on with it, and sends its pieces."""
        resumed = version.push == changes.push
        begin = {
            "model": fingerprint(version.model), "previous": version.held,
            "interrupted": "" if resumed else version.push, "push": changes.push,
            "target": saved.id, "target_name": saved.name, "pieces": len(changes.pieces),
            "full": int(changes.is_full),
            "new_rows": [0 if resumed else self._new_rows(server, version, changes, table)
                         for table in version.spare_rows]}
        applied, = self._again(server.predict, BEGIN, begin).values()
        for number in range(int(applied), len(changes.pieces)):
            piece = changes.pieces[number]
            if piece.table is None:
                self._again(server.predict, APPLY_DENSE, self._dense(changes, piece, number))
            else:
                self._again(server.predict, APPLY_DELTA, self._rows(
                    changes, piece, number, version.model["tables"][piece.table]))
            if self._options.pause and number + 1 < len(changes.pieces):
                time.sleep(self._options.pause)

    def _new_rows(self, server: Server, version: Version, changes: Changes, table: str) -> int:
        """Returns how many rows a push needs at most; counts them if that might be too many."""
        keys = changes.tables[table].keys
        if len(keys) <= version.spare_rows[table]:
            return len(keys)
        return sum(self._again(version_of, server, table, keys[start:start + KEYS_OF_PIECE]
                               ).new_keys for start in range(0, len(keys), KEYS_OF_PIECE))

    def _rows(self, changes: Changes, piece: Piece, number: int,
              table: Dict[str, Any]) -> Dict[str, Any]:
        """Returns the inputs of a piece of rows."""
        change = changes.tables[str(piece.table)]
        at = slice(piece.start, piece.stop)
        rows = STORAGES[table["rows_as"]].encode(change.rows[at])
        values = [str(piece.table).encode("utf-8"), change.keys[at].astype("<i8").tobytes(),
                  np.ascontiguousarray(rows).tobytes(),
                  change.removed[slice(*piece.removed)].astype("<i8").tobytes()]
        return dict(zip(("table", "keys", "rows", "removed"), values), push=changes.push,
                    piece=number, checksum=self._checksum(changes.push, number, values))

    def _dense(self, changes: Changes, piece: Piece, number: int) -> Dict[str, Any]:
        """Returns the inputs of a piece of variables."""
        names = sorted(changes.variables)[piece.start:piece.stop]
        values = [changes.variables[name] for name in names]
        encoded = [name.encode("utf-8") for name in names]
        return {"names": encoded, "values": values, "push": changes.push, "piece": number,
                "checksum": self._checksum(changes.push, number, [encoded, values])}

    def _again(self, request: Callable[..., Any], *arguments: Any) -> Any:
        """Sends a request, and again while there is no answer: each does no harm twice."""
        for turn in range(self._options.retries):
            try:
                return request(*arguments)
            except Unreachable:
                time.sleep(min(_FIRST_WAIT * 2 ** turn, _LONGEST_WAIT))
        return request(*arguments)


class _Checksum:
    """Computes the checksum of a piece by the ops that the model has; threads share it."""

    def __init__(self) -> None:
        with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
            self._parts = [tf.compat.v1.placeholder(tf.string) for _ in range(6)]
            self._checksums = {count: checksum(self._parts[:count]) for count in (4, 6)}
        self._session = tf.compat.v1.Session(
            graph=graph, config=tf.compat.v1.ConfigProto(device_count={"GPU": 0}))

    def __call__(self, push_id: str, number: int, values: Sequence[Any]) -> str:
        parts = [push_id, str(number)] + list(values)
        found = self._session.run(self._checksums[len(parts)], dict(zip(self._parts, parts)))
        return found.decode("ascii")
