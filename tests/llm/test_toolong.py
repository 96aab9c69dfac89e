"""What endpoints say of a request that is too long, and what they say of other things."""

from __future__ import annotations

import pytest

from lightagentd.llm.toolong import says_too_long


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
        "the request exceeds the available context size. try increasing the context size",
        "Prompt contains 33000 tokens, too large for model with 32768 maximum context length",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "Please reduce the length of the messages or completion.",
        "refused (context_length_exceeded)",
        "Input is too long for requested model.",
        "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
        "Prompt exceeds max length",
        "Invalid request: Your request exceeded model token limit: 8192",
        "Range of input length should be [1, 30720]",
        "Request body too large for gpt-4o model. Max size: 8000 tokens.",
        "prompt too long; exceeded max context length by 12 tokens",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097.",
        "Please reduce your message size and try again.",
        "input length and `max_tokens` exceed context limit: 150000 + 64000 > 200000, decrease input length",
    ],
)
def test_a_request_that_is_too_long_is_known_by_the_words(message: str) -> None:
    assert says_too_long(f"The model openai/x refused the request with status 400: {message}")


@pytest.mark.parametrize(
    "message",
    [
        "scripted failure",
        "Incorrect API key provided.",
        "Rate limit reached: 30000 tokens per minute.",
        "max_tokens is too large: 100000.",
        "The model `gpt-9` does not exist.",
        "Invalid schema for function 'file_read'.",
        "The maximum length of a tool call id is 40.",
        "You exceeded your current quota.",
        "max_tokens must be <= 4096.",
    ],
)
def test_other_refusals_are_none_of_it(message: str) -> None:
    assert not says_too_long(f"The model openai/x refused the request with status 400: {message}")
