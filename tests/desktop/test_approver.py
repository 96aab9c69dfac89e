"""A change on the desktop: what the approver has is shown and answered there, whatever the daemon says."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightagentd.client.aio import AsyncClient
from lightagentd.desktop.board import APPROVE, DENY, Board, Card
from lightagentd.desktop.daemon_link import DaemonLink
from tests.approver.stage import CALL, Stage, staged
from tests.scripted_daemon import ScriptedDaemon, approval

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="without polkit root alone may approve")


class Desktop:
    def __init__(self, stage: Stage, daemon: ScriptedDaemon) -> None:
        self.stage, self.daemon = stage, daemon
        self.board = Board()
        self.link = DaemonLink(self.board, socket=str(daemon.path), uid=0, min_s=0, everybody=True)

    async def card(self, name: str, says: dict[str, Any], **said: Any) -> Card:
        """The card of a call, of which the daemon says this to the desktop."""
        statement = replace(CALL, call_id=f"call_{name}")
        digest = await self.stage.asked(statement, name, **said)
        fields = {one: getattr(statement, one) for one in ("tool", "action", "args", "call_id", "owner")}
        found = approval(name, **{**fields, "approver": digest, "preview": "", **says})
        self.daemon.answer("Approvals.Get", {"approval": found})
        async with AsyncClient(str(self.daemon.path)) as client:
            await self.link._ask(client, "approval", name)
        return self.board.questions[name]

    async def state(self, name: str) -> str:
        return str((await self.stage.person("Get", approval=name))["state"])


@pytest.fixture
async def desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desktop]:
    daemon = ScriptedDaemon(tmp_path / "control.sock")
    daemon.start()
    monkeypatch.setenv("LIGHTAGENT_APPROVER_SOCKET", str(tmp_path / "approve.sock"))
    async with staged(tmp_path) as stage:
        yield Desktop(stage, daemon)
    daemon.stop()


async def test_the_approver_is_answered_and_the_daemon_is_not(desktop: Desktop) -> None:
    card = await desktop.card("apr_1", {}, preview="It restarts nginx.")
    assert card.answers == (DENY, APPROVE)
    assert "unit: nginx.service" in card.body
    assert "The daemon says what it would do: It restarts nginx." in card.body
    assert await desktop.link.answer(card, APPROVE)
    denied = await desktop.card("apr_2", {})
    assert await desktop.link.answer(denied, DENY)
    assert [await desktop.state(name) for name in ("apr_1", "apr_2")] == ["granted", "denied"]
    assert {one["method"] for one in desktop.daemon.calls} == {"Approvals.Get"}


async def test_where_the_daemon_lies_nothing_can_be_allowed(desktop: Desktop) -> None:
    lies: tuple[dict[str, Any], ...] = (
        {"args": {"unit": "ssh.service"}},
        {"tool": "file"},
        {"call_id": "call_7"},
        {"confirm_within_s": 60},
    )
    for number, says in enumerate(lies):
        card = await desktop.card(f"apr_{number}", says)
        assert APPROVE not in card.answers
        assert "The daemon says of" in card.body


async def test_what_the_daemon_calls_a_secret_is_neither_shown_nor_allowed_there(desktop: Desktop) -> None:
    card = await desktop.card("apr_1", {}, hidden=["unit"])
    assert "nginx" not in card.body
    assert APPROVE not in card.answers
