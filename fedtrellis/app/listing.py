"""What can be set: listings for people, and the block of pyproject.toml."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from fedtrellis.app.registry import Field, Group, Registry
from fedtrellis.domains import fitting_domains
from fedtrellis.server.guarded import AGGREGATIONS
from fedtrellis.server.records import to_toml
from fedtrellis.settings import SettingsError, check_choice, describe_fields, parse

__all__ = ["config_block", "print_list", "write_config_block"]

_BLOCK = re.compile(r"(?<=^\[tool\.flwr\.app\.config\]\n).*?(?=^\[|\Z)", re.M | re.S)


def config_block(registry: Registry) -> str:
    """Every key of a run config with its default, group by group, as TOML."""
    defaults = registry.defaults
    lines = []
    for group in registry.groups:
        own = {key: defaults[key] for key in group.fields}
        if own:
            lines += [f"# {group.title}", to_toml(own, in_order=True).rstrip("\n")]
    return "\n".join(lines) + "\n\n"


def write_config_block(registry: Registry, path: Path) -> bool:
    """Put the block into a pyproject.toml; whether anything has changed.

    Raises
    ------
    SettingsError
        The file has no ``[tool.flwr.app.config]``.
    """
    text = path.read_text(encoding="utf-8")
    if not _BLOCK.search(text):
        raise SettingsError(f"{path} has no [tool.flwr.app.config]")
    new = _BLOCK.sub(lambda found: config_block(registry), text)
    path.write_text(new, encoding="utf-8")
    return new != text


#: How the settings of the run itself are asked for.
_RUN = "run"


def print_list(registry: Registry, name: str | None = None) -> None:
    """Print names of all that there is, or the details of one.

    Parameters
    ----------
    registry : Registry
    name : str, optional
        A method, task or set, ``data``, or ``run`` for the run's own settings.

    Raises
    ------
    SettingsError
        There is no such name.
    """
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:  # rich would end the program with status 1
            raise BrokenPipeError

    console = Quiet()
    if name is None:
        _print_overview(registry)
    else:
        groups = [group for group in registry.groups if (group.owner or _RUN) == name]
        if not groups and name not in registry.domains:
            known = {group.owner or _RUN for group in registry.groups}
            check_choice("name", name, known | set(registry.domains))
        for group in groups:
            _print_one(registry, console, group)
        if name in registry.domains:
            print(f"{name}: {_domain_use(registry, name)}")
    for who, why in registry.broken_plugins.items():
        console.print(f"plug-in {who!r} cannot be loaded: {why}", markup=False)


def _print_overview(registry: Registry) -> None:
    """A line a method and task; names of the rest."""
    methods = {name: m.strategy.about for name, m in registry.methods.items()}
    tasks = {name: task.summary for name, task in registry.tasks.items()}
    width = max(map(len, (*methods, *tasks)))
    for title, rows in (("Methods (method)", methods), ("Tasks (task)", tasks)):
        print(title)
        for name, about in rows.items():
            print(f"  {name:{width}}  {about}")
    others = [g.owner for g in registry.groups if g.owner and g.kind == "data"]
    run = next(group for group in registry.groups if not group.owner)
    for title, names in (
        ("Sets (domain)", registry.domains),
        ("How answers are aggregated (aggregation)", [k.name for k in AGGREGATIONS]),
        ("Settings of the run", run.fields),
    ):
        print(title)
        indent = "  "
        print(
            textwrap.fill(
                ", ".join(names),
                88,
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
            )
        )
    print(f"Settings of nodes' data: {', '.join(others)}")
    print(f"Details of one: its name after list; {_RUN}: the run's settings.")


def _domain_use(registry: Registry, name: str) -> str:
    """Which tasks a set is for, or which methods need none."""
    if registry.domains[name].bounded:
        tasks = [
            task
            for task, cls in registry.tasks.items()
            if name in fitting_domains(_defaults(cls).domains(), registry.domains)
        ]
        return f"for {', '.join(tasks) or 'a task of your own'}"
    strategies = {n: entry.strategy for n, entry in registry.methods.items()}
    only = [n for n, s in strategies.items() if s.space in ("whole", "manifold")]
    can = [n for n, s in strategies.items() if s.space == "domain" and not s.bounded]
    return (
        f"no constraint: for {' and '.join(can)}, and the only choice "
        f"of {', '.join(only)}"
    )


def _defaults(task: type[Any]) -> Any:
    """A task with all settings as they are by default, which loads nothing."""
    return parse(task, {}, num_clients=1, seed=0)


def _print_one(registry: Registry, console: Any, group: Group) -> None:
    if group.kind == "method":
        strategy = registry.methods[group.owner].strategy
        console.print(f"[bold]{group.owner}[/]: {strategy.about}", soft_wrap=True)
        print(f"{strategy.__module__}.{strategy.__qualname__}: help() explains it")
    elif group.kind == "task":
        summary = registry.tasks[group.owner].summary
        console.print(f"[bold]{group.owner}[/]: {summary}", soft_wrap=True)
    elif group.kind == "aggregation":
        kind = group.parts[0][0]
        console.print(f"[bold]{group.owner}[/]: {kind.about}", soft_wrap=True)
        print(f"fedtrellis.{kind.__qualname__}: help() explains it")
    _print_table(console, f"Settings of {group.title}", group.fields)
    if group.kind == "method":
        fields = registry.methods[group.owner].node_fields
        _print_table(console, f"A node's own rules, of {group.owner}", fields)
    for task, suggested in _suggestions(registry, group).items():
        console.print(f"task {task} suggests: {suggested}", markup=False)


def _suggestions(registry: Registry, group: Group) -> dict[str, str]:
    """What tasks suggest for a method, by task; or a task for methods, by itself."""
    told = {}
    for name, task in registry.tasks.items():
        for method, values in task.suggested.items():
            if group.owner in (name, method):
                told[name if group.owner == method else f"{name} to {method}"] = (
                    ", ".join(
                        f"{field.replace('_', '-')} = {value}"
                        for field, value in values.items()
                    )
                )
    return told


def _print_table(console: Any, title: str, fields: dict[str, Field]) -> None:
    from rich.table import Table

    if not fields:
        return
    table = Table(title=title, title_justify="left")
    table.add_column("key", no_wrap=True)
    table.add_column("default")
    table.add_column("")
    for row in describe_fields(fields):
        table.add_row(*row)
    console.print(table)
