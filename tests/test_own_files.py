"""Nothing outside a method's own files asks which method it is.

Its own are those that its name begins: ``strategies/fedgia.py``, ``clients/fedgia.py``.
Tasks may name methods in their tables of what they suggest.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import sim

ROOT = Path(sim.__file__).parent
METHODS = frozenset(sim.app.registry.methods)
SEARCHED = [
    ROOT / "sim.py",
    *(
        path
        for folder in ("fedtrellis", "strategies", "clients", "tasks")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ),
]


def names_in(node: ast.AST) -> Iterator[str]:
    """Names of methods that stand in an expression or a pattern."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and part.value in METHODS:
            yield str(part.value)


def comparisons(tree: ast.Module) -> list[tuple[int, str]]:
    """(line, method) wherever a method's name decides something."""
    found: list[tuple[int, str]] = []
    suggested = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "suggested"
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        decides: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            decides = [node]
        elif isinstance(node, ast.match_case):
            decides = [node.pattern]
        elif isinstance(node, ast.Subscript):
            decides = [node.slice]
        elif isinstance(node, ast.Dict) and id(node) not in suggested:
            decides = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.List | ast.Tuple | ast.Set):
            # a collection is there to look into
            decides = [node]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asks = ("startswith", "endswith", "get", "pop", "__eq__", "index", "count")
            decides = list(node.args) if node.func.attr in asks else []
        found += [
            (getattr(part, "lineno", 0), name)
            for part in decides
            for name in names_in(part)
        ]
    return found


def own_files(method: str) -> tuple[str, str]:
    name = method.replace("-", "_")
    return f"strategies/{name}", f"clients/{name}"


def test_no_methods_name_decides_anything_outside_its_own_files() -> None:
    found = []
    for path in SEARCHED:
        relative = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [
            f"{relative}:{line} asks for {method}"
            for line, method in comparisons(tree)
            if not relative.startswith(own_files(method))
        ]
    assert found == []
