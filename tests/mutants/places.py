"""Where the library can be changed by one small mistake, and how to find it again.

A place is its function and the text of its line. Only what runs when a function is
called is changed: no annotation, default, decorator, error text or log line.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WINGS = {
    "wire": "fedtrellis/wire",
    "server": "fedtrellis/server",
    "strategies": "strategies",
    "clients": "clients",
    "domains": "fedtrellis/domains",
    "objectives": "fedtrellis/objectives",
    "encryption": "fedtrellis/encryption",
}
DESCRIPTION = ("file", "function", "line", "operator", "before", "after", "nth")

#: Operator, what is changed, and the text in its place.
Change = tuple[str, ast.expr | ast.stmt, str]

_SWAPS = (
    *(("Lt", "LtE", "GtE"), ("LtE", "Lt", "Gt")),
    *(("Gt", "GtE", "LtE"), ("GtE", "Gt", "Lt")),
    *(("Eq", "NotEq"), ("NotEq", "Eq"), ("Is", "IsNot"), ("IsNot", "Is")),
    *(("In", "NotIn"), ("NotIn", "In"), ("And", "Or"), ("Or", "And")),
    *(("Add", "Sub"), ("Sub", "Add"), ("Mult", "Div"), ("Div", "Mult")),
    *(("FloorDiv", "Mult"), ("Mod", "Mult"), ("Pow", "Mult")),
    *(("BitAnd", "BitOr"), ("BitOr", "BitAnd"), ("BitXor", "BitOr")),
    *(("LShift", "RShift"), ("RShift", "LShift")),
)
_SWAPPED: dict[type[ast.AST], list[Any]] = {
    getattr(ast, name): [getattr(ast, other) for other in others]
    for name, *others in _SWAPS
}
_LOGS = {"log", "print", "cast", "debug", "info", "warning", "warn"}
_UNCHANGED = {"__repr__", "__str__", "_repr_html_", "overload", "abstractmethod"}


@dataclass(frozen=True)
class Place:
    """One change at one place; the first seven attributes describe it."""

    file: str
    function: str
    line: str
    operator: str
    before: str
    after: str
    nth: int
    statement: tuple[int, int]
    span: tuple[int, int]

    @property
    def description(self) -> tuple[Any, ...]:
        """What it is found again by."""
        return astuple(self)[: len(DESCRIPTION)]

    @property
    def name(self) -> str:
        """A short name, made of the description."""
        return hashlib.sha1(repr(self.description).encode()).hexdigest()[:10]

    def changed(self) -> bytes:
        """The file's text with the change."""
        source, (start, end) = (ROOT / self.file).read_bytes(), self.span
        return source[:start] + self.after.encode() + source[end:]


def _name(node: ast.AST) -> str:
    while isinstance(node, ast.Call):
        node = node.func
    return str(getattr(node, "id", getattr(node, "attr", "")))


def _with(node: ast.AST, **fields: object) -> str:
    """The text of a node that has other fields."""
    changed = copy.copy(node)
    vars(changed).update(fields)
    text, compound = ast.unparse(changed), ast.BinOp | ast.BoolOp | ast.Compare
    return f"({text})" if isinstance(node, compound) else text


def _changes(node: ast.AST) -> Iterator[Change]:
    """The changes of an expression or statement itself, not of its parts."""
    tests: list[ast.expr] = []
    match node:
        case ast.Compare():
            for number, op in enumerate(node.ops):
                for other in _SWAPPED[type(op)]:
                    ops = [*node.ops[:number], other(), *node.ops[number + 1 :]]
                    yield "comparison", node, _with(node, ops=ops)
        case (
            ast.BinOp(ast.JoinedStr() | ast.Constant(str() | bytes()))
            | ast.BinOp(right=ast.JoinedStr() | ast.Constant(str() | bytes()))
        ):
            pass
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _SWAPPED:
            yield "arithmetic", node, _with(node, op=_SWAPPED[type(node.op)][0]())
        case ast.BoolOp():
            yield "boolean", node, _with(node, op=_SWAPPED[type(node.op)][0]())
        case ast.UnaryOp(ast.Not() | ast.USub() as op, operand):
            yield f"drop {type(op).__name__}", node, f"({ast.unparse(operand)})"
        case ast.Call() if _name(node) not in _LOGS:
            for keyword in node.keywords:
                if keyword.arg is not None:
                    rest = [other for other in node.keywords if other is not keyword]
                    yield "drop argument", node, _with(node, keywords=rest)
        case ast.Constant(bool(value)):
            yield "constant", node, str(not value)
        case ast.Constant(int(value) | float(value)):
            for near in (1 - value,) if value in (0, 1) else (value + 1, value - 1):
                yield "constant", node, repr(near) if near >= 0 else f"({near!r})"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            tests = [test]
        case ast.comprehension():
            tests = node.ifs
        case ast.Return(ast.expr() as result) if ast.unparse(result) != "None":
            yield "return None", node, "return None"
    for test in tests:
        if not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            yield "negate condition", test, f"(not ({ast.unparse(test)}))"
    match node:
        # without a variable all that follows would fail: too easy
        case ast.Assign([ast.Name() | ast.Tuple(), *_]):
            pass
        case ast.Expr(ast.Call() as call) if _name(call) in _LOGS:
            pass
        case (
            ast.If(orelse=[])
            | ast.Expr(ast.Call())
            | (ast.Assign() | ast.AugAssign() | ast.Delete())
            | (ast.Raise() | ast.Continue() | ast.Break())
        ):
            yield "delete", node, "pass"


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """What of a node may be changed; a function within it is one of its own."""
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            return
        case ast.JoinedStr() | ast.Raise() | ast.Assert():
            return
        case ast.Lambda():
            yield node.body
        case ast.Call() if _name(node) in _LOGS:
            return
        case ast.Call(args=[first, _]) if _name(node) in ("isinstance", "issubclass"):
            yield first
        case ast.AnnAssign():
            yield from filter(None, (node.target, node.value))
        case _:
            yield from ast.iter_child_nodes(node)


def _visit(node: ast.AST, around: ast.stmt) -> Iterator[tuple[ast.stmt, Change]]:
    """All changes within a node, each with the innermost statement around it."""
    statement = node if isinstance(node, ast.stmt) else around
    for change in _changes(node):
        yield statement, change
    for part in _parts(node):
        yield from _visit(part, statement)


def _functions(node: ast.AST, above: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        within = above
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            within = f"{above}.{child.name}".lstrip(".")
        if isinstance(child, ast.FunctionDef):
            if {child.name, *map(_name, child.decorator_list)} & _UNCHANGED:
                continue
            yield within, child
        yield from _functions(child, within)


def places_of(wing: str) -> Iterator[Place]:
    """All places of a wing, in the files' order."""
    for path in sorted((ROOT / WINGS[wing]).rglob("*.py")):
        source, file = path.read_bytes(), str(path.relative_to(ROOT))
        lines, starts = source.splitlines(keepends=True), [0]
        for text in lines:
            starts.append(starts[-1] + len(text))
        seen: Counter[tuple[str, ...]] = Counter()
        changes = (
            (function, *found)
            for function, node in _functions(ast.parse(source))
            for statement in node.body
            for found in _visit(statement, statement)
        )
        for function, statement, (operator, part, after) in changes:
            start = starts[part.lineno - 1] + part.col_offset
            end = starts[(part.end_lineno or 0) - 1] + (part.end_col_offset or 0)
            line = lines[part.lineno - 1].decode().strip()
            before = ast.unparse(part)
            if isinstance(part, ast.If):
                before = f"if {ast.unparse(part.test)}:"
            what = (function, line, operator, before, after)
            at = (statement.lineno, statement.col_offset)
            yield Place(file, *what, seen[what], at, (start, end))
            seen[what] += 1


def _differs(place: Place) -> bool:
    try:
        changed = ast.dump(ast.parse(place.changed()))
    except SyntaxError:
        return False
    return changed != ast.dump(ast.parse((ROOT / place.file).read_bytes()))


def draw(wing: str, count: int, seed: int) -> list[Place]:
    """Draw places of a wing: statements with equal chances, of each one change."""
    groups: dict[tuple[str, tuple[int, int]], list[Place]] = defaultdict(list)
    for place in places_of(wing):
        groups[place.file, place.statement].append(place)
    rng = random.Random(f"{wing} {seed}")
    left, drawn = list(groups.values()), list[Place]()
    rng.shuffle(left)
    for group in left:
        if len(drawn) >= count:
            break
        if usable := [place for place in group if _differs(place)]:
            drawn.append(rng.choice(usable))
    return drawn


def find(described: Iterable[Mapping[str, Any]]) -> list[Place | None]:
    """Find described places again."""
    every = (place for wing in WINGS for place in places_of(wing))
    known = {place.description: place for place in every}
    return [known.get(tuple(old[name] for name in DESCRIPTION)) for old in described]
