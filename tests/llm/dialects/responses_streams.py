"""Streams of the Responses API, odd and broken ones too, and what each of them means."""

from __future__ import annotations

import json
from typing import Any

from lightagentd.errors import (
    ModelCutOff,
    ModelError,
    ModelFiltered,
    ModelGarbled,
    ModelOverloaded,
    ModelPromptTooLong,
    ModelQuotaExceeded,
    ModelRateLimited,
    ModelRejected,
)
from lightagentd.llm.protocol import (
    Finish,
    Part,
    Reasoning,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    Usage,
)
from tests.model_server.responses import (
    CIPHER,
    added,
    arguments_delta,
    begin,
    call,
    cut_short,
    done,
    end,
    error_event,
    event,
    failed,
    reasoning,
    refusal,
    response,
    text,
    text_delta,
    usage,
)

ME = "openai/x"
USED = Usage(prompt_tokens=10, completion_tokens=5)
STOP = Finish(reason="stop", usage=USED)
CALLS = Finish(reason="tool_calls", usage=USED)
LENGTH = Finish(reason="length", usage=USED)
MESSAGE = {"id": "msg_0", "type": "message", "role": "assistant"}
HELLO = {**MESSAGE, "status": "completed", "content": [{"type": "output_text", "text": "Hello"}]}
CALL = {"id": "fc_0", "type": "function_call", "call_id": "call_1", "name": "f"}


def tool(arguments: str = "{}", *, call_id: str = "call_1", name: str = "f") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def thought(said: str = "", **fields: str) -> Reasoning:
    return Reasoning(model=ME, text=said, **{"data": CIPHER, "id": "rs_0", **fields})


def ended(*output: dict[str, Any]) -> bytes:
    whole = response("completed", output=list(output), usage=usage())
    return event("response.completed", response=whole)


def without(pieces: list[bytes], *names: str) -> list[bytes]:
    """The events without some of their fields."""
    found = []
    for piece in pieces:
        data = json.loads(piece.partition(b"data: ")[2])
        kept = {name: value for name, value in data.items() if name not in names}
        found.append(b"data: " + json.dumps(kept).encode() + b"\n\n")
    return found


def only(pieces: list[bytes], *kinds: str) -> list[bytes]:
    """The events of some kinds."""
    return [
        piece for piece in pieces if any(f'"type": "response.{kind}"'.encode() in piece for kind in kinds)
    ]


STREAMS: dict[str, tuple[list[bytes], list[Part]]] = {
    "text in pieces": (
        [*begin(), *text(0, "Hel", "lo"), *end()],
        [TextDelta("Hel"), TextDelta("lo"), STOP],
    ),
    "no output at all": ([*begin(), *end()], [STOP]),
    "text without pieces": ([*begin(), *text(0), *end()], [STOP]),
    "an empty delta": ([*begin(), *text(0, "", "a", ""), *end()], [TextDelta("a"), STOP]),
    "two messages": (
        [*begin(), *text(0, "a"), *text(1, "b"), *end()],
        [TextDelta("a"), TextDelta("b"), STOP],
    ),
    "only deltas": (
        [text_delta(0, "a"), text_delta(0, "b"), *end()],
        [TextDelta("a"), TextDelta("b"), STOP],
    ),
    "text that is said only when it is done": (
        [*begin(), *only(text(0, "Hello"), "output_text.done"), *end()],
        [TextDelta("Hello"), STOP],
    ),
    "a message that comes whole": ([*begin(), done(0, **HELLO), *end()], [TextDelta("Hello"), STOP]),
    "a message that only the end has": ([*begin(), ended(HELLO)], [TextDelta("Hello"), STOP]),
    "the end repeats everything": (
        [*begin(), *text(0, "Hello"), ended(HELLO)],
        [TextDelta("Hello"), STOP],
    ),
    "the end repeats what was not ended": (
        [*begin(), text_delta(0, "Hello"), ended(HELLO)],
        [TextDelta("Hello"), STOP],
    ),
    "the end repeats what had no index": (
        [*without([*begin(), *text(0, "Hello")], "output_index", "item_id"), ended(HELLO)],
        [TextDelta("Hello"), STOP],
    ),
    "two parts of a message": (
        [
            *begin(),
            event("response.output_text.delta", output_index=0, content_index=0, delta="a"),
            event("response.output_text.delta", output_index=0, content_index=1, delta="b"),
            event("response.output_text.done", output_index=0, content_index=1, text="b"),
            *end(),
        ],
        [TextDelta("a"), TextDelta("b"), STOP],
    ),
    "a refusal": (
        [*begin(), *refusal(0, "I'm ", "sorry."), *end()],
        [TextDelta("I'm "), TextDelta("sorry."), STOP],
    ),
    "a refusal that comes whole": (
        [*begin(), *only(refusal(0, "No."), "refusal.done"), *end()],
        [TextDelta("No."), STOP],
    ),
    "a refusal in a message that comes whole": (
        [*begin(), done(0, **MESSAGE, content=[{"type": "refusal", "refusal": "No."}]), *end()],
        [TextDelta("No."), STOP],
    ),
    "a call": ([*begin(), *call(0, "f", '{"a":', "1}"), *end()], [tool('{"a":1}'), CALLS]),
    "a call after text": (
        [*begin(), *text(0, "Let me."), *call(1, "f", "{}"), *end()],
        [TextDelta("Let me."), tool(), CALLS],
    ),
    "a call without arguments": ([*begin(), *call(0, "f"), *end()], [tool("{}"), CALLS]),
    "a call whose arguments come only in pieces": (
        [
            *begin(),
            added(0, **CALL, arguments=""),
            arguments_delta(0, '{"a"'),
            arguments_delta(0, ":1}"),
            *end(),
        ],
        [tool('{"a":1}'), CALLS],
    ),
    "a call whose arguments come only whole": (
        [
            *begin(),
            *only(call(0, "f", '{"a":1}'), "output_item.added", "function_call_arguments.done"),
            *end(),
        ],
        [tool('{"a":1}'), CALLS],
    ),
    "a call that comes whole": (
        [*begin(), done(0, **CALL, arguments='{"a":1}'), *end()],
        [tool('{"a":1}'), CALLS],
    ),
    "a call that only the end has": (
        [*begin(), ended({**CALL, "arguments": '{"a":1}'})],
        [tool('{"a":1}'), CALLS],
    ),
    "a call that the end repeats": (
        [*begin(), *call(0, "f", '{"a":1}'), ended({**CALL, "arguments": '{"a":1}'})],
        [tool('{"a":1}'), CALLS],
    ),
    "calls of an endpoint that gives no index": (
        [
            *begin(),
            *without(call(0, "f", '{"a":', "1}"), "output_index"),
            *without(call(1, "g", "{}", call_id="call_2"), "output_index"),
            *end(),
        ],
        [tool('{"a":1}'), tool(call_id="call_2", name="g"), CALLS],
    ),
    "interleaved calls of an endpoint that gives no index": (
        [
            *without(
                [
                    added(0, **CALL, arguments=""),
                    added(1, **{**CALL, "id": "fc_1", "call_id": "call_2", "name": "g"}),
                    arguments_delta(1, '{"b"'),
                    arguments_delta(0, '{"a"'),
                    arguments_delta(1, ":2}"),
                    arguments_delta(0, ":1}"),
                ],
                "output_index",
            ),
            *end(),
        ],
        [tool('{"a":1}'), tool('{"b":2}', call_id="call_2", name="g"), CALLS],
    ),
    "a piece that names the call": (
        [
            added(0, type="function_call", call_id="call_1", name="f"),
            event("response.function_call_arguments.delta", item_id="call_1", delta='{"a":1}'),
            *end(),
        ],
        [tool('{"a":1}'), CALLS],
    ),
    "arguments that are no JSON": (
        [*begin(), *call(0, "f", '{"a": oops'), *end()],
        [tool('{"a": oops'), CALLS],
    ),
    "two calls": (
        [*begin(), *call(0, "f", "{}"), *call(1, "g", "{}", call_id="call_2"), *end()],
        [tool(), tool(call_id="call_2", name="g"), CALLS],
    ),
    "one index for all, and other ids at the end": (
        [
            *begin(),
            *reasoning(0, "Hm"),
            *call(0, "f", "{}"),
            ended(
                {"id": "rs_0", "type": "reasoning", "summary": [], "encrypted_content": CIPHER},
                {**CALL, "id": "fc_other", "call_id": "call_other", "arguments": "{}"},
            ),
        ],
        [ReasoningDelta("Hm"), thought("Hm"), tool(), CALLS],
    ),
    "another call that only the end has": (
        [
            *begin(),
            *call(1, "f", "{}"),
            ended({**CALL, "call_id": "call_2", "id": "x", "arguments": "{}"}, CALL),
        ],
        [tool("{}", call_id="call_2"), tool(), CALLS],
    ),
    "interleaved calls": (
        [
            *begin(),
            added(0, **CALL, arguments=""),
            added(1, **{**CALL, "id": "fc_1", "call_id": "call_2", "name": "g"}, arguments=""),
            arguments_delta(1, '{"b"'),
            arguments_delta(0, '{"a"'),
            arguments_delta(1, ":2}"),
            arguments_delta(0, ":1}"),
            *end(),
        ],
        [tool('{"a":1}'), tool('{"b":2}', call_id="call_2", name="g"), CALLS],
    ),
    "calls that begin out of order": (
        [*begin(), *call(1, "g", "{}", call_id="call_2"), *call(0, "f", "{}"), *end()],
        [tool(), tool(call_id="call_2", name="g"), CALLS],
    ),
    "one id for two calls": (
        [*begin(), *call(0, "f", "{}"), *call(1, "g", "{}"), *end()],
        [tool(), tool(call_id="*", name="g"), CALLS],
    ),
    "a call with the id of its item alone": (
        [*begin(), done(0, id="fc_0", type="function_call", name="f", arguments="{}"), *end()],
        [tool(call_id="fc_0"), CALLS],
    ),
    "a call without any id": (
        [*begin(), done(0, type="function_call", name="f", arguments="{}"), *end()],
        [tool(call_id="*"), CALLS],
    ),
    "reasoning with a summary": (
        [*begin(), *reasoning(0, "Hm", "."), *text(1, "Yes."), *end()],
        [ReasoningDelta("Hm"), ReasoningDelta("."), TextDelta("Yes."), thought("Hm."), STOP],
    ),
    "reasoning without a summary": (
        [*begin(), *reasoning(0), *call(1, "f", "{}"), *end()],
        [thought(), tool(), CALLS],
    ),
    "reasoning that cannot go back": (
        [*begin(), *reasoning(0, "Hm.", cipher=""), *text(1, "Yes."), *end()],
        [ReasoningDelta("Hm."), TextDelta("Yes."), STOP],
    ),
    "reasoning that was not ended": (
        [*begin(), *reasoning(0, "Hm.")[:-1], *end()],
        [ReasoningDelta("Hm."), STOP],
    ),
    "reasoning in words": (
        [
            *begin(),
            added(0, id="rs_0", type="reasoning", summary=[]),
            event("response.reasoning_text.delta", output_index=0, content_index=0, delta="Hm."),
            done(
                0,
                id="rs_0",
                type="reasoning",
                summary=[],
                content=[{"type": "reasoning_text", "text": "Hm."}],
            ),
            *end(),
        ],
        [ReasoningDelta("Hm."), thought("Hm.", data=""), STOP],
    ),
    "two parts of a summary": (
        [
            *begin(),
            event("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="A"),
            event("response.reasoning_summary_text.delta", output_index=0, summary_index=1, delta="B"),
            event("response.reasoning_summary_text.delta", output_index=0, summary_index=1, delta="C"),
            done(
                0,
                id="rs_0",
                type="reasoning",
                summary=[{"text": "A"}, {"text": "BC"}],
                encrypted_content=CIPHER,
            ),
            *end(),
        ],
        [ReasoningDelta("A"), ReasoningDelta("\n\nB"), ReasoningDelta("C"), thought("A\n\nBC"), STOP],
    ),
    "the longest answer": (
        [*begin(), *text(0, "a"), *cut_short("max_output_tokens")],
        [TextDelta("a"), LENGTH],
    ),
    "a call cut by the length": (
        [
            *begin(),
            added(0, **CALL, arguments=""),
            arguments_delta(0, '{"a'),
            *cut_short("max_output_tokens"),
        ],
        [tool('{"a'), LENGTH],
    ),
    "a call cut before its arguments does not run without any": (
        [
            *begin(),
            added(0, **CALL, arguments=""),
            done(0, **CALL, status="incomplete", arguments=""),
            *cut_short("max_output_tokens", [{**CALL, "status": "incomplete", "arguments": ""}]),
        ],
        [tool("{"), LENGTH],
    ),
    "a filter after text": (
        [*begin(), *text(0, "a"), *cut_short("content_filter")],
        [TextDelta("a"), Finish(reason="content_filter", usage=USED)],
    ),
    "an unknown reason for the end": (
        [*begin(), *text(0, "a"), *cut_short("steered")],
        [TextDelta("a"), LENGTH],
    ),
    "no reason for the end": (
        [*begin(), event("response.incomplete", response={"incomplete_details": None})],
        [Finish(reason="length")],
    ),
    "tokens from the cache": (
        [*begin(), *end(prompt=100, cached=64)],
        [Finish(reason="stop", usage=Usage(prompt_tokens=100, completion_tokens=5, cached_tokens=64))],
    ),
    "a usage without details": (
        [event("response.completed", response={"usage": {"input_tokens": 3, "output_tokens": 4}})],
        [Finish(reason="stop", usage=Usage(prompt_tokens=3, completion_tokens=4))],
    ),
    "no usage": ([event("response.completed", response={})], [Finish(reason="stop")]),
    "a call of the endpoint's own tools": (
        [
            *begin(),
            added(0, id="ws_0", type="web_search_call", status="in_progress"),
            event("response.web_search_call.searching", output_index=0, item_id="ws_0"),
            done(0, id="ws_0", type="web_search_call", status="completed"),
            *text(1, "Found."),
            *end(),
        ],
        [TextDelta("Found."), STOP],
    ),
    "events and items of unknown kinds": (
        [
            *begin(),
            event("response.hologram", output_index="?"),
            added(0, type="smell"),
            done(0, type="smell"),
            *end(),
        ],
        [STOP],
    ),
    "annotations": (
        [*begin(), event("response.output_text.annotation.added", annotation={}), *text(0, "a"), *end()],
        [TextDelta("a"), STOP],
    ),
    "a queue": ([event("response.queued", response=response("queued")), *end()], [STOP]),
    "reasoning cut by the length": (
        [
            *begin(),
            done(0, id="rs_0", type="reasoning", status="incomplete", encrypted_content=CIPHER),
            *cut_short("max_output_tokens"),
        ],
        [LENGTH],
    ),
    "an answer in one piece": (
        without(
            [
                event(
                    "x",
                    **response(
                        "completed",
                        output=[
                            {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": CIPHER},
                            HELLO,
                            {**CALL, "arguments": '{"a":1}'},
                        ],
                        usage=usage(),
                    ),
                )
            ],
            "type",
        ),
        [TextDelta("Hello"), thought(), tool('{"a":1}'), CALLS],
    ),
    "a [DONE] as chat completions have": ([*begin(), *end(), b"data: [DONE]\n\n"], [STOP]),
    "events without names": (
        [piece.partition(b"\n")[2] for piece in [*begin(), *text(0, "a"), *end()]],
        [TextDelta("a"), STOP],
    ),
}

BROKEN: dict[str, tuple[list[bytes], type[ModelError]]] = {
    "nothing": ([], ModelGarbled),
    "only a comment": ([b": hello\n\n"], ModelGarbled),
    "only events of another dialect": ([b'data: {"choices": []}\n\n'], ModelGarbled),
    "only unknown events": ([event("response.hologram")], ModelGarbled),
    "a web page": ([b"data: <html>\n\n"], ModelGarbled),
    "null": ([b"data: null\n\n"], ModelGarbled),
    "a list": ([b"data: []\n\n"], ModelGarbled),
    "JSON that is cut": ([*begin(), b'data: {"type": "respo\n\n'], ModelGarbled),
    "JSON that is nested too deep": ([b"data: " + b"[" * 100_000 + b"\n\n"], ModelGarbled),
    "an end in the middle of a text": ([*begin(), text_delta(0, "a")], ModelCutOff),
    "an end after all items": ([*begin(), *text(0, "a"), *call(1, "f", "{}")], ModelCutOff),
    "an end after the start": (begin(), ModelCutOff),
    "a failure of the server": ([*begin(), failed("Sorry.", "server_error")], ModelOverloaded),
    "too many requests": ([*begin(), failed("Slow down.", "rate_limit_exceeded")], ModelRateLimited),
    "a bad prompt": ([*begin(), failed("No.", "invalid_prompt")], ModelRejected),
    "a failure without a reason": (
        [*begin(), event("response.failed", response=response("failed"))],
        ModelCutOff,
    ),
    "a cancel": ([*begin(), event("response.cancelled", response=response("cancelled"))], ModelCutOff),
    "an error": ([*begin(), error_event("Sorry.", "", "server_error")], ModelOverloaded),
    "an error as the first event": ([error_event("Sorry.", "", "server_error")], ModelOverloaded),
    "no credit": ([error_event("Pay.", "", "insufficient_quota")], ModelQuotaExceeded),
    "too long": ([error_event("Too long.", "", "context_length_exceeded")], ModelPromptTooLong),
    "an error as an object": (
        [event("error", error={"message": "Sorry.", "code": "server_error"})],
        ModelOverloaded,
    ),
    "an error without anything": ([*begin(), event("error")], ModelRejected),
    "an error without a type": ([b'data: {"error": {"message": "no"}}\n\n'], ModelRejected),
    "a filter and nothing else": ([*begin(), *cut_short("content_filter")], ModelFiltered),
    "an answer in one piece that failed": (
        without(
            [event("x", **response("failed", error={"code": "server_error", "message": "Sorry."}))], "type"
        ),
        ModelOverloaded,
    ),
    "a delta that is a number": ([*begin(), text_delta(0, 7)], ModelGarbled),  # type: ignore[arg-type]
    "a delta of nothing": ([event("response.output_text.delta", output_index=0)], ModelGarbled),
    "arguments that are an object": (
        [event("response.function_call_arguments.delta", output_index=0, delta={})],
        ModelGarbled,
    ),
    "an item of nothing": ([event("response.output_item.added", output_index=0)], ModelGarbled),
    "an item that is a word": ([event("response.output_item.done", output_index=0, item="a")], ModelGarbled),
    "an index that is a word": ([*begin(), added("a", type="message")], ModelGarbled),  # type: ignore[arg-type]
    "content that is a number": ([done(0, type="message", content=7)], ModelGarbled),
    "content of words": ([done(0, type="message", content=["a"])], ModelGarbled),
    "an output of words": ([event("response.completed", response={"output": ["a"]})], ModelGarbled),
    "an end without a response": ([*begin(), event("response.completed")], ModelGarbled),
    "tokens in words": (
        [event("response.completed", response={"usage": {"input_tokens": "many"}})],
        ModelGarbled,
    ),
    "a usage that is a list": ([event("response.completed", response={"usage": [1]})], ModelGarbled),
    "a type that is a list": ([b'data: {"type": []}\n\n'], ModelGarbled),
    "an id that is an object": ([done(0, type="function_call", call_id={})], ModelGarbled),
}
