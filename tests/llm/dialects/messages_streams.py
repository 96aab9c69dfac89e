"""Streams of the Messages API, odd and broken ones too, and what each of them means."""

from __future__ import annotations

from typing import Any

from lightagentd.errors import (
    ModelCutOff,
    ModelError,
    ModelFiltered,
    ModelGarbled,
    ModelKeyRefused,
    ModelOverloaded,
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
from tests.model_server.messages import (
    PING,
    SIGNATURE,
    begin,
    call,
    closed,
    delta,
    end,
    error_event,
    event,
    opened,
    redacted,
    text,
    thinking,
)

ME = "anthropic/x"
USED = Usage(prompt_tokens=10, completion_tokens=5)
STOP = Finish(reason="stop", usage=USED)
CALLS = Finish(reason="tool_calls", usage=USED)
LENGTH = Finish(reason="length", usage=USED)


def tool(arguments: str = "{}", *, call_id: str = "toolu_1", name: str = "f") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def thought(said: str = "", **fields: str) -> Reasoning:
    return Reasoning(model=ME, text=said, **{"signature": SIGNATURE, **fields})


def half_open(kind: str, **fields: Any) -> list[bytes]:
    return [opened(0, type=kind, **fields)]


STREAMS: dict[str, tuple[list[bytes], list[Part]]] = {
    "text in pieces": (
        [*begin(), *text(0, "Hel", "lo"), *end()],
        [TextDelta("Hel"), TextDelta("lo"), STOP],
    ),
    "no content at all": ([*begin(), *end()], [STOP]),
    "events without data": ([*begin(), b"data:\n\n", *end()], [STOP]),
    "no index": (
        [
            piece.replace(b'"index": 0, ', b"").replace(b'"index": 1, ', b"").replace(b', "index": 0', b"")
            for piece in [*begin(), *text(0, "a", "b"), *text(1, "c"), *end()]
        ],
        [TextDelta("a"), TextDelta("b"), TextDelta("c"), STOP],
    ),
    "usage of the prompt only at the beginning": (
        [
            *begin(),
            event(
                "message_delta",
                delta={"stop_reason": "end_turn"},
                usage={"input_tokens": 0, "output_tokens": 5},
            ),
            event("message_stop"),
        ],
        [STOP],
    ),
    "an empty block of text": ([*begin(), *text(0), *end()], [STOP]),
    "an empty delta": ([*begin(), *text(0, "", "a", ""), *end()], [TextDelta("a"), STOP]),
    "text that the block begins with": (
        [*begin(), opened(0, type="text", text="He"), delta(0, "text_delta", text="y"), closed(0), *end()],
        [TextDelta("He"), TextDelta("y"), STOP],
    ),
    "two blocks of text": (
        [*begin(), *text(0, "a"), *text(1, "b"), *end()],
        [TextDelta("a"), TextDelta("b"), STOP],
    ),
    "pings everywhere": (
        [PING, *begin(), PING, *text(0, "a"), PING, *end(), PING],
        [TextDelta("a"), STOP],
    ),
    "a call": ([*begin(), *call(0, "f", '{"a":', "1}"), *end("tool_use")], [tool('{"a":1}'), CALLS]),
    "a call after text": (
        [*begin(), *text(0, "Let me."), *call(1, "f", "{}"), *end("tool_use")],
        [TextDelta("Let me."), tool(), CALLS],
    ),
    "a call without arguments": ([*begin(), *call(0, "f"), *end("tool_use")], [tool("{}"), CALLS]),
    "a call with empty pieces": ([*begin(), *call(0, "f", "", ""), *end("tool_use")], [tool("{}"), CALLS]),
    "a call whose arguments come whole": (
        [*begin(), opened(0, type="tool_use", id="toolu_1", name="f", input={"a": 1}), *end("tool_use")],
        [tool('{"a":1}'), CALLS],
    ),
    "a call whose arguments come whole and in pieces": (
        [
            *begin(),
            opened(0, type="tool_use", id="toolu_1", name="f", input={"a": 1}),
            delta(0, "input_json_delta", partial_json='{"a":2}'),
            *end("tool_use"),
        ],
        [tool('{"a":2}'), CALLS],
    ),
    "a call with an input of null": (
        [*begin(), opened(0, type="tool_use", id="toolu_1", name="f", input=None), *end("tool_use")],
        [tool("{}"), CALLS],
    ),
    "a call with an input that is a list": (
        [*begin(), opened(0, type="tool_use", id="toolu_1", name="f", input=[1]), *end("tool_use")],
        [tool("[1]"), CALLS],
    ),
    "arguments that are no JSON": (
        [*begin(), *call(0, "f", '{"a":', " oops"), *end("tool_use")],
        [tool('{"a": oops'), CALLS],
    ),
    "arguments cut by the length": (
        [*begin(), *call(0, "f", '{"a": "b'), *end("max_tokens")],
        [tool('{"a": "b'), LENGTH],
    ),
    "a call cut before its arguments does not run without any": (
        [*begin(), *call(0, "f"), *end("max_tokens")],
        [tool("{"), LENGTH],
    ),
    "a whole call without arguments before one that is cut": (
        [*begin(), *call(0, "f"), *call(1, "g", '{"a', call_id="toolu_2"), *end("max_tokens")],
        [tool("{}"), tool('{"a', call_id="toolu_2", name="g"), LENGTH],
    ),
    "two calls": (
        [*begin(), *call(0, "f", "{}"), *call(1, "g", "{}", call_id="toolu_2"), *end("tool_use")],
        [tool(), tool(call_id="toolu_2", name="g"), CALLS],
    ),
    "interleaved calls": (
        [
            *begin(),
            opened(0, type="tool_use", id="toolu_1", name="f", input={}),
            opened(1, type="tool_use", id="toolu_2", name="g", input={}),
            delta(1, "input_json_delta", partial_json='{"b"'),
            delta(0, "input_json_delta", partial_json='{"a"'),
            delta(1, "input_json_delta", partial_json=":2}"),
            delta(0, "input_json_delta", partial_json=":1}"),
            closed(1),
            closed(0),
            *end("tool_use"),
        ],
        [tool('{"a":1}'), tool('{"b":2}', call_id="toolu_2", name="g"), CALLS],
    ),
    "blocks that begin out of order": (
        [*begin(), *call(1, "g", "{}", call_id="toolu_2"), *call(0, "f", "{}"), *end("tool_use")],
        [tool(), tool(call_id="toolu_2", name="g"), CALLS],
    ),
    "two calls at one index": (
        [*begin(), *call(0, "f", '{"a":1}'), *call(0, "g", '{"b":2}', call_id="toolu_2"), *end("tool_use")],
        [tool('{"a":1}'), tool('{"b":2}', call_id="toolu_2", name="g"), CALLS],
    ),
    "a call although the reason is the end of the turn": (
        [*begin(), *call(0, "f", "{}"), *end("end_turn")],
        [tool(), STOP],
    ),
    "no call although the reason says so": ([*begin(), *end("tool_use")], [CALLS]),
    "thinking": (
        [*begin(), *thinking(0, "Hm", "."), *text(1, "Yes."), *end()],
        [ReasoningDelta("Hm"), ReasoningDelta("."), TextDelta("Yes."), thought("Hm."), STOP],
    ),
    "thinking that is not shown": (
        [*begin(), *thinking(0), *text(1, "Yes."), *end()],
        [TextDelta("Yes."), thought(), STOP],
    ),
    "thinking without a signature": (
        [*begin(), *thinking(0, "Hm.", signature=""), *text(1, "Yes."), *end()],
        [ReasoningDelta("Hm."), TextDelta("Yes."), thought("Hm.", signature=""), STOP],
    ),
    "a signature in pieces": (
        [
            *begin(),
            *half_open("thinking", thinking="", signature=""),
            delta(0, "signature_delta", signature="ab"),
            delta(0, "signature_delta", signature="cd"),
            closed(0),
            *end(),
        ],
        [thought(signature="abcd"), STOP],
    ),
    "thinking that comes whole": (
        [*begin(), *half_open("thinking", thinking="Hm.", signature="abcd"), closed(0), *end()],
        [ReasoningDelta("Hm."), thought("Hm.", signature="abcd"), STOP],
    ),
    "thinking that nobody can read": (
        [*begin(), *redacted(0, "c2VjcmV0"), *text(1, "Yes."), *end()],
        [TextDelta("Yes."), Reasoning(model=ME, data="c2VjcmV0"), STOP],
    ),
    "both kinds of thinking before a call": (
        [*begin(), *thinking(0, "Hm."), *redacted(1, "eA=="), *call(2, "f", "{}"), *end("tool_use")],
        [ReasoningDelta("Hm."), thought("Hm."), Reasoning(model=ME, data="eA=="), tool(), CALLS],
    ),
    "thinking between text and calls": (
        [
            *begin(),
            *thinking(0, "A"),
            *text(1, "Yes."),
            *thinking(2, "B"),
            *call(3, "f", "{}"),
            *thinking(4, "C"),
            *call(5, "g", "{}", call_id="toolu_2"),
            *end("tool_use"),
        ],
        [
            ReasoningDelta("A"),
            TextDelta("Yes."),
            ReasoningDelta("B"),
            ReasoningDelta("C"),
            thought("A"),
            thought("B", id="4/0"),
            tool(),
            thought("C", id="4/1"),
            tool(call_id="toolu_2", name="g"),
            CALLS,
        ],
    ),
    "thinking cut by the length": (
        [*begin(), *thinking(0, "Hm", signature=""), *end("max_tokens")],
        [ReasoningDelta("Hm"), LENGTH],
    ),
    "a citation": (
        [*begin(), opened(0, type="text", text=""), delta(0, "citations_delta", citation={}), *end()],
        [STOP],
    ),
    "a tool of the endpoint's own": (
        [
            *begin(),
            opened(0, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
            delta(0, "input_json_delta", partial_json='{"query": "x"}'),
            closed(0),
            opened(1, type="web_search_tool_result", tool_use_id="srvtoolu_1", content=[]),
            closed(1),
            *text(2, "Found."),
            *end(),
        ],
        [TextDelta("Found."), STOP],
    ),
    "events, blocks and deltas of unknown kinds": (
        [
            *begin(),
            event("hologram", index=None),
            opened(0, type="smell", smell="roses"),
            delta(0, "smell_delta", smell="!"),
            closed(0),
            *text(1, "a"),
            *end(),
        ],
        [TextDelta("a"), STOP],
    ),
    "a stop sequence": ([*begin(), *text(0, "a"), *end("stop_sequence")], [TextDelta("a"), STOP]),
    "a pause": ([*begin(), *text(0, "a"), *end("pause_turn")], [TextDelta("a"), STOP]),
    "the longest answer": ([*begin(), *text(0, "a"), *end("max_tokens")], [TextDelta("a"), LENGTH]),
    "the end of the window": (
        [*begin(), *text(0, "a"), *end("model_context_window_exceeded")],
        [TextDelta("a"), LENGTH],
    ),
    "a refusal after text": (
        [*begin(), *text(0, "a"), *end("refusal")],
        [TextDelta("a"), Finish(reason="content_filter", usage=USED)],
    ),
    "an unknown reason": ([*begin(), *text(0, "a"), *end("bored")], [TextDelta("a"), STOP]),
    "an unknown reason with a call": (
        [*begin(), *call(0, "f", "{}"), *end("bored")],
        [tool(), CALLS],
    ),
    "an end without message_stop": ([*begin(), *text(0, "a"), end()[0]], [TextDelta("a"), STOP]),
    "an end without a reason": (
        [*begin(), *text(0, "a"), event("message_stop")],
        [TextDelta("a"), Finish(reason="stop", usage=Usage(prompt_tokens=10, completion_tokens=1))],
    ),
    "no usage": (
        [event("message_start", message={}), *text(0, "a"), event("message_stop")],
        [TextDelta("a"), Finish(reason="stop")],
    ),
    "a usage of nothing": (
        [event("message_start", message=None), event("message_delta", delta=None), event("message_stop")],
        [Finish(reason="stop")],
    ),
    "tokens from the cache count as tokens of the prompt": (
        [*begin(10, read=100, made=30), *end(said=7)],
        [Finish(reason="stop", usage=Usage(prompt_tokens=140, completion_tokens=7, cached_tokens=100))],
    ),
    "the end corrects the tokens of the start": (
        [*begin(10), *end(said=7, input_tokens=12, cache_read_input_tokens=3)],
        [Finish(reason="stop", usage=Usage(prompt_tokens=15, completion_tokens=7, cached_tokens=3))],
    ),
    "tokens of a dreamer": (
        [*begin(10**30, read=10**30), *end(said=-4)],
        [Finish(reason="stop", usage=Usage(prompt_tokens=10**9, cached_tokens=10**9))],
    ),
    "a missing id of a call": (
        [*begin(), opened(0, type="tool_use", name="f", input={}), *end("tool_use")],
        [tool(call_id="*"), CALLS],
    ),
    "one id for two calls": (
        [*begin(), *call(0, "f", "{}"), *call(1, "g", "{}"), *end("tool_use")],
        [tool(), tool(call_id="*", name="g"), CALLS],
    ),
    "an answer in one piece": (
        [
            event(
                "message",
                content=[
                    {"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE},
                    {"type": "text", "text": "Let me."},
                    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
                ],
                stop_reason="tool_use",
                usage={"input_tokens": 10, "output_tokens": 5},
            )
        ],
        [ReasoningDelta("Hm."), TextDelta("Let me."), thought("Hm."), tool('{"a":1}'), CALLS],
    ),
    "a [DONE] as chat completions have": ([*begin(), *end(), b"data: [DONE]\n\n"], [STOP]),
    "events without names": (
        [
            piece.partition(b"\n")[2]
            for piece in [*begin(), *text(0, "a"), *call(1, "f", "{}"), *end("tool_use")]
        ],
        [TextDelta("a"), tool(), CALLS],
    ),
}

BROKEN: dict[str, tuple[list[bytes], type[ModelError]]] = {
    "nothing": ([], ModelGarbled),
    "only a comment": ([b": hello\n\n"], ModelGarbled),
    "only events of another dialect": ([b'data: {"choices": []}\n\n'], ModelGarbled),
    "only unknown events": ([event("hologram")], ModelGarbled),
    "a web page": ([b"data: <html>\n\n"], ModelGarbled),
    "a number": ([b"data: 7\n\n"], ModelGarbled),
    "a list": ([b"data: []\n\n"], ModelGarbled),
    "JSON that is cut": ([*begin(), b'data: {"type": "mess\n\n'], ModelGarbled),
    "JSON that is nested too deep": ([b"data: " + b"[" * 100_000 + b"\n\n"], ModelGarbled),
    "an end in the middle of a text": ([*begin(), *text(0, "a")], ModelCutOff),
    "an end in the middle of a call": ([*begin(), *call(0, "f", '{"a"')], ModelCutOff),
    "an end after the start": (begin(), ModelCutOff),
    "too much load": ([*begin(), error_event("Overloaded", "overloaded_error")], ModelOverloaded),
    "an error as the first event": ([error_event("Overloaded", "overloaded_error")], ModelOverloaded),
    "too many requests": ([*begin(), error_event("Slow down", "rate_limit_error")], ModelRateLimited),
    "an error inside": ([*begin(), error_event("Internal server error", "api_error")], ModelOverloaded),
    "a wrong key": ([*begin(), error_event("invalid x-api-key", "authentication_error")], ModelKeyRefused),
    "no credit": ([*begin(), error_event("No credit", "billing_error")], ModelQuotaExceeded),
    "a bad request": ([*begin(), error_event("max_tokens: 0", "invalid_request_error")], ModelRejected),
    "an error without anything": ([*begin(), event("error")], ModelRejected),
    "an error without a type": ([*begin(), b'data: {"error": {"message": "no"}}\n\n'], ModelRejected),
    "a refusal and nothing else": ([*begin(), *end("refusal")], ModelFiltered),
    "more calls than anybody means": (
        [*begin(), *(piece for at in range(1001) for piece in call(at, "f")), *end("tool_use")],
        ModelGarbled,
    ),
    "a delta for no block": ([*begin(), delta(0, "text_delta", text="a")], ModelGarbled),
    "a delta of nothing": (
        [*begin(), opened(0, type="text"), event("content_block_delta", index=0)],
        ModelGarbled,
    ),
    "a text that is a number": (
        [*begin(), opened(0, type="text"), delta(0, "text_delta", text=7)],
        ModelGarbled,
    ),
    "arguments that are an object": (
        [*begin(), opened(0, type="tool_use"), delta(0, "input_json_delta", partial_json={})],
        ModelGarbled,
    ),
    "a block of nothing": ([*begin(), event("content_block_start", index=0)], ModelGarbled),
    "a block that is a word": (
        [*begin(), event("content_block_start", index=0, content_block="a")],
        ModelGarbled,
    ),
    "an index that is a word": ([*begin(), opened("a", type="text")], ModelGarbled),  # type: ignore[arg-type]
    "tokens in words": ([event("message_start", message={"usage": {"input_tokens": "many"}})], ModelGarbled),
    "infinitely many tokens": (
        [*begin(), b'data: {"type": "message_delta", "usage": {"output_tokens": Infinity}}\n\n'],
        ModelGarbled,
    ),
    "a usage that is a list": ([*begin(), event("message_delta", usage=[1])], ModelGarbled),
    "a reason that is a number": ([*begin(), event("message_delta", delta={"stop_reason": 7})], ModelGarbled),
    "an answer in one piece that is an error": (
        [b'data: {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}\n\n'],
        ModelOverloaded,
    ),
    "an answer in one piece with content that is a word": ([event("message", content="a")], ModelGarbled),
    "a message that is a list": ([event("message_start", message=[1])], ModelGarbled),
}
