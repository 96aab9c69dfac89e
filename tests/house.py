"""The figures of the house: what `make stats` prints and what tests/test_house.py holds to.

Everything is read from the source with `ast`; nothing is imported.
"""

from __future__ import annotations

import ast
import functools
import gc
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = "lightagentd"
METHODS, PARAMETERS = 20, 6
"""Classes with more methods and functions with more parameters are counted."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """One file of the package; it loads `imports`, and only its types need `typed`."""

    name: str
    path: Path
    tree: ast.Module
    lines: int
    imports: set[str] = field(default_factory=set)
    typed: set[str] = field(default_factory=set)

    @property
    def room(self) -> str:
        """The folder directly below the package, or the module's own name in the root."""
        return self.name.partition(".")[2].partition(".")[0]

    @property
    def is_generated(self) -> bool:
        return (ast.get_docstring(self.tree) or "").startswith("Generated from the code")

    @functools.cached_property
    def definitions(self) -> list[Definition | ast.ClassDef]:
        return [one for one in statements(self.tree) if isinstance(one, Definition | ast.ClassDef)]

    def functions(self) -> Iterator[Definition]:
        return (one for one in self.definitions if isinstance(one, Definition))

    def classes(self) -> Iterator[ast.ClassDef]:
        return (one for one in self.definitions if isinstance(one, ast.ClassDef))


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements below a node; to walk the expressions, too, takes ten times as long."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from statements(child)


def code_lines(module: Module) -> int:
    """Lines that are neither blank nor a comment nor a docstring."""
    documented = {
        number
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(module.path.read_text().splitlines(), start=1)
    return sum(number not in documented and line.strip()[:1] not in ("", "#") for number, line in lines)


def tracked(*patterns: str) -> list[Path]:
    """The files of the repository that git knows and that are there."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *patterns],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    ).stdout.decode()
    return sorted(
        {REPOSITORY / name for name in listed.split("\0") if name and (REPOSITORY / name).is_file()}
    )


@functools.cache
def modules() -> dict[str, Module]:
    """The modules of the package by name, with what each imports."""
    gc.disable()  # it would look through all trees again and again, and they stay
    try:
        return _read_all()
    finally:
        gc.freeze()
        gc.enable()


def _read_all() -> dict[str, Module]:
    found = {}
    for path in tracked(f"{PACKAGE}/*.py"):
        text = path.read_text()
        name = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
        found[name] = Module(name, path, ast.parse(text), text.count("\n"))
    for module in found.values():
        _read_imports(module.tree, module, found, typed=False)
    return found


def _read_imports(node: ast.AST, module: Module, known: dict[str, Module], *, typed: bool) -> None:
    into = module.typed if typed else module.imports
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            continue  # nothing in an expression imports
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            _read_imports(child, module, known, typed=True)
            continue
        if isinstance(child, ast.ImportFrom) and child.module:
            names = {f"{child.module}.{alias.name}" for alias in child.names}
            into |= {name if name in known else child.module for name in names} & known.keys()
        elif isinstance(child, ast.Import):
            into |= {alias.name for alias in child.names} & known.keys()
        _read_imports(child, module, known, typed=typed)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in graph:
        if name not in index:
            visit(name)
    return found


def methods(module: Module, cls: ast.ClassDef, known: dict[str, tuple[Module, ast.ClassDef]]) -> set[str]:
    """The methods of a class, those of its bases in the package too."""
    own = {node.name for node in cls.body if isinstance(node, Definition)}
    for base in cls.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(name, ast.Name) and name.id in known and known[name.id][1] is not cls:
            own |= methods(*known[name.id], known)
    return own


def large_classes(found: dict[str, Module], over: int) -> dict[str, int]:
    """Classes with more than so many methods, inherited ones counted; lists of signatures that are generated
    and have no code are none.
    """
    found = {name: module for name, module in found.items() if not module.is_generated}
    known = {cls.name: (module, cls) for module in found.values() for cls in module.classes()}
    counted = {
        f"{module.name}.{cls.name}": len(methods(module, cls, known))
        for module in found.values()
        for cls in module.classes()
    }
    return {name: count for name, count in counted.items() if count > over}


def parameters(function: Definition) -> int:
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def tests() -> int:
    """Test functions; parametrized cases count once."""
    return sum(
        isinstance(node, Definition) and node.name.startswith("test_")
        for path in tracked("tests/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    )


def figures() -> list[tuple[str, str]]:
    """Name and value of each figure, as people read them."""
    found = modules()
    loaded = {name: module.imports for name, module in found.items()}
    with_types = {name: module.imports | module.typed for name, module in found.items()}
    longest = max(found.values(), key=lambda module: module.lines)
    circle = max(map(len, circles(with_types)), default=0)
    functions = [function for module in found.values() for function in module.functions()]
    long_signatures = sum(parameters(function) > PARAMETERS for function in functions)
    return [
        ("files of the package", f"{len(found)}"),
        ("lines of the package", f"{sum(module.lines for module in found.values()):,}"),
        ("of these code", f"{sum(map(code_lines, found.values())):,}"),
        ("modules in its root", f"{len(root(found))}"),
        ("longest file", f"{longest.lines} ({longest.path.relative_to(REPOSITORY)})"),
        ("import circles at run time", f"{len(circles(loaded))}"),
        ("import circles with types", f"{len(circles(with_types))} (the largest of {circle} files)"),
        (f"classes with over {METHODS} methods", f"{len(large_classes(found, METHODS))}"),
        (
            f"functions with over {PARAMETERS} parameters",
            f"{long_signatures}",
        ),
        ("lines of tests", f"{sum(path.read_text().count(chr(10)) for path in tracked('tests/*.py')):,}"),
        ("test functions", f"{tests():,}"),
    ]


def root(found: dict[str, Module]) -> list[str]:
    """The modules that lie directly in the package's folder."""
    return sorted(name for name, module in found.items() if module.path.parent.name == PACKAGE)


if __name__ == "__main__":
    for name, value in figures():
        print(f"{name:38}{value}")
