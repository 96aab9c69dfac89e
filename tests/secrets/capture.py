"""Records what a daemon says: to the clients of a socket, and to the journal."""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import selectors
import socket
import threading
from pathlib import Path


class Tap:
    """A socket in front of another one. `heard` has every byte that came back through it."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self.heard = bytearray()
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX)
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Tap:
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _start(self, run: object, *args: object) -> None:
        thread = threading.Thread(target=run, args=args)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._start(self._relay, self._listener.accept()[0])

    def _relay(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        with client, server, selectors.DefaultSelector() as ready, contextlib.suppress(OSError):
            server.connect(str(self._target))
            self._open |= {client, server}
            ready.register(client, selectors.EVENT_READ)
            ready.register(server, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    if not data:
                        return
                    if key.fileobj is server:
                        self.heard += data
                        client.sendall(data)
                    else:
                        server.sendall(data)
        self._open -= {client, server}


class Journal:
    """A socket that takes entries as journald does, large ones from a descriptor, too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[bytes] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Journal:
        self._socket.bind(str(self.path))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"END", str(self.path))
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        size = array.array("i", [0]).itemsize
        while True:
            data, extra, _, _ = self._socket.recvmsg(1 << 20, socket.CMSG_LEN(size))
            if data == b"END":
                return
            for _, _, raw in extra:
                [fd] = array.array("i", raw)
                with mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ) as memory:
                    data += memory[:]
                os.close(fd)
            self.entries.append(data)
