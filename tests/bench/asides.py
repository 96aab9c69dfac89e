"""What events leave behind in the daemon: its memory after thousands of them, beside that after the first."""

from __future__ import annotations

from lightagentd.client.blocking import Client
from tests.bench.footprint import rss_anon_mib
from tests.bench.model_server import model_server
from tests.bench.rig import daemon_with

FIRST, MOST = 1000, 10_000
TARGET = 1.05


def run(_: int) -> None:
    with (
        model_server() as server,
        daemon_with({"asides": server.steps(0)}) as daemon,
        daemon.client() as client,
    ):
        _send(client, FIRST)
        before = rss_anon_mib(daemon.pid)
        _send(client, MOST - FIRST)
        after = rss_anon_mib(daemon.pid)
        handled = client.call("Sessions.List", parent=client.call("Sessions.List")["sessions"][0]["id"])
    assert len(handled["sessions"]) == MOST
    print(f"events, RssAnon after {FIRST}: {before:.1f} MiB; after {MOST}: {after:.1f} MiB")
    print(f"events, memory, ratio: {after / before:.3f} (target: at most {TARGET})")


def _send(client: Client, count: int) -> None:
    for number in range(count):
        found = client.call("Sessions.SendEvent", agent="asides", content=f"event {number}")
    client.call("Sessions.Wait", session=found["handled"]["session"])
