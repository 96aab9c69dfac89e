"""Approvals as such: what the digest covers, single use, and what is found in a store again."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from lightagentd.config.terms import Terms
from lightagentd.errors import (
    ApprovalClosed,
    ApprovalDenied,
    ApprovalMismatch,
    ApprovalNotFound,
    ApprovalRequired,
    StorageError,
)
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.queries import Filter
from lightagentd.host.paths import Paths
from lightagentd.host.users import called
from lightagentd.policy.questions.approval import (
    HIDDEN,
    Approval,
    Bound,
    hide,
    working_directory,
)
from lightagentd.policy.questions.approvals import Approvals, granted
from lightagentd.policy.questions.question import State

KEY = b"k" * 32
BOUND = Bound(
    agent="ops",
    session="ses_1",
    tool="file",
    action="write",
    effect="change",
    args={"path": "/etc/hosts", "content": "x", "deep": {"list": [1, 2.0, None, True]}},
    cwd="/",
    confirm_within_s=300,
    check="true",
    inverse="mv old new",
)
OTHERWISE: dict[str, Any] = {
    "agent": "opz",
    "session": "",
    "tool": "fil",
    "action": "append",
    "effect": "observe",
    "args": {"path": "/etc/hosts", "content": "x", "deep": {"list": [1, 2.0, None, False]}},
    "cwd": "/etc",
    "confirm_within_s": 301,
    "check": "true ",
    "inverse": "mv new old",
}
INTENT = NewEvent(topic="agent.tool_dispatch", type="intent", data={})


@pytest.fixture
async def history(paths: Paths) -> AsyncIterator[History]:
    opened = History(paths.history)
    await opened.start()
    yield opened
    await opened.close()


async def loaded(history: History, paths: Paths, timeout_s: float = 600) -> Approvals:
    approvals = Approvals(history, timeout_s=timeout_s, key_file=paths.state / "approvals.key")
    await approvals.load()
    return approvals


async def ask(approvals: Approvals, history: History, bound: Bound = BOUND, **more: Any) -> Approval:
    """A stored question of a turn that waits for it."""
    wanted: dict[str, Any] = {
        "owner": 1000,
        "trace_id": "trace_1",
        "call_id": "call_1",
        "preview": "",
        "expected": {},
        "rule": "default-change",
        "reason": "",
    }
    approval = approvals.new(bound, **wanted | more)
    waits = Change(
        state="turns", key="trace_1", value={"session": "ses_1", "state": "waiting", "approval": approval.id}
    )
    return await approvals.request(approval, changes=[waits])


async def answered(approvals: Approvals, approval_id: str) -> Approval:
    return granted(await approvals.questions.wait(approval_id))


def events(history: History) -> list[str]:
    return [event.type for event in history.queries.select(Filter(topic="approval"), limit=1000)]


@pytest.mark.parametrize("field", OTHERWISE)
def test_the_digest_covers_each_field(field: str) -> None:
    assert replace(BOUND, **{field: OTHERWISE[field]}).digest(KEY) != BOUND.digest(KEY)
    assert set(OTHERWISE) == set(Bound.__dataclass_fields__)


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"path": "/etc/hosts"},
        {**BOUND.args, "extra": None},
        {**BOUND.args, "content": "x "},
        {**BOUND.args, "content": ["x"]},
        {**BOUND.args, "content": "\u0445"},
        {**BOUND.args, "deep": {"list": [1, 2.0, None, 1]}},
        {**BOUND.args, "deep": {"list": [2.0, 1, None, True]}},
        {**BOUND.args, "deep": '{"list":[1,2.0,null,true]}'},
    ],
)
def test_the_digest_covers_all_of_the_arguments(args: dict[str, Any]) -> None:
    assert replace(BOUND, args=args).digest(KEY) != BOUND.digest(KEY)


def test_the_digest_depends_on_the_key_and_not_on_the_order_of_names() -> None:
    turned = dict(reversed(BOUND.args.items()))
    assert replace(BOUND, args=turned).digest(KEY) == BOUND.digest(KEY)
    assert BOUND.digest(b"l" * 32) != BOUND.digest(KEY)
    with pytest.raises(ValueError):
        replace(BOUND, args={"n": float("nan")}).digest(KEY)


def test_without_terms_the_digest_is_what_it_was_before_there_were_terms() -> None:
    plain = replace(BOUND, confirm_within_s=0, check="", inverse="")
    assert plain.digest(KEY) == "94a6df7e4d4ae508981f00b3ec818843a417a8c7a69887e9104b61311c0ff939"


async def test_who_approves_on_other_terms_is_bound_to_those(history: History, paths: Paths) -> None:
    approvals = await loaded(history, paths)
    approval = await ask(approvals, history, call_id="call_1")
    other = Terms(within_s=60, inverse="mv new old")
    granted_ = await approvals.answer(approval.id, grant=True, uid=0, terms=other)
    assert granted_.digest != approval.digest
    with pytest.raises(ApprovalMismatch):
        await approvals.use(approval.id, BOUND, "call_1", INTENT)
    await approvals.use(approval.id, replace(BOUND, **other.fields()), "call_1", INTENT)


def test_hidden_arguments_are_shown_as_such_and_a_working_directory_is_text() -> None:
    assert hide({"a": 1, "b": "key"}, ["b", "c"]) == {"a": 1, "b": HIDDEN}
    assert (working_directory({"cwd": "/srv"}), working_directory({"cwd": 7}), working_directory({})) == (
        "/srv",
        "",
        "",
    )


async def test_an_approval_is_used_once(history: History, paths: Paths) -> None:
    approvals = await loaded(history, paths)
    approval = await ask(approvals, history)
    with pytest.raises(ApprovalRequired, match="waiting"):
        await approvals.use(approval.id, BOUND, "call_1", INTENT)
    await approvals.answer(approval.id, grant=True, uid=0)
    used = await asyncio.gather(
        *(approvals.use(approval.id, BOUND, "call_1", INTENT) for _ in range(4)), return_exceptions=True
    )
    assert [type(one) for one in used] == [type(None), *[ApprovalRequired] * 3]
    with pytest.raises(ApprovalRequired, match="used"):
        await approvals.use(approval.id, BOUND, "call_1", INTENT)
    assert events(history) == ["requested", "granted", "used"]
    assert len(history.queries.select(Filter(topic="agent.tool_dispatch"))) == 1
    again = await loaded(history, paths)
    assert again.questions.get(approval.id).state is State.USED
    with pytest.raises(ApprovalRequired):
        await again.use(approval.id, BOUND, "call_1", INTENT)


@pytest.mark.parametrize("field", OTHERWISE)
async def test_what_is_about_to_run_must_be_what_was_approved(
    history: History, paths: Paths, field: str
) -> None:
    approvals = await loaded(history, paths)
    approval = await ask(approvals, history)
    await approvals.answer(approval.id, grant=True, uid=0)
    with pytest.raises(ApprovalMismatch):
        await approvals.use(approval.id, replace(BOUND, **{field: OTHERWISE[field]}), "call_1", INTENT)
    with pytest.raises(ApprovalMismatch):
        await approvals.use(approval.id, BOUND, "call_2", INTENT)
    assert "used" not in events(history)
    assert not history.queries.select(Filter(topic="agent.tool_dispatch"))


@pytest.mark.parametrize("field", [*OTHERWISE, "digest", "state"])
async def test_a_record_that_was_changed_in_the_store_is_of_no_use(
    history: History, paths: Paths, field: str
) -> None:
    approvals = await loaded(history, paths)
    approval = await ask(approvals, history)
    await approvals.answer(approval.id, grant=True, uid=0)
    value = {**OTHERWISE, "digest": "0" * 64, "state": "waiting"}[field]
    stored = history.queries.state_of("approvals", approval.id)
    await history.append(changes=[Change(state="approvals", key=approval.id, value={**stored, field: value})])
    with pytest.raises(ApprovalMismatch):
        await approvals.use(approval.id, BOUND, "call_1", INTENT)
    again = await loaded(history, paths)
    with pytest.raises((ApprovalMismatch, ApprovalRequired)):
        await again.use(approval.id, again.questions.get(approval.id).bound, "call_1", INTENT)
    assert "used" not in events(history)


async def test_a_digest_of_another_key_fits_nothing(history: History, paths: Paths) -> None:
    approvals = await loaded(history, paths)
    approval = await ask(approvals, history)
    await approvals.answer(approval.id, grant=True, uid=0)
    (paths.state / "approvals.key").unlink()
    again = await loaded(history, paths)
    with pytest.raises(ApprovalMismatch):
        await again.use(approval.id, BOUND, "call_1", INTENT)


async def test_the_key_is_for_the_daemon_alone_and_stays(history: History, paths: Paths) -> None:
    await loaded(history, paths)
    file = paths.state / "approvals.key"
    key = file.read_bytes()
    assert len(key) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    await loaded(history, paths)
    assert file.read_bytes() == key
    file.write_bytes(b"short")
    await loaded(history, paths)
    assert len(file.read_bytes()) == 32


async def test_waiting_gives_the_approval_or_says_why_not(history: History, paths: Paths) -> None:
    approvals = await loaded(history, paths)
    granted = await ask(approvals, history)
    waiter = asyncio.create_task(answered(approvals, granted.id))
    await asyncio.sleep(0)
    await approvals.answer(granted.id, grant=True, uid=7, note="ok")
    found = await waiter
    assert (found.state, found.answered_by, found.note) == (State.GRANTED, 7, "ok")
    denied = await ask(approvals, history)
    await approvals.answer(denied.id, grant=False, uid=7, note="no")
    with pytest.raises(ApprovalDenied, match=rf"^{called(7)} did not .* no"):
        await answered(approvals, denied.id)
    lapsed = await ask(approvals, history)
    told, changes = approvals.questions.lapse(lapsed.id, "Its turn ended.")
    await history.append(*told, changes=changes)
    with pytest.raises(ApprovalRequired, match="lapsed"):
        await answered(approvals, lapsed.id)
    assert approvals.questions.lapse(lapsed.id, "again") == ([], [])
    with pytest.raises(ApprovalNotFound):
        await answered(approvals, "apr_0123456789abcdef")


async def test_time_is_up_for_who_waits_answers_or_uses(history: History, paths: Paths) -> None:
    approvals = await loaded(history, paths, timeout_s=0.05)
    waited = await ask(approvals, history)
    with pytest.raises(ApprovalDenied, match="time"):
        await answered(approvals, waited.id)
    late = await ask(approvals, history)
    approvals.questions._pending[late.id] = replace(late, expires_us=1)
    with pytest.raises(ApprovalClosed, match="expired"):
        await approvals.answer(late.id, grant=True, uid=0)
    slow = await loaded(history, paths)
    granted = await ask(slow, history)
    await slow.answer(granted.id, grant=True, uid=0)
    slow.questions._pending[granted.id] = replace(slow.questions.get(granted.id), expires_us=1)
    with pytest.raises(ApprovalDenied, match="time"):
        await slow.use(granted.id, BOUND, "call_1", INTENT)
    assert events(history).count("expired") == 3


async def test_a_start_closes_what_cannot_go_on(history: History, paths: Paths) -> None:
    first = await loaded(history, paths)
    stays = await ask(first, history)
    lost = await ask(first, history)  # the one turn waits for this one now
    secret = await ask(first, history, replace(BOUND, args={"text": "sk-" + "a" * 30}))
    assert (stays.volatile, secret.volatile) == (False, True)
    again = await loaded(history, paths)
    assert again.questions.get(stays.id).state is State.LAPSED
    assert again.questions.get(lost.id).state is State.LAPSED
    assert again.questions.get(secret.id).state is State.LAPSED
    assert "memory" in again.questions.get(secret.id).note
    assert "sk-a" not in str(history.queries.state("approvals"))
    assert events(history) == ["requested"] * 3 + ["lapsed"] * 3


async def test_a_question_that_waits_is_found_again_as_it_was(history: History, paths: Paths) -> None:
    approval = await ask(
        await loaded(history, paths),
        history,
        preview="--- a\n+++ b\n",
        expected={"sha256": "00"},
        reason="why",
    )
    again = await loaded(history, paths)
    assert again.questions.get(approval.id) == approval
    assert again.questions.waiting == 1
    await again.answer(approval.id, grant=True, uid=0)
    await again.use(approval.id, BOUND, "call_1", INTENT)


@pytest.mark.parametrize("what", ["preview", "expected", "args", "cwd"])
async def test_a_secret_anywhere_keeps_the_question_out_of_the_store(
    history: History, paths: Paths, what: str
) -> None:
    secret = "ghp_" + "A1" * 20
    approvals = await loaded(history, paths)
    more: dict[str, Any] = {"preview": secret} if what == "preview" else {"expected": {"x": secret}}
    bound = BOUND
    if what == "args":
        more, bound = {}, replace(BOUND, args={"a": [secret]})
    elif what == "cwd":
        more, bound = {}, replace(BOUND, cwd=f"/{secret}")
    approval = await ask(approvals, history, bound, **more)
    assert approval.volatile
    assert secret not in str(history.queries.state("approvals"))
    await approvals.answer(approval.id, grant=True, uid=0)
    await approvals.use(approval.id, bound, "call_1", INTENT)
    assert secret not in str([event.data for event in history.queries.range(limit=1000)])


async def test_bytes_that_are_no_text_keep_the_question_out_of_the_store(
    history: History, paths: Paths
) -> None:
    approvals = await loaded(history, paths)
    bound = replace(BOUND, args={"path": "/tmp/\udcff"})
    approval = await ask(approvals, history, bound)
    assert approval.volatile, "what is stored would be another path"
    await approvals.answer(approval.id, grant=True, uid=0)
    await approvals.use(approval.id, bound, "call_1", INTENT)


async def test_a_volatile_digest_cannot_be_made_with_the_stored_key(history: History, paths: Paths) -> None:
    approvals = await loaded(history, paths)
    bound = replace(BOUND, args={"pin": "1234"})
    approval = await ask(approvals, history, bound, hidden=["pin"], preview="1234", expected={"pin": "1234"})
    assert approval.volatile
    key = (paths.state / "approvals.key").read_bytes()
    guesses = {replace(bound, args={"pin": f"{pin:04}"}).digest(key) for pin in range(10_000)}
    assert approval.digest not in guesses
    stored = history.queries.state_of("approvals", approval.id)
    assert (stored["args"], stored["preview"], stored["expected"]) == ({"pin": HIDDEN}, "", {})
    assert (approval.preview, approval.expected) == ("1234", {"pin": "1234"})


async def test_a_use_that_cannot_be_stored_is_none(history: History, paths: Paths) -> None:
    approvals = await loaded(history, paths)
    approval = await ask(approvals, history)
    await approvals.answer(approval.id, grant=True, uid=0)
    await history.close()
    with pytest.raises(StorageError):
        await approvals.use(approval.id, BOUND, "call_1", INTENT)
    assert approvals.questions._pending[approval.id].state is State.GRANTED
