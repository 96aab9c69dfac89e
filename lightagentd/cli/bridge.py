"""`lactl bridge`: the daemon's socket as a pipe, for `lactl --host` on another machine (`client.remote`)."""

from __future__ import annotations

import json
import os
import socket
import threading

import click

from lightagentd import __version__
from lightagentd.cli.options import Command, Settings
from lightagentd.client.blocking import CHUNK_BYTES, connected, socket_path
from lightagentd.client.remote import GREETING
from lightagentd.errors import LightagentError

_CONNECT_S = 20.0


@click.command("bridge", cls=Command)
@click.option("--greet", is_flag=True, help="Say first who this is, or why there is no connection, as JSON.")
@click.pass_obj
def command(settings: Settings, greet: bool) -> None:
    """Connect standard input and output to the daemon's socket.

    'lactl --host' runs this through ssh on the machine that it is to talk to: the daemon sees the user who
    logged in there, and nobody else. What passes is Varlink. The command ends when the daemon closes the
    connection. The end of standard input is passed on: answers still come. With --greet it ends everything,
    because through ssh a program that has gone looks like one that only listens.
    """
    try:
        sock = connected(settings.socket or socket_path(), _CONNECT_S)
    except LightagentError as err:
        if greet:
            _say({"error": err.to_dict()})
        raise
    with sock:
        sock.settimeout(None)
        if greet:
            _say({"lightagent": GREETING, "version": __version__, "uid": os.geteuid()})
        # What is read blocks until the other side speaks or leaves; the thread ends with the process.
        threading.Thread(target=_forward, args=(sock, greet), daemon=True).start()
        while data := sock.recv(CHUNK_BYTES):
            _write(data)


def _forward(sock: socket.socket, hangs_up: bool) -> None:
    """Standard input to the daemon, up to its end; whether that also ends the answers."""
    try:
        while data := os.read(0, CHUNK_BYTES):
            sock.sendall(data, socket.MSG_NOSIGNAL)
        sock.shutdown(socket.SHUT_RDWR if hangs_up else socket.SHUT_WR)
    except OSError:
        return  # the daemon has closed the connection, and the other direction sees that


def _say(greeting: object) -> None:
    _write(json.dumps(greeting).encode() + b"\0")


def _write(data: bytes) -> None:
    """All of it, past the buffers of Python."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
