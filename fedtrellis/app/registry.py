"""What there is: methods, tasks and domains by name, and every key of a run config."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from fedtrellis._alias import unify_roots
from fedtrellis.domains import RUN_DOMAINS, Domain
from fedtrellis.domains.product import ENCLOSING
from fedtrellis.server.callbacks import LOG_FORMATS
from fedtrellis.server.loop import LoopStrategy
from fedtrellis.server.options import AGGREGATIONS, RunOptions
from fedtrellis.settings import (
    AUTO,
    SettingsError,
    arguments_of,
    check_choice,
    keys,
    setting,
)

#: The entry points by which installed packages name what they bring along.
PLUGINS = "fedtrellis.plugins"

Field = dataclasses.Field[Any]
#: A method's two halves: the class of its strategy and that of its client.
Pair = tuple[type[LoopStrategy], type[Any]]


@dataclass(frozen=True)
class RunSettings:
    """What a run config says of the run, beside the options of every strategy.

    The latter are the fields of :class:`~fedtrellis.RoundStrategy`: participation,
    seed, min-nodes and so on.
    """

    method: str = setting("fedfw", "the method")
    task: str = setting("digits", "what is learnt")
    rounds: int = setting(50, "rounds", minimum=1)
    domain: str = setting("", "the constraint; empty: the task's own")
    radius: float = setting(0.0, "of the domain; 0: the task's own", minimum=0.0)
    layers: str = setting(
        "whole",
        "several layers: one vector in one set, or a product of sets",
        choices=("whole", "product"),
    )
    outer_domain: str = setting(
        "", f"larger set that clients may have: {', '.join(ENCLOSING)}; empty: none"
    )
    outer_fraction: float = setting(
        0.0,
        "fraction of clients with the larger set, beside those whose node config has "
        "outer-domain too",
        minimum=0.0,
        maximum=0.99,
    )
    evaluate_gap: bool = setting(
        True,
        "whether to evaluate the Frank-Wolfe gap, ‖∇F‖² without a constraint, "
        "or ‖G(x)‖ on a manifold",
    )
    reference: bool = setting(
        False, "solve a convex task centrally first, to show the distance to F*"
    )
    stop_metric: str = setting("", "metric to stop on, such as gap; empty: none")
    stop_tolerance: float = setting(0.0, "stop when the metric is at most this")
    timeout: float = setting(600.0, "seconds to wait for answers", above=0.0)
    resume: str = setting(
        "", "record of a run to go on from, as an absolute path; empty: none"
    )
    initial_model: str = setting(
        "",
        "model to start from, as an absolute path: the record of a run, or a .npz of "
        "arrays; empty: the task's own",
    )
    results_dir: str = setting(
        "", "where records go, an absolute path; empty: ~/.fedtrellis/runs"
    )
    picture: bool = setting(
        True,
        "whether the record has convergence.png; Matplotlib, which draws it, is only "
        "loaded if so",
    )
    track: str = setting(
        "",
        "what else is told of the rounds, with commas between: tensorboard, mlflow, "
        "wandb, openmetrics; empty: nothing",
    )
    log_format: str = setting(
        "text", "a line a round for people, or JSON objects", choices=LOG_FORMATS
    )


@dataclass(frozen=True)
class Plugin:
    """What a package adds, as its entry point in ``fedtrellis.plugins`` names it.

    Parameters
    ----------
    methods : sequence of (strategy class, client class)
        Strategies declare their ``name``, and a client takes by its constructor's
        arguments what it needs: context, objective, domain, and so on.
    tasks : sequence of type
        Subclasses of ``fedtrellis.tasks.Task``.
    domains : sequence of type
        Subclasses of :class:`~fedtrellis.domains.Domain`.

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


@dataclass(frozen=True)
class MethodEntry:
    """A method's two halves."""

    strategy: type[LoopStrategy]
    client: type[Any]

    @property
    def name(self) -> str:
        """What run configs call it."""
        return self.strategy.name

    @property
    def classes(self) -> list[type[Any]]:
        """What declares its settings: the strategy, and the client's ``Settings``."""
        return [self.strategy, *filter(None, [getattr(self.client, "Settings", None)])]

    @cached_property
    def client_arguments(self) -> dict[str, bool]:
        """What the client's constructor takes, and whether it must be given."""
        return arguments_of(self.client)


def pairs(strategies: ModuleType, clients: ModuleType) -> list[Pair]:
    """The strategies of a package, each with the client of the same name.

    ``FedFW`` goes with ``FedFWClient``; what has no ``name`` is a base class.

    Examples
    --------
    >>> from fedtrellis import clients, strategies
    >>> from fedtrellis.app import pairs
    >>> [s.name for s, c in pairs(strategies, clients)][:2]
    ['compressed-sgd', 'fedavg-gd']
    """
    found = (getattr(strategies, name) for name in strategies.__all__)
    return [
        (strategy, getattr(clients, f"{strategy.__name__}Client"))
        for strategy in found
        if isinstance(strategy, type) and strategy.__dict__.get("name")
    ]


class AppRegistry:
    """Methods, tasks and domains by name; an app's own, and plug-ins'."""

    def __init__(
        self,
        methods: Iterable[Pair],
        tasks: Iterable[type[Any]],
        domains: Mapping[str, type[Domain]] = RUN_DOMAINS,
    ) -> None:
        self._own = Plugin(list(methods), list(tasks), list(domains.values()))
        roots = {kind.__module__.partition(".")[0] for pair in methods for kind in pair}
        roots |= {kind.__module__.partition(".")[0] for kind in tasks}
        # packages of ours under names of their own: this is a checkout
        unify_roots(sorted(roots & {"strategies", "clients", "tasks"}))

    @cached_property
    def _plugins(self) -> tuple[dict[str, Plugin], dict[str, str]]:
        """Plug-ins by their entry points' names, and why some cannot be loaded."""
        loaded: dict[str, Plugin] = {}
        broken: dict[str, str] = {}
        for entry in sorted(entry_points(group=PLUGINS), key=lambda e: e.name):
            try:
                plugin = entry.load()
            except Exception as error:  # anything may be wrong with what others wrote
                broken[entry.name] = f"{type(error).__name__}: {error}"
                continue
            if isinstance(plugin, Plugin):
                loaded[entry.name] = plugin
            else:
                broken[entry.name] = f"{entry.value} is no fedtrellis.app.Plugin"
        return loaded, broken

    @property
    def broken_plugins(self) -> dict[str, str]:
        """Why some plug-ins cannot be used, by their entry points' names."""
        return self._plugins[1]

    def _all(self, kind: str) -> dict[str, Any]:
        """Methods, tasks or domains by name; two of one name are an error."""
        named: dict[str, Any] = {}
        for source, plugin in (("fedtrellis", self._own), *self._plugins[0].items()):
            for thing in getattr(plugin, kind):
                entry = MethodEntry(*thing) if kind == "methods" else thing
                if entry.name in named:
                    raise SettingsError(
                        f"plug-in {source!r} brings a {kind.removesuffix('s')} named "
                        f"{entry.name!r}, and there is one already"
                    )
                named[entry.name] = entry
        return named

    @cached_property
    def methods(self) -> dict[str, MethodEntry]:
        """Methods by name."""
        return self._all("methods")

    @cached_property
    def tasks(self) -> dict[str, type[Any]]:
        """Tasks by name."""
        return self._all("tasks")

    @cached_property
    def domains(self) -> dict[str, type[Domain]]:
        """Sets that a run config may name."""
        return self._all("domains")

    def choose(self, kind: str, name: str) -> Any:
        """A method, task or domain by its name; SettingsError if there is none."""
        known: dict[str, Any] = getattr(self, f"{kind}s")
        try:
            return known[check_choice(kind, name, known)]
        except SettingsError as error:
            broken = self.broken_plugins.items()
            why = [f"; plug-in {who!r} cannot be loaded: {why}" for who, why in broken]
            raise SettingsError(f"{error}{''.join(why)}") from None

    # ------------------------------------------------------------------------- keys

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
    def defaults(self) -> dict[str, Any]:
        """Every key of a run config with its default, as in pyproject.toml."""
        return {
            key: AUTO if field.default is None else field.default
            for key, field in self.fields.items()
        }

    @cached_property
    def _owners(self) -> dict[str, SettingGroup]:
        # nodes ask for every key with every message
        return {key: group for group in self.groups for key in group.fields}

    def _foreign(
        self, config: Mapping[str, Any], used: Mapping[str, str]
    ) -> dict[str, SettingGroup]:
        """Whose those keys are that belong to what the run does not use, by kind."""
        owners = {key: self._owners[key] for key in config if key in self._owners}
        return {
            key: group
            for key, group in owners.items()
            if group.owner != used.get(group.kind, group.owner)
        }

    def without_foreign(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out settings of methods and tasks that the run does not use."""
        kinds = ("method", "task")
        used = {kind: str(config.get(kind, self.defaults[kind])) for kind in kinds}
        foreign = self._foreign(config, used)
        return {key: value for key, value in config.items() if key not in foreign}

    def refuse_foreign(
        self, config: Mapping[str, Any], used: Mapping[str, str]
    ) -> None:
        """Refuse settings of methods, tasks and so on that the run does not use.

        ``flwr run`` passes every key of pyproject.toml, so a key counts as set where
        its value is not the default. ``used`` has the run's own name of each kind.
        """
        for key, group in self._foreign(config, used).items():
            if config[key] not in (self.defaults[key], self.fields[key].default):
                raise SettingsError(
                    f"{key} = {config[key]!r} is a setting of {group.kind} "
                    f"{group.owner!r}, and this run's {group.kind} is "
                    f"{used[group.kind]!r}"
                )

    def check_known(self, overrides: Mapping[str, Any], where: str) -> None:
        """Refuse keys that do not exist, with the closest ones."""
        for key in [key for key in overrides if key not in self.fields]:
            # a setting without its owner, first of all the run's own method
            same = [known for known in self.fields if known.endswith(f".{key}")]
            method = overrides.get("method", RunSettings.method)
            close = [known for known in same if known == f"{method}.{key}"]
            close = close or same or difflib.get_close_matches(key, self.fields, 1)
            hint = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
            raise SettingsError(
                f"{where} key = {key!r} is not known{hint}; "
                "python sim.py --list NAME prints those of a method or task"
            )
