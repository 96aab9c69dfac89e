"""What a status and a body that are no answer mean: the error with its code, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from lightagentd.errors import ModelError, ModelRejected
from lightagentd.llm.dialects.dialect import ERROR_CHARS, NAME_CHARS


def refusal(model: str, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:  # noqa: ARG001
    """The error that a response with another status than 200 stands for."""
    try:
        error = json.loads(body)["error"]
        said = str(error["message"])
        if isinstance(code := error.get("code"), str) and code not in said:
            said = f"{said} ({code[:NAME_CHARS]})"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        said = " ".join(body.decode("utf-8", "replace").split())
    hints = {
        401: "Check the provider's API key.",
        403: "Check what the API key may do.",
        404: "Check base_url and the model's name.",
        429: "Wait, or choose another model.",
    }
    return ModelRejected(
        f"The model {model} refused the request with status {status}: {said[:ERROR_CHARS]}",
        suggestion=hints.get(status, ""),
        reached=True,
    )
