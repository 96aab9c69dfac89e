"""Streams of chat completions as servers send them, and what becomes of them: parts, or a class of errors.

In the expected calls an id of `*` stands for any that nobody else has.
"""

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

DONE = b"data: [DONE]\n\n"
STOP = Finish(reason="stop")
CALLS = Finish(reason="tool_calls")


def sent(*chunks: Any) -> bytes:
    """Chunks as events; bytes stand for themselves."""
    return b"".join(
        found if isinstance(found, bytes) else b"data: " + json.dumps(found).encode() + b"\n\n"
        for found in chunks
    )


def choice(delta: Any = None, finish: Any = None, **more: Any) -> dict[str, Any]:
    """A chunk with one choice."""
    return {
        "choices": [{"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish, **more}]
    }


def text(said: Any, finish: Any = None) -> dict[str, Any]:
    return choice({"content": said}, finish)


def tool(*pieces: dict[str, Any], finish: Any = None) -> dict[str, Any]:
    return choice({"tool_calls": list(pieces)}, finish)


def piece(
    index: int | None, id_: str | None = None, name: str | None = None, arguments: Any = None
) -> dict[str, Any]:
    found: dict[str, Any] = {"function": {}}
    if index is not None:
        found["index"] = index
    if id_ is not None:
        found |= {"id": id_, "type": "function"}
    if name is not None:
        found["function"]["name"] = name
    if arguments is not None:
        found["function"]["arguments"] = arguments
    return found


def usage(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, **more}


def call(id_: str, name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(id=id_, name=name, arguments=arguments)


def used(prompt: int, completion: int, cached: int = 0) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


def thought(said: str, field: str = "") -> Reasoning:
    return Reasoning(model="p/m", text=said, id=field)


def detail(index: int, **more: Any) -> dict[str, Any]:
    return {"type": "t", "index": index, **more}


GOOD: dict[str, tuple[bytes, list[Part]]] = {
    "text": (sent(text("Hel"), text("lo"), choice({}, "stop"), DONE), [TextDelta("Hello"), STOP]),
    "text with the end in one chunk": (sent(text("hi", "stop"), DONE), [TextDelta("hi"), STOP]),
    "no text at all": (sent(choice({"role": "assistant", "content": ""}), choice({}, "stop"), DONE), [STOP]),
    "null content": (sent(text(None), text("hi"), choice({}, "stop"), DONE), [TextDelta("hi"), STOP]),
    "null delta": (sent({"choices": [{"delta": None}]}, text("hi", "stop"), DONE), [TextDelta("hi"), STOP]),
    "no delta": (sent({"choices": [{"finish_reason": "stop"}]}, DONE), [STOP]),
    "null choices": (sent({"choices": None}, text("hi", "stop"), DONE), [TextDelta("hi"), STOP]),
    "empty choices": (sent({"choices": []}, text("hi", "stop"), DONE), [TextDelta("hi"), STOP]),
    "filter results first": (
        sent({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}, text("hi", "stop"), DONE),
        [TextDelta("hi"), STOP],
    ),
    "unknown fields": (
        sent({**text("hi", "stop"), "service_tier": "x", "obfuscation": "qq"}, DONE),
        [TextDelta("hi"), STOP],
    ),
    "a second choice is left out": (
        sent(
            {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}, {"delta": {"content": "b"}}]},
            DONE,
        ),
        [TextDelta("a"), STOP],
    ),
    "content in parts": (
        sent(
            text([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}], "stop"),
            DONE,
        ),
        [TextDelta("ab"), STOP],
    ),
    "a refusal": (
        sent(choice({"refusal": "I can"}), choice({"refusal": "not."}), choice({}, "stop"), DONE),
        [TextDelta("I cannot."), STOP],
    ),
    "no done": (sent(text("hi"), choice({}, "stop")), [TextDelta("hi"), STOP]),
    "no reason": (sent(text("hi"), DONE), [TextDelta("hi"), STOP]),
    "no reason after a call": (sent(tool(piece(0, "a", "f_g")), DONE), [call("a", "f_g"), CALLS]),
    "something after done": (sent(text("hi", "stop"), DONE, b"data: junk\n\n"), [TextDelta("hi"), STOP]),
    "done without blank line": (sent(text("hi"), b"data: [DONE]"), [TextDelta("hi"), STOP]),
    "done without a space": (sent(text("hi"), b"data:[DONE]\n\n"), [TextDelta("hi"), STOP]),
    "carriage returns": (
        sent(text("hi"), DONE).replace(b"\n", b"\r"),
        [TextDelta("hi"), STOP],
    ),
    "carriage returns and newlines": (
        sent(text("hi"), DONE).replace(b"\n", b"\r\n"),
        [TextDelta("hi"), STOP],
    ),
    "a byte order mark": (b"\xef\xbb\xbf" + sent(text("hi"), DONE), [TextDelta("hi"), STOP]),
    "comments and other fields": (
        b": OPENROUTER PROCESSING\n\nevent: message\nid: 1\nretry: 5\n" + sent(text("hi"), b":\n\n", DONE),
        [TextDelta("hi"), STOP],
    ),
    "data in several lines": (
        b'data: {"choices": [{"delta":\ndata: {"content": "hi"},\ndata: "finish_reason": "stop"}]}\n\n',
        [TextDelta("hi"), STOP],
    ),
    "other characters": (
        sent(text("gr\u00fc\u00dfe \U0001f44b", "stop"), DONE),
        [TextDelta("gr\u00fc\u00dfe \U0001f44b"), STOP],
    ),
    "characters that are not escaped": (
        'data: {"choices":[{"delta":{"content":"gr\u00fc\u00dfe \U0001f44b"}}]}\n\ndata: [DONE]\n\n'.encode(),
        [TextDelta("gr\u00fc\u00dfe \U0001f44b"), STOP],
    ),
    "bytes that are no text": (
        b'data: {"choices":[{"delta":{"content":"a\xffb"},"finish_reason":"stop"}]}\n\n',
        [TextDelta("a\ufffdb"), STOP],
    ),
    # How it ends
    "length": (sent(text("hi", "length"), DONE), [TextDelta("hi"), Finish(reason="length")]),
    "length by another name": (
        sent(text("hi", "max_tokens"), DONE),
        [TextDelta("hi"), Finish(reason="length")],
    ),
    "filtered": (
        sent(text("hi", "content_filter"), DONE),
        [TextDelta("hi"), Finish(reason="content_filter")],
    ),
    "filtered by another name": (sent(choice({}, "sensitive"), DONE), [Finish(reason="content_filter")]),
    "filtered, in the words of Gemini": (
        sent(choice({}, "content_filter: PROHIBITED_CONTENT"), DONE),
        [Finish(reason="content_filter")],
    ),
    "filtered, in other words of Gemini": (
        sent(choice({}, "BLOCKLIST"), DONE),
        [Finish(reason="content_filter")],
    ),
    "a call that was cut off before its arguments": (
        sent(tool(piece(0, "a", "f_g", "")), choice({}, "MAX_TOKENS"), DONE),
        [call("a", "f_g", "{"), Finish(reason="length")],
    ),
    "events without data keep the connection": (
        sent(b"data:\n\n", text("hi", "stop"), b"data: \n\n", DONE),
        [TextDelta("hi"), STOP],
    ),
    "the end of a turn": (sent(text("hi", "end_turn"), DONE), [TextDelta("hi"), STOP]),
    "capitals": (sent(text("hi", "STOP"), DONE), [TextDelta("hi"), STOP]),
    "an unknown end": (sent(text("hi", "whatever"), DONE), [TextDelta("hi"), STOP]),
    "an empty reason at last": (
        sent(text("hi", "length"), choice({}, ""), DONE),
        [TextDelta("hi"), Finish(reason="length")],
    ),
    "calls without any": (sent(text("hi", "tool_calls"), DONE), [TextDelta("hi"), STOP]),
    "stop with calls": (sent(tool(piece(0, "a", "f_g"), finish="stop"), DONE), [call("a", "f_g"), CALLS]),
    "length within a call": (
        sent(tool(piece(0, "a", "f_g", '{"x')), choice({}, "length"), DONE),
        [call("a", "f_g", '{"x'), Finish(reason="length")],
    ),
    # Usage
    "usage at last": (
        sent(text("hi", "stop"), {"choices": [], "usage": usage(9, 2)}, DONE),
        [TextDelta("hi"), Finish(reason="stop", usage=used(9, 2))],
    ),
    "usage in every chunk": (
        sent(
            {**text("a"), "usage": usage(9, 1)}, {**text("b"), "usage": usage(9, 2)}, choice({}, "stop"), DONE
        ),
        [TextDelta("ab"), Finish(reason="stop", usage=used(9, 2))],
    ),
    "null usage": (sent({**text("hi", "stop"), "usage": None}, DONE), [TextDelta("hi"), STOP]),
    "null counts": (
        sent(
            {
                **text("hi", "stop"),
                "usage": usage(9, 2, prompt_tokens_details=None, completion_tokens_details=None),
            }
        ),
        [TextDelta("hi"), Finish(reason="stop", usage=used(9, 2))],
    ),
    "what was thought is in the sum alone": (
        sent({**text("hi", "stop"), "usage": usage(9, 2, total_tokens=50)}),
        [TextDelta("hi"), Finish(reason="stop", usage=used(9, 41))],
    ),
    "cached tokens": (
        sent({**text("hi", "stop"), "usage": usage(9, 2, prompt_tokens_details={"cached_tokens": 4})}),
        [TextDelta("hi"), Finish(reason="stop", usage=used(9, 2, 4))],
    ),
    "cached tokens of DeepSeek": (
        sent(
            {
                **text("hi", "stop"),
                "usage": usage(9, 2, prompt_cache_hit_tokens=4, prompt_cache_miss_tokens=5),
            }
        ),
        [TextDelta("hi"), Finish(reason="stop", usage=used(9, 2, 4))],
    ),
    "cached tokens of Moonshot, in the choice": (
        sent(choice({"content": "hi"}, "stop", usage=usage(9, 2, cached_tokens=4)), DONE),
        [TextDelta("hi"), Finish(reason="stop", usage=used(9, 2, 4))],
    ),
    "usage of Groq": (
        sent({**text("hi", "stop"), "x_groq": {"usage": usage(9, 2)}}, DONE),
        [TextDelta("hi"), Finish(reason="stop", usage=used(9, 2))],
    ),
    "negative and endless counts": (
        sent({**text("hi", "stop"), "usage": usage(-9, 10**30)}, DONE),
        [TextDelta("hi"), Finish(reason="stop", usage=used(0, 10**9))],
    ),
    # Calls
    "a call in pieces": (
        sent(
            tool(piece(0, "a", "f_g", "")),
            tool(piece(0, None, None, '{"x"')),
            tool(piece(0, None, None, ": 1}")),
            DONE,
        ),
        [call("a", "f_g", '{"x": 1}'), CALLS],
    ),
    "several calls in one delta": (
        sent(tool(piece(0, "a", "f_g", '{"x": 1}'), piece(1, "b", "f_h", "{}")), DONE),
        [call("a", "f_g", '{"x": 1}'), call("b", "f_h"), CALLS],
    ),
    "interleaved calls": (
        sent(
            tool(piece(1, "b", "f_h", '{"y"'), piece(0, "a", "f_g", '{"x"')),
            tool(piece(0, None, None, ": 1}"), piece(1, None, None, ": 2}")),
            DONE,
        ),
        [call("a", "f_g", '{"x": 1}'), call("b", "f_h", '{"y": 2}'), CALLS],
    ),
    "text before a call": (
        sent(text("Let me see."), tool(piece(0, "a", "f_g")), DONE),
        [TextDelta("Let me see."), call("a", "f_g"), CALLS],
    ),
    "text after a call": (
        sent(tool(piece(0, "a", "f_g")), text("Well."), DONE),
        [TextDelta("Well."), call("a", "f_g"), CALLS],
    ),
    "indexes with gaps": (
        sent(tool(piece(7, "b", "f_h")), tool(piece(3, "a", "f_g")), DONE),
        [call("a", "f_g"), call("b", "f_h"), CALLS],
    ),
    "no index": (
        sent(
            tool(piece(None, "a", "f_g", '{"x"')),
            tool(piece(None, None, None, ": 1}")),
            tool(piece(None, "b", "f_h")),
            DONE,
        ),
        [call("a", "f_g", '{"x": 1}'), call("b", "f_h"), CALLS],
    ),
    "one index for all": (
        sent(tool(piece(0, "a", "f_g", '{"x": 1}')), tool(piece(0, "b", "f_h", '{"y": 2}')), DONE),
        [call("a", "f_g", '{"x": 1}'), call("b", "f_h", '{"y": 2}'), CALLS],
    ),
    "the head again in every piece": (
        sent(tool(piece(0, "a", "f_g", '{"x"')), tool(piece(0, "a", "f_g", ": 1}")), DONE),
        [call("a", "f_g", '{"x": 1}'), CALLS],
    ),
    "empty and null heads in later pieces": (
        sent(tool(piece(0, "a", "f_g", '{"x"')), tool(piece(0, "", "", ": 1}")), DONE),
        [call("a", "f_g", '{"x": 1}'), CALLS],
    ),
    "one index for all and no ids": (
        sent(tool(piece(0, "", "f_g", '{"x": 1}')), tool(piece(0, "", "f_h", '{"y": 2}')), DONE),
        [call("*", "f_g", '{"x": 1}'), call("*", "f_h", '{"y": 2}'), CALLS],
    ),
    "a whole call said again": (
        sent(tool(piece(0, "a", "f_g", '{"x": 1}')), tool(piece(0, "a", "f_g", '{"x": 1}')), DONE),
        [call("a", "f_g", '{"x": 1}'), CALLS],
    ),
    "no arguments yet and then some": (
        sent(tool(piece(0, "a", "f_g", "{}")), tool(piece(0, "a", "f_g", '{"x": 1}')), DONE),
        [call("a", "f_g", '{}{"x": 1}'), CALLS],
    ),
    "no index and the head again in every piece": (
        sent(tool(piece(None, "a", "f_g", '{"x"')), tool(piece(None, "a", "f_g", ": 1}")), DONE),
        [call("a", "f_g", '{"x": 1}'), CALLS],
    ),
    "no index and one id for all": (
        sent(tool(piece(None, "a", "f_g", '{"x": 1}')), tool(piece(None, "a", "f_h", '{"y": 2}')), DONE),
        [call("a", "f_g", '{"x": 1}'), call("*", "f_h", '{"y": 2}'), CALLS],
    ),
    "signatures of Gemini beside calls": (
        sent(
            tool({**piece(None, "a", "f_g"), "extra_content": {"google": {"thought_signature": "S"}}}),
            tool(piece(None, "b", "f_h"), finish="stop"),
            DONE,
        ),
        [
            Reasoning(model="p/m", data='{"google":{"thought_signature":"S"}}', id="extra_content/0"),
            call("a", "f_g"),
            call("b", "f_h"),
            CALLS,
        ],
    ),
    "null arguments": (
        sent(tool({"index": 0, "id": "a", "function": {"name": "f_g", "arguments": None}}), DONE),
        [call("a", "f_g"), CALLS],
    ),
    "no function in a later piece": (
        sent(tool(piece(0, "a", "f_g")), tool({"index": 0}), DONE),
        [call("a", "f_g"), CALLS],
    ),
    "arguments as an object": (
        sent(tool(piece(0, "a", "f_g", {"x": [1, "\u00e4"]})), DONE),
        [call("a", "f_g", '{"x": [1, "\\u00e4"]}'), CALLS],
    ),
    "arguments that are no JSON stay as they are": (
        sent(tool(piece(0, "a", "f_g", "{'x': 1}")), DONE),
        [call("a", "f_g", "{'x': 1}"), CALLS],
    ),
    "a call of the old kind": (
        sent(
            choice({"function_call": {"name": "f_g", "arguments": '{"x"'}}),
            choice({"function_call": {"arguments": ": 1}"}}),
            choice({}, "function_call"),
            DONE,
        ),
        [ToolCall(id="*", name="f_g", arguments='{"x": 1}'), CALLS],
    ),
    "no id": (sent(tool(piece(0, None, "f_g")), DONE), [call("*", "f_g"), CALLS]),
    "the same id twice": (
        sent(tool(piece(0, "a", "f_g"), piece(1, "a", "f_h")), DONE),
        [call("a", "f_g"), call("*", "f_h"), CALLS],
    ),
    "no name": (sent(tool(piece(0, "a")), DONE), [call("a", ""), CALLS]),
    "null calls": (
        sent(choice({"content": "hi", "tool_calls": None}, "stop"), DONE),
        [TextDelta("hi"), STOP],
    ),
    # Reasoning
    "reasoning of DeepSeek": (
        sent(
            choice({"reasoning_content": "Hm"}), choice({"reasoning_content": "m."}), text("hi", "stop"), DONE
        ),
        [ReasoningDelta("Hmm."), TextDelta("hi"), thought("Hmm."), STOP],
    ),
    "reasoning of OpenRouter": (
        sent(choice({"reasoning": "Hmm.", "content": ""}), text("hi", "stop"), DONE),
        [ReasoningDelta("Hmm."), TextDelta("hi"), thought("Hmm.", "reasoning"), STOP],
    ),
    "reasoning of OpenRouter in blocks": (
        sent(
            choice({"reasoning": "Hm", "reasoning_details": [detail(0, text="Hm", signature=None)]}),
            choice({"reasoning": "m.", "reasoning_details": [detail(0, text="m.", signature="s")]}),
            choice({"reasoning_details": [detail(1, data="AA=="), detail(2, data="BB==")]}),
            text("hi", "stop"),
            DONE,
        ),
        [
            ReasoningDelta("Hmm."),
            TextDelta("hi"),
            thought("Hmm.", "reasoning"),
            Reasoning(
                model="p/m",
                data='[{"type":"t","index":0,"text":"Hmm.","signature":"s"},'
                '{"type":"t","index":1,"data":"AA=="},{"type":"t","index":2,"data":"BB=="}]',
                id="reasoning_details",
            ),
            STOP,
        ],
    ),
    "reasoning in both fields": (
        sent(choice({"reasoning": "Hmm.", "reasoning_content": "Hmm."}), text("hi", "stop"), DONE),
        [ReasoningDelta("Hmm."), TextDelta("hi"), thought("Hmm."), STOP],
    ),
    "reasoning and a call": (
        sent(choice({"reasoning_content": "Hmm."}), tool(piece(0, "a", "f_g")), DONE),
        [ReasoningDelta("Hmm."), thought("Hmm."), call("a", "f_g"), CALLS],
    ),
    "null reasoning": (
        sent(choice({"reasoning_content": None, "content": "hi"}, "stop")),
        [TextDelta("hi"), STOP],
    ),
    "reasoning in parts": (
        sent(
            text([{"type": "thinking", "thinking": [{"type": "text", "text": "Hmm."}]}]),
            text("hi", "stop"),
            DONE,
        ),
        [ReasoningDelta("Hmm."), TextDelta("hi"), thought("Hmm."), STOP],
    ),
    "reasoning in tags": (
        sent(text("<think>Hmm."), text("</think>\n\nhi"), choice({}, "stop"), DONE),
        [ReasoningDelta("Hmm."), TextDelta("hi"), STOP],
    ),
    "tags in pieces": (
        sent(*map(text, ("\n<th", "ink", ">", "H", "m</", "b></thi", "nk", ">\n", "\n", "h", "i")), DONE),
        [ReasoningDelta("Hm</b>"), TextDelta("hi"), STOP],
    ),
    "no reasoning in tags": (sent(text("<think></think>hi", "stop"), DONE), [TextDelta("hi"), STOP]),
    "tags that are never closed": (
        sent(text("<think>Hmm. </thi", "length"), DONE),
        [ReasoningDelta("Hmm. </thi"), Finish(reason="length")],
    ),
    "tags further on are text": (
        sent(text("Write <think>so</think>.", "stop"), DONE),
        [TextDelta("Write <think>so</think>."), STOP],
    ),
    "the beginning of a tag is text": (sent(text("<thi", "stop"), DONE), [TextDelta("<thi"), STOP]),
    "another tag is text": (sent(text("<"), text("b>hi", "stop"), DONE), [TextDelta("<b>hi"), STOP]),
    "tags and a call": (
        sent(text("<think>Hmm.</think>"), tool(piece(0, "a", "f_g")), DONE),
        [ReasoningDelta("Hmm."), call("a", "f_g"), CALLS],
    ),
    # Whole completions
    "a whole completion": (
        sent(
            {
                "object": "chat.completion",
                "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
            }
        ),
        [TextDelta("hi"), STOP],
    ),
    "a whole completion with calls and reasoning": (
        sent(
            {
                "choices": [
                    {
                        "message": {
                            "content": None,
                            "reasoning_content": "Hmm.",
                            "tool_calls": [piece(None, "a", "f_g"), piece(None, "b", "f_h", '{"x": 1}')],
                        },
                        "finish_reason": "tool_calls",
                    }
                ],
                "usage": usage(9, 2),
            }
        ),
        [
            ReasoningDelta("Hmm."),
            thought("Hmm."),
            call("a", "f_g"),
            call("b", "f_h", '{"x": 1}'),
            Finish(reason="tool_calls", usage=used(9, 2)),
        ],
    ),
}

BAD: dict[str, tuple[bytes, type[ModelError]]] = {
    "nothing": (b"", ModelGarbled),
    "only done": (DONE, ModelGarbled),
    "only comments": (b": hi\n\n:\n\n", ModelGarbled),
    "something else": (sent({"status": "ok"}, DONE), ModelGarbled),
    "only usage": (sent({"usage": usage(1, 1)}, DONE), ModelGarbled),
    "no JSON": (sent(b"data: hello\n\n"), ModelGarbled),
    "half JSON": (sent(text("a"), b'data: {"choices": [\n\n'), ModelGarbled),
    "a list": (sent([1, 2]), ModelGarbled),
    "a number": (sent(7), ModelGarbled),
    "null": (sent(None), ModelGarbled),
    "too deep": (sent(b"data: " + b"[" * 100_000 + b"\n\n"), ModelGarbled),
    "choices as an object": (sent({"choices": {"0": 1}}), ModelGarbled),
    "a choice that is text": (sent({"choices": ["x"]}), ModelGarbled),
    "a delta that is text": (sent(choice("x")), ModelGarbled),
    "content that is a number": (sent(text(7)), ModelGarbled),
    "content that is a list of text": (sent(text(["x"])), ModelGarbled),
    "blocks of reasoning that are text": (sent(choice({"reasoning_details": "x"})), ModelGarbled),
    "endless blocks of reasoning": (
        sent(*[choice({"reasoning_details": [detail(0, data="x" * 500_000)]})] * 5),
        ModelGarbled,
    ),
    "reasoning that is a list": (sent(choice({"reasoning_content": ["x"]})), ModelGarbled),
    "calls that are text": (sent(choice({"tool_calls": ["x"]})), ModelGarbled),
    "calls that are a number": (sent(choice({"tool_calls": 7})), ModelGarbled),
    "an index that is text": (sent(tool({"index": "first", "function": {}})), ModelGarbled),
    "an index without an end": (
        sent(b'data: {"choices":[{"delta":{"tool_calls":[{"index":1e999}]}}]}\n\n'),
        ModelGarbled,
    ),
    "a name that is a number": (sent(tool({"index": 0, "function": {"name": 7}})), ModelGarbled),
    "arguments that are a number": (sent(tool(piece(0, "a", "f_g", 7))), ModelGarbled),
    "arguments that are a list": (sent(tool(piece(0, "a", "f_g", [1]))), ModelGarbled),
    "an id that is a number": (sent(tool({"index": 0, "id": 7, "function": {"name": "f"}})), ModelGarbled),
    "a reason that is a number": (sent(choice({}, 3)), ModelGarbled),
    "usage that is text": (sent({"choices": [], "usage": "much"}), ModelGarbled),
    "counts that are text": (sent({"choices": [], "usage": {"prompt_tokens": "many"}}), ModelGarbled),
    "details that are text": (
        sent({"choices": [], "usage": usage(1, 1, prompt_tokens_details="x")}),
        ModelGarbled,
    ),
    "too many calls": (sent(*(tool(piece(index, "a", "f")) for index in range(1001)), DONE), ModelGarbled),
    "no end": (sent(text("The disk is")), ModelCutOff),
    "no end of a call": (sent(tool(piece(0, "a", "f_g", '{"x'))), ModelCutOff),
    "no end of reasoning": (sent(choice({"reasoning_content": "Hm"})), ModelCutOff),
    "an empty choice and no end": (sent({"choices": []}), ModelCutOff),
    "an error as text": (sent({"error": "overloaded"}), ModelOverloaded),
    "an error as an object": (sent(text("hi"), {"error": {"message": "out of memory"}}), ModelRejected),
    "an error with a code": (
        sent({"error": {"message": "x", "code": "rate_limit_exceeded"}}),
        ModelRateLimited,
    ),
    "an error of llama.cpp": (
        sent(text("hi"), b'error: {"code":500,"message":"x","type":"server_error"}\n\n'),
        ModelOverloaded,
    ),
    "an error with a number": (sent({"error": {"message": "x", "code": 502}}), ModelOverloaded),
    "an error beside a choice": (
        sent({"error": {"code": "server_error", "message": "x"}, **choice({"content": ""}, "error")}),
        ModelOverloaded,
    ),
    "an error in the choice": (
        sent(choice({}, "error", error={"code": 429, "message": "x"})),
        ModelRateLimited,
    ),
    "an error of vLLM": (
        sent({"object": "error", "message": "This model's maximum context length is 8 tokens", "code": 400}),
        ModelPromptTooLong,
    ),
    "a filter's error": (sent({"error": {"code": "content_filter", "message": "x"}}), ModelFiltered),
    "an end by an error": (sent(text("hi", "error"), DONE), ModelOverloaded),
    "an end by a lack of resources": (
        sent(text("hi", "insufficient_system_resource"), DONE),
        ModelOverloaded,
    ),
    "an end by the network": (sent(text("hi", "network_error"), DONE), ModelOverloaded),
    "an abort": (sent(text("hi", "abort"), DONE), ModelOverloaded),
}
