"""The model on its way to the clients: the same bits there, in the smallest form."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedtrellis.domains.atoms import (
    Atom,
    DenseAtom,
    PermutationAtom,
    RankOneAtom,
    SignAtom,
    SparseAtom,
)
from fedtrellis.wire.arrays import Layout, array_record, record_arrays
from fedtrellis.wire.broadcast import (
    ModelBroadcast,
    ReceivedModel,
    RestoreNeededError,
    Step,
    pack_steps,
    receive,
    unpack_steps,
)

Point = NDArray[np.float64]
Config = dict[str, Any]

#: What may come on top of the dense model's own bytes: a few .npy headers and the
#: bookkeeping of steps.
ENVELOPE = 1024


def random_atom(rng: np.random.Generator, shape: tuple[int, ...]) -> Atom:
    size = int(np.prod(shape))
    kind = int(rng.integers(0, 5 if len(shape) == 2 else 4))
    if kind in (0, 1):
        count = int(rng.integers(0, min(size, 3) + 1))
        indices = np.sort(rng.choice(size, count, replace=False))
        return SparseAtom(indices, rng.standard_normal(count), shape)
    if kind == 2:
        return DenseAtom(rng.standard_normal(shape))
    if kind == 3:
        return SignAtom(rng.random(shape) < 0.5, -0.5, 0.25)
    if shape[0] == shape[1] and rng.random() < 0.5:
        return PermutationAtom(rng.permutation(shape[0]))
    return RankOneAtom(rng.standard_normal(shape[0]), rng.standard_normal(shape[1]))


def single(index: int, size: int, value: float = 1.0) -> SparseAtom:
    return SparseAtom(np.array([index]), np.array([value]), (size,))


def broadcast_of(model: Point, version: int = 0) -> ModelBroadcast:
    return ModelBroadcast(Layout((model.shape,)), model, version)


def payload(record: ArrayRecord) -> int:
    return sum(len(array.data) for array in record.values())


def assert_in_step(server: ModelBroadcast, client: ReceivedModel) -> None:
    assert client.version == server.version
    assert client.layout == server.layout
    assert client.point.shape == server.model.shape
    assert client.point.tobytes() == server.model.tobytes()


class Simulation:
    """A server, and clients that take part now and then."""

    def __init__(self, shape: tuple[int, ...], seed: int, clients: int) -> None:
        self.rng = np.random.default_rng(seed)
        start = self.rng.standard_normal(shape)
        start[self.rng.random(shape) < 0.7] = 0.0
        start[self.rng.random(shape) < 0.1] = -0.0
        self.server = broadcast_of(start)
        self.clients: list[ReceivedModel | None] = [None] * clients
        self.encodings: set[str] = set()

    def change(self, kind: str) -> None:
        shape = self.server.model.shape
        if kind == "revise":
            # some entries, zeros of either sign among them; sometimes none
            model = self.server.model.copy()
            where = self.rng.random(shape) < self.rng.choice([0.0, 0.02, 0.3])
            values = self.rng.standard_normal(shape)
            values[self.rng.random(shape) < 0.2] = -0.0
            values[self.rng.random(shape) < 0.2] = 0.0
            model[where] = values[where]
            self.server.revise(model)
            return
        if kind == "replace":
            model = self.rng.standard_normal(shape)
            model[self.rng.random(shape) < self.rng.random()] = -0.0
            self.server.replace(model)
            return
        decay = {"forget": 0.0, "keep": 1.0, "tiny": 1e-300}.get(kind, 0.9)
        count = 0 if kind == "empty" else int(self.rng.integers(0, 4))
        atoms = tuple(random_atom(self.rng, shape) for _ in range(count))
        expected = decay * self.server.model if decay else np.zeros(shape)
        for atom in atoms:
            expected = expected + 0.1 * atom.dense()
        self.server.advance(Step(decay, 0.1, atoms))
        np.testing.assert_allclose(self.server.model, expected, rtol=1e-12, atol=1e-14)

    def send(self, client: int, believed: int | None) -> None:
        record, config = self.server.encode(believed)
        assert payload(record) <= self.server.model.nbytes + ENVELOPE
        stored = self.clients[client]
        received = receive(record, config, stored)
        assert_in_step(self.server, received)
        self.clients[client] = received
        self.encodings.add(config["model-encoding"])

    def version(self, client: int) -> int | None:
        stored = self.clients[client]
        return None if stored is None else stored.version


CHANGES = (
    *("plain", "plain", "plain", "forget", "keep", "tiny", "empty", "replace"),
    *("revise", "revise", "revise", "revise"),
)


@settings(max_examples=150, deadline=None)
@given(
    shape=st.sampled_from([(1,), (7,), (400,), (12, 12), (20, 9)]),
    seed=st.integers(0, 2**32),
    script=st.lists(
        st.one_of(
            st.sampled_from(CHANGES),
            st.tuples(st.integers(0, 2), st.integers(0, 4)),
        ),
        min_size=1,
        max_size=40,
    ),
)
def test_clients_have_the_servers_model_bit_for_bit(
    shape: tuple[int, ...], seed: int, script: list[str | tuple[int, int]]
) -> None:
    simulation = Simulation(shape, seed, 3)
    for item in script:
        if isinstance(item, str):
            simulation.change(item)
            continue
        client, behind = item
        # the server may believe in an older version than the client has, or in none:
        # a message that it gave up was handled nevertheless
        version = simulation.version(client)
        believed = None if version is None or behind == 4 else max(0, version - behind)
        simulation.send(client, believed)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    changes=st.lists(st.sampled_from(CHANGES), min_size=1, max_size=12),
    lost=st.integers(1, 6),
)
def test_a_client_behind_what_the_server_believes_says_so_or_is_right(
    seed: int, changes: list[str], lost: int
) -> None:
    simulation = Simulation((300,), seed, 1)
    simulation.send(0, None)
    for change in changes:
        simulation.change(change)
    server = simulation.server
    believed = min(server.version, lost)  # the client's state is at version 0
    record, config = server.encode(believed)
    stored = simulation.clients[0]
    if config["model-encoding"] == "entries" or (
        config["model-encoding"] == "steps" and "model-shapes" not in config
    ):
        with pytest.raises(RestoreNeededError):
            receive(record, config, stored)
        with pytest.raises(RestoreNeededError):
            receive(record, config, None)
        simulation.clients[0] = None  # it is sent all then
        simulation.send(0, None)
    else:
        assert_in_step(server, receive(record, config, stored))


def test_a_client_ahead_of_the_server_needs_the_model_whole() -> None:
    server = broadcast_of(np.ones(500))
    server.advance(Step(0.5, 1.0, (single(3, 500),)))
    record, config = server.encode(1)
    ahead = ReceivedModel(server.layout, np.zeros(500), 7)
    with pytest.raises(RestoreNeededError):
        receive(record, config, ahead)
    assert_in_step(server, receive(*server.encode(None), ahead))


def test_the_steps_a_client_has_already_are_skipped() -> None:
    server = broadcast_of(np.arange(500.0))
    client = receive(*server.encode(None), None)
    for index in range(4):
        server.advance(Step(0.5, 1.0, (single(index, 500),)))
        if index == 1:
            middle = receive(*server.encode(0), client)
    record, config = server.encode(0)
    assert config["model-encoding"] == "steps"
    for stored in (client, middle):  # at versions 0 and 2
        assert_in_step(server, receive(record, config, stored))


def test_the_smallest_encoding_is_chosen() -> None:
    size = 2000
    server = broadcast_of(np.zeros(size))
    _, config = server.encode(None)
    assert config["model-encoding"] == "sparse"  # nothing but zeros
    server.replace(np.ones(size))
    record, config = server.encode(None)
    assert config["model-encoding"] == "dense"
    assert payload(record) == 8 * size + 128
    client = receive(record, config, None)
    server.advance(Step(0.9, 0.1, (single(5, size),)))
    record, config = server.encode(1)
    assert config["model-encoding"] == "steps"
    assert payload(record) < 8 * size / 4
    assert_in_step(server, receive(record, config, client))
    record, config = server.encode(2)  # nothing new
    assert (config["model-encoding"], len(record)) == ("steps", 0)
    server.advance(Step(0.9, 0.1, (DenseAtom(np.ones(size)),)))
    record, config = server.encode(2)  # a step as large as the model
    assert config["model-encoding"] == "dense"


def test_many_steps_on_a_few_entries_go_as_those_entries() -> None:
    size = 5000
    server = broadcast_of(np.zeros(size))
    for _ in range(100):
        atoms = tuple(single(index, size) for index in range(10))
        server.advance(Step(0.9, 0.1, atoms))
    record, config = server.encode(0)
    assert config["model-encoding"] == "sparse"  # 10 entries; the steps: 1000 atoms
    assert payload(record) < 500


def test_steps_larger_than_the_model_are_forgotten() -> None:
    server = broadcast_of(np.ones(300))
    for index in range(300):
        server.advance(Step(0.99, 0.1, tuple(single(index, 300) for _ in range(20))))
        assert server._nbytes <= server.model.nbytes
    assert server.encode(0)[1]["model-encoding"] == "dense"
    assert server.encode(299)[1]["model-encoding"] == "steps"


def test_after_a_step_that_forgets_anyone_can_start_with_it() -> None:
    size = 1000
    server = broadcast_of(np.full(size, np.inf))  # also what is not finite is forgotten
    server.advance(Step(0.5, 1.0, ()))
    server.advance(Step(0.0, 1.0, (SignAtom(np.ones(size, dtype=bool), -1.0, 2.0),)))
    record, config = server.encode(None)
    assert config["model-encoding"] == "steps"
    assert payload(record) < size  # a bit an entry
    assert_in_step(server, receive(record, config, None))
    assert np.array_equal(server.model, np.full(size, 2.0))
    server.advance(Step(1.0, 1.0, ()))  # nothing, and no atoms at all so far
    assert_in_step(server, receive(*server.encode(None), None))


def test_steps_without_atoms_travel() -> None:
    server = broadcast_of(np.arange(1.0, 400.0))
    client = receive(*server.encode(None), None)
    server.advance(Step(0.5, 1.0, ()))
    record, config = server.encode(0)
    assert (config["model-encoding"], len(record)) == ("steps", 1)
    assert_in_step(server, receive(record, config, client))


def test_several_layers_travel_as_one_vector() -> None:
    layout = Layout(((3, 4), (5,)))
    server = ModelBroadcast(layout, np.arange(17.0))
    client = receive(*server.encode(None), None)
    assert client.layout == layout
    assert_in_step(server, client)


def test_neither_side_changes_what_it_was_given() -> None:
    start = np.ones(500)
    server = broadcast_of(start)
    client = receive(*server.encode(None), None)
    before = client.point.copy()
    server.advance(Step(0.5, 1.0, (single(0, 500),)))
    receive(*server.encode(0), client)
    assert np.array_equal(start, np.ones(500))
    assert np.array_equal(client.point, before)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 6))
def test_steps_survive_the_wire(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    steps = [
        Step(
            float(rng.random()),
            float(rng.random()),
            tuple(random_atom(rng, (6, 6)) for _ in range(rng.integers(0, 4))),
        )
        for _ in range(count)
    ]
    back = unpack_steps(record_arrays(array_record(pack_steps(steps))), (6, 6))
    assert len(back) == len(steps)
    for a, b in zip(steps, back, strict=True):
        assert (a.decay, a.weight, len(a.atoms)) == (b.decay, b.weight, len(b.atoms))
        for atom, other in zip(a.atoms, b.atoms, strict=True):
            assert atom.dense().tobytes() == other.dense().tobytes()


DENSE: Config = {
    "model-encoding": "dense",
    "model-version": 3,
    "model-shapes": [1, 500],
}
TABLE = np.array([[0.0, 1.0, 0.0]])


@pytest.mark.parametrize(
    ("arrays", "changes"),
    [
        ([np.zeros(499)], {}),
        ([], {}),
        ([np.zeros(1), np.zeros(1), np.zeros(1)], {}),
        ([np.zeros(500)], {"model-encoding": "zip"}),
        ([np.zeros(500)], {"model-shapes": [1]}),
        ([np.array([500], dtype=np.uint16), np.ones(1)], {}),
        ([np.array([-1]), np.ones(1)], {}),
        ([np.array([1, 2], dtype=np.uint16), np.ones(3)], {}),
        ([np.zeros(3)], {"model-encoding": "steps", "model-base": 2}),
        ([np.full((1, 3), np.nan)], {"model-encoding": "steps", "model-base": 2}),
        ([TABLE + [0, 0, 1]], {"model-encoding": "steps", "model-base": 2}),
        ([], {"model-encoding": "steps", "model-base": 2}),
        ([TABLE + [0.5, 0, 0]], {"model-encoding": "steps", "model-base": 2}),
    ],
)
def test_a_malformed_model_is_refused(
    arrays: list[NDArray[Any]], changes: Config
) -> None:
    with pytest.raises(ValueError, match=r"."):
        receive(array_record(arrays), {**DENSE, **changes}, None)


def test_a_whole_model_needs_its_shapes() -> None:
    config = {k: v for k, v in DENSE.items() if k != "model-shapes"}
    with pytest.raises(ValueError, match="shapes"):
        receive(array_record([np.zeros(500)]), config, None)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_steps_that_do_not_lead_to_the_version_are_refused(count: int) -> None:
    stored = ReceivedModel(Layout(((500,),)), np.zeros(500), 1)
    config = {"model-encoding": "steps", "model-version": 3, "model-base": 1}
    arrays = [np.repeat(TABLE, count, axis=0)] if count else []
    with pytest.raises(ValueError, match="steps from version 1 to 3"):
        receive(array_record(arrays), config, stored)


def test_entries_that_changed_since_a_version_are_enough() -> None:
    """Clients at any of the last versions; the entries are bits, and few bytes."""
    rng = np.random.default_rng(0)
    server = broadcast_of(rng.standard_normal(500))
    clients = [receive(*server.encode(None), None)]
    for turn in range(8):
        model = server.model.copy()
        model[rng.choice(500, 10, replace=False)] = rng.standard_normal(10)
        model[turn] = -0.0 if turn % 2 else 0.0
        server.revise(model)
        clients.append(receive(*server.encode(server.version - 1), clients[-1]))
    for client in clients:
        record, config = server.encode(client.version)
        assert config["model-encoding"] == "entries"
        behind = server.version - client.version
        # an index of two bytes and a value of eight, and the headers around them
        assert payload(record) <= 10 * 11 * behind + ENVELOPE // 2
        assert_in_step(server, receive(record, config, client))
    # a client that is newer than the server thinks, and older, and has none
    record, config = server.encode(4)
    assert_in_step(server, receive(record, config, clients[6]))
    for stored in (clients[3], None, ReceivedModel(server.layout, server.model, 99)):
        with pytest.raises(RestoreNeededError):
            receive(record, config, stored)
    # whoever has no version, and whoever is too far behind, gets it whole
    assert server.encode(None)[1]["model-encoding"] == "dense"
    for _ in range(60):
        server.revise(rng.permutation(server.model))
    assert server.encode(0)[1]["model-encoding"] == "dense"


@pytest.mark.parametrize(
    "arrays",
    [
        [],
        [np.array([1, 2], np.uint16)],
        [np.array([1, 2], np.uint16), np.zeros(3)],
        [np.array([1, 500], np.uint16), np.zeros(2)],
        [np.array([-1, 2]), np.zeros(2)],
        [np.array([0.0, 1.0]), np.zeros(2)],
        [np.array([[1, 2]], np.uint16), np.zeros((1, 2))],
        [np.array([1, 2], np.uint16), np.array([0.0, np.nan])],
        [np.array([1, 2], np.uint16), np.array([0.0, np.inf])],
    ],
)
def test_malformed_entries_are_refused(arrays: list[NDArray[Any]]) -> None:
    stored = ReceivedModel(Layout(((500,),)), np.ones(500), 3)
    config = {"model-encoding": "entries", "model-base": 3, "model-version": 4}
    with pytest.raises(ValueError, match=r"entries|indices|index|finite"):
        receive(array_record(arrays, join=True), config, stored)
    assert (stored.point == 1.0).all()
