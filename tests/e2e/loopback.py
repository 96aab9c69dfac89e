"""Servers of a test on the machine's loopback interface: they run in this process, with sockets of there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

from tests.ssh_hosts import in_network

from .machine import Machine

T = TypeVar("T")


def listening(machine: Machine) -> socket.socket:
    """A socket that listens on 127.0.0.1 of the machine, at a free port."""
    return in_network(machine.leader, lambda: socket.create_server(("127.0.0.1", 0)))


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
