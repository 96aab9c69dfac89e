"""Pictures of flows: as text, for Graphviz, and as SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from lightagentd.config.flows.definition import MOST_STEPS, Flow
from lightagentd.config.flows.drawing import FORMATS, drawn, layers

SVG = "{http://www.w3.org/2000/svg}"
FLOW = Flow.model_validate(
    {
        "description": "d",
        "agent": "ops",
        "step": [
            {"name": "end", "ask": "Good?", "depends_on": ["left", "right"]},
            {"name": "left", "call": "bash.exec", "depends_on": ["begin"], "on_failure": "mend"},
            {"name": "right", "flow": "nested", "depends_on": ["begin"], "requires_approval": True},
            {"name": "begin", "prompt": "x", "for_each": [1]},
            {"name": "mend", "prompt": "x", "when": {"step": "left", "status": "failed"}},
        ],
    }
)
STATES = {
    "begin": "success",
    "left": "failed",
    "right": "waiting_approval",
    "mend": "running",
    "end": "pending",
}


def test_steps_of_a_layer_can_run_at_once() -> None:
    assert layers(FLOW) == [["begin"], ["left", "right"], ["end", "mend"]]


def test_the_text_has_the_steps_in_an_order_in_which_they_can_run() -> None:
    assert drawn(FLOW, "text", None).splitlines() == [
        "begin  [prompt]  for each",
        "left  [bash.exec]  after begin",
        "right  [flow nested]  after begin  approval",
        "end  [ask]  after left, right",
        "mend  [prompt]  after left  when …",
    ]
    marks = [line.partition(" ")[0] for line in drawn(FLOW, "text", STATES).splitlines()]
    assert marks == ["✓", "✗", "?", "·", "▶"]


def test_the_graph_for_graphviz_has_all_nodes_and_edges() -> None:
    lines = drawn(FLOW, "dot", STATES).splitlines()
    assert (lines[0], lines[-1]) == ("digraph flow {", "}")
    node = re.compile(r'  "([a-z]+)" \[label="\1\\n([a-z]+)", fillcolor="(#[0-9a-f]{6}|white)"\];')
    edge = re.compile(r'  "([a-z]+)" -> "([a-z]+)"( \[style=dashed, label="fails"\])?;')
    nodes = {found[1]: found[3] for line in lines if (found := node.fullmatch(line))}
    edges = {(found[1], found[2], bool(found[3])) for line in lines if (found := edge.fullmatch(line))}
    assert nodes.keys() == STATES.keys()
    assert (nodes["end"], nodes["left"]) == ("white", "#f2b1a8")
    assert edges == {
        *(
            ("begin", "left", False),
            ("begin", "right", False),
            ("left", "end", False),
            ("right", "end", False),
        ),
        ("left", "mend", True),
    }
    assert len(lines) == 3 + len(nodes) + len(edges) + 1


@pytest.mark.parametrize("states", [None, STATES])
def test_the_picture_is_xml_that_shows_every_step_within_its_frame(states: dict[str, str] | None) -> None:
    root = ET.fromstring(drawn(FLOW, "svg", states))
    assert root.tag == f"{SVG}svg"
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    boxes = [
        {key: int(one.attrib[key]) for key in ("x", "y", "width", "height")}
        for one in root.iter(f"{SVG}rect")
    ]
    assert len({(one["x"], one["y"]) for one in boxes}) == len(FLOW.step) == len(boxes)
    assert all(one["x"] + one["width"] <= width and one["y"] + one["height"] <= height for one in boxes)
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert texts[::2] == [step.name for step in FLOW.step]
    assert texts[3] == ("call failed" if states else "call")
    lines = list(root.iter(f"{SVG}line"))
    assert (len(lines), len([one for one in lines if "stroke-dasharray" in one.attrib])) == (5, 1)
    assert all(int(one.attrib["y1"]) < int(one.attrib["y2"]) for one in lines)


def test_long_names_and_many_steps_are_drawn() -> None:
    name = "a" * 64
    steps = [{"name": name, "prompt": "x"}]
    steps += [{"name": f"s{n}", "prompt": "x", "depends_on": [name]} for n in range(MOST_STEPS - 1)]  # type: ignore[dict-item]
    flow = Flow.model_validate({"description": "d", "step": steps})
    for form in FORMATS:
        assert drawn(flow, form, None).count(name) >= MOST_STEPS - 1 or form == "svg"
    box = next(ET.fromstring(drawn(flow, "svg", None)).iter(f"{SVG}rect"))
    assert int(box.attrib["width"]) > 64 * 7
