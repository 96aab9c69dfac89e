"""What a person allows beyond one call: for a session, and by a rule that the daemon writes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import Conflict, NotFound, PermissionDenied, Refused
from lightagentd.host.paths import Paths
from tests.agents.asking import Watched, add, asked, asking, lines, prepare, result
from tests.agents.scripted import ME, Scripted, watch
from tests.conftest import write
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import call, say

OTHER = Caller(uid=54321, gid=OUTSIDERS_GID, pid=1)


async def allowed_for(test: Scripted, session: Any, **how: Any) -> None:
    """Prompt, and allow the call that it asks about."""
    async with Watched(test, session) as turn:
        question = await asked(test)
        await test.daemon.service.approvals.approve(ME, question.id, **how)
        await turn.end()


async def test_a_leave_counts_for_the_same_call_in_the_same_session_until_it_is_withdrawn(
    paths: Paths,
) -> None:
    out = prepare(paths)
    same, other = call("probe_add", add(out)), call("probe_add", add(out, line="other"))
    script = [same, say("1"), same, say("2"), other, say("3"), same, say("4"), same, say("5")]
    async with asking(paths, script) as test:
        session, sessions = await test.session(), test.daemon.service.sessions
        await allowed_for(test, session, for_session=True)
        events = await test.prompt(session)  # nobody is asked
        assert result(events)["result"] == "ok"
        stored = [one.data for one in test.stored(topic="agent.tool_dispatch") if one.data]
        assert (stored[-1]["decision"], stored[-1]["rule"]) == ("allow", "session-leave")
        await allowed_for(test, session)  # another line
        await allowed_for(test, await test.session())  # another session
        assert lines(out) == ["ran", "ran", "other", "ran"]
        (leave,) = (await sessions.get(ME, session.id)).leaves
        assert (leave["given_by"], leave["tainted"], leave["args"]["line"]) == (ME.uid, False, "ran")
        with pytest.raises(NotFound):
            await sessions.withdraw(ME, session.id, "leave_0")
        await sessions.withdraw(ME, session.id, leave["id"])
        await allowed_for(test, session)
        assert [one.type for one in test.stored(topic="session.leave")] == ["given", "withdrawn"]


async def test_a_command_runs_only_with_what_others_can_write_as_it_was(
    paths: Paths, open_folder: Path
) -> None:
    script, out = open_folder / "script", open_folder / "out"
    script.write_text(f"echo one >> {out}\n")
    script.chmod(0o666)
    same = call("bash_exec", {"command": f"sh {script}", "effect": "change"})
    async with asking(paths, [same, say("1"), same, say("2"), same, say("3")]) as test:
        session, rules = await test.session(), test.daemon.service.rules
        async with Watched(test, session) as turn:
            question = await asked(test)
            with pytest.raises(Conflict, match="Others can write"):
                await rules.propose(ME, question.id)
            await test.daemon.service.approvals.approve(ME, question.id, for_session=True, tainted=True)
            await turn.end()
        assert result(await test.prompt(session))["result"] == "ok"
        script.write_text(f"echo two >> {out}\n")
        refused = result(await test.prompt(session))
        assert (refused["result"], out.read_text()) == ("conflict", "one\none\n")


async def test_a_leave_on_terms_has_them_each_time_and_does_not_count_unattended(paths: Paths) -> None:
    out = prepare(paths)
    same = call("probe_add", add(out))
    async with asking(paths, [same, say("1"), same, say("2"), same, say("3")]) as test:
        session, kept = await test.session(), test.daemon.registry.shared.confirmations
        await allowed_for(test, session, for_session=True, confirm_within="1h", inverse=f"rm {out}")
        await test.prompt(session)
        assert [(one.within_s, one.inverse) for one in kept.listed()] == [(3600, f"rm {out}")] * 2
        unattended = await test.agent.prompt(session, "go", unattended=True)
        assert result(await watch(unattended))["result"] == "policy_denied"
        assert lines(out) == ["ran"] * 2


async def test_a_leave_stays_with_its_session_and_does_not_count_once_it_is_tainted(paths: Paths) -> None:
    out = prepare(paths)
    same, taint = call("probe_add", add(out)), call("probe_read", {"url": "https://x/"})
    async with asking(paths, [same, say("1"), taint, say("2"), same, say("3"), same, say("4")]) as test:
        session = await test.session()
        await allowed_for(test, session, for_session=True)
        await test.prompt(session)
        async with Watched(test, session) as turn:
            question = await asked(test)
            assert question.reason.startswith("What was allowed for this session does not count now")
            with pytest.raises(Conflict, match="Text from outside"):
                await test.daemon.service.approvals.approve(ME, question.id, for_session=True)
            assert len(session.record.leaves) == 1
            approve = test.daemon.service.approvals.approve
            await approve(ME, question.id, for_session=True, tainted=True)
            await turn.end()
        assert result(await test.prompt(session))["result"] == "ok"
        assert lines(out) == ["ran"] * 3
    async with Daemon(paths) as daemon:
        kept = (await daemon.service.sessions.get(ME, session.id)).leaves
        assert [one["tainted"] for one in kept] == [False, True]


async def test_a_rule_is_proposed_shown_and_written(paths: Paths) -> None:
    out = prepare(paths)
    same = call("file_write", {"path": str(out), "content": "ran\n"})
    other = call("file_write", {"path": str(out), "content": "other\n"})
    write(paths.config / "policy.d" / "10.toml", "# mine\n")
    async with asking(paths, [same, say("1"), same, say("2"), same, say("3"), other, say("4")]) as test:
        approvals, rules = test.daemon.service.approvals, test.daemon.service.rules
        await allowed_for(test, await test.session())
        session = await test.session()
        async with Watched(test, session) as turn:
            question = await asked(test)
            found = await rules.propose(ME, question.id)
            assert (found.allowed, found.past[0].args["content"]) == (1, "ran\n")
            assert "exactly this call of file.write" in found.words
            with pytest.MonkeyPatch.context() as patch:  # where systemd runs the workers
                patch.setattr(test.daemon.registry.shared.pool.source, "verifies", True)
                with pytest.raises(Conflict, match="only the daemon's word"):
                    await rules.propose(ME, question.id)
                verified = tomllib.loads((await rules.propose(ME, question.id, tainted=True)).text)
            assert not verified["rule"][0].keys() & {"caller", "trigger"}
            with pytest.raises(Conflict, match="not the one"):
                await rules.write(ME, question.id, "0" * 64)
            with pytest.raises((PermissionDenied, NotFound)):
                await rules.write(OTHER, question.id, found.sha256)
            assert not list(paths.config.glob("policy.d/50-*"))
            path = await rules.write(ME, question.id, found.sha256)
            assert path == found.path
            with pytest.raises(Conflict, match="already"):
                await rules.write(ME, question.id, found.sha256)
            await approvals.approve(ME, question.id)
            await turn.end()
        assert (paths.config / "policy.d" / "10.toml").read_text() == "# mine\n"
        assert result(await test.prompt(await test.session()))["result"] == "ok"
        await allowed_for(test, await test.session())
        assert lines(out) == ["other"]
        assert [one.type for one in test.stored(topic="policy.rules")][-2:] == ["written", "loaded"]


async def test_no_rule_is_proposed_for_what_policy_never_allows_or_holds_a_secret(paths: Paths) -> None:
    out = prepare(paths)
    secret = call("probe_add", add(out, key="hunter2"))
    async with asking(paths, [call("probe_add", add(out)), secret, say("1")]) as test:
        rules = test.daemon.service.rules
        async with Watched(test, await test.session()) as turn:
            question = await asked(test)
            for name, match in (("deny", "never allows"), ("ask", "would change nothing")):
                rule = f'[[rule]]\nname = "mine"\ndecision = "{name}"\ntool = "probe"\n'
                write(paths.config / "policy.d" / "10.toml", rule)
                with pytest.raises((Refused, Conflict), match=match):
                    await rules.propose(ME, question.id)
            write(paths.config / "policy.d" / "10.toml", "")
            await test.daemon.service.approvals.deny(ME, question.id)
            question = await asked(test)
            for call_ in (rules.propose(ME, question.id),):
                with pytest.raises(Conflict, match="secret"):
                    await call_
            with pytest.raises(Conflict, match="secret"):
                await test.daemon.service.approvals.approve(ME, question.id, for_session=True)
            await test.daemon.service.approvals.deny(ME, question.id)
            await turn.end()
