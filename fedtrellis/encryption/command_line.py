"""``fedtrellis-keys``: make, look at and check key files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtrellis.encryption.cipher import BACKENDS, backend_class, write_key_pair
from fedtrellis.encryption.fixed_point import EncryptionError
from fedtrellis.encryption.identity import (
    IDENTITY,
    Identity,
    is_roster,
    load_identity,
    load_roster,
    parse_public,
    parse_roster,
    public_line,
    shown,
    write_identity,
    write_roster,
)
from fedtrellis.encryption.node_file import KeyFile, read_file

_EXAMPLE = """\
example, one key for all clients:
  fedtrellis-keys new --key clients.key --context server.context
  fedtrellis-keys show clients.key

Copy clients.key to every client over a channel that you trust, and to nobody else;
whoever has it reads everything. Give server.context to the server: it can only add.
"""

_ROSTER_EXAMPLE = """\
example, a key for each client:
  fedtrellis-keys identity --name clinic-a --key node.key     on the node clinic-a
  fedtrellis-keys roster --out roster.toml clinic-a=5f0c... clinic-b=a91e... ...
  fedtrellis-keys check --key node.key --roster roster.toml   on every node

A key file never leaves its node. Send the line NAME=PUBLIC that "identity" prints to
whoever writes the roster, and the roster to every node, by a way that the server cannot
change; then read each other the digest that "check" prints (on the telephone).
"""


def _new(options: argparse.Namespace) -> None:
    cipher = write_key_pair(options.key, options.context, options.backend)
    print(f"fingerprint {cipher.fingerprint}")
    print(f"{options.key}: for every client, and for nobody else (mode 0600)")
    print(f"{options.context}: for the server")


def _show(options: argparse.Namespace) -> None:
    data, mode = read_file(options.file)
    if is_roster(data):
        roster = parse_roster(data)
        print("kind:       ", f"roster of {len(roster.members)} nodes")
        for name, public in sorted(roster.members.items()):
            print("node:       ", public_line(name, public))
        print("digest:     ", shown(roster.digest))
        return
    # the file's own fields are enough: TenSEAL need not be there
    file = KeyFile.from_bytes(data)
    if file.backend == IDENTITY:
        identity = Identity.from_bytes(data)
        print("kind:       ", "identity of a node (secret)")
        print("client id:  ", identity.name)
        print("public:     ", public_line(identity.name, identity.public))
    else:
        backend = backend_class(file.backend)
        kind = "clients' key (secret)" if file.secret else "evaluation context"
        print("kind:       ", kind)
        print("backend:    ", file.backend)
        print("fingerprint:", file.fingerprint)
        print("parameters: ", backend.parameters)
        room = 2.0 ** (backend.word - 1 - file.bits) / 1000.0
        print(
            f"values:      multiples of 2^-{file.bits} = {2.0**-file.bits:.3g}; a sum "
            f"of 1000 has room for up to ±{room:.6g} each"
        )
    if file.secret is not None and mode & 0o077:
        print(f"warning:     others can read it (mode {mode:04o}); chmod 600 it")


def _identity(options: argparse.Namespace) -> None:
    identity = write_identity(options.key, options.name)
    # alone on standard output, so that it can go into a file
    print(public_line(identity.name, identity.public))
    print(f"{options.key}: for this node only (mode 0600)", file=sys.stderr)


def _members(argument: str) -> list[tuple[str, bytes]]:
    """What one argument of ``roster`` names."""
    if "=" in argument:
        return [parse_public(argument)]
    data = read_file(Path(argument))[0]
    if is_roster(data):
        return list(parse_roster(data).members.items())
    try:
        lines = [line.strip() for line in data.decode().splitlines()]
    except UnicodeDecodeError:
        raise EncryptionError(f"{argument!r} is not text") from None
    return [parse_public(line) for line in lines if line and not line.startswith("#")]


def _roster(options: argparse.Namespace) -> None:
    members: dict[str, bytes] = {}
    for argument in options.members:
        for name, public in _members(argument):
            if members.setdefault(name, public) != public:
                raise EncryptionError(f"{name!r} is there twice, with different keys")
    roster = write_roster(options.out, members)
    print(f"{options.out}: for every node ({len(members)} of them)")
    print(f"digest {shown(roster.digest)}")


def _check(options: argparse.Namespace) -> None:
    identity, roster = load_identity(options.key), load_roster(options.roster)
    roster.check(identity)
    others = ", ".join(sorted(set(roster.members) - {identity.name}))
    print(f"{identity.name}: this node's key is in the roster\nwith {others}")
    print(f"digest {shown(roster.digest)}")
    print("every node must have this digest; ask the others, not through the server")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 1 after one line on standard error."""
    layout: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    about = "Make and look at the keys of encrypted aggregation."
    examples = f"{_EXAMPLE}\n{_ROSTER_EXAMPLE}"
    parser = argparse.ArgumentParser(
        prog="fedtrellis-keys", description=about, epilog=examples, **layout
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(run: Any, about: str, example: str | None, **files: str) -> Any:
        """A command with files that it needs, and what each is for."""
        name = run.__name__.removeprefix("_")
        one = commands.add_parser(name, help=about, epilog=example, **layout)
        one.set_defaults(run=run)
        for option, text in files.items():
            one.add_argument(f"--{option}", required=True, metavar="FILE", help=text)
        return one

    about = "make a key for the clients and its context for the server"
    whose = {"key": "for the clients", "context": "for the server"}
    new = command(_new, about, _EXAMPLE, **whose)
    text = "default: %(default)s; 'none' encrypts nothing"
    new.add_argument("--backend", choices=list(BACKENDS), default="stream", help=text)
    show = command(_show, "say what a file is; never a secret", None)
    show.add_argument("file", metavar="FILE")
    about = "make a node's own key, and print its public line"
    identity = command(_identity, about, _ROSTER_EXAMPLE, key="mode 0600")
    identity.add_argument("--name", required=True, help="its client-id")
    about = "write down which nodes work together"
    roster = command(_roster, about, _ROSTER_EXAMPLE, out="for every node")
    text = "NAME=PUBLIC, or a file with such lines, or another roster"
    roster.add_argument("members", nargs="+", metavar="MEMBER", help=text)
    about = "say whether a node's key fits its roster; exit code 0 or 1"
    whose = {"key": "of this node", "roster": "of this node"}
    command(_check, about, _ROSTER_EXAMPLE, **whose)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except EncryptionError as error:
        print(f"fedtrellis-keys: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
