"""``fedtrellis-keys``: make and look at key files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fedtrellis.encryption.fixed_point import EncryptionError, FixedPoint
from fedtrellis.encryption.key_format import unpack_key
from fedtrellis.encryption.keys import (
    BACKENDS,
    backend_class,
    read_file,
    write_key_pair,
)

__all__ = ["main"]

_EXAMPLE = """\
example:
  fedtrellis-keys new --key clients.key --context server.context
  fedtrellis-keys show clients.key

Copy clients.key to every client over a channel that you trust, and to nobody else;
whoever has it reads everything. Give server.context to the server: it can only add.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedtrellis-keys",
        description="Make and look at the keys of encrypted aggregation.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser(
        "new",
        help="make a key for the clients and its context for the server",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--key", required=True, metavar="FILE", help="for the clients")
    new.add_argument("--context", required=True, metavar="FILE", help="for the server")
    new.add_argument(
        "--backend",
        choices=list(BACKENDS),
        default="stream",
        help="default: %(default)s; 'none' encrypts nothing",
    )
    new.add_argument(
        "--bits",
        type=int,
        default=40,
        help="fractional bits that values are rounded to (default: %(default)s)",
    )
    show = commands.add_parser("show", help="say what a file is; never a secret")
    show.add_argument("file", metavar="FILE")
    return parser


def _new(options: argparse.Namespace) -> None:
    cipher = write_key_pair(options.key, options.context, options.backend, options.bits)
    print(f"fingerprint {cipher.fingerprint}")
    print(f"{options.key}: for every client, and for nobody else (mode 0600)")
    print(f"{options.context}: for the server")


def _show(options: argparse.Namespace) -> None:
    data, mode = read_file(options.file)
    # the file's own fields are enough: TenSEAL need not be there
    file = unpack_key(data)
    backend = backend_class(file.backend)
    fixed = FixedPoint(file.bits, backend.modulus)
    secret = file.secret is not None
    print("kind:       ", "clients' key (secret)" if secret else "evaluation context")
    print("backend:    ", file.backend)
    print("fingerprint:", file.fingerprint)
    print("parameters: ", backend.parameters)
    print(
        f"values:      multiples of 2^-{file.bits} = {fixed.resolution:.3g}; a sum of "
        f"1000 has room for up to ±{fixed.limit(1000):.6g} each"
    )
    if secret and mode & 0o077:
        print(f"warning:     others can read it (mode {mode:04o}); chmod 600 it")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 1 after one line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        {"new": _new, "show": _show}[options.command](options)
    except EncryptionError as error:
        print(f"fedtrellis-keys: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
