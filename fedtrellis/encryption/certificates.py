"""Certificates of a SuperLink and keys of its nodes, as those who trust them do.

What is wrong is an error of one line: that a run would fail of, once it is deployed.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.node_file import load_file, read_file
from fedtrellis.settings import SettingsError


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


def server_certificate(
    files: Sequence[str], authority: str | None, address: str | None
) -> str:
    """What nodes, users and the SuperLink's own processes find of its certificate.

    ``files`` are the certificate and its key, ``address`` is HOST:PORT as nodes and
    users call the SuperLink. SettingsError or an OSError: they would not trust it.
    """
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


def node_key(file: str) -> str:
    """Say which curve the key is on by which the SuperLink knows a node."""

    def parse(data: bytes) -> EllipticCurvePrivateKey:
        with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
            key = load_ssh_private_key(data, None)
            if isinstance(key, EllipticCurvePrivateKey):
                return key
        kind = "an SSH key of an elliptic curve (ecdsa) without a passphrase"
        raise EncryptionError(f"must be {kind}, as deploy/node-keys.sh makes it")

    return f"{file}, on the curve {load_file(file, 'key', parse).curve.name}"
