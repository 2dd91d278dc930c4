"""Passes TCP connections on and counts their bytes, in both directions."""

import socket
import threading


class Proxy:
    """Listens in the place of another address, in threads of its own.

    Args:
        target: (host, port) to which connections are passed on.

    Attributes:
        address: "host:port" to connect to.
    """

    def __init__(self, target):
        self._target = target
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bytes(self):
        """How many bytes went through so far."""
        with self._lock:
            return self._bytes

    def _accept(self):
        while True:
            here, _ = self._listener.accept()
            there = socket.create_connection(self._target)
            for source, sink in ((here, there), (there, here)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source, sink):
        try:
            while True:
                data = source.recv(1 << 18)
                if not data:
                    break
                with self._lock:
                    self._bytes += len(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
