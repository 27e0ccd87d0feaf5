"""The contract of every set, one line of a table each, and what only one has."""

import importlib
import math
import pickle
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrellis import domains
from fedtrellis.domains import (
    DOMAINS,
    RUN_DOMAINS,
    BirkhoffPolytope,
    Box,
    CappedSimplex,
    Domain,
    GroupL1Ball,
    KSupportBall,
    L1Ball,
    L2Ball,
    LInfBall,
    NonNegativeL1Ball,
    NuclearNormBall,
    Permutahedron,
    Product,
    Simplex,
    SortedL1Ball,
    SparseGroupBall,
    Spectrahedron,
    SpectralNormBall,
    TotalVariationBall,
    WeightedL1Ball,
)
from fedtrellis.domains.atoms import (
    Atom,
    DenseAtom,
    PermutationAtom,
    ProductAtom,
    RankOneAtom,
    SignAtom,
    SparseAtom,
    pack_atoms,
    unpack_atoms,
)
from fedtrellis.domains.product import ENCLOSING, enclosing_ball
from fedtrellis.settings import SettingsError
from tests.fedtrellis.domains.cases import (
    CASES,
    EXAMPLES,
    Array,
    Shape,
    all_cases,
    cp,
    draw_point,
    examples,
    solve,
    vertices,
)
from tests.fedtrellis.domains.test_atoms import random_atom

few = settings(max_examples=40, deadline=None)

# -- oracles and projections


def directions(shape: Shape) -> list[Array]:
    rng = np.random.default_rng(5)
    single = np.zeros(shape)
    single.flat[-1] = -2.0
    return [
        *rng.standard_normal((4, *shape)),
        *rng.integers(-1, 2, (6, *shape)).astype(float),
        single,
        np.ones(shape),
        -np.ones(shape),
        np.zeros(shape),
    ]


def points(domain: Domain, shape: Shape) -> list[Array]:
    """Inside, on the boundary, outside, far outside, with ties, and zero."""
    rng = np.random.default_rng(6)
    centre = domain.centre(shape)
    atom = domain.lmo(rng.standard_normal(shape)).dense()
    other = domain.lmo(rng.standard_normal(shape)).dense()
    return [
        0.8 * centre + 0.1 * atom + 0.1 * other,
        atom,
        0.5 * (atom + other),
        1.5 * atom - 0.5 * other,
        *rng.standard_normal((3, *shape)),
        *5.0 * rng.standard_normal((3, *shape)),
        *rng.integers(-3, 4, (3, *shape)).astype(float),
        np.zeros(shape),
    ]


def assert_nearest(domain: Domain, x: Array, p: Array, slack: float) -> None:
    """⟨x − p, s − p⟩ ≤ slack for every s in D; worst is s = lmo(p − x)."""
    normal = x - p
    assert domain.lmo(-normal).dot(normal) - float(np.vdot(normal, p)) <= slack


@all_cases
def test_the_oracle_against_every_vertex_or_else_cvxpy(
    domain: Domain, shape: Shape
) -> None:
    corners = vertices(domain, shape)
    for gradient in directions(shape)[: None if corners else 8]:
        atom = domain.lmo(gradient)
        assert atom.shape == shape
        assert np.vdot(gradient, atom.dense()) == pytest.approx(atom.dot(gradient))
        if corners:
            best = min(float(np.vdot(gradient, corner)) for corner in corners)
            assert atom.dot(gradient) == pytest.approx(best, abs=1e-13)
            assert any(np.array_equal(atom.dense(), corner) for corner in corners)
            continue
        x = cp.Variable(shape)
        theirs = solve(cp.sum(cp.multiply(gradient, x)), domain, x)
        best = float(np.vdot(gradient, theirs))
        assert atom.dot(gradient) == pytest.approx(best, abs=1e-6)


#: The sets with a way of their own for many gradients; those of all sets agree.
MANY = [
    (domain, (300,))
    for domain in (
        *(L1Ball(2.0), LInfBall(0.5), Simplex(3.0), Box(-1.0, 2.0), L2Ball(1.5)),
        KSupportBall(2, 1.0),
    )
]


@pytest.mark.parametrize(("domain", "shape"), [*CASES, *MANY])
def test_many_gradients_have_the_atoms_of_each(domain: Domain, shape: Shape) -> None:
    rng = np.random.default_rng(3)
    many = rng.standard_normal((12, *shape))
    many[3:9] = rng.integers(-1, 2, (6, *shape))  # full of ties
    many[9] = 0.0
    alone = [domain.lmo(gradient) for gradient in many]
    for atom, expected in zip(domain.lmo_many(many), alone, strict=True):
        assert type(atom) is type(expected)
        assert atom.shape == expected.shape
        np.testing.assert_array_equal(atom.dense(), expected.dense())
        assert atom.nbytes == sum(a.nbytes for a in expected.to_arrays())
        for ours, theirs in zip(atom.to_arrays(), expected.to_arrays(), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
    for bad in (np.nan, np.inf, -np.inf):
        many[2].flat[-1] = bad
        with pytest.raises(ValueError, match="must be finite"):
            domain.lmo_many(many)


@all_cases
def test_projection_and_membership_against_cvxpy(domain: Domain, shape: Shape) -> None:
    size, centre = domain.diameter(shape), domain.centre(shape)
    for point in points(domain, shape):
        before = point.copy()
        ours = domain.project(point)
        np.testing.assert_array_equal(point, before)
        assert ours.dtype == np.float64
        assert not np.shares_memory(ours, point)
        x = cp.Variable(shape)
        theirs = solve(cp.sum_squares(x - point), domain, x)
        np.testing.assert_allclose(ours, theirs, atol=5e-5)
        # and ours is no farther than the solver's, which is feasible to about 1e-8
        near = float(np.linalg.norm(theirs - point))
        assert np.linalg.norm(ours - point) <= near + 1e-7
        assert domain.contains(ours)
        assert domain.contains(theirs, 1e-6)
        assert domain.contains(0.5 * (theirs + centre), 1e-6)
        if near > 0.5:
            # leaving along the normal by a thousandth of the set's size is noticed
            outside = theirs + 1e-3 * size * (point - theirs) / near
            assert not domain.contains(outside, 1e-6)


@all_cases
@given(data=st.data())
@few
def test_projection_is_the_nearest_point(
    domain: Domain, shape: Shape, data: st.DataObject
) -> None:
    x, y = draw_point(data, shape), draw_point(data, shape)
    p, q = domain.project(x), domain.project(y)
    assert domain.contains(p)
    scale = 1 + np.abs(x).max() + np.abs(y).max()
    assert_nearest(domain, x, p, 1e-9 * scale**2)
    np.testing.assert_allclose(domain.project(p), p, atol=1e-9)  # idempotent
    distance = np.linalg.norm(x - y)
    assert np.linalg.norm(p - q) <= distance + 1e-9 * scale  # non-expansive


LONG: tuple[Domain, ...] = (
    *(L1Ball(3.0), Simplex(3.0), KSupportBall(40, 3.0), GroupL1Ball(3.0, 20)),
    *(NonNegativeL1Ball(3.0), CappedSimplex(0.3, 3.0), WeightedL1Ball(0.5, 3.0)),
    *(SortedL1Ball(0.5, 3.0), SparseGroupBall(3.0, 20, 0.3), TotalVariationBall(3.0)),
    Permutahedron(3.0),
)


@pytest.mark.parametrize(
    ("domain", "shape"),
    [
        *((domain, (2000,)) for domain in LONG),
        (NuclearNormBall(9.0), (120, 100)),
        (NuclearNormBall(9.0), (40, 100)),
        (SpectralNormBall(1.0), (60, 40)),
        (BirkhoffPolytope(), (60, 60)),
        (Spectrahedron(3.0), (60, 60)),
    ],
)
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_projection_of_larger_points(
    domain: Domain, shape: Shape, scale: float
) -> None:
    x = scale * np.random.default_rng(4).standard_normal(shape)
    p = domain.project(x)
    assert domain.contains(p, 1e-11)
    size = float(np.linalg.norm(x - p)) * domain.diameter(shape)
    assert_nearest(domain, x, p, 1e-10 * (1 + size))
    np.testing.assert_allclose(domain.project(p), p, atol=1e-10)


# Overflow: the sums and squares of these are not finite.
@all_cases
@pytest.mark.filterwarnings("error")
def test_enormous_and_tiny_entries(domain: Domain, shape: Shape) -> None:
    rng = np.random.default_rng(1)
    direction = rng.standard_normal(shape)
    for scale in (1e300, 1e-300):
        atom = domain.lmo(scale * direction)
        np.testing.assert_allclose(
            atom.dense(), domain.lmo(direction).dense(), atol=1e-12
        )
    assert domain.contains(domain.project(1e-300 * direction))
    assert domain.contains(domain.project(1e300 * direction))
    assert not domain.contains(1e300 * direction)


@all_cases
def test_the_diameter_is_the_largest_distance(domain: Domain, shape: Shape) -> None:
    diameter = domain.diameter(shape)
    if corners := vertices(domain, shape):
        rest = np.array(corners).reshape(len(corners), -1)
        farthest = max(np.linalg.norm(rest - a, axis=1).max() for a in rest)
        assert diameter == pytest.approx(farthest)
    farthest = 0.0
    for gradient in np.random.default_rng(9).standard_normal((300, *shape)):
        a, b = domain.lmo(gradient).dense(), domain.lmo(-gradient).dense()
        distance = float(np.linalg.norm(a - b))
        assert distance <= diameter * (1 + 1e-12)
        farthest = max(farthest, distance)
    assert farthest == pytest.approx(diameter)


# -- atoms


@examples
def test_atoms_have_their_kind_and_travel(
    domain: Domain, shape: tuple[int, ...], atom: type[Atom]
) -> None:
    rng = np.random.default_rng(0)
    atoms = [domain.lmo(g) for g in rng.standard_normal((4, *shape))]
    assert {type(a) for a in atoms} == {atom}
    for a, b in zip(atoms, unpack_atoms(pack_atoms(atoms), shape), strict=True):
        assert a.dense().tobytes() == b.dense().tobytes()


def scaled(atom: Atom, factor: float) -> Atom:
    match atom:
        case SparseAtom():
            return SparseAtom(atom.indices, factor * atom.values, atom.shape)
        case RankOneAtom():
            return RankOneAtom(factor * atom.left, atom.right)
        case PermutationAtom():
            return PermutationAtom(atom.columns, factor * atom.scale)
        case SignAtom():
            return SignAtom(atom.bits, factor * atom.low, factor * atom.high)
        case ProductAtom():
            return ProductAtom(tuple(scaled(part, factor) for part in atom.parts))
    return DenseAtom(factor * atom.dense())


@all_cases
def test_what_the_oracle_returns_is_a_member_and_a_multiple_is_not(
    domain: Domain, shape: Shape
) -> None:
    for gradient in np.random.default_rng(0).standard_normal((20, *shape)):
        atom = domain.lmo(gradient)
        assert domain.contains_atom(atom)
        for factor in (1e6, 1 + 1e-6, np.nan, np.inf, -np.inf, 1e300):
            with np.errstate(invalid="ignore", over="ignore"):
                other = scaled(atom, factor)
            assert not domain.contains_atom(other), factor


@all_cases
def test_an_atom_of_another_shape_is_refused_and_nothing_is_raised(
    domain: Domain, shape: Shape
) -> None:
    larger = (shape[0] + 1, *shape[1:])
    assert not domain.contains_atom(DenseAtom(np.full(larger, 1e6)))
    assert not domain.contains_atom(DenseAtom(np.zeros((0,))))
    assert not domain.contains_atom(SparseAtom(np.array([0]), np.array([1e6]), larger))


@all_cases
@given(data=st.data())
@few
def test_atoms_of_all_kinds_and_sets_get_the_answer_of_their_dense_array(
    domain: Domain, shape: Shape, data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    others = [other for other, its in CASES if its == shape]
    atom = random_atom(rng, shape)
    if data.draw(st.booleans()):
        atom = data.draw(st.sampled_from(others)).lmo(rng.standard_normal(shape))
    atom = scaled(atom, data.draw(st.sampled_from([1.0, 0.1, 1e-3, 3.0])))
    assert atom.shape == shape
    assert domain.contains_atom(atom) == domain.contains(atom.dense())


# -- arguments


@examples
def test_centre_and_zero_gradient_are_feasible(
    domain: Domain, shape: tuple[int, ...], atom: type[Atom]
) -> None:
    centre = domain.centre(shape)
    assert centre.shape == shape
    assert centre.dtype == np.float64
    assert domain.contains(centre, 1e-12)
    centre += 1.0  # writable, and nobody else's
    assert domain.contains(domain.centre(shape), 1e-12)
    zero = domain.lmo(np.zeros(shape))
    assert isinstance(zero, atom)
    assert domain.contains(zero.dense(), 1e-12)


@examples
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(
    domain: Domain, shape: tuple[int, ...], atom: type[Atom], bad: float
) -> None:
    for place in (0, -1):
        array = np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape)
        array.flat[place] = bad
        with pytest.raises(ValueError, match="finite"):
            domain.lmo(array)
        with pytest.raises(ValueError, match="finite"):
            domain.project(array)
        assert domain.contains(array) is False


@examples
def test_repr_equality_hash_and_pickle(
    domain: Domain, shape: tuple[int, ...], atom: type[Atom]
) -> None:
    names = {**vars(domains), "array": np.array}
    copy = eval(repr(domain), names)
    assert copy == domain
    assert hash(copy) == hash(domain)
    assert pickle.loads(pickle.dumps(domain)) == domain
    assert [domain == other for other, _, _ in EXAMPLES].count(True) == 1


BAD_SHAPES: list[tuple[Domain, tuple[int, ...], str]] = [
    (L1Ball(1.0), (0,), "at least one entry"),
    (L2Ball(1.0), (3, 0), "at least one entry"),
    (LInfBall(1.0), (0,), "at least one entry"),
    (Simplex(), (0,), "at least one entry"),
    (Box(0, 1), (0,), "at least one entry"),
    (Box(np.zeros(3), 1), (4,), r"\(3,\)"),
    (Box(np.zeros(3), 1), (3, 1), r"\(3,\)"),
    (KSupportBall(4, 1.0), (3,), "k = 4"),
    (NuclearNormBall(1.0), (4,), "matrices"),
    (NuclearNormBall(1.0), (4, 0), "at least one entry"),
    (SpectralNormBall(1.0), (2, 2, 2), "matrices"),
    (BirkhoffPolytope(), (4,), "square"),
    (BirkhoffPolytope(), (4, 5), "square"),
    (BirkhoffPolytope(), (0, 0), "square"),
    (GroupL1Ball(1.0, 3), (7,), "multiple"),
    (GroupL1Ball(1.0, [[0], [1, 2]]), (4,), "has 4"),
    (NonNegativeL1Ball(1.0), (0,), "at least one entry"),
    (CappedSimplex(0.2, 1.0), (4,), "cap may be no less than 0.25"),
    (WeightedL1Ball(np.ones(3), 1.0), (4,), r"\(3,\)"),
    (SortedL1Ball(np.ones(3), 1.0), (4,), "has 4"),
    (SparseGroupBall(1.0, 3), (7,), "multiple"),
    (TotalVariationBall(1.0), (0,), "at least one entry"),
    (Permutahedron(np.ones(3)), (2,), "has 2"),
    (Spectrahedron(1.0), (2, 3), "square"),
    (Product([L1Ball(1.0)], [(3,)]), (4,), r"\(3,\)"),
    (Product([L1Ball(1.0)], [(4,)]), (2, 2), r"\(4,\)"),
]


@pytest.mark.parametrize(("domain", "shape", "says"), BAD_SHAPES)
def test_shapes_that_do_not_fit(
    domain: Domain, shape: tuple[int, ...], says: str
) -> None:
    array = np.zeros(shape)
    calls: list[Callable[[], Any]] = [
        lambda: domain.check_shape(shape),
        lambda: domain.lmo(array),
        lambda: domain.project(array),
        lambda: domain.contains(array),
        lambda: domain.diameter(shape),
        lambda: domain.centre(shape),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=says) as caught:
            call()
        message = str(caught.value)
        assert "\n" not in message
        assert domain.name in message
        assert str(shape) in message


BAD_PARAMETERS: list[tuple[Callable[[], Domain], str]] = [
    *(
        (lambda c=c, r=r: c(r), rf"{c.name}: radius must be .* got {r!r}")
        for c in (
            *(L1Ball, L2Ball, LInfBall, Simplex, NuclearNormBall, SpectralNormBall),
            *(NonNegativeL1Ball, TotalVariationBall, Spectrahedron),
        )
        for r in (0.0, -1.0, np.nan, np.inf, "ten", None, True)
    ),
    (lambda: KSupportBall(0, 1.0), "k must be an integer of at least 1, got 0"),
    (lambda: KSupportBall(1.5, 1.0), "k must be an integer"),  # type: ignore[arg-type]
    (lambda: KSupportBall(True, 1.0), "k must be an integer"),
    (lambda: KSupportBall(2, -1.0), "radius must be"),
    (lambda: Box(1, 0), "lower must not exceed upper"),
    (lambda: Box([0, 3], [1, 2]), "lower must not exceed upper"),  # type: ignore[arg-type]
    (lambda: Box(0, np.inf), "upper must be"),
    (lambda: Box("a", 1), "lower must be"),  # type: ignore[arg-type]
    (lambda: Box(np.zeros(2), np.ones(3)), "one shape"),
    (lambda: Box(np.zeros((0,)), 1), "lower must be"),
    (lambda: GroupL1Ball(0.0, 2), "radius must be"),
    (lambda: GroupL1Ball(1.0, 0), "groups must be"),
    (lambda: GroupL1Ball(1.0, []), "groups must"),
    (lambda: GroupL1Ball(1.0, [[0], [0, 1]]), "exactly one group"),
    (lambda: GroupL1Ball(1.0, [[0], [2]]), "exactly one group"),
    (lambda: GroupL1Ball(1.0, [[0], []]), "groups must"),
    (lambda: GroupL1Ball(1.0, [[0.5], [1]]), "groups must"),  # type: ignore[list-item]
    (lambda: GroupL1Ball(1.0, None), "groups must"),  # type: ignore[arg-type]
    (lambda: CappedSimplex(0.0), "cap must be"),
    (lambda: WeightedL1Ball(-1.0, 1.0), "weights must be a number of at least 0"),
    (lambda: WeightedL1Ball([1.0, 0.0], 1.0), "positive ones"),  # type: ignore[arg-type]
    (lambda: WeightedL1Ball([1.0, np.nan], 1.0), "weights must"),  # type: ignore[arg-type]
    (lambda: WeightedL1Ball(True, 1.0), "weights must"),
    (lambda: SortedL1Ball(1.5, 1.0), "from 0 to 1"),
    (lambda: SortedL1Ball([1.0, 2.0], 1.0), "do not grow"),  # type: ignore[arg-type]
    (lambda: SortedL1Ball([0.0, 0.0], 1.0), "weights must"),  # type: ignore[arg-type]
    (lambda: SortedL1Ball([1.0, -1.0], 1.0), "weights must"),  # type: ignore[arg-type]
    (lambda: SortedL1Ball([[1.0]], 1.0), "weights must"),  # type: ignore[arg-type]
    (lambda: SparseGroupBall(1.0, 2, 1.0), "share must be .* below 1, got 1.0"),
    (lambda: SparseGroupBall(1.0, 2, True), "share must be"),
    (lambda: SparseGroupBall(1.0, 0, 0.5), "sparse-group-ball: groups must be"),
    (lambda: Permutahedron(0.0), "a positive number or a vector"),
    (lambda: Permutahedron([[1.0]]), "vector must be"),  # type: ignore[arg-type]
    (lambda: Product([], []), "one or more"),
    (lambda: Product([L1Ball(1.0)], []), "a shape for each"),
    (lambda: Product(["l1-ball"], [(2,)]), "must be domains"),  # type: ignore[list-item]
    (lambda: Product([BirkhoffPolytope()], [(2,)]), "square"),
]


@pytest.mark.parametrize(("make", "says"), BAD_PARAMETERS)
def test_parameters_out_of_range(make: Callable[[], Domain], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_product_of_products_is_one_of_all_their_sets() -> None:
    inner = Product([L1Ball(1.0), NuclearNormBall(2.0)], [(2,), (2, 3)])
    flat = Product(
        [L1Ball(1.0), NuclearNormBall(2.0), L2Ball(1.0)], [(2,), (2, 3), (4,)]
    )
    assert Product([inner, L2Ball(1.0)], [(8,), (4,)]) == flat


def test_ties_go_to_the_lowest_index() -> None:
    g = np.array([0.0, -2.0, 2.0, -2.0, 2.0, 1.0])
    assert L1Ball(1.0).lmo(g).indices.tolist() == [1]
    assert L1Ball(1.0).lmo(g).values.tolist() == [1.0]
    assert L1Ball(1.0).lmo(-g).indices.tolist() == [1]
    assert L1Ball(1.0).lmo(-g).values.tolist() == [-1.0]
    assert Simplex().lmo(g).indices.tolist() == [1]
    assert KSupportBall(2, 1.0).lmo(g).indices.tolist() == [1, 2]
    assert KSupportBall(4, 1.0).lmo(np.zeros(6)).indices.tolist() == [0, 1, 2, 3]
    assert GroupL1Ball(1.0, 2).lmo(np.abs(g)).indices.tolist() == [2, 3]
    assert GroupL1Ball(1.0, [[5, 4], [0, 1], [2, 3]]).lmo(
        np.ones(6)
    ).indices.tolist() == [4, 5]
    assert BirkhoffPolytope().lmo(np.zeros((3, 3))).columns.tolist() == [0, 1, 2]


def test_gap_by_hand() -> None:
    # ℓ1 ball of radius 1, g = (3, −4), x = (1, 0): <g, x> = 3, min over D is −4
    assert L1Ball(1.0).gap([3.0, -4.0], [1.0, 0.0]) == 7.0
    with pytest.raises(ValueError, match="shape"):
        L1Ball(1.0).gap([3.0, -4.0], [[1.0, 0.0]])


# -- names and settings


def test_every_set_of_the_package_is_registered() -> None:
    modules = pkgutil.iter_modules(domains.__path__, "fedtrellis.domains.")
    found = [
        thing
        for module in modules
        for thing in vars(importlib.import_module(module.name)).values()
        if isinstance(thing, type)
        and issubclass(thing, Domain)
        and "name" in vars(thing)
    ]
    assert set(found) == {*DOMAINS.values(), *RUN_DOMAINS.values()}
    assert set(RUN_DOMAINS) - set(DOMAINS) == {"whole-space"}
    assert set(DOMAINS) - set(RUN_DOMAINS) == {"product"}  # made of a model's layers


# -- matrices


@pytest.mark.filterwarnings("error")
def test_birkhoff_projection_where_entries_hardly_leave_zero() -> None:
    """Steps of a run: near the answer every Newton step takes entries to and from 0."""
    domain = BirkhoffPolytope()
    for point in np.load(Path(__file__).with_name("birkhoff_hard.npy")):
        projected = domain.project(point)
        assert domain.contains(projected, 1e-9)
        # ⟨x − P(x), s − P(x)⟩ ≤ 0 for all s in D
        assert domain.gap(projected - point, projected) <= 1e-8


def symmetric(rng: np.random.Generator, n: int, rank: int, sign: float) -> Array:
    factor = rng.standard_normal((n, rank))
    result: Array = sign * factor @ factor.T
    return result


@pytest.mark.parametrize("n", [1, 30])
@pytest.mark.parametrize(("rank", "sign"), [(1, -1.0), (3, 1.0), (3, -1.0), (50, 1.0)])
def test_spectrahedron_lmo_against_all_eigenvalues(
    n: int, rank: int, sign: float
) -> None:
    rng = np.random.default_rng(7)
    g = symmetric(rng, n, rank, sign)
    skew = rng.standard_normal((n, n))
    lowest = np.linalg.eigvalsh(g)[0]
    domain = Spectrahedron(2.0)
    # <A, X> = 0 for A = −Aᵀ: the symmetric part counts
    for gradient in (g, g + (skew - skew.T)):
        atom = domain.lmo(gradient)
        size = float(np.linalg.norm(g))
        assert atom.dot(gradient) == pytest.approx(
            2.0 * lowest, abs=1e-12 * size + 1e-13
        )
        assert domain.contains_atom(atom, 1e-13)
        np.testing.assert_array_equal(domain.lmo(gradient).left, atom.left)
    zero = domain.lmo(np.zeros((n, n)))
    assert domain.contains(zero.dense())


def test_the_spectrahedron_refuses_what_is_not_symmetric_or_not_psd() -> None:
    domain = Spectrahedron(1.0)
    assert domain.contains([[0.5, 0.5], [0.5, 0.5]])
    assert not domain.contains([[0.5, 0.5], [0.4, 0.5]])
    assert not domain.contains([[0.5, 0.6], [0.6, 0.5]])  # eigenvalue −0.1
    assert not domain.contains([[0.5, 0.0], [0.0, 0.4]])
    # the nearest point to a matrix is that to its symmetric part
    x = np.random.default_rng(0).standard_normal((5, 5))
    np.testing.assert_allclose(domain.project(x), domain.project(0.5 * (x + x.T)))


def test_run_configs_set_what_constructors_take() -> None:
    without = {name for name, cls in RUN_DOMAINS.items() if not cls.has_radius()}
    assert without == {"box", "birkhoff-polytope", "permutahedron", "whole-space"}
    config = {"box.lower": -2, "k-support-ball.k": 3, "lower": 7.0}
    assert Box.from_config(config, radius=5.0) == Box(-2.0, 1.0)
    assert KSupportBall.from_config(config, radius=5.0) == KSupportBall(3, 5.0)
    assert GroupL1Ball.from_config({}, radius=5.0) == GroupL1Ball(5.0, 10)
    with pytest.raises(SettingsError, match=r"k-support-ball\.k = 0 must be at lea"):
        KSupportBall.from_config({"k-support-ball.k": 0}, radius=1.0)


# -- balls around sets

#: Norms of which a set cannot say how large they get.
UNKNOWN = {
    ("l1-ball", SpectralNormBall),
    *(
        ("nuclear-norm-ball", kind)
        for kind in (
            *(GroupL1Ball, CappedSimplex, SortedL1Ball, SparseGroupBall),
            *(TotalVariationBall, Permutahedron),
        )
    ),
}


@all_cases
@pytest.mark.parametrize("kind", ENCLOSING)
def test_a_ball_around_a_set_holds_it_and_touches_it(
    domain: Domain, shape: Shape, kind: str
) -> None:
    if kind == "nuclear-norm-ball" and len(shape) != 2:
        with pytest.raises(SettingsError, match="is for matrices"):
            enclosing_ball(kind, domain, shape)
        return
    if (kind, type(domain)) in UNKNOWN:
        with pytest.raises(SettingsError, match="is not available around"):
            enclosing_ball(kind, domain, shape)
        return
    ball = enclosing_ball(kind, domain, shape)
    rng = np.random.default_rng(0)
    # where a norm is largest: along one entry, all of them alike, or the identity
    size = math.prod(shape)
    along = [*np.eye(size).reshape(-1, *shape), np.ones(shape)]
    along += [np.eye(*shape)] if len(shape) == 2 else []
    along += [*rng.choice([-1.0, 1.0], (300, *shape)), *rng.normal(size=(300, *shape))]
    points = [domain.lmo(sign * d).dense() for d in along for sign in (1.0, -1.0)]
    assert all(ball.contains(point) for point in points)
    smaller = type(ball)(ball.radius * (1 - 1e-6))  # type: ignore[attr-defined, call-arg]
    assert not all(smaller.contains(point) for point in points)
