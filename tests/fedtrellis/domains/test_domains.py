"""The contract of every set, one line of a table each, and what only one has."""

import itertools
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrellis import domains as d
from fedtrellis.domains import Domain
from fedtrellis.domains.atoms import (
    Atom,
    DenseAtom,
    ProductAtom,
    RankOneAtom,
    SignAtom,
    SparseAtom,
    pack_atoms,
    unpack_atoms,
)
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
)
from tests.fedtrellis.domains.test_atoms import random_atom


@all_cases
def test_the_oracle_against_cvxpy(domain: Domain, shape: Shape) -> None:
    for gradient in directions(shape):
        atom = domain.lmo(gradient)
        assert atom.shape == shape
        assert np.vdot(gradient, atom.dense()) == pytest.approx(atom.dot(gradient))
        x = cp.Variable(shape)
        theirs = solve(cp.sum(cp.multiply(gradient, x)), domain, x)
        best = float(np.vdot(gradient, theirs))
        assert atom.dot(gradient) == pytest.approx(best, abs=1e-6)
        assert domain.contains_atom(atom)


few = settings(max_examples=40, deadline=None)

# -- oracles and projections


def directions(shape: Shape) -> list[Array]:
    rng = np.random.default_rng(5)
    single = np.zeros(shape)
    single.flat[-1] = -2.0
    ties = rng.integers(-1, 2, (2, *shape)).astype(float)
    return [*rng.standard_normal((3, *shape)), *ties, single, -np.ones(shape)]


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


#: The sets with a way of their own for many gradients; those of all sets agree.
MANY: list[tuple[Domain, Shape]] = [
    *((domain, (300,)) for domain in (d.L1Ball(2.0), d.LInfBall(0.5), d.Simplex(3.0))),
    *((domain, (300,)) for domain in (d.Box(-1.0, 2.0), d.L2Ball(1.5))),
    (d.KSupportBall(2, 1.0), (300,)),
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
def test_projection_nearest(domain: Domain, shape: Shape, data: st.DataObject) -> None:
    x, y = draw_point(data, shape), draw_point(data, shape)
    p, q = domain.project(x), domain.project(y)
    assert domain.contains(p)
    scale = 1 + np.abs(x).max() + np.abs(y).max()
    assert_nearest(domain, x, p, 1e-9 * scale**2)
    np.testing.assert_allclose(domain.project(p), p, atol=1e-9)  # idempotent
    distance = np.linalg.norm(x - y)
    assert np.linalg.norm(p - q) <= distance + 1e-9 * scale  # non-expansive


def test_what_is_projected_can_be_projected() -> None:
    """Though it lies outside by its last bit."""
    sparse = d.SparseGroupBall(1e-6, 3, 0.7)
    for domain, x in ((d.KSupportBall(2, 7.0), [9.0] * 4), (sparse, [1.0, 1.0, -1.0])):
        p = domain.project(x)
        np.testing.assert_allclose(domain.project(p), p, rtol=1e-12)


LONG: tuple[Domain, ...] = (
    *(d.L1Ball(3.0), d.Simplex(3.0), d.KSupportBall(40, 3.0), d.GroupL1Ball(3.0, 20)),
    *(d.NonNegativeL1Ball(3.0), d.CappedSimplex(0.3, 3.0), d.WeightedL1Ball(0.5, 3.0)),
    *(d.SortedL1Ball(0.5, 3.0), d.SparseGroupBall(3.0, 20, 0.3)),
    *(d.TotalVariationBall(3.0), d.Permutahedron(3.0)),
)
LARGE: list[tuple[Domain, Shape]] = [
    *((domain, (2000,)) for domain in LONG),
    *((d.NuclearNormBall(9.0), (120, 100)), (d.NuclearNormBall(9.0), (40, 100))),
    *((d.SpectralNormBall(1.0), (60, 40)), (d.BirkhoffPolytope(), (60, 60))),
    (d.Spectrahedron(3.0), (60, 60)),
]


@pytest.mark.parametrize(("domain", "shape"), LARGE)
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_projection_of_far_points(domain: Domain, shape: Shape, scale: float) -> None:
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
    assert not domain.contains(np.full(shape, 1.7e308 / math.prod(shape) ** 0.5))


@all_cases
def test_the_diameter_is_the_largest_distance(domain: Domain, shape: Shape) -> None:
    diameter, farthest = domain.diameter(shape), 0.0
    for gradient in np.random.default_rng(9).standard_normal((300, *shape)):
        a, b = domain.lmo(gradient).dense(), domain.lmo(-gradient).dense()
        farthest = max(farthest, float(np.linalg.norm(a - b)))
    assert farthest == pytest.approx(diameter)


@all_cases
def test_members_and_others(domain: Domain, shape: Shape) -> None:
    atoms = [*map(domain.lmo, np.random.default_rng(0).standard_normal((20, *shape)))]
    # the set is closed, and one of them has no rounding
    assert any(domain.contains(atom.dense(), 0.0) for atom in atoms)
    for atom in atoms:
        assert domain.contains_atom(atom)
        for factor in (1e6, 1 + 1e-6, np.nan, np.inf, -np.inf, 1e300):
            with np.errstate(invalid="ignore", over="ignore"):
                other = scaled(atom, factor)
            assert not domain.contains_atom(other), factor
    # of another shape, or with entries that are no numbers
    larger = (shape[0] + 1, *shape[1:])
    assert not domain.contains_atom(DenseAtom(np.full(larger, 1e6)))
    assert not domain.contains_atom(DenseAtom(np.zeros((0,))))
    assert not domain.contains_atom(SparseAtom(np.array([0]), np.array([1e6]), larger))
    for place, bad in itertools.product((0, -1), (np.nan, np.inf, -np.inf)):
        array = np.linspace(-1.0, 1.0, math.prod(shape)).reshape(shape)
        array.flat[place] = bad
        assert domain.contains(array) is False
        for method in (domain.lmo, domain.project):
            with pytest.raises(ValueError, match="finite"):
                method(array)


@examples
def test_centres_atoms_copies(domain: Domain, shape: Shape, atom: type[Atom]) -> None:
    centre = domain.centre(shape)
    assert centre.shape == shape
    assert domain.contains(centre, 1e-12)
    centre += 1.0  # writable, and nobody else's
    assert domain.contains(domain.centre(shape), 1e-12)
    gradients = [*np.random.default_rng(0).standard_normal((4, *shape)), 0.0 * centre]
    atoms = [domain.lmo(g) for g in gradients]
    assert {type(a) for a in atoms} == {atom}
    assert domain.contains(atoms[-1].dense(), 1e-12)
    for a, b in zip(atoms, unpack_atoms(pack_atoms(atoms), shape), strict=True):
        assert a.dense().tobytes() == b.dense().tobytes()
    copy = eval(repr(domain), {**vars(d), "array": np.array})
    assert copy == domain
    assert hash(copy) == hash(domain)
    assert pickle.loads(pickle.dumps(domain)) == domain
    assert [domain == other for other, _, _ in EXAMPLES].count(True) == 1


# -- atoms


def scaled(atom: Atom, factor: float) -> Atom:
    match atom:
        case SparseAtom():
            return SparseAtom(atom.indices, factor * atom.values, atom.shape)
        case RankOneAtom():
            return RankOneAtom(factor * atom.left, atom.right)
        case SignAtom():
            return SignAtom(atom.bits, factor * atom.low, factor * atom.high)
        case ProductAtom():
            return ProductAtom(tuple(scaled(part, factor) for part in atom.parts))
    return DenseAtom(factor * atom.dense())


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


BAD_SHAPES: list[tuple[Domain, Shape, str]] = [
    *((domain, (0, *shape[1:]), "has no points of shape") for domain, shape in CASES),
    (d.Box(np.zeros(3), 1), (3, 1), r"\(3,\)"),
    (d.KSupportBall(4, 1.0), (3,), "k = 4"),
    (d.SpectralNormBall(1.0), (2, 2, 2), "matrices"),
    (d.GroupL1Ball(1.0, [[0], [1, 2]]), (4,), "has 4"),
    (d.CappedSimplex(0.2, 1.0), (4,), "cap may be no less than 0.25"),
    (d.WeightedL1Ball(np.ones(3), 1.0), (4,), r"\(3,\)"),
    (d.SparseGroupBall(1.0, 3), (7,), "multiple"),
    (d.Permutahedron(np.ones(3)), (2,), "has 2"),
    (d.Spectrahedron(1.0), (2, 3), "square"),
    (d.Product([d.L1Ball(1.0)], [(4,)]), (2, 2), r"\(4,\)"),
]


@pytest.mark.parametrize(("domain", "shape", "says"), BAD_SHAPES)
def test_shapes_that_do_not_fit(domain: Domain, shape: Shape, says: str) -> None:
    array = np.zeros(shape)
    for method in (domain.lmo, domain.project, domain.contains):
        with pytest.raises(ValueError, match=says):
            method(array)
    for about in (domain.check_shape, domain.diameter, domain.centre):
        with pytest.raises(ValueError, match=says) as caught:
            about(shape)
        message = str(caught.value)
        assert "\n" not in message
        assert domain.name in message
        assert str(shape) in message


def test_every_set_of_the_package_has_a_line_here() -> None:
    bounded = {cls for cls in d.RUN_DOMAINS.values() if cls.bounded}
    assert {type(domain) for domain, _ in CASES} == {*bounded, d.Product}
    assert set(d.RUN_DOMAINS.values()) - bounded == {d.WholeSpace}


def test_the_spectrahedron_s_oracle_where_the_rank_is_low() -> None:
    rng, domain = np.random.default_rng(7), d.Spectrahedron(2.0)
    for n, (rank, sign) in itertools.product((1, 30), ((1, -1), (3, 1), (3, -1))):
        factor, skew = rng.standard_normal((n, rank)), rng.standard_normal((n, n))
        g = sign * factor @ factor.T
        lowest, size = np.linalg.eigvalsh(g)[0], float(np.linalg.norm(g))
        # <A, X> = 0 for A = −Aᵀ: the symmetric part counts
        gradient = g + (skew - skew.T)
        atom = domain.lmo(gradient)
        assert atom.dot(gradient) == pytest.approx(
            2.0 * lowest, abs=1e-12 * size + 1e-13
        )
        assert domain.contains_atom(atom, 1e-13)
        np.testing.assert_array_equal(domain.lmo(gradient).left, atom.left)


RADII: tuple[type[Domain], ...] = (
    *(d.L1Ball, d.L2Ball, d.LInfBall, d.Simplex, d.NuclearNormBall, d.SpectralNormBall),
    *(d.NonNegativeL1Ball, d.TotalVariationBall, d.Spectrahedron),
)
BAD_PARAMETERS: list[tuple[Callable[[], Domain], str]] = [
    *(
        (lambda c=c, r=r: c(r), rf"{c.name}: radius must be .* got {r!r}")
        for c, r in itertools.product(RADII, (0.0, np.nan, np.inf, "ten", True))
    ),
    (lambda: d.KSupportBall(0, 1.0), "k must be an integer of at least 1, got 0"),
    (lambda: d.KSupportBall(2, -1.0), "radius must be"),
    (lambda: d.Box([0, 3], [1, 2]), "lower must not exceed upper"),  # type: ignore[arg-type]
    (lambda: d.Box(0, np.inf), "upper must be"),
    (lambda: d.Box(np.zeros(2), np.ones(3)), "one shape"),
    (lambda: d.Box(np.zeros((0,)), 1), "lower must be"),
    (lambda: d.GroupL1Ball(1.0, 0), "groups must be"),
    (lambda: d.GroupL1Ball(1.0, [[0], [0, 1]]), "exactly one group"),
    (lambda: d.GroupL1Ball(1.0, [[0], [2]]), "exactly one group"),
    (lambda: d.GroupL1Ball(1.0, [[0], []]), "groups must"),
    (lambda: d.GroupL1Ball(1.0, [[0.5], [1]]), "groups must"),  # type: ignore[list-item]
    (lambda: d.CappedSimplex(0.0), "cap must be"),
    (lambda: d.WeightedL1Ball(-1.0, 1.0), "weights must be a number of at least 0"),
    (lambda: d.WeightedL1Ball([1.0, 0.0], 1.0), "positive ones"),  # type: ignore[arg-type]
    (lambda: d.SortedL1Ball(1.5, 1.0), "from 0 to 1"),
    (lambda: d.SortedL1Ball([1.0, 2.0], 1.0), "do not grow"),  # type: ignore[arg-type]
    (lambda: d.SortedL1Ball([0.0, 0.0], 1.0), "weights must"),  # type: ignore[arg-type]
    (lambda: d.SparseGroupBall(1.0, 2, 1.0), "share must be .* below 1, got 1.0"),
    (lambda: d.Permutahedron(0.0), "a positive number or a vector"),
    (lambda: d.Product([], []), "one or more"),
    (lambda: d.Product([d.L1Ball(1.0)], []), "a shape for each"),
    (lambda: d.Product([d.BirkhoffPolytope()], [(2,)]), "square"),
]


@pytest.mark.parametrize(("make", "says"), BAD_PARAMETERS)
def test_parameters_out_of_range(make: Callable[[], Domain], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_product_of_products_is_one_of_all_their_sets() -> None:
    inner = d.Product([d.L1Ball(1.0), d.NuclearNormBall(2.0)], [(2,), (2, 3)])
    flat = d.Product(
        [d.L1Ball(1.0), d.NuclearNormBall(2.0), d.L2Ball(1.0)], [(2,), (2, 3), (4,)]
    )
    assert d.Product([inner, d.L2Ball(1.0)], [(8,), (4,)]) == flat
    # a gap is a bound, however loose a set's oracle is
    G = np.random.default_rng(0).standard_normal((200, 200))
    loose = d.Product([d.NuclearNormBall(1.0, tolerance=0.3)], [G.shape])
    exact = np.linalg.norm(G, 2)
    assert loose.gap(G.ravel(), np.zeros(G.size)) == pytest.approx(exact, rel=1e-9)


def test_ties_go_to_the_lowest_index() -> None:
    g = np.array([0.0, -2.0, 2.0, -2.0, 2.0, 1.0])
    groups = [[5, 4], [0, 1], [2, 3]]
    for domain, gradient, places in (
        (d.L1Ball(1.0), -g, [1]),
        (d.Simplex(), g, [1]),
        (d.KSupportBall(2, 1.0), g, [1, 2]),
        (d.KSupportBall(4, 1.0), np.zeros(6), [0, 1, 2, 3]),
        (d.GroupL1Ball(1.0, 2), np.abs(g), [2, 3]),
        (d.GroupL1Ball(1.0, groups), np.ones(6), [4, 5]),
    ):
        atom: Any = domain.lmo(gradient)
        assert atom.indices.tolist() == places
    assert d.BirkhoffPolytope().lmo(np.zeros((3, 3))).columns.tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("error")
def test_birkhoff_projection_where_entries_hardly_leave_zero() -> None:
    """Steps of a run: near the answer every Newton step takes entries to and from 0."""
    domain, points = d.BirkhoffPolytope(), []
    for seed in (740, 1088, 3832):  # where Newton's method alone goes round
        rng, eye = np.random.default_rng(seed), np.eye(20)
        mixed = sum(eye[rng.permutation(20)] * w for w in rng.dirichlet(np.ones(4)))
        flat = rng.integers(0, 2, (20, 20)) @ rng.integers(0, 2, (20, 20))
        points.append(mixed - 620.0 * flat)
    for point in [*points, *np.load(Path(__file__).with_name("birkhoff_hard.npy"))]:
        projected = domain.project(point)
        assert domain.contains(projected, 1e-9)
        # ⟨x − P(x), s − P(x)⟩ ≤ 0 for all s in D
        size = max(1.0, float(np.abs(point).max()))
        assert domain.gap(projected - point, projected) <= 1e-8 * size


@all_cases
def test_the_largest_norms_are_attained(domain: Domain, shape: Shape) -> None:
    known = domain.largest_norms(shape)
    unknown = d.SpectralNormBall, d.Spectrahedron, d.BirkhoffPolytope, d.Product
    assert (known is None) == isinstance(domain, unknown)
    rng = np.random.default_rng(0)
    # where a norm is largest: along one entry, or all of them alike
    size = math.prod(shape)
    along = [*np.eye(size).reshape(-1, *shape), np.ones(shape)]
    along += [*rng.choice([-1.0, 1.0], (300, *shape)), *rng.normal(size=(300, *shape))]
    points = [domain.lmo(sign * d).dense().ravel() for d in along for sign in (1, -1)]
    for order, norm in zip((1, 2), known or (), strict=False):
        most = max(float(np.linalg.norm(point, order)) for point in points)
        assert most == pytest.approx(norm, rel=1e-6)
