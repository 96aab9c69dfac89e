"""Flows that a program writes: the same as those that a person writes."""

from __future__ import annotations

import random
import subprocess
import sys
import tomllib
from typing import Any

import pytest

from lightagentd.client import FlowBuilder
from lightagentd.config.flows.checking import check_flow
from lightagentd.errors import InvalidArgument

TEXTS = (
    *("", "x", "a\nb", "\n", '"""', "'''", '"\\"', "\\n", "\\", "a\\\n b", "\r\n", "\t", "\x00\x1b\x7f\x85"),
    *("é 🙂 \u2028", "[[step]]\nname = 1", "{{x}}", "a # b", " x \n y ", "\ud7ff\ue000", 'end"', "end\\"),
)


def host() -> FlowBuilder:
    return (
        FlowBuilder("Look at a host", agent="ops", timeout_s=60.5)
        .input("host")
        .input("n", "integer", description="How\nmany", default=3, choices=[1, 2, 3])
        .step("facts", call="bash.exec", args={"command": "ping -c {inputs.n} {inputs.host}", "a b": {}})
        .step(
            "each", depends_on=["facts"], for_each=["a", 1, 1.5], prompt="{item}\n{facts.output}", agent=None
        )
        .step(
            "last", depends_on=["each"], ask="Good?", when={"step": "each", "status": "success", "not": True}
        )
    )


def test_a_written_flow_reads_back_as_the_same() -> None:
    text = host().to_toml()
    assert tomllib.loads(text) == host().definition()
    found = check_flow(text, "flow").usable()
    assert [step.kind for step in found.step] == ["call", "prompt", "ask"]
    assert (found.agent, found.timeout_s, found.inputs["n"].default) == ("ops", 60.5, 3)
    assert found.step[2].when[0].negated
    assert 'prompt = """\n{item}\n{facts.output}"""' in text


def test_any_value_reads_back_as_the_same() -> None:
    rng = random.Random(18)

    def value(depth: int = 0) -> Any:
        kind = rng.randint(0, 6 if depth < 4 else 4)
        if kind < 3:
            return "".join(rng.choices(TEXTS, k=rng.randint(0, 3)))
        if kind < 5:
            return rng.choice((True, False, 0, -5, 1 << 62, 1.0, -1.5e300, 1e-7, 5e-324, 0.1))
        if kind == 5:
            return [value(depth + 1) for _ in range(rng.randint(0, 3))]
        return {rng.choice(TEXTS): value(depth + 1) for _ in range(rng.randint(0, 3))}

    for _ in range(300):
        flow = FlowBuilder(rng.choice(TEXTS), agent=rng.choice(TEXTS)).input("a", default=value())
        flow.step("a", args=value(), prompt=rng.choice(TEXTS)).step(
            "b", **{"schema": value(), "a.b\n": value()}
        )
        found = tomllib.loads(flow.to_toml())
        assert found == flow.definition()
        assert repr(found) == repr(flow.definition())


def test_what_is_wrong_is_told_with_the_line_of_the_text() -> None:
    assert host().check() == []
    flow = host().step("more", prompt="{fact.output}", depends_on=["last"]).step("last", prompt="x")
    (found,) = flow.check()
    line = int(found.split(":")[1])
    assert flow.to_toml().split("\n")[line - 1 : line + 1] == ["[[step]]", 'name = "last"']
    assert "there is another step with this name" in found
    assert FlowBuilder("d").check() == ["flow: the key 'step' is missing."]


@pytest.mark.parametrize(
    "value", [object(), float("nan"), float("inf"), [None], {"a": None}, b"x", "\ud800", {1}]
)
def test_a_value_that_no_flow_has_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument):
        FlowBuilder("d").step("a", args={"a": value}).to_toml()


def test_it_needs_neither_the_daemon_nor_the_models_of_its_files() -> None:
    code = (
        "import sys; from lightagentd.client import FlowBuilder\n"
        "FlowBuilder('d').step('a', prompt='x').to_toml()\n"
        "print([one for one in sys.modules if 'pydantic' in one or 'daemon.' in one or 'config' in one])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
