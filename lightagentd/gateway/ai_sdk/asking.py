"""What a request of useChat asks for: a prompt, or answers to what the agent waits for.

The client sends all of its messages. Only the last one is new: earlier ones are in the session, which their
metadata name, as the gateway has given it to them. Data, reasoning and tool parts of the client are no text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from lightagentd.errors import InvalidArgument
from lightagentd.gateway.ai_sdk.parts import Protocol
from lightagentd.gateway.turns import Approval

MAX_MESSAGES = 10_000
MAX_ID = 256


@dataclass(frozen=True, kw_only=True)
class Asking:
    """One request. `text` is empty where the client goes on with the assistant's `message`."""

    chat: str
    agent: str
    protocol: Protocol
    text: str
    message: str
    known: frozenset[str]
    """The calls in that message."""
    approvals: Mapping[str, Approval]
    """By the id of the approval."""
    outputs: Mapping[str, str]
    """Outputs that the client has for calls, by their ids: answers to questions."""
    session: str
    """As the metadata of the messages have it."""
    seq: int
    """The last message of that session that the client knows of; 0 when it does not say."""
    branches: bool
    """Whether an earlier message is edited, or its answer made anew."""
    before: Sequence[dict[str, str]]
    """The messages before the prompt, as texts."""


def asking(body: Mapping[str, Any], query: Mapping[str, str]) -> Asking:
    """What a request asks for. Raises InvalidArgument."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        raise InvalidArgument(f"messages must be a list of 1 to {MAX_MESSAGES} messages.", field="messages")
    for position, one in enumerate(messages):
        if not isinstance(one, dict) or one.get("role") not in ("user", "assistant", "system"):
            where = f"messages.[{position}]"
            raise InvalidArgument(f"{where} is no message of a user or an assistant.", field=where)
    messages = [one for one in messages if one["role"] != "system"]
    trigger, named = body.get("trigger"), body.get("messageId")
    last = next((one for one in messages if named and one.get("id") == named), None)
    if last is None or last["role"] != "assistant":
        last = messages[-1] if messages else {}
    is_prompt = last.get("role") == "user"
    before = messages[:-1] if is_prompt else []
    session, seq = _known_session(before if is_prompt else [last])
    edits = is_prompt and bool(named) and named == last.get("id")
    return Asking(
        chat=chat_id(body.get("id")),
        agent=_text(body.get("agent") or query.get("agent", ""), "agent"),
        protocol=protocol(query),
        text=_prompt(last) if is_prompt else "",
        message="" if is_prompt else _text(last.get("id") or "", "messages"),
        known=frozenset() if is_prompt else frozenset(str(one.get("toolCallId")) for one in _parts(last)),
        approvals={} if is_prompt else dict(_approvals(last)),
        outputs={} if is_prompt else dict(_outputs(last)),
        session=session,
        seq=seq,
        branches=is_prompt and (trigger == "regenerate-message" or edits),
        before=[{"role": one["role"], "content": _said(one)} for one in before],
    )


def chat_id(given: Any) -> str:
    """The id of a chat. Raises InvalidArgument."""
    if not isinstance(given, str) or not 0 < len(given) <= MAX_ID or not given.isprintable():
        raise InvalidArgument(f"id must be a text of 1 to {MAX_ID} characters.", field="id")
    return given


def protocol(query: Mapping[str, str]) -> Protocol:
    """The protocol that a client asks for. Raises InvalidArgument."""
    named = query.get("protocol", "ui")
    if named not in get_args(Protocol):
        raise InvalidArgument(f"protocol must be one of {', '.join(get_args(Protocol))}.", field="protocol")
    return cast(Protocol, named)


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str) or len(given) > MAX_ID:
        raise InvalidArgument(f"{where} must be a text of at most {MAX_ID} characters.", field=where)
    return given


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    parts = message.get("parts")
    return [one for one in parts if isinstance(one, dict)] if isinstance(parts, list) else []


def _said(message: Mapping[str, Any]) -> str:
    """The text of a message; `ai` 3 and 4 have it as `content`, too."""
    texts = [one["text"] for one in _parts(message) if one.get("type") == "text" and _is_text(one)]
    content = message.get("content")
    return "\n\n".join(texts) or (content if isinstance(content, str) else "")


def _is_text(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("text"), str)


def _prompt(message: Mapping[str, Any]) -> str:
    """Raises InvalidArgument."""
    if any(one.get("type") == "file" for one in _parts(message)) or message.get("experimental_attachments"):
        raise InvalidArgument("The message has files; agents take text alone.", field="messages")
    text = _said(message)
    if not text.strip():
        raise InvalidArgument("The last message has no text.", field="messages")
    return text


def _approvals(message: Mapping[str, Any]) -> list[tuple[str, Approval]]:
    found = []
    for part in _parts(message):
        answer = part.get("approval")
        if part.get("state") == "approval-responded" and isinstance(answer, dict):
            shown, reason = answer.get("descriptor"), answer.get("reason")
            digest = shown.get("digest") if isinstance(shown, dict) else ""
            given = Approval(
                approved=answer.get("approved") is True,
                reason=reason if isinstance(reason, str) else "",
                digest=digest if isinstance(digest, str) else "",
            )
            found.append((str(answer.get("id")), given))
    return found


def _outputs(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (str(part.get("toolCallId")), part["output"])
        for part in _parts(message)
        if part.get("state") == "output-available" and isinstance(part.get("output"), str)
    ]


def _known_session(messages: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    """The session that the newest message with one names, and where in it that message ends."""
    for message in reversed(messages):
        metadata = message.get("metadata")
        for one in (metadata, *_annotations(message)):
            session = one.get("session") if isinstance(one, dict) else None
            if isinstance(session, str) and session.isprintable() and len(session) <= MAX_ID:
                seq = one.get("seq")
                return session, seq if isinstance(seq, int) and seq > 0 else 0
    return "", 0


def _annotations(message: Mapping[str, Any]) -> list[Any]:
    """Where `ai` 3 and 4 keep metadata."""
    found = message.get("annotations")
    return found if isinstance(found, list) else []
