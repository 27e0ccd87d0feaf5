"""What can be set: listings for people, and the block of pyproject.toml."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from fedtrellis.app.registry import AppRegistry, SettingGroup
from fedtrellis.domains import fitting_domains
from fedtrellis.server.options import AGGREGATIONS
from fedtrellis.server.records import to_toml
from fedtrellis.settings import (
    SettingsError,
    check_choice,
    describe_fields,
    keys,
    parse,
)

_BLOCK = re.compile(r"(?<=^\[tool\.flwr\.app\.config\]\n).*?(?=^\[|\Z)", re.M | re.S)
#: How the settings of the run itself are asked for.
_RUN = "run"


def config_block(registry: AppRegistry) -> str:
    """Every key of a run config with its default, group by group, as TOML."""
    lines = []
    for group in registry.groups:
        own = {key: registry.defaults[key] for key in group.fields}
        if own:
            lines += [f"# {group.title}", to_toml(own, in_order=True).rstrip("\n")]
    return "\n".join(lines) + "\n\n"


def write_config_block(registry: AppRegistry, path: Path) -> bool:
    """Put the block into a pyproject.toml, if it has one; whether that changed it."""
    text = path.read_text(encoding="utf-8")
    if not _BLOCK.search(text):
        raise SettingsError(f"{path} has no [tool.flwr.app.config]")
    new = _BLOCK.sub(lambda found: config_block(registry), text)
    path.write_text(new, encoding="utf-8")
    return new != text


def print_list(registry: AppRegistry, name: str | None = None) -> None:
    """Print names of all that there is, or the details of one.

    ``name`` is that of a method, task or set, ``data``, or ``run`` for the run's own
    settings; SettingsError if there is no such name.
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


def _print_overview(registry: AppRegistry) -> None:
    """A line a method and task; names of the rest."""
    methods = {name: m.strategy.about for name, m in registry.methods.items()}
    tasks = {name: task.summary for name, task in registry.tasks.items()}
    width = max(map(len, (*methods, *tasks)))
    for title, rows in (("Methods (method)", methods), ("Tasks (task)", tasks)):
        print(title)
        for name, about in rows.items():
            print(f"  {name:{width}}  {about}")
    for title, names in (
        ("Sets (domain)", registry.domains),
        ("How answers are aggregated (aggregation)", [k.name for k in AGGREGATIONS]),
        ("Settings of the run", registry.groups[0].fields),
    ):
        filled = textwrap.fill(", ".join(names), 86, break_on_hyphens=False)
        print(f"{title}\n{textwrap.indent(filled, '  ')}")
    data = [group.owner for group in registry.groups if group.kind == "data"]
    print(f"Settings of nodes' data: {', '.join(data)}")
    print(f"Details of one: its name after list; {_RUN}: the run's settings.")


def _domain_use(registry: AppRegistry, name: str) -> str:
    """Which tasks a set is for, or which methods need none."""
    if registry.domains[name].bounded:
        tasks = [
            task
            for task, cls in registry.tasks.items()
            # with the defaults, which loads nothing
            for suggested in [parse(cls, {}, num_clients=1, seed=0).domains()]
            if name in fitting_domains(suggested, registry.domains)
        ]
        return f"for {', '.join(tasks) or 'a task of your own'}"
    strategies = {n: entry.strategy for n, entry in registry.methods.items()}
    only = [n for n, s in strategies.items() if s.space in ("whole", "manifold")]
    can = [n for n, s in strategies.items() if s.space == "domain" and not s._bounded]
    return (
        f"no constraint: for {' and '.join(can)}, and the only choice "
        f"of {', '.join(only)}"
    )


def _print_one(registry: AppRegistry, console: Any, group: SettingGroup) -> None:
    """What it is, its settings, and what tasks suggest for it or it for methods."""
    from rich.table import Table

    kind = group.classes[0]
    about = getattr(kind, "summary", "") if group.kind == "task" else ""
    where = {"method": f"{kind.__module__}.", "aggregation": "fedtrellis."}
    if group.kind in where:
        about = kind.about
    if about:
        console.print(f"[bold]{group.owner}[/]: {about}", soft_wrap=True)
    if group.kind in where:
        print(f"{where[group.kind]}{kind.__qualname__}: help() explains it")
    tables = {f"Settings of {group.title}": group.fields}
    if group.kind == "method":
        rules = getattr(registry.methods[group.owner].client, "Rules", None)
        tables[f"A node's own rules, of {group.owner}"] = keys(rules) if rules else {}
    for title, fields in tables.items():
        if fields:
            table = Table("key", "default", "", title=title, title_justify="left")
            table.columns[0].no_wrap = True
            for row in describe_fields(fields):
                table.add_row(*row)
            console.print(table)
    for name, task in registry.tasks.items():
        for method, values in task.suggested.items():
            if group.owner in (name, method):
                who = name if group.owner == method else f"{name} to {method}"
                items = (f"{f.replace('_', '-')} = {v}" for f, v in values.items())
                console.print(f"task {who} suggests: {', '.join(items)}", markup=False)
