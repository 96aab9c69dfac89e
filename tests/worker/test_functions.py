"""Functions with `tool_info` as tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightagentd.tool import Result
from lightagentd.worker.calls import check_args, describe, run_action
from lightagentd.worker.loader import load_tool
from tests.tools.conftest import CallContext
from tests.worker.test_loader import write

TWO = '''\
"""Weather by hand."""

import threading


def show(city: str, days: int = 1) -> str:
    "Say what the weather will be."
    return f"{city} {days} {threading.current_thread() is threading.main_thread()}"


show.tool_info = {"effect": "observe", "taints": False}


async def tell(ctx, *, place, loud=False):
    return {"place": place, "loud": loud, "agent": ctx.agent}


tool_info = [
    {
        "name": "tell",
        "description": "Tell of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"enum": ["Rome", "Oslo"]}, "loud": {"type": "boolean"}},
            "required": ["place"],
        },
    }
]


def helper() -> None: ...
'''


async def called(path: Path, context: CallContext, action: str, **args: Any) -> str:
    found = load_tool(path).actions[action]
    whole = check_args(
        found, check_args(found, args).model_dump(mode="json")
    )  # as the daemon and a worker do
    result = await run_action(found, whole, context)  # type: ignore[arg-type]
    assert isinstance(result, Result)
    return result.output


async def test_functions_with_tool_info_are_actions(tmp_path: Path) -> None:
    path, context = write(tmp_path, "two", TWO), CallContext(scratch=tmp_path)
    found = describe(load_tool(path))
    assert (found["problem"], found["description"]) == ("", "Weather by hand.")
    actions = {one["name"]: one for one in found["actions"]}
    assert {name: one["effect"] for name, one in actions.items()} == {"show": "observe", "tell": "change"}
    assert (actions["show"]["taints"], actions["tell"]["taints"]) == (False, True)
    assert actions["show"]["description"] == "Say what the weather will be."
    schema = actions["tell"]["schema"]
    assert schema["properties"]["place"] == {"enum": ["Rome", "Oslo"], "title": "Place"}
    assert (schema["required"], schema["additionalProperties"]) == (["place"], False)
    assert await called(path, context, "show", city="Rome") == "Rome 1 False"
    assert await called(path, context, "show", city="Rome", days=3) == "Rome 3 False"
    told = await called(path, context, "tell", place="Oslo")
    assert told.split() == ["{", '"place":', '"Oslo",', '"loud":', "false,", '"agent":', '"ops"', "}"]


@pytest.mark.parametrize(
    ("code", "said", "line"),
    [
        ("def f(a):\n    'A.'\nf.tool_info = {}\n", "the parameter a needs a type", 1),
        ("x = 1\ndef f(): ...\nf.tool_info = {}\n", "it needs a description", 2),
        ("def f(): 'A.'\nf.tool_info = {'efect': 'observe'}\n", "efect: Extra inputs are not permitted", 1),
        ("def f(): 'A.'\nf.tool_info = {'effect': 'none'}\n", "effect: Input should be 'observe'", 1),
        ("def f(): 'A.'\nf.tool_info = 7\n", "valid dictionary", 1),
        ("tool_info = {'name': 'g'}\n", "names no function of it: 'g'", 0),
        (
            "def f(a): 'A.'\nf.tool_info = {'parameters': {'properties': {'b': {}}}}\n",
            "the function does not take the parameter 'b'",
            1,
        ),
        (
            "def f(a=1): 'A.'\nf.tool_info = {'parameters': {'properties': {'a': {'type': 'text'}}}}",
            "the parameter a has the unknown type 'text'",
            1,
        ),
        (
            "def f(a): 'A.'\nf.tool_info = {'parameters': {}}\n",
            "needs a, which the parameters do not require",
            1,
        ),
        ("def close(): 'A.'\nclose.tool_info = {}\n", "another one of that name", 1),
        ("def f(a: 'Nowhere'): 'A.'\nf.tool_info = {}\n", "name 'Nowhere' is not defined", 1),
    ],
)
def test_what_is_wrong_is_said_with_the_line(tmp_path: Path, code: str, said: str, line: int) -> None:
    found = load_tool(write(tmp_path, "odd", code))
    assert said in found.error
    assert found.line == line
