"""Which module may import which."""

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# From the bottom up: a wing, or loose module, imports what stands before it and itself;
# those of one line do not know one another.
ORDER = (
    ("settings", "random", "signals", "files"),
    ("layer_steps", "schedules", "tables"),
    ("domains",),
    ("manifolds",),
    ("objectives",),
    ("admm",),
    ("encryption",),
    ("wire",),
    ("corrective", "compressors", "privacy"),
    ("local_steps", "zeroth_order"),
    ("dual",),
    ("server",),
    ("trackers", "estimators", "testing"),
    ("app",),
    ("exports",),
    ("runs",),
    ("tune",),
    ("command_line",),
    ("__init__", "__main__"),
)
HEIGHT = {wing: height for height, wings in enumerate(ORDER) for wing in wings}


@lru_cache(maxsize=1)
def modules() -> dict[str, Path]:
    found = {}
    for package in ("fedtrellis", "strategies", "clients", "tasks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def wing_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def runtime_imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for otherwise in child.orelse:
                yield from runtime_imports(ast.Module([otherwise], []))
        else:
            yield from runtime_imports(child)


def imported(module: str, path: Path, *, typing: bool) -> set[str]:
    """Return the modules that a module imports; ``typing``: for annotations too."""
    known, found = modules(), set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if typing else runtime_imports(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
            continue
        if not isinstance(node, ast.ImportFrom):
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


@lru_cache(maxsize=2)
def graph(*, typing: bool) -> dict[str, set[str]]:
    return {m: imported(m, path, typing=typing) for m, path in modules().items()}


def test_no_module_imports_upwards() -> None:
    upward = [
        f"{module} imports {other}"
        for module, others in graph(typing=False).items()
        for other in sorted(others)
        if module.startswith("fedtrellis")
        and other.startswith("fedtrellis")
        and (here := wing_of(module)) != (there := wing_of(other))
        and HEIGHT[there] >= HEIGHT[here]
    ]
    assert not upward, "\n".join(upward)


def reached(module: str) -> set[str]:
    """Return the modules that a module imports, itself or through others."""
    imports, found = graph(typing=True), set[str]()
    todo = [module]
    while todo:
        new = imports[todo.pop()] - found
        found |= new
        todo += new
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even for annotations, but for the split methods' ladders of classes."""
    circle = {
        module
        for module in modules()
        if not module.startswith("tasks.hybrid") and module in reached(module)
    }
    imports = graph(typing=True)
    assert not circle, "\n".join(
        f"{module} imports {sorted(imports[module] & circle)}"
        for module in sorted(circle)
    )
