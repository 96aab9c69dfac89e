"""The operations on policy: list, explain and replay, as a control plane calls them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd import api, errors
from lightagentd.control.authz import Caller
from lightagentd.control.operations.policy import MAX_RULES_CHARS
from lightagentd.daemon.daemon import Daemon
from lightagentd.events.model import within
from lightagentd.events.types.agent import CallIntended
from lightagentd.host.paths import Paths
from tests.conftest import write
from tests.other_user import OUTSIDERS_GID

ME = Caller(uid=os.geteuid(), gid=os.getegid(), pid=os.getpid())
OTHER = Caller(uid=4711, gid=OUTSIDERS_GID, pid=os.getpid())
RULES = """[[rule]]
name = "no-hosts"
decision = "deny"
reason = "Not that one."
args = { path = "/etc/hosts" }
[[rule]]
name = "reads"
decision = "allow"
tool = "file"
action = "read"
[[rule]]
name = "roots-own"
decision = "ask"
caller = 0
args = { lines = 7 }
"""


@pytest.fixture
async def daemon(paths: Paths) -> AsyncIterator[Daemon]:
    """A daemon with rules, and with an agent that may change and reach."""
    write(paths.config / "policy.d" / "10-a.toml", RULES)
    write(paths.config / "agent" / "doer" / "AGENT.md", "---\neffects: [observe, reach, change]\n---\nBe.\n")
    write(paths.config / "lightagentd.toml", "[worker]\nchange_agents = ['doer']\n")
    async with Daemon(paths) as running:
        yield running


async def explain(daemon: Daemon, name: str, caller: Caller = ME, **changes: Any) -> api.PolicyExplanation:
    tool, _, action = name.partition(".")
    given: dict[str, Any] = {"agent": "doer", "args": {}}
    return await daemon.service.policy.explain(caller, tool=tool, action=action, **given | changes)


async def test_the_rules_in_force_are_listed_with_their_origin(daemon: Daemon, paths: Paths) -> None:
    listed = await daemon.service.policy.listed(OTHER)
    file = paths.config / "policy.d" / "10-a.toml"
    assert [(rule.name, rule.origin) for rule in listed] == [
        ("no-hosts", f"{file}:1"),
        ("reads", f"{file}:6"),
        ("roots-own", f"{file}:11"),
    ]
    assert listed[0].conditions == {"args": {"path": "/etc/hosts"}}
    assert listed[1].conditions == {"tool": ["file"], "action": ["read"]}


async def test_explain_names_the_rule_and_the_others_that_matched(daemon: Daemon, paths: Paths) -> None:
    found = await explain(daemon, "file.read", args={"path": "/etc//hosts"})
    assert (found.decision, found.rule) == ("deny", "no-hosts")
    assert found.origin == f"{paths.config}/policy.d/10-a.toml:1"
    assert found.reason == "Not that one."
    assert "denies file.read: Not that one" in found.message
    assert [rule.name for rule in found.matched] == ["no-hosts", "reads"]


async def test_explain_looks_at_taint_trigger_and_caller(daemon: Daemon) -> None:
    write_it = {"path": "/srv/x", "content": "y"}
    assert (await explain(daemon, "file.write", args=write_it)).rule == "default-change"
    timer = await explain(daemon, "file.write", args=write_it, trigger="timer")
    assert (timer.decision, timer.rule) == ("deny", "default-change")
    get = {"url": "https://example.org/"}
    assert (await explain(daemon, "web.get", args=get)).decision == "allow"
    tainted = await explain(daemon, "web.get", args=get, tainted=True)
    assert (tainted.decision, tainted.rule, tainted.origin) == ("ask", "tainted-reach", "")
    assert "example.org" in tainted.message
    limited = {"path": "/srv/x"}
    assert (await explain(daemon, "file.read", args=limited, caller_=0)).rule == "reads"


async def test_explain_looks_at_plan_mode(daemon: Daemon) -> None:
    get = {"url": "http://x/"}
    assert (await explain(daemon, "web.get", args=get, plan="observe")).rule == "plan-mode"
    assert (await explain(daemon, "proc.list", plan="observe")).decision == "allow"
    assert (await explain(daemon, "proc.list", plan="none")).rule == "plan-mode"
    with pytest.raises(errors.InvalidArgument) as caught:
        await explain(daemon, "proc.list", plan="all")
    assert caught.value.field == "plan"


async def test_explain_fills_in_the_defaults_of_the_arguments(daemon: Daemon, paths: Paths) -> None:
    table = '[[rule]]\nname = "in-root"\ndecision = "ask"\ntool = "bash"\nargs = { cwd = "/" }\n'
    write(paths.config / "policy.d" / "20-b.toml", table)
    await daemon.service.manager.reload_content()
    assert (await explain(daemon, "bash.exec", args={"command": "ls"})).rule == "in-root"
    elsewhere = {"command": "ls", "cwd": "/srv"}
    assert (await explain(daemon, "bash.exec", args=elsewhere)).rule != "in-root"


async def test_explain_stores_and_calls_nothing(daemon: Daemon) -> None:
    before = daemon.history.head_seq
    await explain(daemon, "file.write", args={"path": "/nonexistent/x", "content": "y"})
    assert daemon.history.head_seq == before
    assert daemon.pool.workers() == []


async def test_explain_refuses_what_is_no_call(daemon: Daemon) -> None:
    path = {"path": "/x"}
    refused: list[tuple[str, dict[str, Any], type[Exception]]] = [
        ("file.read", {"args": []}, errors.InvalidArgument),
        ("file.read", {"args": {}}, errors.InvalidArgument),
        ("file.read", {"args": {"path": "/x", "nonsense": 1}}, errors.InvalidArgument),
        ("bash.exec", {"args": {"command": "x", "effect": "more"}}, errors.InvalidArgument),
        ("file.read", {"args": path, "trigger": ""}, errors.InvalidArgument),
        ("file.read", {"args": path, "trigger": "a\nb"}, errors.InvalidArgument),
        ("file.nothing", {}, errors.ToolNotFound),
        ("file.read", {"agent": "nobody"}, errors.AgentNotFound),
    ]
    for name, changes, error in refused:
        with pytest.raises(error):
            await explain(daemon, name, **changes)


# Replay


async def store(
    daemon: Daemon, path: str, *, owner: int = ME.uid, agent: str = "doer", **changes: Any
) -> int:
    """Store a call to read a file as the dispatcher does; gives the number of its event."""
    data: dict[str, Any] = {
        "call_id": f"call_{path}",
        "function": "file_read",
        "tool": "file",
        "action": "read",
        "effect": "observe",
        "args": {"path": path},
        "decision": "allow",
        "rule": "default-observe",
    }
    with within(agent=agent, owner=owner, session="ses_1"):
        (stored,) = await daemon.history.append(CallIntended(**(data | changes)).event())
    return stored.seq


async def replay(
    daemon: Daemon, text: str, caller: Caller = ME, *, agent: str = "", since_us: int = 0
) -> tuple[list[api.PolicyChange], api.PolicyReplay]:
    stream = daemon.service.policy.replay(caller, files={"new.toml": text}, agent=agent, since_us=since_us)
    found = [one async for one in stream]
    changes = [one.change for one in found if one.change is not None]
    assert len(changes) == len(found) - 1
    return changes, found[-1]


NEW = '[[rule]]\nname = "no-srv"\ndecision = "deny"\nargs = { path = "/srv/*" }\n'


async def test_replay_lists_exactly_the_calls_that_would_change(daemon: Daemon) -> None:
    seqs = [await store(daemon, path) for path in ("/srv/a", "/etc/a", "/srv/b", "/usr/srv", "/srv2/x")]
    await store(daemon, "/srv/c", decision="deny", rule="agent-tools")
    already = await store(daemon, "/srv/d", decision="deny", rule="other (10-a.toml)")
    freed = await store(daemon, "/etc/d", decision="deny", rule="other (10-a.toml)")
    await store(daemon, "/srv/e", decision="of another version")
    changes, last = await replay(daemon, NEW)
    assert [(one.seq, one.before, one.after) for one in changes] == [
        (seqs[0], "allow", "deny"),
        (seqs[2], "allow", "deny"),
        (freed, "deny", "allow"),
    ]
    assert already not in [one.seq for one in changes]
    assert (last.judged, last.changed, last.skipped) == (8, 3, 1)
    first = changes[0]
    assert (first.before_rule, first.after_rule) == ("default-observe", "no-srv (new.toml)")
    assert (first.agent, first.tool, first.action, first.args) == ("doer", "file", "read", {"path": "/srv/a"})


async def test_replay_pages_through_many_calls(daemon: Daemon) -> None:
    for n in range(450):
        await store(daemon, f"/srv/{n}" if n % 3 == 0 else f"/etc/{n}")
    changes, last = await replay(daemon, NEW)
    assert [one.args["path"] for one in changes] == [f"/srv/{n}" for n in range(0, 450, 3)]
    assert (last.judged, last.changed) == (450, 150)


async def test_replay_is_of_an_agent_and_since_a_time(daemon: Daemon) -> None:
    await store(daemon, "/srv/1")
    other = await store(daemon, "/srv/2", agent="ops")
    changes, last = await replay(daemon, NEW, agent="ops")
    assert [one.seq for one in changes] == [other]
    assert last.judged == 1
    (event,) = daemon.history.queries.range(other, 1)
    _, last = await replay(daemon, NEW, since_us=event.time_us + 1)
    assert last.judged == 0


async def test_replay_is_for_administrators_alone(daemon: Daemon) -> None:
    await store(daemon, "/srv/mine", owner=ME.uid)
    await store(daemon, "/srv/his", owner=OTHER.uid)
    with pytest.raises(errors.PermissionDenied):
        await replay(daemon, NEW, OTHER)
    changes, _ = await replay(daemon, NEW, ME)
    assert len(changes) == 2


async def test_replay_leaves_the_rules_in_force_alone(daemon: Daemon) -> None:
    rules = daemon.registry.shared.policy.rules
    await replay(daemon, NEW)
    assert daemon.registry.shared.policy.rules is rules


async def test_replay_refuses_what_is_no_text(daemon: Daemon) -> None:
    wrong: list[Any] = [7, [], None, "x", {"a": 7}, {"a": "x" * (MAX_RULES_CHARS + 1)}]
    for files in wrong:
        with pytest.raises(errors.InvalidArgument) as caught:
            await anext(daemon.service.policy.replay(ME, files=files, agent="", since_us=0))
        assert caught.value.field == "files"


async def test_replay_of_a_broken_file_names_it(daemon: Daemon) -> None:
    with pytest.raises(errors.ConfigError, match=r"new\.toml:3: the rule 'no-srv'"):
        await replay(daemon, NEW.replace("deny", "no"))


async def test_replay_gives_up_on_rules_that_take_too_long(daemon: Daemon) -> None:
    await store(daemon, "/" + "a" * 4000)
    slow = "".join(
        f'[[rule]]\nname = "slow-{n}"\ndecision = "allow"\nargs = {{ path = "re:/(a+)+b" }}\n'
        for n in range(20)
    )
    with pytest.raises(errors.LimitExceeded, match="take more than"):
        await replay(daemon, slow)


async def test_replay_opens_no_file(daemon: Daemon, paths: Paths) -> None:
    stream = daemon.service.policy.replay(
        ME, files={str(paths.config / "policy.d" / "10-a.toml"): ""}, agent="", since_us=0
    )
    assert [one.judged async for one in stream] == [0]
