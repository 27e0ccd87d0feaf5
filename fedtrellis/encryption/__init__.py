"""Encryption of what clients send: a server adds what it cannot read.

TenSEAL is imported when a key of its backend is made or read, not before.
"""

from fedtrellis.encryption.cipher import Cipher, backend_class, load_evaluation
from fedtrellis.encryption.fixed_point import EncryptionError, RefusedError
from fedtrellis.encryption.node_secrets import remove_run_key

__all__ = [
    "Cipher",
    "EncryptionError",
    "RefusedError",
    "backend_class",
    "load_evaluation",
    "remove_run_key",
]
