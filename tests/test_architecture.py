"""Which module of ``fedtrellis/`` may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# From the bottom up: a wing, or loose module, imports what stands before it and itself;
# those of one line do not know one another.
ORDER = (
    ("_alias", "settings", "random", "signals"),
    ("declared", "extras", "layer_steps", "schedules"),
    ("domains",),
    ("manifolds",),
    ("objectives",),
    ("admm",),
    ("wire",),
    ("corrective", "compressors", "privacy"),
    ("local_steps", "zeroth_order"),
    ("encryption",),
    ("dual",),
    ("server",),
    ("trackers", "estimators"),
    ("app",),
    ("builtin",),
    ("runs",),
    ("tune",),
    ("command_line",),
    ("__init__", "__main__"),
)
HEIGHT = {wing: height for height, wings in enumerate(ORDER) for wing in wings}


@lru_cache(maxsize=1)
def modules() -> dict[str, Path]:
    """Return the file of every module by its dotted name."""
    found = {}
    for path in sorted((ROOT / "fedtrellis").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def wing_of(module: str) -> str:
    """Return the wing of a module, or its own name if it is loose."""
    return module.split(".")[1] if "." in module else "__init__"


def runtime_imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that can run, those within functions too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for otherwise in child.orelse:
                yield from runtime_imports(ast.Module([otherwise], []))
        else:
            yield from runtime_imports(child)


def imported(module: str, path: Path) -> set[str]:
    """Return the modules of ``fedtrellis/`` that a module imports."""
    known, found = modules(), set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in runtime_imports(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
            continue
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *filter(None, [base])])
        for name in node.names:
            # "from package import module" needs the module, not what the package holds
            whole = f"{base}.{name.name}"
            found.add(whole if whole in known else base)
    return found & set(known) - {module}


@lru_cache(maxsize=1)
def graph() -> dict[str, set[str]]:
    """Return what every module imports."""
    return {module: imported(module, path) for module, path in modules().items()}


def test_the_order_names_every_wing() -> None:
    assert {wing_of(module) for module in modules()} == set(HEIGHT)


def test_no_module_imports_upwards() -> None:
    upward = [
        f"{module} imports {other}"
        for module, others in graph().items()
        for other in sorted(others)
        if (here := wing_of(module)) != (there := wing_of(other))
        and HEIGHT[there] >= HEIGHT[here]
    ]
    assert not upward, "\n".join(upward)


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {module: set(others) for module, others in graph().items()}
    # take away what imports nothing that is left, until only circles are
    while free := [module for module, others in left.items() if not others]:
        left = {m: others - set(free) for m, others in left.items() if m not in free}
    # ... and what imports circles without being part of one
    while top := set(left) - {other for others in left.values() for other in others}:
        left = {m: others for m, others in left.items() if m not in top}
    assert not left, "\n".join(f"{m} imports {sorted(o)}" for m, o in left.items())
