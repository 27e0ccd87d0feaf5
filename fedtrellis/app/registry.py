"""What there is, and its listings: methods, tasks, domains, keys of a run config."""

from __future__ import annotations

import difflib
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from itertools import chain
from logging import WARNING
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedtrellis.domains import RUN_DOMAINS, Domain
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.server.options import AGGREGATIONS, SYNONYMS, RunOptions
from fedtrellis.server.records import to_toml
from fedtrellis.settings import (
    AUTO,
    Field,
    SettingsError,
    check_choice,
    describe_fields,
    keys,
    refused,
    setting,
)
from fedtrellis.wire.flower_internals import log

#: A run config, flat.
Config = Mapping[str, Any]
#: A method's two halves: the class of its strategy and that of its client.
Pair = tuple[type[LoopStrategy], type[Any]]


@dataclass(frozen=True)
class RunSettings:
    """What a run config says of the run, beside :class:`~fedtrellis.RunOptions`."""

    method: str = setting("fedfw", "the method")
    task: str = setting("digits", "what is learnt")
    rounds: int | None = setting(
        None,
        "rounds; auto: as many as the method's tolerance takes, 1000 at most; without "
        "one 50, of scaffold and feddr 250, or what the task says",
        minimum=1,
    )
    domain: str = setting("", "the constraint; empty: the task's own")
    radius: float = setting(0.0, "of the domain; 0: the task's own", minimum=0.0)
    layers: str = setting(
        "whole",
        "several layers: one vector in one set, or a product of sets",
        choices=("whole", "product"),
    )
    evaluate_gap: bool = setting(
        True, "whether to evaluate the Frank-Wolfe gap, or ‖∇F‖² or ‖G(x)‖ without one"
    )
    reference: bool = setting(
        False, "solve a convex task centrally first, to show the distance to F*"
    )
    stop_metric: str = setting("", "metric to stop on, such as gap; empty: none")
    stop_tolerance: float = setting(
        0.0, "stop when the metric is at most this, or at least, where more is better"
    )
    timeout: float = setting(600.0, "seconds to wait for answers", above=0.0)
    resume: str = setting("", "record of a run to go on from, an absolute path")
    initial_model: str = setting(
        "", "what to start from, an absolute path: a run's record, or a .npz of arrays"
    )
    results_dir: str = setting(
        "", "where records go, an absolute path; empty: ~/.fedtrellis/runs"
    )
    picture: bool = setting(True, "whether Matplotlib draws the record's picture")
    track: str = setting(
        "", "trackers, with commas between: tensorboard, mlflow, openmetrics[:PORT]"
    )
    log_format: str = setting(
        "text", "a line a round for people, or JSON objects", choices=("text", "json")
    )


@dataclass(frozen=True)
class Plugin:
    """What a package adds, as its entry point in ``fedtrellis.plugins`` names it.

    Parameters
    ----------
    methods : sequence of (strategy class, client class)
        A client takes by its constructor's arguments what it needs: context,
        objective, domain, and so on.
    tasks, domains : sequence of type
        Subclasses of ``fedtrellis.tasks.Task``, and of
        :class:`~fedtrellis.domains.Domain`.

    Examples
    --------
    >>> from fedtrellis.app import Plugin
    >>> from fedtrellis.domains import L1Ball
    >>> plugin = Plugin(domains=[L1Ball])
    """

    methods: Sequence[Pair] = ()
    tasks: Sequence[type[Any]] = ()
    domains: Sequence[type[Domain]] = ()


@dataclass(frozen=True)
class SettingGroup:
    """Settings of one owner, such as ``"method"`` ``"fedgia"``; of the run without."""

    kind: str
    owner: str
    classes: list[type[Any]]

    @cached_property
    def fields(self) -> dict[str, Field]:
        """All settings of the group by run-config key."""
        prefix = f"{self.owner}." if self.owner else ""
        return {k: f for cls in self.classes for k, f in keys(cls, prefix).items()}

    @property
    def title(self) -> str:
        """For listings."""
        return f"{self.kind} {self.owner}".strip() or "the run"


class MethodEntry(NamedTuple):
    """A method's two halves."""

    strategy: type[LoopStrategy]
    client: type[Any]

    @property
    def classes(self) -> list[type[Any]]:
        """What declares its settings: the strategy, and the client's ``Settings``."""
        return [self.strategy, *filter(None, [getattr(self.client, "Settings", None)])]


def pairs(strategies: ModuleType, clients: ModuleType) -> list[Pair]:
    """The strategies of a package, each with the client of the same name.

    ``FedFW`` goes with ``FedFWClient``; what has no ``name`` is a base class.

    Examples
    --------
    >>> from fedtrellis import clients, strategies
    >>> from fedtrellis.app import pairs
    >>> [s.name for s, c in pairs(strategies, clients)][:2]
    ['compressed-sgd', 'fedavg']
    """
    found = (getattr(strategies, name) for name in strategies.__all__)
    return [
        (strategy, getattr(clients, f"{strategy.__name__}Client"))
        for strategy in found
        if isinstance(strategy, type) and strategy.__dict__.get("name")
    ]


class AppRegistry:
    """Methods, tasks and domains by name; an app's own, and plug-ins'."""

    def __init__(self, methods: Sequence[Pair], tasks: Sequence[type[Any]]) -> None:
        self._own = Plugin(methods, tasks, list(RUN_DOMAINS.values()))
        for kind in chain(*methods, tasks):
            root = kind.__module__.partition(".")[0]
            # a package of ours under a name of its own: this is a checkout
            if root in ("strategies", "clients", "tasks"):
                _unify_root(root)

    @cached_property
    def _plugins(self) -> dict[str, Plugin]:
        """What brings methods, tasks and domains, by the names of entry points."""
        found = {"fedtrellis": self._own}
        entries = entry_points(group="fedtrellis.plugins")
        for entry in sorted(entries, key=lambda entry: entry.name):
            try:
                plugin = entry.load()
                if not isinstance(plugin, Plugin):
                    raise TypeError(f"{entry.value} is no fedtrellis.app.Plugin")
                found[entry.name] = plugin
            except Exception as error:  # anything may be wrong with what others wrote
                why = f"{type(error).__name__}: {error}"
                log(WARNING, "plug-in %r cannot be loaded: %s", entry.name, why)
        return found

    def _by_name(self, kind: str) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for source, plugin in self._plugins.items():
            for thing in getattr(plugin, f"{kind}s"):
                name = (thing[0] if kind == "method" else thing).name
                if name in named:
                    what = f"brings a {kind} named {name!r}, and there is one already"
                    raise SettingsError(f"plug-in {source!r} {what}")
                named[name] = thing
        return named

    @cached_property
    def methods(self) -> dict[str, MethodEntry]:
        """Methods by name."""
        return {name: MethodEntry(*m) for name, m in self._by_name("method").items()}

    @cached_property
    def tasks(self) -> dict[str, type[Any]]:
        """Tasks by name."""
        return self._by_name("task")

    @cached_property
    def domains(self) -> dict[str, type[Domain]]:
        """Sets that a run config may name."""
        return self._by_name("domain")

    def choose(self, kind: str, name: str) -> Any:
        """A method, task or domain by its name; SettingsError if there is none."""
        known: dict[str, Any] = getattr(self, f"{kind}s")
        return known[check_choice(kind, name, known)]

    @cached_property
    def groups(self) -> list[SettingGroup]:
        """All settings, by whose they are, in the order of pyproject.toml."""
        shared: dict[str, type[Any]] = {}
        for task in self.tasks.values():
            shared |= task.shared
        owned = [("method", name, m.classes) for name, m in self.methods.items()]
        owned += [("aggregation", cls.name, [cls]) for cls in AGGREGATIONS]
        owned += [("domain", n, [d.settings()]) for n, d in self.domains.items()]
        owned += [("data", name, [cls]) for name, cls in shared.items()]
        owned += [("task", name, [task]) for name, task in self.tasks.items()]
        whole = SettingGroup("", "", [RunSettings, RunOptions])
        return [whole, *(SettingGroup(*each) for each in owned)]

    @cached_property
    def fields(self) -> dict[str, Field]:
        """Every setting by run-config key."""
        return {key: f for group in self.groups for key, f in group.fields.items()}

    @cached_property
    def paths(self) -> list[str]:
        """Keys of settings that name files, whose names end so."""
        return [key for key in self.fields if key.endswith("path")]

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Every key of a run config with its default, as in pyproject.toml."""
        return {
            key: AUTO if field.default is None else field.default
            for key, field in self.fields.items()
        }

    def foreign(self, config: Config, **used: str) -> dict[str, SettingGroup]:
        """Keys of what a run does not use, beside its ``used`` name of each kind."""
        others = [g for g in self.groups if used.get(g.kind, g.owner) != g.owner]
        return {key: group for group in others for key in group.fields if key in config}

    def without_foreign(self, config: Config, **used: str) -> dict[str, Any]:
        """Leave out settings of methods, tasks and more that the run does not use."""
        whole = {**self.defaults, **config}
        named = {kind: whole[kind] for kind in ("method", "task", "aggregation")}
        foreign = self.foreign(config, **named, **used)
        return {key: value for key, value in config.items() if key not in foreign}

    def refuse_foreign(self, config: Config, **used: str) -> None:
        """Refuse what is :meth:`foreign` and set.

        ``flwr run`` passes every key of pyproject.toml, so a key counts as set where
        its value is not the default.
        """
        for key, group in self.foreign(config, **used).items():
            if config[key] not in (self.defaults[key], self.fields[key].default):
                kind, own = group.kind, used[group.kind]
                why = f"{kind} {group.owner!r}, and this run's {kind} is {own!r}"
                meant = f"{own}.{key.partition('.')[2]}"
                why += f" (did you mean {meant!r}?)" if meant in self.fields else ""
                raise refused(key, config[key], f"is a setting of {why}")

    def check_known(
        self, overrides: Config, where: str, lists: str = "python sim.py --list"
    ) -> None:
        """Refuse keys that do not exist, with the closest one; ``lists`` has them."""
        advice = f"{lists} NAME prints those of a method or task"
        for key in (key for key in overrides if key not in self.fields):
            if "." in key:
                check_choice(f"{where} key", key, list(self.fields), advice)
            # without its owner it is one of the run's own, or of what runs here
            kinds = ("method", "task", "domain", "aggregation")
            named = {kind: overrides.get(kind, self.defaults[kind]) for kind in kinds}
            others = self.foreign(self.defaults, **named)
            own = {k.rpartition(".")[2]: k for k in self.fields if k not in others}
            same = [word for word in (key, SYNONYMS.get(key)) if word in own]
            close = same or difflib.get_close_matches(key, own, n=1)
            hint = f" (did you mean {own[close[0]]!r}?)" if close else ""
            raise refused(f"{where} key", key, f"is not known{hint}; {advice}")


_BLOCK = re.compile(r"(?<=^\[tool\.flwr\.app\.config\]\n).*?(?=^\[|\Z)", re.M | re.S)


def config_block(registry: AppRegistry) -> str:
    """Every key of a run config with its default, group by group, as TOML."""
    lines = []
    for group in registry.groups:
        if group.fields:
            own = {key: registry.defaults[key] for key in group.fields}
            lines += [f"# {group.title}\n{to_toml(own, in_order=True)}"]
    return "".join(lines) + "\n"


def write_config_block(registry: AppRegistry, path: Path) -> bool:
    """Put the block into a pyproject.toml, if it has one; whether that changed it."""
    text = path.read_text(encoding="utf-8")
    if not _BLOCK.search(text):
        raise SettingsError(f"{path} has no [tool.flwr.app.config]")
    new = _BLOCK.sub(lambda found: config_block(registry), text)
    path.write_text(new, encoding="utf-8")
    return new != text


def print_list(registry: AppRegistry, name: str | None = None) -> None:
    """Print names of all that there is, or what a name stands for.

    SettingsError if nothing is called so; ``run`` has the run's own settings.
    """
    groups = {(group.kind, group.owner or "run"): group for group in registry.groups}
    if name is not None:
        check_choice("name", name, {owner for _, owner in groups})
        for (_, owner), group in groups.items():
            if owner == name:
                _print_group(registry, group)
        return
    methods = {name: m.strategy.about for name, m in registry.methods.items()}
    tasks = {name: task.summary for name, task in registry.tasks.items()}
    width = max(map(len, (*methods, *tasks)))
    for kind, rows in (("method", methods), ("task", tasks)):
        print(f"{kind}:")
        for name, about in rows.items():
            print(f"  {name:{width}}  {about}")
    for kind in ("domain", "aggregation", "data"):
        _print_filled(kind, ", ".join(owner for of, owner in groups if of == kind))
    _print_filled("run", ", ".join(groups["", "run"].fields))
    print("Details of one: its name after list, data or run.")


def _print_filled(name: str, text: str) -> None:
    lines = textwrap.wrap(f"{name}: {text}", 84, break_on_hyphens=False)
    print("\n    ".join(lines))


def _print_group(registry: AppRegistry, group: SettingGroup) -> None:
    """What it is, its settings, and what tasks suggest for it or it for methods."""
    kind = registry.domains[group.owner] if group.kind == "domain" else group.classes[0]
    if group.kind in ("method", "task", "aggregation", "domain"):
        first = (kind.__doc__ or "").strip().partition("\n")[0]
        about = getattr(kind, "about", getattr(kind, "summary", first))
        print(f"{group.owner}: {about}")
        print(f"{kind.__module__}.{kind.__qualname__}: help() explains it")
    tables = {f"Settings of {group.title}": group.fields}
    if group.kind == "method":
        rules = getattr(registry.methods[group.owner].client, "Rules", None)
        tables[f"A node's own rules, of {group.owner}"] = keys(rules) if rules else {}
    for title, fields in tables.items():
        if fields:
            print(title)
        for key, default, text in describe_fields(fields):
            _print_filled(f"  {key} = {default}", text)
    for name, task in registry.tasks.items():
        for method, values in task.suggested.items():
            if group.owner in (name, method):
                who = name if group.owner == method else f"{name} to {method}"
                items = (f"{f.replace('_', '-')} = {v}" for f, v in values.items())
                print(f"task {who} suggests: {', '.join(items)}")


def _unify_root(root: str) -> None:
    """Let ``fedtrellis.ROOT``, as plug-ins have it, be the package ``ROOT``."""
    if f"fedtrellis.{root}" not in sys.modules:
        setattr(sys.modules["fedtrellis"], root, sys.modules[root])
        for name, module in list(sys.modules.items()):
            if name == root or name.startswith(f"{root}."):
                sys.modules[f"fedtrellis.{name}"] = module
