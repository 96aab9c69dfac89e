"""Reads an OpenAPI 3 document (OpenAPI Specification 3.0 and 3.1) into the few facts that its calls need.

The document is text from outside: it is bounded before it is parsed, what it refers to is followed inside of
it alone, and what refers to itself is cut. Pure functions; nothing is fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from lightagentd.errors import InvalidArgument, LightagentError
from lightagentd.frontmatter import decode
from lightagentd.toolkit.web.guard import parse_url

DOCUMENT_BYTES = 8 << 20
MOST_VALUES = 1_000_000
"""In YAML, with each alias written out."""
MOST_OPERATIONS = 100
SCHEMA_NODES = 400
"""How many values the schema of one parameter or body keeps; the rest is left out of it."""
_DEPTH = 12
_MOST_VALUES = 100
_SCALARS = (str, int, float, bool, type(None))
_REFERENCES = 20
METHODS = ("get", "head", "post", "put", "patch", "delete", "options")
_PLACES = ("path", "query", "header")
_KEPT = frozenset(
    {"type", "enum", "const", "items", "properties", "required", "additionalProperties", "description"}
    | {"default", "format", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"}
    | {"oneOf", "anyOf", "allOf", "nullable"}
)
_TEXT_CHARS = 500
_TAKEN = ("preview", "close", "publish", "name", "facts")
"""What a tool has besides its actions."""


def read(text: str, name: str) -> dict[str, Any]:
    """The document as data. `name` is the file's, for errors. Raises InvalidArgument with file and line."""
    if len(text) > DOCUMENT_BYTES:
        raise _wrong(name, "", f"it is larger than {DOCUMENT_BYTES >> 20} MiB")
    try:
        is_json = text.lstrip().startswith("{")
        found = json.loads(text) if is_json else decode(Path(name), text, most=MOST_VALUES)
    except json.JSONDecodeError as err:
        raise InvalidArgument(f"{name}, line {err.lineno}: {err.msg}.", field="from") from err
    except RecursionError as err:
        raise _wrong(name, "", "it is nested too deep") from err
    except LightagentError as err:
        raise InvalidArgument(err.message, field="from") from err
    version = str(found.get("openapi", "")) if isinstance(found, dict) else ""
    if not isinstance(found, dict) or not version.startswith("3."):
        raise _wrong(name, "", "it has no key openapi with a version 3")
    return found


def looks_like_one(text: str) -> bool:
    """Whether a text means to be an OpenAPI document, of any version."""
    return bool(re.search(r"""^[\s{"']*(openapi|swagger)["']?\s*:\s*["']?[0-9]""", text[:10_000], re.M))


class Document:
    """One document while it is read; `name` is the file's, for errors."""

    def __init__(self, data: dict[str, Any], name: str) -> None:
        self.data, self.name = data, name

    def facts(
        self, chosen: Collection[str] = (), tags: Collection[str] = (), server: str = ""
    ) -> dict[str, Any]:
        """Servers, security schemes and operations, as `tool.OpenApiTool` has them.

        `chosen` are operation ids, or `METHOD /path`; with `tags`, those of the operations with one of them.
        `server` takes the place of the document's servers. Raises InvalidArgument with file and place.
        """
        found, seen, missing = [], set[str](), set(chosen)
        for place, method, path, operation, shared in self._every():
            ids = {str(operation.get("operationId", "")), f"{method.upper()} {path}"}
            of_tags = operation.get("tags", [])
            if (chosen and not ids & set(chosen)) or (tags and not set(tags) & {str(one) for one in of_tags}):
                continue
            missing -= ids
            found.append((place, method, path, operation, shared))
        if missing:
            raise self.wrong("/paths", f"there is no operation {', '.join(sorted(missing))[:200]}")
        if not found:
            raise self.wrong("/paths", "there is no operation to make an action of")
        if len(found) > MOST_OPERATIONS:
            what = f"{len(found)} operations are more than the {MOST_OPERATIONS} that one tool can have"
            raise self.wrong("/paths", what, "Choose with --operation ID or --tag TAG, each several times.")
        operations = [self._operation(*one, seen) for one in found]
        used = {scheme for one in operations for scheme in one["security"]}
        info = self.data.get("info")
        title = info.get("title", "") if isinstance(info, dict) else ""
        return {
            "title": _line(title) or "An interface over HTTP",
            "servers": [server] if server else self._servers(),
            "security": {scheme: self._scheme(scheme) for scheme in sorted(used)},
            "operations": operations,
        }

    def wrong(self, place: str, why: str, suggestion: str = "") -> InvalidArgument:
        return _wrong(self.name, place, why, suggestion)

    def _every(self) -> Iterator[tuple[str, str, str, dict[str, Any], list[Any]]]:
        paths = self._mapping(self.data.get("paths", {}), "/paths")
        for path, item in paths.items():
            place = f"/paths/{_escaped(str(path))}"
            item = self._mapping(self.resolved(item, place), place)
            shared = item.get("parameters", [])
            for method in METHODS:
                if method in item:
                    operation = self._mapping(item[method], f"{place}/{method}")
                    yield f"{place}/{method}", method, str(path), operation, shared

    def _mapping(self, value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(place, "this must be an object")
        return value

    def resolved(self, value: Any, place: str) -> Any:
        """What a reference leads to, inside of the document. Raises InvalidArgument."""
        for _ in range(_REFERENCES):
            if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
                return value
            value = self._target(value["$ref"], place)
        raise self.wrong(place, f"the references lead to each other more than {_REFERENCES} times")

    def _target(self, reference: str, place: str) -> Any:
        if reference == "#":
            return self.data
        if not reference.startswith("#/"):
            why = f"the reference {reference[:200]!r} leads elsewhere, and nothing is fetched"
            raise self.wrong(place, why, "Put everything into one document first.")
        at: Any = self.data
        for part in reference[2:].split("/"):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(at, list) and key.isdecimal() and len(key) < 8 and int(key) < len(at):
                at = at[int(key)]
            elif isinstance(at, dict) and key in at:
                at = at[key]
            else:
                raise self.wrong(place, f"the reference {reference[:200]!r} leads to nothing")
        return at

    def _operation(
        self,
        place: str,
        method: str,
        path: str,
        operation: dict[str, Any],
        shared: list[Any],
        seen: set[str],
    ) -> dict[str, Any]:
        said = str(operation.get("operationId") or f"{method} {path}")
        name = action_name(said)
        if not name or name in seen:
            raise self.wrong(place, f"{said[:60]!r} gives no name for an action, or one twice")
        seen.add(name)
        told = [_line(operation.get(key)) for key in ("summary", "description")]
        if operation.get("deprecated"):
            told.append("Deprecated.")
        return {
            "name": name,
            "method": method.upper(),
            "path": path,
            "description": " ".join(dict.fromkeys(one for one in told if one)) or f"{method.upper()} {path}",
            "parameters": self._parameters(place, path, operation, shared),
            "body": self._body(f"{place}/requestBody", operation.get("requestBody")),
            "security": self._security(place, operation),
        }

    def _parameters(
        self, place: str, path: str, operation: dict[str, Any], shared: list[Any]
    ) -> list[dict[str, Any]]:
        own = operation.get("parameters", [])
        if not isinstance(own, list) or not isinstance(shared, list):
            raise self.wrong(f"{place}/parameters", "this must be a list")
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for one in [*shared, *own]:
            given = self._mapping(self.resolved(one, f"{place}/parameters"), f"{place}/parameters")
            name, where = str(given.get("name", "")), str(given.get("in", ""))
            if where == "cookie" and not given.get("required"):
                continue
            if where not in _PLACES or not name:
                raise self.wrong(f"{place}/parameters", f"{name[:60]!r} is in {where[:20]!r}")
            if where == "header" and name.lower() in ("accept", "content-type", "authorization"):
                continue  # OpenAPI 3.1, section 4.8.12.1
            schema = given.get("schema")
            as_json = schema is None
            if schema is None and isinstance(content := given.get("content"), dict) and content:
                schema = self._mapping(next(iter(content.values())), place).get("schema")
            shape = self.schema(schema or {}, f"{place}/parameters/{_escaped(name)}/schema")
            if given.get("description"):
                shape = {**shape, "description": _line(given["description"])}
            found[where, name] = {
                "name": name,
                "in": where,
                "required": where == "path" or bool(given.get("required")),
                "explode": bool(given.get("explode", where == "query")),
                "json": as_json,
                "schema": shape,
            }
        there = {name for where, name in found if where == "path"}
        if missing := [name for name in re.findall(r"\{([^{}]+)\}", path) if name not in there]:
            raise self.wrong(f"{place}/parameters", f"{missing[0][:60]!r} of the path is no parameter")
        return list(found.values())

    def _body(self, place: str, given: Any) -> dict[str, Any] | None:
        if given is None:
            return None
        body = self._mapping(self.resolved(given, place), place)
        content = self._mapping(body.get("content", {}), f"{place}/content")
        kinds = {str(kind).partition(";")[0].strip().lower(): kind for kind in content}
        kind = next((one for one in kinds if one == "application/json" or one.endswith("+json")), "")
        if not kind and (kind := "application/x-www-form-urlencoded") not in kinds:
            if not body.get("required"):
                return None
            raise self.wrong(f"{place}/content", f"{', '.join(kinds)[:100] or 'nothing'} is no JSON or form")
        media = self._mapping(content[kinds[kind]], f"{place}/content")
        schema = self.schema(media.get("schema") or {}, f"{place}/content/{_escaped(kind)}/schema")
        return {"type": kind, "required": bool(body.get("required")), "schema": schema}

    def _security(self, place: str, operation: dict[str, Any]) -> list[str]:
        """The schemes of the first alternative that can be used."""
        asked = operation.get("security", self.data.get("security", []))
        if not isinstance(asked, list):
            raise self.wrong(f"{place}/security", "this must be a list")
        for one in asked:
            names = [str(name) for name in self._mapping(one, f"{place}/security")]
            if all(self._scheme(name) for name in names):
                return names
        if asked:
            raise self.wrong(f"{place}/security", "no alternative is a key, HTTP bearer or HTTP basic")
        return []

    def _scheme(self, name: str) -> dict[str, str]:
        """How a credential is sent; empty for what cannot be."""
        place = f"/components/securitySchemes/{_escaped(name)}"
        given = self._mapping(self._target(f"#{place}", place), place)
        given = self._mapping(self.resolved(given, place), place)
        kind, scheme = given.get("type"), str(given.get("scheme", "")).lower()
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", name):
            raise self.wrong(place, "this cannot be the name of a credential")
        if kind == "apiKey" and given.get("in") in ("header", "query"):
            return {"in": str(given["in"]), "name": str(given.get("name", ""))}
        if kind in ("oauth2", "openIdConnect") or (kind == "http" and scheme == "bearer"):
            return {"in": "bearer", "name": ""}
        return {"in": "basic", "name": ""} if kind == "http" and scheme == "basic" else {}

    def _servers(self) -> list[str]:
        found = []
        given = self.data.get("servers", [])
        for number, one in enumerate(given if isinstance(given, list) else []):
            place = f"/servers/{number}"
            server = self._mapping(one, place)
            url, variables = str(server.get("url", "")), server.get("variables", {})
            for name in re.findall(r"\{([^{}]+)\}", url):
                variable = variables.get(name) if isinstance(variables, dict) else None
                default = variable.get("default", "") if isinstance(variable, dict) else ""
                url = url.replace(f"{{{name}}}", str(default))
            parts = urlsplit(url)
            if not parts.netloc or parts.scheme not in ("http", "https"):
                continue
            try:
                parse_url(url)
            except InvalidArgument as err:
                raise self.wrong(f"{place}/url", err.message) from err
            if parts.query or parts.fragment:
                raise self.wrong(f"{place}/url", "a server has no query")
            found.append(url.rstrip("/"))
        if not found:
            raise self.wrong("/servers", "no server has a whole URL", "Name it: --server https://HOST/PATH")
        return list(dict.fromkeys(found))[:10]

    def schema(self, value: Any, place: str) -> dict[str, Any]:
        """A schema without references; what refers to itself, is too deep or too much is left out."""
        found = _Shape(lambda reference: self._target(reference, place)).of(value)
        return found if isinstance(found, dict) else {}


class _Shape:
    """Makes one schema; `target` gives what a reference leads to."""

    def __init__(self, target: Callable[[str], Any]) -> None:
        self._target, self._left = target, SCHEMA_NODES

    def of(self, value: Any, inside: tuple[str, ...] = (), depth: int = 0) -> dict[str, Any]:
        """`inside` are the references that led here."""
        self._left -= 1
        if not isinstance(value, dict) or self._left < 0 or depth > _DEPTH:
            return {}
        if isinstance(reference := value.get("$ref"), str):
            target = self._target(reference)
            if reference in inside:
                return {"description": f"As {reference.rpartition('/')[2][:60]} around it."}
            return self.of(target, (*inside, reference), depth + 1)
        found = {
            key: self._part(key, one, inside, depth + 1)
            for key, one in value.items()
            if key in _KEPT and self._left > 0
        }
        if found.pop("nullable", False) and isinstance(found.get("type"), str):
            found["type"] = [found["type"], "null"]
        if isinstance(needed := found.get("required"), list) and "properties" in found:
            found["required"] = [one for one in needed if one in found["properties"]]
        return found

    def _part(self, key: str, one: Any, inside: tuple[str, ...], depth: int) -> Any:
        if key == "properties" and isinstance(one, dict):
            pairs = one.items()
            return {str(name): self.of(each, inside, depth) for name, each in pairs if self._left > 0}
        if key in ("oneOf", "anyOf", "allOf") and isinstance(one, list):
            return [self.of(each, inside, depth) for each in one if self._left > 0]
        if key == "items" or (key == "additionalProperties" and isinstance(one, dict)):
            return self.of(one, inside, depth)
        if key == "description":
            return _line(one)
        if isinstance(one, list):
            self._left -= len(one)
            return [each for each in one[:_MOST_VALUES] if isinstance(each, _SCALARS)]
        return one if isinstance(one, _SCALARS) else None


def action_name(said: str) -> str:
    """An action's name for an operation: `listPets` is `list_pets`."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", said).lower()
    name = re.sub(r"[^a-z0-9]+", "_", words).lstrip("_0123456789")[:48].strip("_")
    return f"{name}_it" if name in _TAKEN else name


def argument_names(operation: Mapping[str, Any]) -> list[str]:
    """The arguments for the parameters of an operation, in their order, each another one."""
    found: list[str] = []
    for one in operation["parameters"]:
        name = re.sub(r"[^A-Za-z0-9]+", "_", one["name"]).strip("_")[:50] or "value"
        if not name[0].isalpha():
            name = f"p_{name}"
        while name in ("server", "body") or name.startswith("model_") or name in found:
            name = f"{one['in']}_{name}"[:60] if not name.startswith(one["in"]) else f"{name}_"
        found.append(name)
    return found


def _line(value: Any) -> str:
    text = " ".join(str(value or "").split())
    return text if len(text) <= _TEXT_CHARS else f"{text[: _TEXT_CHARS - 1]}…"


def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")[:100]


def _wrong(name: str, place: str, why: str, suggestion: str = "") -> InvalidArgument:
    where = f"{name}, at #{place}" if place else name
    return InvalidArgument(f"{where}: {why}.", field="from", suggestion=suggestion)
