"""Encryption of what clients send: a server adds what it cannot read.

TenSEAL is imported when a key of its backend is made or read, not before.
"""

from fedtrellis.encryption.cipher import (
    Cipher,
    Header,
    add_vectors,
    decrypt_vector,
    encrypt_vector,
    split_blob,
)
from fedtrellis.encryption.fixed_point import (
    MAX_TERMS,
    Coding,
    EncryptionError,
    RangeError,
    RefusedError,
)
from fedtrellis.encryption.identity import Identity, load_identity, write_identity
from fedtrellis.encryption.keys import (
    BACKENDS,
    backend_class,
    load_evaluation,
    load_key,
    write_key_pair,
)
from fedtrellis.encryption.labels import Label, encode_label
from fedtrellis.encryption.roster import Roster, load_roster, write_roster
from fedtrellis.encryption.run_key import remove_run_key, run_ledgers, shared_run_key
from fedtrellis.encryption.sealing import open_sealed, seal

__all__ = [
    "BACKENDS",
    "MAX_TERMS",
    "Cipher",
    "Coding",
    "EncryptionError",
    "Header",
    "Identity",
    "Label",
    "RangeError",
    "RefusedError",
    "Roster",
    "add_vectors",
    "backend_class",
    "decrypt_vector",
    "encode_label",
    "encrypt_vector",
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
