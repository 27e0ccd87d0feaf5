"""Atoms: extreme points of convex sets, in the smallest form that determines them.

A linear minimisation oracle answers with an extreme point of its set: one signed
coordinate of an l1 ball, two singular vectors of a nuclear norm ball, a permutation
of the Birkhoff polytope. An :class:`Atom` holds that form; it is added to a dense
array in place, without becoming one, and it travels as a few small arrays.

On the wire every array costs some 250 bytes of envelope, so :func:`pack_atoms`
stacks many atoms: one array of kind codes, then one to three arrays for each kind
that occurs. What arrives comes from outside: :meth:`Atom.from_arrays` and
:func:`unpack_atoms` check all of it and allocate no more than a small multiple of
what came.
"""

from fedtrellis.domains.atoms.base import (
    FLOAT64,
    Atom,
    DenseAtom,
    PermutationAtom,
    RankOneAtom,
    SignAtom,
    SparseAtom,
    rounding,
)
from fedtrellis.domains.atoms.packing import (
    ProductAtom,
    RandomSigns,
    pack_atoms,
    unpack_atoms,
)

__all__ = [
    "FLOAT64",
    "Atom",
    "DenseAtom",
    "PermutationAtom",
    "ProductAtom",
    "RandomSigns",
    "RankOneAtom",
    "SignAtom",
    "SparseAtom",
    "pack_atoms",
    "rounding",
    "unpack_atoms",
]
