"""Parameters, shapes, ties, equality, the registry: the domains' public edge."""

import importlib
import pickle
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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
    fitting_domains,
    make_domain,
)
from fedtrellis.domains.atoms import (
    Atom,
    pack_atoms,
    unpack_atoms,
)
from fedtrellis.settings import SettingsError, keys
from tests.fedtrellis.domains.cases import EXAMPLES, examples


@examples
def test_atoms_have_their_kind_and_travel(
    domain: Domain, shape: tuple[int, ...], atom: type[Atom]
) -> None:
    rng = np.random.default_rng(0)
    atoms = [domain.lmo(g) for g in rng.standard_normal((4, *shape))]
    assert {type(a) for a in atoms} == {atom}
    for a, b in zip(atoms, unpack_atoms(pack_atoms(atoms), shape), strict=True):
        assert a.dense().tobytes() == b.dense().tobytes()


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
def test_other_dtypes_orders_and_lists(
    domain: Domain, shape: tuple[int, ...], atom: type[Atom]
) -> None:
    g = np.random.default_rng(2).integers(-9, 10, shape)
    expected = domain.lmo(g.astype(np.float64)).dense()
    projected = domain.project(g.astype(np.float64))
    for other in (g, g.astype(np.float32), np.asfortranarray(g), g.tolist()):
        np.testing.assert_allclose(domain.lmo(other).dense(), expected, atol=1e-14)
        np.testing.assert_allclose(domain.project(other), projected, atol=1e-12)


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


def test_box_does_not_follow_the_array_it_was_made_from() -> None:
    upper = np.ones(2)
    box = Box(0.0, upper)
    upper[:] = 5.0
    assert not box.contains([3.0, 3.0])
    assert Box(np.zeros(2), 1.0) != Box(0.0, 1.0)


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


def test_registry() -> None:
    assert set(DOMAINS) == {
        "l1-ball",
        "l2-ball",
        "linf-ball",
        "box",
        "simplex",
        "k-support-ball",
        "nuclear-norm-ball",
        "spectral-norm-ball",
        "birkhoff-polytope",
        "group-l1-ball",
        "product",
        "non-negative-l1-ball",
        "capped-simplex",
        "weighted-l1-ball",
        "sorted-l1-ball",
        "sparse-group-ball",
        "total-variation-ball",
        "permutahedron",
        "spectrahedron",
    }
    assert all(cls.__name__ in domains.__all__ for cls in DOMAINS.values())
    assert make_domain("l1-ball", radius=10) == L1Ball(10.0)
    assert make_domain("simplex") == Simplex(1.0)
    assert make_domain("box", lower=0, upper=1) == Box(0.0, 1.0)
    assert make_domain("k-support-ball", k=3, radius=1) == KSupportBall(3, 1.0)
    assert make_domain("birkhoff-polytope") == BirkhoffPolytope()
    assert make_domain("group-l1-ball", radius=1, groups=2) == GroupL1Ball(1.0, 2)


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


def test_sets_say_what_a_run_config_may_set() -> None:
    said = {
        key: field.default
        for cls in RUN_DOMAINS.values()
        for key, field in keys(cls.settings(), f"{cls.name}.").items()
    }
    assert said == {
        "box.lower": -1.0,
        "box.upper": 1.0,
        "k-support-ball.k": 10,
        "nuclear-norm-ball.tolerance": 1e-10,
        "group-l1-ball.groups": 10,
        "capped-simplex.cap": 1.0,
        "weighted-l1-ball.weights": 0.5,
        "sorted-l1-ball.weights": 0.5,
        "sparse-group-ball.groups": 10,
        "sparse-group-ball.share": 0.5,
        "permutahedron.vector": 1.0,
    }
    without = {name for name, cls in RUN_DOMAINS.items() if not cls.has_radius()}
    assert without == {"box", "birkhoff-polytope", "permutahedron", "whole-space"}
    config = {"box.lower": -2, "k-support-ball.k": 3, "lower": 7.0}
    assert Box.from_config(config, radius=5.0) == Box(-2.0, 1.0)
    assert KSupportBall.from_config(config, radius=5.0) == KSupportBall(3, 5.0)
    assert GroupL1Ball.from_config({}, radius=5.0) == GroupL1Ball(5.0, 10)
    assert BirkhoffPolytope.from_config(config, radius=5.0) == BirkhoffPolytope()
    with pytest.raises(
        SettingsError, match=r"k-support-ball\.k = 0 must be at least 1"
    ):
        KSupportBall.from_config({"k-support-ball.k": 0}, radius=1.0)
    with pytest.raises(ValueError, match="lower must not exceed upper"):
        Box.from_config({"box.lower": 2.0}, radius=0.0)


def test_a_task_over_any_vectors_takes_every_set_of_vectors() -> None:
    suggested = {"l2-ball": 5.0, "l1-ball": 10.0, "nuclear-norm-ball": 2.0}
    others = [
        *("linf-ball", "box", "simplex", "k-support-ball", "group-l1-ball"),
        *("non-negative-l1-ball", "capped-simplex", "weighted-l1-ball"),
        *("sorted-l1-ball", "sparse-group-ball", "total-variation-ball"),
        "permutahedron",
    ]
    fitting = fitting_domains(suggested)
    assert list(fitting) == [*suggested, *others]
    assert fitting == suggested | dict.fromkeys(others, 0.0)
    for suggested in ({"l2-ball": 1.0, "linf-ball": 0.1}, {"birkhoff-polytope": 0.0}):
        assert fitting_domains(suggested) == suggested

    class Mine(L2Ball):
        name = "mine"

    assert "mine" in fitting_domains({"l1-ball": 1.0}, RUN_DOMAINS | {"mine": Mine})


@pytest.mark.parametrize(
    ("name", "parameters", "says"),
    [
        ("l3-ball", {}, "'l3-ball'.*l1-ball"),
        ("l1-ball", {}, "takes radius; got none"),
        ("l1-ball", {"radius": 1, "k": 2}, "takes radius; got radius, k"),
        ("l1-ball", {"radius": -1}, "radius must be"),
        ("birkhoff-polytope", {"n": 3}, "no parameters; got n"),
        ("k-support-ball", {"k": 3}, "takes k, radius; got k"),
        ("group-l1-ball", {"radius": 1, "groups": 1, "_labels": 0}, "takes radius, gr"),
    ],
)
def test_make_domain_says_what_is_allowed(
    name: str, parameters: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        make_domain(name, **parameters)
    assert "\n" not in str(caught.value)


def test_a_set_of_ones_own_is_told_at_once_what_its_methods_take() -> None:
    with pytest.raises(
        TypeError, match=r"^Half\.diameter must take \(self, shape\), as Domain"
    ):

        class Half(L2Ball):
            def diameter(self) -> float:  # type: ignore[override]
                return 1.0
