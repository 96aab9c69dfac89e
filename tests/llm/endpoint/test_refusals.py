"""What endpoints answer in place of an answer, in the words that they are known to use."""

from __future__ import annotations

import json
import time
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightagentd.errors import (
    ModelError,
    ModelFiltered,
    ModelKeyRefused,
    ModelNotFound,
    ModelOverloaded,
    ModelPromptTooLong,
    ModelQuotaExceeded,
    ModelRateLimited,
    ModelRejected,
)
from lightagentd.llm.endpoint.refusals import ProxyRefused, refusal, stream_error
from lightagentd.llm.endpoint.retry_after import MOST_S, retry_after


def openai(message: str, kind: str | None = "invalid_request_error", code: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


TABLE: list[tuple[int, Any, type[ModelError]]] = [
    # Ollama
    (404, openai('model "nix" not found, try pulling it first', "api_error"), ModelNotFound),
    (400, openai("registry.ollama.ai/library/gemma:2b does not support tools", "api_error"), ModelRejected),
    (500, openai("llama runner process has terminated: exit status 2", "api_error"), ModelOverloaded),
    # Groq
    (400, openai("Failed to call a function.", code="tool_use_failed"), ModelOverloaded),
    # LM Studio
    (200, {"error": "Unexpected endpoint or method. (POST /chat/completions)"}, ModelNotFound),
    # Text Generation Inference
    (424, {"error": "Request failed during generation", "error_type": "generation"}, ModelOverloaded),
    # Z.ai
    (429, {"error": {"code": "1113", "message": "\u4f59\u989d\u4e0d\u8db3"}}, ModelQuotaExceeded),
    (400, {"error": {"code": "1261", "message": "Prompt \u8d85\u957f"}}, ModelPromptTooLong),
    # LiteLLM
    (
        400,
        openai("Budget has been exceeded! Current cost: 0.1", "budget_exceeded", "400"),
        ModelQuotaExceeded,
    ),
    # OpenAI
    (401, openai("Incorrect API key provided: sk-1.", code="invalid_api_key"), ModelKeyRefused),
    (401, openai("You must be a member of an organization to use the API"), ModelKeyRefused),
    (403, openai("Country, region, or territory not supported", "request_forbidden"), ModelKeyRefused),
    (
        404,
        openai("The model `gpt-9` does not exist or you have no access", code="model_not_found"),
        ModelNotFound,
    ),
    (
        400,
        openai("This model's maximum context length is 8192 tokens.", code="context_length_exceeded"),
        ModelPromptTooLong,
    ),
    (400, openai("Invalid schema for function 'f'", code="invalid_function_parameters"), ModelRejected),
    (
        400,
        openai("Your input was flagged as potentially violating our usage policy.", code="invalid_prompt"),
        ModelFiltered,
    ),
    (429, openai("Rate limit reached for gpt-5", "tokens", "rate_limit_exceeded"), ModelRateLimited),
    (
        429,
        openai(
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
            "insufficient_quota",
        ),
        ModelQuotaExceeded,
    ),
    (
        429,
        openai("Request too large for gpt-5 on tokens per min (TPM)", "tokens", "rate_limit_exceeded"),
        ModelPromptTooLong,
    ),
    (500, openai("The server had an error while processing your request.", "server_error"), ModelOverloaded),
    (
        503,
        openai("The engine is currently overloaded, please try again later", "server_error"),
        ModelOverloaded,
    ),
    (
        403,
        openai("Your account is not active, please check your billing details", code="billing_not_active"),
        ModelQuotaExceeded,
    ),
    (429, {"error": {"message": "You exceeded your current quota"}}, ModelQuotaExceeded),
    # Azure
    (
        400,
        openai(
            "The response was filtered due to the prompt triggering the content management policy.",
            code="content_filter",
        ),
        ModelFiltered,
    ),
    (
        404,
        openai("The API deployment for this resource does not exist.", code="DeploymentNotFound"),
        ModelNotFound,
    ),
    (401, {"statusCode": 401, "message": "Access denied due to invalid subscription key"}, ModelKeyRefused),
    # Anthropic
    (401, anthropic("authentication_error", "invalid x-api-key"), ModelKeyRefused),
    (403, anthropic("permission_error", "Your API key does not have permission"), ModelKeyRefused),
    (404, anthropic("not_found_error", "model: claude-0"), ModelNotFound),
    (413, anthropic("request_too_large", "Request exceeds the maximum size"), ModelPromptTooLong),
    (
        400,
        anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
        ModelPromptTooLong,
    ),
    (
        400,
        anthropic("invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
        ModelQuotaExceeded,
    ),
    (402, anthropic("billing_error", "Check your payment details"), ModelQuotaExceeded),
    (429, anthropic("rate_limit_error", "This request would exceed your rate limit"), ModelRateLimited),
    (500, anthropic("api_error", "Internal server error"), ModelOverloaded),
    (504, anthropic("timeout_error", "Request timed out"), ModelOverloaded),
    (529, anthropic("overloaded_error", "Overloaded"), ModelOverloaded),
    (400, anthropic("invalid_request_error", "messages.1: tool_use ids without tool_result"), ModelRejected),
    # OpenRouter
    (402, {"error": {"code": 402, "message": "This request requires more credits"}}, ModelQuotaExceeded),
    (
        403,
        {"error": {"code": 403, "message": "Your input was flagged", "metadata": {"reasons": ["x"]}}},
        ModelFiltered,
    ),
    (400, {"error": {"code": 400, "message": "foo/bar is not a valid model ID"}}, ModelNotFound),
    (502, {"error": {"code": 502, "message": "Provider returned error"}}, ModelOverloaded),
    # DeepSeek, Moonshot, Z.ai, DashScope
    (402, openai("Insufficient Balance", "unknown_error", "invalid_request_error"), ModelQuotaExceeded),
    (400, openai("Model Not Exist"), ModelNotFound),
    (
        429,
        {"error": {"message": "Your account is suspended", "type": "exceeded_current_quota_error"}},
        ModelQuotaExceeded,
    ),
    (429, {"error": {"message": "busy", "type": "engine_overloaded_error"}}, ModelOverloaded),
    (401, {"error": {"code": "1000", "message": "Authentication Failed"}}, ModelKeyRefused),
    (
        400,
        {"code": "DataInspectionFailed", "message": "Input data may contain inappropriate content."},
        ModelFiltered,
    ),
    (400, {"code": "Arrearage", "message": "Access denied, account in arrears."}, ModelQuotaExceeded),
    (429, {"code": "Throttling.RateQuota", "message": "Requests rate limit exceeded"}, ModelRateLimited),
    # Google
    (
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "API key not valid. Please pass a valid API key.",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
        ModelKeyRefused,
    ),
    (
        429,
        [{"error": {"code": 429, "message": "Quota exceeded", "status": "RESOURCE_EXHAUSTED"}}],
        ModelRateLimited,
    ),
    (
        503,
        {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}},
        ModelOverloaded,
    ),
    (404, {"error": {"code": 404, "message": "models/x is not found", "status": "NOT_FOUND"}}, ModelNotFound),
    (
        429,
        [{"error": {"message": "You exceeded your current quota", "status": "RESOURCE_EXHAUSTED"}}],
        ModelRateLimited,
    ),
    # vLLM, llama.cpp, Ollama, LM Studio, FastAPI, gateways
    (
        404,
        {"object": "error", "message": "The model `x` does not exist.", "type": "NotFoundError"},
        ModelNotFound,
    ),
    (
        400,
        {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400},
        ModelPromptTooLong,
    ),
    (
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size",
                "type": "exceed_context_size_error",
            }
        },
        ModelPromptTooLong,
    ),
    (503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, ModelOverloaded),
    (404, {"error": "model 'x' not found"}, ModelNotFound),
    (400, {"error": "No models loaded. Please load a model in the developer page"}, ModelRejected),
    (
        422,
        {"detail": [{"loc": ["body", "tools", 0], "msg": "field required", "type": "value_error.missing"}]},
        ModelRejected,
    ),
    (401, {"detail": "Not authenticated"}, ModelKeyRefused),
    (404, {"detail": "Not Found"}, ModelNotFound),
    (400, {"title": "Bad Request", "status": 400}, ModelRejected),
    (400, {"errors": [{"message": "no such model"}]}, ModelNotFound),
    (400, {"error": "invalid_request", "error_description": "the token is malformed"}, ModelRejected),
    # By the status alone
    (400, b"", ModelRejected),
    (401, b"", ModelKeyRefused),
    (402, b"", ModelQuotaExceeded),
    (403, b"<html><title>403 Forbidden</title></html>", ModelKeyRefused),
    (404, b"404 page not found", ModelNotFound),
    (405, b"Method Not Allowed", ModelRejected),
    (407, b"", ProxyRefused),
    (408, b"", ModelOverloaded),
    (409, b"", ModelOverloaded),
    (413, b"<html><h1>413 Request Entity Too Large</h1></html>", ModelPromptTooLong),
    (418, b"\xff\xfe", ModelRejected),
    (425, b"", ModelOverloaded),
    (429, b"slow down", ModelRateLimited),
    (500, b"null", ModelOverloaded),
    (502, b"<html><title>502 Bad Gateway</title></html>", ModelOverloaded),
    (520, b'"what"', ModelOverloaded),
    (504, b"7", ModelOverloaded),
]


@pytest.mark.parametrize(("status", "said", "kind"), TABLE)
def test_a_refusal_has_its_class_and_says_what_to_do(status: int, said: Any, kind: type[ModelError]) -> None:
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    err = refusal("p/m", status, {}, body)
    assert type(err) is kind
    assert err.message.startswith(f"The model p/m refused the request with status {status}: ")
    assert err.suggestion
    assert err.reached is (status != 407)


def test_only_what_may_pass_by_itself_is_transient() -> None:
    found = {kind: refusal("p/m", status, {}, b"").transient for status, _, kind in TABLE if status != 400}
    assert {kind for kind, transient in found.items() if transient} >= {ModelOverloaded, ModelRateLimited}
    assert not any(kind.transient for _, _, kind in TABLE if issubclass(kind, ModelRejected | ProxyRefused))


def test_the_words_of_the_endpoint_are_repeated_with_the_code() -> None:
    err = refusal("p/m", 400, {}, json.dumps(openai("No such thing.", code="odd_code")).encode())
    assert err.message.endswith("No such thing. (odd_code).")


def test_the_words_of_a_provider_behind_a_gateway_are_repeated() -> None:
    said = {
        "error": {"message": "Provider returned error", "code": 502, "metadata": {"raw": "the GPU burns"}}
    }
    assert "the GPU burns" in refusal("p/m", 502, {}, json.dumps(said).encode()).message


def test_a_web_page_is_repeated_by_its_title() -> None:
    page = b"<html><head><title>502\nBad Gateway</title></head><body>" + b"x" * 9000
    assert refusal("p/m", 502, {}, page).message.endswith("502 Bad Gateway.")


STREAMED: list[tuple[Any, type[ModelError]]] = [
    ({"message": "Rate limit", "code": "rate_limit_exceeded"}, ModelRateLimited),
    ({"type": "overloaded_error", "message": "Overloaded"}, ModelOverloaded),
    ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, ModelOverloaded),
    ({"type": "server_error", "message": "The server had an error"}, ModelOverloaded),
    ({"code": "server_error", "message": "x"}, ModelOverloaded),
    ({"code": 502, "message": "Provider disconnected"}, ModelOverloaded),
    ({"code": 429, "message": "slow"}, ModelRateLimited),
    ({"code": "502", "message": "x"}, ModelOverloaded),
    ({"code": "invalid_api_key", "message": "x"}, ModelKeyRefused),
    ({"code": 401, "message": "x"}, ModelKeyRefused),
    ({"type": "invalid_request_error", "message": "prompt is too long"}, ModelPromptTooLong),
    ({"code": "context_length_exceeded", "message": "x"}, ModelPromptTooLong),
    ({"message": "The model has crashed without additional information."}, ModelOverloaded),
    ({"code": "content_filter", "message": "x"}, ModelFiltered),
    ({"code": "insufficient_quota", "message": "x"}, ModelQuotaExceeded),
    ({"code": "model_not_found", "message": "x"}, ModelNotFound),
    ("overloaded", ModelOverloaded),
    ("rate limit exceeded", ModelRateLimited),
    ("out of memory", ModelRejected),
    ({"message": None, "code": None}, ModelRejected),
    ({"code": True, "message": 7}, ModelRejected),
    ({}, ModelRejected),
    ([], ModelRejected),
    (7, ModelRejected),
    (None, ModelRejected),
]


@pytest.mark.parametrize(("error", "kind"), STREAMED)
def test_an_error_in_a_stream_has_its_class(error: Any, kind: type[ModelError]) -> None:
    err = stream_error("p/m", error)
    assert type(err) is kind
    assert err.message.startswith("The model p/m broke off: ")
    assert err.suggestion
    assert err.reached


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["error", "message", "code", "type", "detail", "loc", "msg", "errors", "metadata", "raw"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_error_of_any_shape_breaks_anything(error: Any) -> None:
    assert isinstance(stream_error("p/m", error), ModelError)
    body = json.dumps(error).encode()
    for status in (200, 400, 429, 503):
        err = refusal("p/m", status, {}, body)
        assert isinstance(err, ModelError)
        assert all(char.isprintable() for char in err.message)
        assert len(err.message) < 700


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": " 3 "}, 3.0),
        ({"retry-after": "3, 7"}, 7.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 9999 07:28:00 GMT"}, MOST_S),
        ({"retry-after": "999999999999"}, MOST_S),
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "NaN"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "9" * 5000}, None),
        ({"retry-after": "\u0663"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Wed, 99 Oct 2015 07:28:00 GMT"}, None),
    ],
)
def test_how_long_to_wait_is_read_in_all_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds
    assert refusal("p/m", 429, headers, b"").retry_after_s == seconds


@pytest.mark.parametrize(
    ("delay", "headers", "seconds"),
    [
        ("37s", {}, 37.0),
        ("1.250s", {}, 1.25),
        ("37s", {"retry-after": "5"}, 5.0),
        ("37", {}, None),
        ("-3s", {}, None),
        ("9" * 13 + "s", {}, None),
        ("9" * 12 + "s", {}, MOST_S),
    ],
)
def test_google_says_in_the_body_how_long_to_wait(
    delay: str, headers: dict[str, str], seconds: float | None
) -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    body = json.dumps([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [info]}}])
    assert refusal("p/m", 429, headers, body.encode()).retry_after_s == seconds


def test_a_date_counts_from_now_where_the_endpoint_has_no_clock() -> None:
    seconds = retry_after({"retry-after": formatdate(time.time() + 3600, usegmt=True)})
    assert seconds is not None
    assert 0 < seconds <= 3600


@given(st.text(max_size=40))
def test_no_retry_after_breaks_anything(said: str) -> None:
    seconds = retry_after({"retry-after": said, "date": said, "retry-after-ms": said})
    assert seconds is None or 0 <= seconds <= MOST_S


def test_a_refusal_that_is_nested_as_deep_as_can_be_read_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deep: Any = "no"
    for _ in range(20_000):  # newer Pythons read what is nested deeper than they call
        deep = {"detail": [deep]}
    monkeypatch.setattr(json, "loads", lambda _: deep)
    assert type(refusal("p/m", 400, {}, b'{"detail": []}')) is ModelRejected
