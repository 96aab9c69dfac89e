"""Servers of a test on the machine's loopback interface: they run in this process, with sockets of there."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

from .machine import Machine

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000  # setns(2)


def listening(machine: Machine) -> socket.socket:
    """A socket that listens on 127.0.0.1 of the machine, at a free port."""

    def made() -> socket.socket:
        with Path(f"/proc/{machine.leader}/ns/net").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return socket.create_server(("127.0.0.1", 0))

    with ThreadPoolExecutor(1) as thread:  # of its own: the namespace is that of a thread
        return thread.submit(made).result()


@contextlib.contextmanager
def answering(listens: socket.socket, handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """An HTTP server; gives its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = listens
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield int(listens.getsockname()[1])
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def in_a_loop(server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Something asynchronous, in a loop of its own beside the test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        entered = asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        try:
            yield entered
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
