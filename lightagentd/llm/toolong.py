"""Recognizes refusals of requests that do not fit into the model's window.

The API reference has the code `context_length_exceeded` for it; servers that speak the dialect use words of
their own. Those here come from OpenAI, vLLM, llama.cpp, Mistral, Anthropic, Gemini, Groq, DeepSeek, xAI,
Z.ai, Moonshot, DashScope, GitHub, Ollama and Together.
"""

from __future__ import annotations

import re

_WORDS = re.compile(
    r"context_length_exceeded|exceed_context_size|model_max_prompt_tokens_exceeded"
    r"|maximum context length|context (?:length|window|size)"
    r"|(?:prompt|input|request|conversation) (?:is )?too (?:long|large)"
    r"|too many (?:input |prompt )?tokens"
    r"|token count .{0,40}exceeds|exceeds? .{0,60}(?:number of tokens|token limit|context)"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)|reduce your message size"
    r"|maximum prompt length|exceeds? max(?:imum)? length|exceeded (?:the )?model token"
    r"|input length should be|tokens_limit_reached|request body too large|inputs?\W+tokens.{0,40} must be",
    re.IGNORECASE,
)


def says_too_long(message: str) -> bool:
    """Whether the words of a refusal are about the length of the request."""
    return _WORDS.search(message) is not None
