"""Faults of flows: each is told as a sentence with file and line, before anything runs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from lightagentd.config.flows.checking import MOST_BYTES, MOST_TOLD, Checked, Known, check_flow, read_flow
from lightagentd.config.flows.definition import MOST_STEPS
from lightagentd.errors import ConfigError
from tests.conftest import write

HEAD = 'description = "d"\nagent = "ops"\n'
INPUTS = '[inputs.host]\n[inputs.hosts]\ntype = "list"\n'


def step(name: str, rest: str = 'prompt = "x"', **lists: list[str]) -> str:
    more = "".join(f"{key} = {value!r}\n" for key, value in lists.items())
    return f'[[step]]\nname = "{name}"\n{rest}\n{more}'


def after(name: str, *others: str, rest: str = 'prompt = "x"') -> str:
    return step(name, rest, depends_on=[*others])


ANYTHING = Known()


def check(text: str, known: Known = ANYTHING) -> Checked:
    return check_flow(HEAD + INPUTS + text, "f.toml", known)


def faults(text: str, known: Known = ANYTHING) -> list[str]:
    return [one.removeprefix("f.toml") for one in check(text, known).faults]


P = "prompt = 'x'\n"
RUN = "call = 'bash.exec'\nargs = {{ command = '{}' }}"


def undo(argument: str) -> str:
    return f"undo = {{ call = 'bash.exec', args = {{ {argument} }} }}"


FAULTS: dict[str, list[tuple[str, str]]] = {
    "names and the graph": [
        (step("a") + step("a"), ":9: step a: there is another step with this name, at f.toml:6."),
        (
            after("report", "fact") + step("facts"),
            ":6: step report: depends_on names fact, and there is no such step. Did you mean facts?",
        ),
        (after("a", "b", "b") + step("b"), ":6: step a: depends_on names a step twice."),
        (after("a", "a"), ":6: step a: it waits for itself."),
        (step("a", P + "on_failure = 'a'"), ":6: step a: it waits for itself."),
        (step("a", P + "on_failure = 'b'"), ":6: step a: on_failure names b, and there is no such step."),
        (after("a", "c") + after("b", "a") + after("c", "b"), "the steps wait for each other: "),
        (after("a", "h") + step("h") + step("b", P + "on_failure = 'h'", depends_on=["a"]), "each other"),
    ],
    "references": [
        (
            step("a", "prompt = '{inputs.hoost}'"),
            ":6: step a: prompt: {inputs.hoost} names no input; there are: host, hosts.",
        ),
        (step("a", "prompt = '{inputs.host.x}'"), "names no input"),
        (step("a", "prompt = '{inputs}'"), "names no input"),
        (step("a", "prompt = '{item}'"), "{item} is only in what a step with for_each runs."),
        (step("a", P + "for_each = '{item}'"), "{item} is only in what"),
        (step("a", P + "for_each = [1]\n" + undo("a = '{item}'")), "{item} is only in what"),
        (step("a", "prompt = '{run.name}'"), "{run.name} has one of: id, flow, owner."),
        (
            step("facts") + after("b", "facts", rest="prompt = '{fact.output}'"),
            "{fact.output} names no step. Did you mean facts?",
        ),
        (step("a") + step("b", "prompt = '{a.output}'"), "{a.output} is about a step that is not before"),
        (step("a", "prompt = '{a.output}'"), "is not before this one"),
        (step("a", P + "for_each = [1]\ncheck = 'test {a.output}'"), "not there yet when one is checked"),
        *(
            (step("a") + after("b", "a", rest=f"prompt = '{{a{path}}}'"), "has one of output, json, status")
            for path in ("", ".text", ".output.x", ".status.x")
        ),
        (step("a", "prompt = '{'"), ":6: step a: prompt: the template is broken: "),
        (step("a", "call = 'a.b'\nargs = { a = [{ b = '{x y}' }] }"), "args: the template is broken"),
    ],
    "what may have no value": [
        (
            step("a", P + "on_failure = 'continue'") + after("b", "a", rest="prompt = '{a.output}'"),
            "{a.output} may have no value, since a may fail, and the run goes on; write ? at its end, as",
        ),
        (
            step("z")
            + after("a", "z", rest=P + "when = { step = 'z', contains = 'x' }")
            + after("b", "a", rest="prompt = '{a.json.x}'"),
            "since a is skipped unless its when holds",
        ),
        (
            step("a", P + "on_failure = 'h'") + step("h") + after("b", "h", rest="prompt = '{h.output}'"),
            "since h runs only when another step fails",
        ),
    ],
    "commands": [
        (step("a", RUN.format('echo "{inputs.host}"')), "command: {inputs.host} stands in double quotes"),
        (step("a", P + "check = '# {inputs.host}'"), "check: {inputs.host} stands in a comment"),
        (step("a", P + undo("command = '${inputs.host}'")), "undo.command: {inputs.host} stands behind $"),
        (step("a", RUN.format("x" * 131_072)), "it has more than 131071 bytes"),
    ],
    "conditions": [
        (step("a", P + "when = { input = 'x', equals = 1 }"), "about the input x, and there is none."),
        (
            step("facts") + after("b", "facts", rest=P + "when = { step = 'fact', equals = 1 }"),
            "a condition is about the step fact, and there is none. Did you mean facts?",
        ),
        (
            step("a") + step("b", P + "cancel_if = { step = 'a', equals = 1 }"),
            "about the step a, which is not before this one; name it in depends_on.",
        ),
    ],
    "lists": [
        (step("a", P + "for_each = 'a,b'"), ":6: step a: for_each is a list, or one reference to a list."),
        (step("a", P + "for_each = '{inputs.hosts} x'"), "is a list, or one reference"),
        (step("a", P + "for_each = '{inputs.host}'"), "the input host is of the type string"),
        (
            step("a") + after("b", "a", rest=P + "for_each = '{a.output}'"),
            "for_each is a list, and {a.output} is a text; the output as JSON is {a.json}.",
        ),
    ],
    "the model": [
        (step("a", "prompt = 5"), ":6: step a: prompt: Input should be a valid string."),
        (step("a", ""), ":6: step a: needs one of prompt, call, flow and ask, and has none."),
        (step("a", P + "retry = 1"), ":6: step a: the key 'retry' is not known."),
        (step("a", P + "undo = {}"), "the key 'undo.call' is missing"),
        (step("a", P + "when = { step = 'b' }"), "step a: when.0: a condition needs"),
        ("[[step]]\nprompt = 'x'\n", ":6: step 1: the key 'name' is missing."),
        (step("a", P + "depends_on = 'b'"), "depends_on: Input should be a valid list."),
        ("[inputs.x]\ntype = 'text'\n" + step("a"), ": inputs.x.type: "),
    ],
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_a_sentence_with_file_and_line(what: str) -> None:
    for text, told in FAULTS[what]:
        found = faults(text)
        assert any(told in one for one in found), found
        assert all(one.startswith(":") and one[-1] in ".?" for one in found)


@pytest.mark.parametrize(
    "text",
    [
        step("a", "prompt = '{run.id} {inputs.host} {inputs.hosts}'"),
        step("a", "prompt = '{item} {item.x}'\nfor_each = '{inputs.hosts}'"),
        step("a") + after("b", "a", rest="prompt = 'x'\nfor_each = '{a.json.x?}'"),
        step(
            "a", "call = 'a.b'\nundo = { call = 'a.b', args = { x = '{a.output}' } }\non_failure = 'continue'"
        ),
        step("a", P + "on_failure = 'continue'")
        + after("b", "a", rest="prompt = '{a.output}'\nwhen = { step = 'a', status = 'success' }"),
        step("a", P + "on_failure = 'continue'") + after("b", "a", rest="prompt = '{a.output?} {a.status}'"),
        step("a", "prompt = 'x'\non_failure = 'h'") + after("b", "a") + step("h", "prompt = '{a.status}'"),
        step("a", RUN.format('echo {inputs.host} "$HOME" # it is') + "\ncheck = 'test {a.output} = x'"),
    ],
)
def test_what_is_right_has_no_fault(text: str) -> None:
    assert check(text).faults == ()


def test_the_line_is_that_of_the_header_or_none() -> None:
    text = '[[step]]\nname = "a"\nprompt = """{}"""\n\n  [[ step ]] # b\nname = "b"\nprompt = "{{x}}"\n'
    assert faults(text.format("x\u2028y")) == [":10: step b: prompt: {x} names no step."]
    assert faults(text.format('\nname = "b"\n')) == [":12: step b: prompt: {x} names no step."]
    for trick in ("\n[[step]]\n", '\n[[step]]\nname = "b"\n'):
        assert faults(text.format(trick)) == [": step b: prompt: {x} names no step."]
    quoted = '[["step"]]\nname = "a"\nprompt = """\n[[step]]\n{x}"""\n'
    assert faults(quoted) == [": step a: prompt: {x} names no step."]
    inline = check_flow(HEAD + 'step = [{ name = "a", prompt = "{x}" }]\n', "f.toml")
    assert inline.faults == ("f.toml: step a: prompt: {x} names no step.",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = 1\nb = \n", "f.toml:2: it is not TOML: Invalid value."),
        ('a = "', "f.toml: it is not TOML: Unterminated string."),
        ("a = " + "9" * 5000, "f.toml: it is not TOML: Exceeds the limit (4300 digits)"),
        ("a = " + "[" * 5000, "f.toml: it is not TOML: "),
        ("", "f.toml: the key 'description' is missing."),
        (HEAD, "f.toml: the key 'step' is missing."),
        (HEAD + "step = []", "f.toml: step: "),
        (HEAD + "step = 5", "f.toml: step: Input should be a valid list."),
        (HEAD + "step = [5]", "f.toml: step 1: Input should be a valid table."),
        ("x" * (MOST_BYTES + 1), "f.toml: it has more than 4 MiB."),
    ],
)
def test_what_is_no_flow_at_all_is_told(text: str, told: str) -> None:
    assert check_flow(text, "f.toml").faults[0].startswith(told)


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    (found,) = read_flow(tmp_path / "no.toml").faults
    assert "no.toml cannot be read" in found
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    assert "cannot be read" in read_flow(tmp_path / "bytes.toml").faults[0]
    good = write(tmp_path / "good.toml", 'description = "d"\n' + step("a"))
    assert read_flow(good).faults == (f"{good}:2: step a: it names no agent, and neither does the flow.",)
    assert read_flow(good, agent="ops").usable().agent == "ops"


def test_a_step_that_nothing_leads_to_is_a_warning() -> None:
    assert check(step("a") + after("b", "a") + step("c")).warnings == (
        "f.toml:13: step c is isolated: nothing leads to it or from it.",
    )
    assert check(step("a")).warnings == ()
    assert check(step("a", "prompt = 'x'\non_failure = 'h'") + step("h")).warnings == ()


def test_a_command_that_reads_a_value_again_is_a_warning() -> None:
    (found,) = check(step("a", RUN.format("ssh web1 ls {inputs.host}"))).warnings
    assert found.startswith("f.toml:6: step a: args.command: ssh may read a value again as code")


NESTED = check_flow(
    HEAD + "[inputs.n]\ntype = 'integer'\n[inputs.p]\npattern = 'a+'\ndefault = 'a'\n" + step("a"), "n.toml"
).usable()
KNOWN = Known(
    agents=["ops", "web"],
    flows={"nested": NESTED},
    has_action=lambda agent, call: agent == "ops" or call == "file.read",
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (step("a", "prompt = 'x'\nagent = 'wep'"), ["there is no agent wep. Did you mean web?"]),
        (step("a", "prompt = 'x'\nfallback_agent = 'nobody'"), ["there is no agent nobody."]),
        (step("a", "call = 'file.write'\nagent = 'web'"), ["the agent web has no action file.write."]),
        (
            step("a", "call = 'file.write'\nfallback_agent = 'web'"),
            ["the agent web has no action file.write."],
        ),
        (
            step("a", "call = 'file.read'\nagent = 'web'\ncheck = 'true'"),
            ["the agent web has no action bash.exec."],
        ),
        (
            step("a", "call = 'file.read'\nagent = 'web'\nundo = { call = 'file.write' }"),
            ["the agent web has no action file.write."],
        ),
        (step("a", "call = 'file.read'\nfallback_agent = 'web'\nundo = { call = 'file.write' }"), []),
        (step("a", "flow = 'neste'"), ["there is no flow neste. Did you mean nested?"]),
        (step("a", "flow = 'nested'"), ["the flow nested needs the input n."]),
        (
            step("a", "flow = 'nested'\ninputs = { n = 1, m = 2 }"),
            ["the flow nested has no input m."],
        ),
        (
            step("a", "flow = 'nested'\ninputs = { n = 'x' }"),
            ["the flow nested: The input n is not of the type integer."],
        ),
        (step("a", "flow = 'nested'\ninputs = { n = '{inputs.host}', p = 'aa' }"), []),
    ],
)
def test_what_a_step_names_has_to_be_there(text: str, told: list[str]) -> None:
    assert [one.removeprefix(":6: step a: ") for one in faults(text, KNOWN)] == told


def test_a_run_needs_an_agent() -> None:
    text = 'description = "d"\n' + step("a", "flow = 'nested'\ninputs = { n = 1 }")
    assert "it names no agent" in check_flow(text, "f.toml", KNOWN).faults[0]
    assert check_flow(text + step("b", "prompt = 'x'\nagent = 'ops'"), "f.toml", KNOWN).faults == ()


def test_only_the_first_faults_are_told() -> None:
    found = check("".join(step(f"a{n}", f"prompt = '{{b{n}.output}}'") for n in range(MOST_STEPS)))
    assert len(found.faults) == MOST_TOLD
    with pytest.raises(ConfigError, match="And 47 more faults"):
        found.usable()


def test_a_flow_of_many_steps_is_checked() -> None:
    names = [f"s{n}" for n in range(MOST_STEPS)]
    chain = step("s0") + "".join(
        after(name, before, "s0", rest=f"prompt = '{{s0.output}} {{{before}.output}}'")
        for before, name in pairwise(names[1:])
    )
    assert check(chain + after("s1", "s0")).faults == ()
    wide = "".join(after(name, *names[max(0, n - 50) : n]) for n, name in enumerate(names))
    assert check(wide).faults == ()
    circle = wide.replace("depends_on = []", "depends_on = ['s1999']", 1)
    assert "wait for each other" in faults(circle)[0]
