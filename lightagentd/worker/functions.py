"""Makes a tool of a file of functions: each one with `tool_info` is an action, as other programs have them.

    def show(city: str, days: int = 1) -> str:
        "Say what the weather will be."
        ...

    show.tool_info = {"effect": "reach"}

`tool_info` may say `name`, `description`, `parameters` (JSON Schema of an object), `effect`, `timeout_s`,
`host` and `taints`; what it leaves out comes from the function: its name, docstring and signature. It may
also stand in the module: a dictionary, or a list of them, whose `name` is that of a function. The effect is
change unless it says otherwise, and the output counts as text from outside.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import typing
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from lightagentd.tool import ActionMethod, Args, Context, Effect, Result, Tool, action
from lightagentd.toolkit.schema_model import args_model

INFO = "tool_info"


class Misdeclared(TypeError):
    """What is wrong with a function, and the line where it begins."""

    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.line = line


class _Object(BaseModel):
    model_config = ConfigDict(extra="allow", defer_build=True)

    type: Literal["object"] = "object"
    properties: dict[str, Any] = Field(default_factory=dict)
    required: list[str] = Field(default_factory=list)


class _Info(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)

    name: str = ""
    description: str = ""
    parameters: _Object | None = None
    effect: Effect = Effect.CHANGE
    timeout_s: float = Field(default=30.0, gt=0, le=86_400)
    host: str = ""
    taints: bool = True


def tool_of(module: ModuleType, name: str) -> type[Tool] | None:
    """The class of a tool with an action for each such function; None where there is none.

    Raises Misdeclared.
    """
    actions: dict[str, ActionMethod] = {}
    for function, given in _declared(module):
        line = function.__code__.co_firstlineno
        try:
            info = _Info.model_validate(given)
            called = info.name or function.__name__
            if called in actions or hasattr(Tool, called):
                raise TypeError("there is another one of that name")
            actions[called] = _action(function, called, info)
        except ValidationError as err:
            first = err.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise Misdeclared(f"{INFO} of {function.__name__}: {where}: {first['msg']}", line) from err
        except (TypeError, ValueError, NameError) as err:
            raise Misdeclared(f"{INFO} of {function.__name__}: {err}", line) from err
    if not actions:
        return None
    told = inspect.cleandoc(module.__doc__ or "") or f"The functions of {name}.py."
    return type(name, (Tool,), {"__doc__": told, "__module__": module.__name__, "name": name, **actions})


def _declared(module: ModuleType) -> Iterator[tuple[Any, Any]]:
    functions = {key: one for key, one in vars(module).items() if inspect.isfunction(one)}
    for one in functions.values():
        if one.__module__ == module.__name__ and INFO in vars(one):
            yield one, vars(one)[INFO]
    given = getattr(module, INFO, None)
    for info in given if isinstance(given, list) else [given] if given is not None else []:
        named = info.get("name") if isinstance(info, dict) else None
        if named not in functions:
            raise Misdeclared(f"{INFO} of the file names no function of it: {str(named)[:60]!r}", 0)
        yield functions[named], info


def _action(function: Callable[..., Any], called: str, info: _Info) -> ActionMethod:
    takes = inspect.signature(function).parameters
    model = _from_schema(function, called, info.parameters) if info.parameters else _from_signature(function)
    wants_context = "ctx" in takes

    async def run(_self: Tool, ctx: Context, args: Args) -> Result:
        # What was left out comes as the field's None, and the function has a default of its own.
        given = {
            name: found for name in type(args).model_fields if (found := getattr(args, name)) is not None
        }
        if wants_context:
            given["ctx"] = ctx
        if inspect.iscoroutinefunction(function):
            found = await function(**given)
        else:
            found = await asyncio.to_thread(function, **given)
        if isinstance(found, Result):
            return found
        return Result(
            output=found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, indent=1)
        )

    run.__doc__ = info.description or inspect.getdoc(function)
    run.__annotations__ = {"ctx": Context, "args": model, "return": Result}
    if not run.__doc__:
        raise TypeError("it needs a description: it is what a model reads")
    return action(effect=info.effect, taints=info.taints, timeout_s=info.timeout_s, host=info.host)(run)


def _from_schema(function: Callable[..., Any], called: str, given: _Object) -> type[Args]:
    takes = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in takes.values()):
        return args_model(f"{called}_args", given.properties, given.required)
    if unknown := [name for name in given.properties if name not in takes]:
        raise TypeError(f"the function does not take the parameter {unknown[0][:60]!r}")
    needed = [name for name, one in takes.items() if one.default is one.empty and name != "ctx"]
    if missing := [name for name in needed if name not in given.required]:
        raise TypeError(f"the function needs {missing[0]}, which the parameters do not require")
    return args_model(f"{called}_args", given.properties, given.required)


def _from_signature(function: Callable[..., Any]) -> type[Args]:
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for name, one in inspect.signature(function).parameters.items():
        if name == "ctx":
            continue
        if name not in hints or one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise TypeError(f"the parameter {name} needs a type, or the {INFO} needs parameters")
        fields[name] = (hints[name], ... if one.default is one.empty else one.default)
    model: type[Args] = create_model(f"{function.__name__}_args", __base__=Args, **fields)
    model.model_json_schema()
    return model
