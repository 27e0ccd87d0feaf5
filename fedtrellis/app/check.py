"""``fedtrellis check``: what would stop a deployed run, found before it starts."""

from __future__ import annotations

import argparse
import contextlib
import platform
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, RecordDict

from fedtrellis.app.application import installed_app, one_line
from fedtrellis.app.command_line import add_run_config, read_config
from fedtrellis.app.experiment import check_node
from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.identity import shown
from fedtrellis.encryption.node_file import load_file, read_file
from fedtrellis.encryption.node_secrets import NodeSecrets
from fedtrellis.settings import SettingsError


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
    look("server's certificate", options.server, _certificate, authority, address)
    look("node's key", options.auth_supernode_private_key, _node_key)
    look("node's config", node, _node_config)
    look("node's data", config, _data, node)
    look("SuperLink", address, reach, authority)
    if wrong:
        raise SettingsError(f"something is wrong: {', '.join(wrong)}")


def _versions(names: tuple[str, ...]) -> str:
    found = ", ".join(f"{name} {version(name)}" for name in names)
    return f"{found}, Python {platform.python_version()}"


def _trust(authority: str | None) -> ssl.SSLContext:
    """What a node or user verifies the SuperLink's certificate by."""
    if authority is None:
        return ssl.create_default_context()
    data, _ = read_file(authority)
    try:
        return ssl.create_default_context(cadata=data.decode())
    except (ssl.SSLError, UnicodeDecodeError):
        raise SettingsError(f"{authority!r} has no certificate in PEM form") from None


def _valid(certificate: Mapping[str, Any]) -> str:
    end = certificate["notAfter"]
    days = (ssl.cert_time_to_seconds(end) - time.time()) / 86400.0
    if days < 0.0:
        raise SettingsError(f"it has expired on {end}")
    return f"valid until {end}, {days:.0f} days"


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65536):
        raise SettingsError(f"--superlink {address!r} must be HOST:PORT")
    return host.strip("[]"), int(port)


def _certificate(files: list[str], authority: str | None, address: str | None) -> str:
    """What nodes, users and the SuperLink's own processes find of its certificate."""
    file, key = files
    read_file(file)
    read_file(key, "key")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(file, key)
    except ssl.SSLError:
        kind = "a certificate and its key in PEM form, without a passphrase"
        raise SettingsError(f"{file!r} and {key!r} are not {kind}") from None
    found: Any = {}
    # with --host 0.0.0.0, too, they call it by the second
    for host in filter(None, (address and _host_and_port(address)[0], "127.0.0.1")):
        sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = _trust(authority).wrap_bio(received, sent, server_hostname=host)
        for side in [client, server.wrap_bio(sent, received, server_side=True)] * 2:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        found = client.getpeercert()
    names = ", ".join(name for _, name in found["subjectAltName"])
    return f"for {names}; {_valid(found)}"


def reach(address: str, authority: str | None) -> str:
    """Say how a SuperLink answers; an OSError: it does not, or is not to be trusted."""
    host, port = _host_and_port(address)
    trust = _trust(authority)
    with (
        socket.create_connection((host, port), timeout=10.0) as plain,
        trust.wrap_socket(plain, server_hostname=host) as tls,
    ):
        certificate: Any = tls.getpeercert()
        version = tls.version()
    return f"{address} answers over {version}, with a certificate {_valid(certificate)}"


def _node_key(file: str) -> str:
    def parse(data: bytes) -> EllipticCurvePrivateKey:
        with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
            key = load_ssh_private_key(data, None)
            if isinstance(key, EllipticCurvePrivateKey):
                return key
        kind = "an SSH key of an elliptic curve (ecdsa) without a passphrase"
        raise EncryptionError(f"must be {kind}, as deploy/node-keys.sh makes it")

    return f"{file}, on the curve {load_file(file, 'key', parse).curve.name}"


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
    experiment.node(Context(run_id=0, node_id=0, state=RecordDict(), **own))
    rows, columns = experiment.task.node_attributes(node)["rows"].parts[0].shape
    return f"{node['data']}: {rows} rows, {columns} features for {config['method']}"
