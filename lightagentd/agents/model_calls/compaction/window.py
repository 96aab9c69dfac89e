"""Estimates how full a request makes a model's window, and which messages can be dropped.

Nothing here is stored. The figures are estimates on the safe side: the endpoint's last count, if there is
one, plus one token for each 3.5 bytes added since. English text has about 4 bytes a token, program text and
other languages have fewer (the tokenizers of OpenAI, Llama and Mistral are close to each other).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lightagentd.agents.tool_calls.results import cap_text
from lightagentd.events.model import dump_json
from lightagentd.llm.protocol import Function, Message

BYTES_PER_TOKEN = 3.5
MOST_BYTES_PER_TOKEN = 7.0
"""An endpoint that counts fewer tokens than that leaves some out, such as those that it had cached."""
_MESSAGE_BYTES = 24
"""What an endpoint adds to each message: its role, and what separates it from the next."""
_RESULT_BYTES = 64
"""What stands before each result (`llm.dialects.dialect.marked_result`)."""
SUMMARY = "summary"
"""The name of the message that stands for what was left out."""
SHORT_RESULT_BYTES = 600
"""What is left of a result that had to be shortened."""
SHORTENED = "[Shortened, so that the conversation fits into the model's window; the history has all of it.]\n"


def bytes_of(message: Message) -> int:
    """About how many bytes of a request a message takes."""
    size = _MESSAGE_BYTES + _len(message.content)
    if message.role == "tool":
        size += _RESULT_BYTES + len(message.name)
    for call in message.tool_calls:
        size += _MESSAGE_BYTES + len(call.name) + _len(call.arguments)
    return size


def tokens_of(messages: Sequence[Message]) -> int:
    return round(sum(map(bytes_of, messages)) / BYTES_PER_TOKEN)


def is_summary(message: Message) -> bool:
    """Whether the message is a summary of the earlier conversation."""
    return message.role == "user" and message.name == SUMMARY


class Gauge:
    """How many tokens the requests of one turn take. `counted_before` is the previous turn's count."""

    def __init__(self, counted_before: tuple[int, int] = (0, 0)) -> None:
        self.counted = counted_before
        """What an endpoint counted last in tokens, and the bytes of that request."""
        self._system = ""
        self._functions: Sequence[Function] = ()
        self.fixed_bytes = 0
        self._last: Message | None = None
        self._seen = 0
        self._seen_bytes = 0

    def measure(self, system: str, functions: Sequence[Function], messages: Sequence[Message]) -> int:
        """About how many tokens a request takes. Each message is measured once."""
        if system != self._system or functions is not self._functions:
            self._system, self._functions = system, functions
            self.fixed_bytes = _len(system) + sum(map(bytes_of_function, functions))
        if not 0 < self._seen <= len(messages) or messages[self._seen - 1] is not self._last:
            self._seen = self._seen_bytes = 0
        self._seen_bytes += sum(map(bytes_of, messages[self._seen :]))
        self._seen = len(messages)
        self._last = messages[-1] if messages else None
        return self._tokens(self.fixed_bytes + self._seen_bytes)

    def take_count(self, prompt_tokens: int) -> None:
        """Take the endpoint's count for the request measured last; 0 when it does not count.

        A token has at least one byte. A higher count would make every later request too long.
        """
        if prompt_tokens:
            size_bytes = self.fixed_bytes + self._seen_bytes
            least = round(size_bytes / MOST_BYTES_PER_TOKEN)
            self.counted = (max(least, min(prompt_tokens, size_bytes)), size_bytes)

    def forget(self) -> None:
        """The messages before the last have changed."""
        self._seen = 0

    def _tokens(self, size_bytes: int) -> int:
        tokens, counted_bytes = self.counted
        estimate = size_bytes / BYTES_PER_TOKEN
        if not counted_bytes:
            return round(estimate)
        scale = max(1.0, tokens / (counted_bytes / BYTES_PER_TOKEN))
        if size_bytes < counted_bytes:
            return round(estimate * scale)
        return round(tokens + (size_bytes - counted_bytes) / BYTES_PER_TOKEN * scale)


def cut(messages: Sequence[Message], room_tokens: int) -> int:
    """The index of the first message to keep; 0 when dropping the earlier ones gains nothing.

    A turn is kept or dropped as a whole, so that no call loses its result. The newest turn is always kept,
    and so are all turns from the first one with a call without a result. Of the others, the newest are kept
    as far as `room_tokens` allows; the first of these may exceed it by half.
    """
    begins = [
        index for index, message in enumerate(messages) if message.role == "user" and not is_summary(message)
    ]
    if not begins:
        return 0
    newest = min(begins[-1], _first_open(messages, begins))
    start, tokens = newest, tokens_of(messages[newest:])
    for index in reversed([index for index in begins if index < newest]):
        tokens += tokens_of(messages[index:start])
        if tokens > (room_tokens * 1.5 if start == newest else room_tokens):
            break
        start = index
    only_summary = start == 1 and is_summary(messages[0])
    return 0 if only_summary else start


def _first_open(messages: Sequence[Message], begins: Sequence[int]) -> int:
    """Where the turn with the first call without a result begins; the number of messages if there is none."""
    waiting: dict[str, int] = {}
    for index, message in enumerate(messages):
        waiting.update({call.id: index for call in message.tool_calls})
        if message.role == "tool":
            waiting.pop(message.tool_call_id, None)
    if not waiting:
        return len(messages)
    first = min(waiting.values())
    return max((index for index in begins if index <= first), default=0)


def shorten(messages: Sequence[Message], excess_tokens: int, *, newest_too: bool = False) -> list[Message]:
    """The messages with their longest results shortened, if possible by as many tokens as asked for.

    The model has not read the results of the newest step yet, so they are shortened last.
    """
    shortened = list(messages)
    newest = max((index for index, each in enumerate(messages) if each.role != "tool"), default=0)
    results = [index for index, each in enumerate(messages) if each.role == "tool"]
    results = [index for index in results if index < newest or newest_too]
    order = sorted(results, key=lambda index: (index > newest, -bytes_of(messages[index])))
    excess_bytes = excess_tokens * BYTES_PER_TOKEN
    for index in order:
        if excess_bytes <= 0:
            break
        message = messages[index]
        text = SHORTENED + cap_text(message.content.removeprefix(SHORTENED), SHORT_RESULT_BYTES)
        if (gain := _len(message.content) - _len(text)) > 0:
            shortened[index] = replace(message, content=text)
            excess_bytes -= gain
    return shortened


def bytes_of_function(function: Function) -> int:
    """About how many bytes of a request a function takes."""
    return (
        _MESSAGE_BYTES + len(function.name) + _len(function.description) + len(dump_json(function.parameters))
    )


def _len(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
