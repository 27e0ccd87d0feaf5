"""Products of sets: one for each layer of a model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedtrellis.domains.atoms import Atom, ProductAtom
from fedtrellis.domains.atoms.base import cut
from fedtrellis.domains.base import Domain, FloatArray, Shape
from fedtrellis.domains.vectors import WholeSpace
from fedtrellis.settings import check_choice


@dataclass(frozen=True)
class Product(Domain):
    """D_1 × … × D_k for one flat vector, the ravelled pieces one after the other.

    The set of a model with a constraint for each layer; :func:`constrain` makes one
    from layers' names. Everything separates over the pieces. With a ``WholeSpace``
    among them it is not bounded: it has projections, and the oracle of its other pieces
    alone. Methods take gradient steps in such a free layer.

    Parameters
    ----------
    domains : sequence of Domain
        The sets D_i. Of a product among them its sets are taken.
    shapes : sequence of tuple of int
        The shape of each piece.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrellis.domains import L1Ball, L2Ball, Product
    >>> domain = Product([L1Ball(1.0), L2Ball(2.0)], [(2,), (2,)])
    >>> domain.project(np.array([3.0, 1.0, 0.0, 5.0])).round(3)
    array([1., 0., 0., 2.])
    """

    name: ClassVar[str] = "product"
    of_vectors: ClassVar[bool] = False
    form: ClassVar[str] = "parts"
    domains: Sequence[Domain]
    shapes: Sequence[Shape]

    def __post_init__(self) -> None:
        domains = tuple(self.domains)
        for domain in domains:
            if not isinstance(domain, Domain):
                raise ValueError(
                    f"{self.name}: domains must be domains, got {domain!r}"
                )
        shapes = tuple(tuple(int(n) for n in shape) for shape in self.shapes)
        if not domains or len(domains) != len(shapes):
            raise ValueError(
                f"{self.name}: domains must be one or more, with a shape for each, got "
                f"{len(domains)} domains and {len(shapes)} shapes"
            )
        parts: list[tuple[Domain, Shape]] = []
        for domain, shape in zip(domains, shapes, strict=True):
            domain.check_shape(shape)
            if isinstance(domain, Product):
                parts += zip(domain.domains, domain.shapes, strict=True)
            else:
                parts.append((domain, shape))
        object.__setattr__(self, "domains", tuple(domain for domain, _ in parts))
        object.__setattr__(self, "shapes", tuple(shape for _, shape in parts))

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        """Whether every D_i is."""
        return all(domain.bounded for domain in self.domains)

    @property
    def size(self) -> int:
        """Entries of the flat vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    def check_shape(self, shape: Shape) -> None:
        """Raise a one-line ValueError unless a flat vector of the right size."""
        if tuple(shape) != (self.size,):
            raise ValueError(
                f"{self.name} has no points of shape {tuple(shape)}: its pieces make a "
                f"flat vector of shape {(self.size,)}"
            )

    def pieces(self, flat: FloatArray) -> Iterator[tuple[Domain, FloatArray]]:
        """Yield every D_i with its piece of a flat vector, a view in its own shape."""
        return zip(self.domains, cut(flat, self.shapes), strict=True)

    def lmo(self, gradient: ArrayLike) -> ProductAtom:
        """Return the product of the pieces' atoms."""
        g = self._input(gradient, "gradient")
        return ProductAtom(tuple(domain.lmo(piece) for domain, piece in self.pieces(g)))

    def gap(self, gradient: ArrayLike, point: ArrayLike) -> float:
        """Return the sum of the pieces' gaps, by whatever they have for a bound."""
        g, x = self._input(gradient, "gradient"), self._input(point, "point")
        pairs = zip(self.pieces(g), cut(x, self.shapes), strict=True)
        return sum(domain.gap(piece, at) for (domain, piece), at in pairs)

    def project(self, point: ArrayLike) -> FloatArray:
        """Project every piece."""
        x = self._input(point, "point")
        pieces = [domain.project(piece) for domain, piece in self.pieces(x)]
        return np.concatenate([piece.reshape(-1) for piece in pieces])

    def contains(self, point: ArrayLike, tolerance: float = 1e-9) -> bool:
        """Say whether every D_i contains its piece."""
        x = self._finite(point)
        return x is not None and all(
            domain.contains(piece, tolerance) for domain, piece in self.pieces(x)
        )

    def _contains_atom(self, atom: Atom, tolerance: float) -> bool:
        if isinstance(atom, ProductAtom):
            shapes = tuple(part.shape for part in atom.parts)
            if shapes == self.shapes:  # cut as D is
                pairs = zip(self.domains, atom.parts, strict=True)
                return all(d.contains_atom(part, tolerance) for d, part in pairs)
        return super()._contains_atom(atom, tolerance)

    def diameter(self, shape: Shape) -> float:
        """Return √(Σ diameter(D_i)²)."""
        self.check_shape(shape)
        pairs = zip(self.domains, self.shapes, strict=True)
        return math.hypot(*(domain.diameter(piece) for domain, piece in pairs))

    def centre(self, shape: Shape) -> FloatArray:
        """Return the pieces' centres."""
        self.check_shape(shape)
        pairs = zip(self.domains, self.shapes, strict=True)
        return np.concatenate([domain.centre(s).reshape(-1) for domain, s in pairs])


def constrain(
    model: Any, sets: Mapping[str, Domain], rest: Domain | None = None
) -> Domain:
    """Constrain some layers of a PyTorch module.

    Parameters
    ----------
    model : torch.nn.Module
        Its parameters that require a gradient are the model's arrays, in their order,
        as ``TorchObjective`` has them.
    sets : mapping of str to Domain
        By names of ``model.named_parameters()``.
    rest : Domain, optional
        The set of every other parameter; by default it is free (``WholeSpace``).

    Returns
    -------
    Domain
        The :class:`Product`; of a model of one array that array's set.

    Raises
    ------
    ValueError
        There is no such parameter, or a set has no points of its shape.

    Examples
    --------
    >>> import torch
    >>> from fedtrellis.domains import L2Ball, constrain
    >>> constrain(torch.nn.Linear(3, 2), {"weight": L2Ball(10.0)}).domains
    (L2Ball(radius=10.0), WholeSpace())
    """
    learnt = {n: p for n, p in model.named_parameters() if p.requires_grad}
    for name in sets:
        check_choice("constrain: layer", name, learnt)
    free = WholeSpace() if rest is None else rest
    shapes = [tuple(parameter.shape) for parameter in learnt.values()]
    product = Product([sets.get(name, free) for name in learnt], shapes)
    return product if len(shapes) > 1 else product.domains[0]


def towards(domain: Domain, d: FloatArray, x: FloatArray, s: FloatArray) -> FloatArray:
    """Return the direction s of a step at x, in D's layers that to its extreme point.

    That is argmin over a in D of ⟨d, a⟩, less x. Free layers keep their part of s.
    """
    if isinstance(domain, Product):
        cuts = [[piece for _, piece in domain.pieces(v)] for v in (d, x, s)]
        moves = [towards(*each) for each in zip(domain.domains, *cuts, strict=True)]
        return np.concatenate([move.reshape(-1) for move in moves])
    # a − x, so that x + γ (a − x) stays in D
    return domain.lmo(d).dense().astype(x.dtype) - x if domain.bounded else s
