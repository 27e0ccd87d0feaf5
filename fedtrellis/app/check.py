"""``fedtrellis check``: what would stop a deployed run, found before it starts."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from flwr.app import Context, RecordDict

from fedtrellis.app.application import installed_app, one_line
from fedtrellis.app.command_line import add_run_config, read_config
from fedtrellis.app.experiment import check_node
from fedtrellis.encryption.certificates import node_key, reach, server_certificate
from fedtrellis.encryption.identity import shown
from fedtrellis.encryption.node_secrets import NodeSecrets
from fedtrellis.settings import SettingsError
from fedtrellis.wire.summing import check_batches, check_exposed


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """What there is to look at; most options have the names of Flower's."""
    add = parser.add_argument
    add("--superlink", metavar="HOST:PORT", help="as nodes and users call it")
    text = "the authority that they trust, ca.crt [the system's]"
    add("--root-certificates", metavar="FILE", help=text)
    text = "on the SuperLink's machine: server.crt, for --superlink's host and for "
    text += "127.0.0.1, by which it calls itself, and server.key"
    add("--server", nargs=2, metavar=("CERTIFICATE", "KEY"), help=text)
    text = "on a node: the key by which the SuperLink knows it"
    add("--auth-supernode-private-key", metavar="FILE", help=text)
    several: Any = {"action": "append", "default": [], "metavar": "'key=value ...'"}
    add("--node-config", help="on a node: as flower-supernode takes it", **several)
    add_run_config(parser, "on a node: a run's settings, by which its data is read")
    add("--debug", action="store_true", help="show tracebacks")


def check(options: argparse.Namespace) -> None:
    """Look at what a deployed run needs, on a node or on the SuperLink's machine.

    A line for each finding; exit status 1 if something is wrong.
    """
    node = read_config(options.node_config, "--node-config")
    config = read_config(options.run_config)
    wrong = []

    def look(what: str, given: Any, find: Callable[..., str], *more: Any) -> None:
        if not given:
            return
        try:
            print(f"ok     {what}: {find(given, *more)}", flush=True)
        except (ImportError, OSError, ValueError) as error:
            wrong.append(what)
            print(f"wrong  {what}: {one_line(error)}", flush=True)

    address, authority = options.superlink, options.root_certificates
    look("versions", ("fedtrellis", "flwr", "numpy"), _versions)
    look("server's certificate", options.server, server_certificate, authority, address)
    look("node's key", options.auth_supernode_private_key, node_key)
    look("node's config", node, _node_config)
    look("node's data", config, _data, node)
    look("SuperLink", address, reach, authority)
    if wrong:
        raise SettingsError(f"something is wrong: {', '.join(wrong)}")


def _versions(names: tuple[str, ...]) -> str:
    found = ", ".join(f"{name} {version(name)}" for name in names)
    return f"{found}, Python {platform.python_version()}"


def _node_config(node: Mapping[str, Any]) -> str:
    check_node(node, on_nodes=True)
    client = str(node.get("client-id", node.get("partition-id")))
    secrets = NodeSecrets(client, node)
    if secrets.kind == "roster":
        name = secrets.identity.name  # an error if the roster has it not
        return f"{name}, in a roster with the digest {shown(secrets.roster.digest)}"
    if secrets.kind == "key":
        return f"{client}, key {secrets.common_key('', '', None).fingerprint}"
    return f"{client}, without keys"


def _data(config: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """Read a node's file as a run with these settings does."""
    app = installed_app()
    app.registry.check_known(config, "-c", "fedtrellis list")
    config = {**app.default_config(), **config}
    task = app.registry.choose("task", config["task"]).from_config(config, 1, 0)
    if not task.on_nodes:
        given = f"{task.name}.dataset = {task.dataset!r}"
        raise SettingsError(f"{given} needs no file of a node; allowed: 'nodes'")
    if task.split_data or config["aggregation"] == "secure-sum":
        NodeSecrets(str(node.get("client-id")), node).check_simulated()
    config = app.settled(config, lambda asked: [task.table_summary(node, asked)])
    experiment = app.experiment(config)
    own: dict[str, Any] = {"node_config": dict(node), "run_config": config}
    context = Context(run_id=0, node_id=0, state=RecordDict(), **own)
    client, method = experiment.node(context), experiment.settings
    if config["aggregation"] == "secure-sum":
        asked = {k.replace("_", "-"): v for k, v in method.items() if v is not None}
        noise = config["secure-sum.noise-multiplier"]
        check_batches(context, {**asked, "sum-deviation": noise})
    elif not getattr(client, "hides_by_itself", False):
        check_exposed(context, "fit")
    rows, columns = experiment.task.node_attributes(node)["rows"].parts[0].shape
    return f"{node['data']}: {rows} rows, {columns} features for {config['method']}"
