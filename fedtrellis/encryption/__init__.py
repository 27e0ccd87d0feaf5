"""Encryption of what clients send: a server adds what it cannot read.

TenSEAL is imported when a key of its backend is made or read, not before.
"""

from fedtrellis.encryption.cipher import (
    BACKENDS,
    Cipher,
    backend_class,
    load_evaluation,
    load_key,
    split_blob,
    write_key_pair,
)
from fedtrellis.encryption.fixed_point import (
    MAX_TERMS,
    Coding,
    EncryptionError,
    RangeError,
    RefusedError,
)
from fedtrellis.encryption.identity import (
    Identity,
    Roster,
    load_identity,
    load_roster,
    write_identity,
    write_roster,
)
from fedtrellis.encryption.node_secrets import (
    remove_run_key,
    run_ledgers,
    shared_run_key,
)
from fedtrellis.encryption.symmetric import Label, encode_label, open_sealed, seal

__all__ = [
    "BACKENDS",
    "MAX_TERMS",
    "Cipher",
    "Coding",
    "EncryptionError",
    "Identity",
    "Label",
    "RangeError",
    "RefusedError",
    "Roster",
    "backend_class",
    "encode_label",
    "load_evaluation",
    "load_identity",
    "load_key",
    "load_roster",
    "open_sealed",
    "remove_run_key",
    "run_ledgers",
    "seal",
    "shared_run_key",
    "split_blob",
    "write_identity",
    "write_key_pair",
    "write_roster",
]
