"""Maps refusals of an endpoint to errors with a code and a suggestion.

`refusal` is for an error response, `stream_error` for an error within an answer. Both read the shapes of all
dialects, and those of the gateways and web frameworks before them. The codes are those of the references of
OpenAI, Anthropic, Google, DeepSeek, Moonshot, Z.ai, DashScope, Groq, OpenRouter, vLLM and llama.cpp.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightagentd.errors import (
    ModelError,
    ModelFiltered,
    ModelGarbled,
    ModelKeyRefused,
    ModelNotFound,
    ModelOverloaded,
    ModelPromptTooLong,
    ModelQuotaExceeded,
    ModelRateLimited,
    ModelRejected,
    ModelUnreachable,
)
from lightagentd.llm.dialects.dialect import ERROR_CHARS, NAME_CHARS
from lightagentd.llm.endpoint.retry_after import retry_after
from lightagentd.llm.toolong import says_too_long

SUGGESTIONS: dict[type[ModelError], str] = {
    ModelKeyRefused: "Check the provider's key (api_key_file, api_key_env) and what it may do.",
    ModelQuotaExceeded: "Add credit to the account, or choose another model.",
    ModelNotFound: "Check the model's name and base_url; lactl models list --all lists models that are known,"
    " lactl models providers what runs on this machine.",
    ModelPromptTooLong: "Begin a new session, or correct context_tokens of the provider.",
    ModelFiltered: "Put the request in other words, or choose another model.",
    ModelOverloaded: "Try again later, or choose another model.",
    ModelRateLimited: "Wait, or choose another model.",
    ModelRejected: "Check the provider's kind, headers and extra_body, or choose another model.",
    ModelUnreachable: "Check the provider's proxy, and the user and password in it.",
}


def _table(words: dict[type[ModelError], str]) -> tuple[tuple[type[ModelError], re.Pattern[str]], ...]:
    return tuple((kind, re.compile(found, re.IGNORECASE)) for kind, found in words.items())


_CODES = _table(
    {
        ModelPromptTooLong: r"context_(?:length|size|window)|max_prompt_tokens|^request_too_large$|^1261$",
        ModelQuotaExceeded: r"insufficient_(?:quota|balance)|current_quota|billing|payment|arrearage|credit"
        r"|budget_?exceeded|^1113$",
        ModelFiltered: r"content_?(?:filter|policy)|responsible_?ai|moderation|data_?inspection|safety",
        ModelRateLimited: r"rate_?limit|too_?many_?requests|throttl|resource_?exhausted",
        ModelOverloaded: r"overloaded|unavailable|capacity|server_?error|^api_error$|internal|time_?out"
        r"|deadline|tool_use_failed|output_parse_failed",
        ModelKeyRefused: r"api_?key|authenti|unauthori|^permission|forbidden|access_(?:denied|terminated)",
        ModelNotFound: r"model_?not_?(?:found|exist)|^not_found|unknown_model|(?:resource|deployment)_?not",
    }
)
"""What the code or the type of an error holds; the first that fits counts."""
_VAGUE = re.compile(r"^api_error$|server_error|internal", re.IGNORECASE)
_WORDS = _table(
    {
        ModelQuotaExceeded: r"insufficient (?:quota|balance|credit|funds)|exceeded your current quota"
        r"|(?:out of|more|no|not enough) credits?\b|credit balance|billing|payment required",
        ModelKeyRefused: r"(?:invalid|incorrect|wrong|missing|no|expired) (?:api|auth\w*)[ _-]?(?:key|token)"
        r"|api[ _-]?key (?:is )?(?:not valid|invalid|missing|required|expired|not found)"
        r"|not authenticated|unauthorized",
        ModelNotFound: r"\bmodels?\b.{0,120}\b(?:do(?:es)? not exist|not found|not exist|unknown)"
        r"|(?:no such|unknown|unsupported|invalid) model\b|not a valid model|unexpected endpoint",
        ModelFiltered: r"content (?:management )?(?:policy|filter)|usage polic|flagged|moderation"
        r"|safety system",
        ModelRateLimited: r"rate limit|too many requests",
        ModelOverloaded: r"overloaded|server is busy|try again later|temporarily unavailable"
        r"|model has crashed",
    }
)
"""The same for the words that people read, where neither code nor status says more."""
_BY_STATUS: dict[int, type[ModelError]] = {
    401: ModelKeyRefused,
    402: ModelQuotaExceeded,
    403: ModelKeyRefused,
    404: ModelNotFound,
    407: ModelUnreachable,
    408: ModelOverloaded,
    409: ModelOverloaded,
    413: ModelPromptTooLong,
    424: ModelOverloaded,
    425: ModelOverloaded,
    429: ModelRateLimited,
}
_MAY_BE_TOO_LONG = (0, 400, 413, 422, 429, 500)
"""What servers answer to a request that is too long; 0 for an error without a status."""
_OUT_OF_CREDIT = (402, 429)
_PROXY = 407
_SENTENCES = ("message", "detail", "msg", "errors", "title")
"""Where the sentence of an error is, by preference."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """An error as an endpoint describes it."""

    message: str = ""
    codes: tuple[str, ...] = ()
    """Its code, type and status, as far as they are words."""
    status: int = 0
    """The HTTP status that is written into the error itself."""


class ProxyRefused(ModelUnreachable):
    """The proxy wants a user and a password: no retry changes that."""

    transient = False


class NoModel(ModelGarbled):
    """Something else answers in place of a model, or without end: no retry changes that."""

    transient = False


def refusal(model: str, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """The error for a response that is not an answer; `body` may be only its start.

    With a status of success, the error comes from the body.
    """
    try:
        said = error_said(json.loads(body)) or Said(message=printable(body.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        said = Said(message=_page_text(body))
    found = _told(
        _kind(status if status >= 400 else said.status, said),
        f"The model {model} refused the request with status {status}: {_shown(said) or 'it says no more'}",
    )
    found.retry_after_s = retry_after(headers, body)
    found.reached = status != _PROXY
    return found


def stream_error(model: str, error: object) -> ModelError:
    """The error within an answer: from the value of `error`, or from an object that is a whole error."""
    said = error_said(error) or error_said({"error": error}) or Said()
    found = _told(
        _kind(said.status, said), f"The model {model} broke off: {_shown(said) or 'no reason given'}"
    )
    found.reached = True
    return found


def _told(kind: type[ModelError], message: str) -> ModelError:
    suggestion = next(SUGGESTIONS[base] for base in kind.__mro__ if base in SUGGESTIONS)
    return kind(message if message.endswith((".", "!", "?")) else f"{message}.", suggestion=suggestion)


def _kind(status: int, said: Said) -> type[ModelError]:
    """The error class: codes are the most exact, then the status, then the words."""
    everything = " ".join((*said.codes, said.message))
    if status in _MAY_BE_TOO_LONG and says_too_long(everything):
        return ModelPromptTooLong
    if status == _PROXY:
        return ProxyRefused
    # Ollama calls each of its errors an api_error: only with a matching status is it the server's fault.
    codes = [code for code in said.codes if not (400 <= status < 500 and _VAGUE.search(code))]
    by_code = next((kind for code in codes for kind, words in _CODES if words.search(code)), None)
    by_words = next((kind for kind, words in _WORDS if words.search(said.message)), None)
    if status in _OUT_OF_CREDIT and by_code is None and by_words is ModelQuotaExceeded:
        return ModelQuotaExceeded  # but Google uses it for each limit per minute, with a code of its own
    if by_code is not None and (status < 500 or issubclass(by_code, ModelUnreachable)):
        return by_code
    by_status = ModelOverloaded if status >= 500 else _BY_STATUS.get(status)
    if status == 403 and by_words in (ModelFiltered, ModelQuotaExceeded):
        return by_words
    return by_status or by_words or ModelRejected


def error_said(value: object) -> Said | None:
    """The error in a decoded body, or None if the body has none of the known shapes of errors."""
    if isinstance(value, list) and value:
        return error_said(value[0])
    if not isinstance(value, dict):
        return None
    inner = value.get("error")
    if isinstance(inner, str) and inner:
        more = value.get("error_description") or value.get("message")
        said = f"{inner}: {more}" if isinstance(more, str) and more else inner
        return Said(message=printable(said), codes=_codes(inner, value), status=_status(value))
    if isinstance(inner, dict):
        return _said(inner, value)
    if any(key in value for key in _SENTENCES) and "choices" not in value:
        return _said(value)
    return None


def _said(error: dict[str, Any], *around: dict[str, Any]) -> Said:
    message, metadata = _message(error), error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None  # OpenRouter: the words of its provider
    if isinstance(raw, str) and raw and raw not in message:
        message = f"{message} ({raw})"
    return Said(message=printable(message), codes=_codes("", error, *around), status=_status(error))


def _message(value: dict[str, Any]) -> str:
    """The sentence in an error, which may be in a list of errors."""
    for key in _SENTENCES:
        found = value.get(key)
        if isinstance(found, list) and found:
            found = found[0]
        if isinstance(found, dict):
            place = found.get("loc")
            where = f"{'.'.join(map(str, place))}: " if isinstance(place, list) else ""
            return f"{where}{_message(found)}"
        if isinstance(found, str) and found:
            return found
    return ""


def _codes(first: str, *values: dict[str, Any]) -> tuple[str, ...]:
    def found() -> Iterator[str]:
        if first and " " not in first:
            yield first
        for value in values:
            for key in ("code", "type", "status"):
                if isinstance(code := value.get(key), str) and code and " " not in code and code != "error":
                    yield code[:NAME_CHARS]

    return tuple(dict.fromkeys(found()))


def _status(value: dict[str, Any]) -> int:
    for key in ("code", "status", "status_code"):
        found = value.get(key)
        if isinstance(found, str) and found.isascii() and found.isdigit():
            found = int(found[:4])
        if isinstance(found, int) and not isinstance(found, bool) and 400 <= found <= 599:
            return found
    return 0


def _shown(said: Said) -> str:
    """The endpoint's words, with the code where they leave it out."""
    message = said.message[:ERROR_CHARS]
    code = next((code for code in said.codes if not code.isdigit()), "")
    if not code or code in said.message:
        return message
    return f"{message} ({printable(code)})" if message else printable(code)


def printable(words: str) -> str:
    """An endpoint's words as one line without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else " " for char in " ".join(words[: 4 * ERROR_CHARS].split()))


_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,300})</title>", re.IGNORECASE)


def page_title(body: bytes) -> str:
    """The title of a web page; empty when there is none."""
    found = _TITLE.search(body[:16384].decode("utf-8", "replace"))
    return printable(found[1]) if found else ""


def _page_text(body: bytes) -> str:
    """The words of a body that is not JSON: a web page's title, otherwise the text without tags."""
    if title := page_title(body):
        return title
    return printable(re.sub(r"<[^<>]{0,500}>", " ", body[:16384].decode("utf-8", "replace")))
