"""The picture of a flow: as text, for Graphviz, or as SVG."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter
from html import escape

from lightagentd.config.flows.definition import Flow

_MARKS = {
    "success": "✓",
    "failed": "✗",
    "running": "▶",
    "skipped": "-",
    "waiting_approval": "?",
    "cancelled": "x",
}
_COLORS = {
    "success": "#b7e1b0",
    "failed": "#f2b1a8",
    "running": "#b5d3f3",
    "skipped": "#e3e3e3",
    "waiting_approval": "#f6df9c",
    "cancelled": "#d8c8de",
}
_WIDE, _HIGH, _GAP, _CHAR = 180, 40, 60, 7


FORMATS = ("text", "dot", "svg")


def drawn(flow: Flow, form: str, states: Mapping[str, str] | None) -> str:
    """The picture in one of FORMATS, with the states of the steps of a run."""
    draw = {"text": as_lines, "dot": as_dot, "svg": as_svg}[form]
    return draw(flow, states)


def layers(flow: Flow) -> list[list[str]]:
    """The steps by how many others come before them: those of a layer can run at once."""
    before = flow.before()
    depth: dict[str, int] = {}
    for name in TopologicalSorter(before).static_order():
        depth[name] = max((depth[one] + 1 for one in before[name]), default=0)
    found: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for step in flow.step:
        found[depth[step.name]].append(step.name)
    return found


def as_lines(flow: Flow, states: Mapping[str, str] | None = None) -> str:
    """One line for each step, in an order in which they can run: what it is and what it waits for."""
    steps, before = {step.name: step for step in flow.step}, flow.before()
    rows = []
    for names in layers(flow):
        for name in names:
            mark = f"{_MARKS.get((states or {}).get(name, ''), '·')} " if states is not None else ""
            step = steps[name]
            what = step.call or (f"flow {step.flow}" if step.flow else step.kind)
            after = f"  after {', '.join(before[name])}" if before[name] else ""
            extra = "  for each" if step.for_each is not None else ""
            extra += "  when …" if step.when else ""
            extra += "  approval" if step.requires_approval else ""
            rows.append(f"{mark}{name}  [{what}]{after}{extra}")
    return "\n".join(rows)


def as_dot(flow: Flow, states: Mapping[str, str] | None = None) -> str:
    """For Graphviz."""
    lines = [
        "digraph flow {",
        "  rankdir=TB;",
        '  node [shape=box, style="rounded,filled", fillcolor=white];',
    ]
    for step in flow.step:
        color = _COLORS.get((states or {}).get(step.name, ""), "white")
        lines.append(f'  "{step.name}" [label="{step.name}\\n{step.kind}", fillcolor="{color}"];')
    for step in flow.step:
        lines += [f'  "{one}" -> "{step.name}";' for one in step.depends_on]
        if step.handler:
            lines.append(f'  "{step.name}" -> "{step.handler}" [style=dashed, label="fails"];')
    return "\n".join([*lines, "}"])


def as_svg(flow: Flow, states: Mapping[str, str] | None = None) -> str:
    """A picture that needs nothing else."""
    rows = layers(flow)
    wide = max(_WIDE, *(20 + _CHAR * len(step.name) for step in flow.step))
    places: dict[str, tuple[int, int]] = {}
    for y, names in enumerate(rows):
        for x, name in enumerate(names):
            places[name] = 20 + x * (wide + 20), 20 + y * (_HIGH + _GAP)
    width = 20 + max(len(names) for names in rows) * (wide + 20)
    height = 20 + len(rows) * (_HIGH + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="13">',
        '<defs><marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
    ]
    for step in flow.step:
        edges = [(one, step.name, "") for one in step.depends_on]
        edges += [(step.name, step.handler, ' stroke-dasharray="5 4"')] if step.handler else []
        for above, below, dash in edges:
            (x1, y1), (x2, y2) = places[above], places[below]
            parts.append(
                f'<line x1="{x1 + wide // 2}" y1="{y1 + _HIGH}" x2="{x2 + wide // 2}" y2="{y2}"'
                f' stroke="black" marker-end="url(#a)"{dash}/>'
            )
    for step in flow.step:
        x, y = places[step.name]
        state = (states or {}).get(step.name, "")
        parts.append(
            f'<rect x="{x}" y="{y}" width="{wide}" height="{_HIGH}" rx="6" stroke="black"'
            f' fill="{_COLORS.get(state, "white")}"/>'
            f'<text x="{x + 10}" y="{y + 17}">{escape(step.name)}</text>'
            f'<text x="{x + 10}" y="{y + 33}" fill="#555">{escape(f"{step.kind} {state}".strip())}</text>'
        )
    return "\n".join([*parts, "</svg>"])
