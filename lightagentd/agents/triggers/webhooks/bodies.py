"""Makes of a request's body what a trigger is about: names for its prompt.

Each template gives the names that a prompt is likely to have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightagentd.errors import InvalidArgument
from lightagentd.text.strict_json import BadJson, counting, decoded

BODY_BYTES = 1 << 20
_DEPTH = 64
_ALERTS = 20

Body = dict[str, Any]


def data_of(template: str, body: str, headers: Mapping[str, str]) -> Body:
    """Raises InvalidArgument for what is no JSON."""
    said = body.encode("utf-8", "surrogatepass")
    try:
        for _ in counting(said):
            pass
        found = decoded(said, depth=_DEPTH, surrogates=False)
    except BadJson as err:
        raise InvalidArgument(f"The body is no JSON: {err}.", field="body") from None
    made = TEMPLATES[template](found if isinstance(found, dict) else {"value": found})
    if event := headers.get("x-github-event"):
        made["event"] = event[:100]
    return {name: one for name, one in made.items() if one not in (None, "", [], {})}


def _json(body: Body) -> Body:
    return body


def _alertmanager(body: Body) -> Body:
    """https://prometheus.io/docs/alerting/latest/configuration/#webhook_config"""
    alerts = _objects(body, "alerts")
    common = {**_object(body, "commonAnnotations"), **_object(body, "commonLabels")}
    first = {**_object(alerts[0], "annotations"), **_object(alerts[0], "labels")} if alerts else {}
    named = {name: common.get(name, first.get(name)) for name in ("alertname", "severity", "instance", "job")}
    about = {name: first.get(name) for name in ("summary", "description")}
    return {
        "status": body.get("status"),
        **named,
        **about,
        "count": len(alerts),
        "receiver": body.get("receiver"),
        "alerts": [
            {
                "status": one.get("status"),
                **_object(one, "labels"),
                **_object(one, "annotations"),
                "since": one.get("startsAt"),
            }
            for one in alerts[:_ALERTS]
        ],
        "url": body.get("externalURL"),
    }


def _grafana(body: Body) -> Body:
    """https://grafana.com/docs/grafana/latest/alerting/configure-notifications/manage-contact-points"""
    values = [one.get("valueString") for one in _objects(body, "alerts")]
    found = _alertmanager(body)
    return {**found, "title": body.get("title"), "message": body.get("message"), "values": values[:_ALERTS]}


def _github(body: Body) -> Body:
    """https://docs.github.com/webhooks/webhook-events-and-payloads"""
    about: Body = next(
        (
            body[name]
            for name in ("issue", "pull_request", "release", "workflow_run", "check_run", "discussion")
            if isinstance(body.get(name), dict)
        ),
        {},
    )
    commits = [str(one.get("message", "")).partition("\n")[0] for one in _objects(body, "commits")]
    return {
        "action": body.get("action"),
        "repository": _object(body, "repository").get("full_name"),
        "sender": _object(body, "sender").get("login"),
        "ref": body.get("ref"),
        "number": body.get("number", about.get("number")),
        "title": about.get("title", about.get("name")),
        "text": _object(body, "comment").get("body", about.get("body")),
        "conclusion": about.get("conclusion"),
        "url": _object(body, "comment").get("html_url", about.get("html_url", body.get("compare"))),
        "commits": commits[:_ALERTS],
    }


TEMPLATES: Mapping[str, Callable[[Body], Body]] = {
    "json": _json,
    "alertmanager": _alertmanager,
    "grafana": _grafana,
    "github": _github,
}


def _object(body: Body, name: str) -> Body:
    found = body.get(name)
    return found if isinstance(found, dict) else {}


def _objects(body: Body, name: str) -> list[Body]:
    found = body.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


__all__ = ["BODY_BYTES", "TEMPLATES", "data_of"]
