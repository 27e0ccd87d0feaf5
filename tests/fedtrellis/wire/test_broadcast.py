"""The model on its way to the clients, the same bits there; iterates replayed."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedtrellis.domains.atoms import DenseAtom, SignAtom, SparseAtom
from fedtrellis.domains.replayed import ReplayedIterate
from fedtrellis.wire.arrays import DTYPES, Layout
from fedtrellis.wire.broadcast import (
    ModelBroadcast,
    ReceivedModel,
    RestoreNeededError,
    Step,
    receive,
)
from tests.fedtrellis.domains.test_atoms import random_atom

Point = NDArray[np.float64]
Shape = tuple[int, ...]
Config = dict[str, Any]

#: What may come on top of the dense model's own bytes: a few .npy headers and the
#: bookkeeping of steps.
ENVELOPE = 1024


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

    def __init__(self, shape: Shape, dtype: str, seed: int, clients: int) -> None:
        self.rng = np.random.default_rng(seed)
        start = self.rng.standard_normal(shape)
        start[self.rng.random(shape) < 0.7] = 0.0
        start[self.rng.random(shape) < 0.1] = -0.0
        self.server = ModelBroadcast(Layout((shape,), dtype), start)
        self.clients: list[ReceivedModel | None] = [None] * clients

    def change(self, kind: str) -> None:
        shape = self.server.model.shape
        if kind not in ("replace", "revise") and self.server.layout.dtype != "float64":
            kind = "revise"  # steps are of float64
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
        """Send a client the model; it says so if it is behind what is believed."""
        record, config = self.server.encode(believed)
        whole = self.server.layout.to_wire(self.server.model).nbytes
        assert payload(record) <= whole + ENVELOPE
        stored = self.clients[client]
        needs = -1 if "model-shapes" in config else config.get("model-base", -1)
        if (-1 if stored is None else stored.version) < needs:
            with pytest.raises(RestoreNeededError):
                receive(record, config, stored)
            return self.send(client, None)
        received = receive(record, config, stored)
        assert_in_step(self.server, received)
        self.clients[client] = received
        return None


CHANGES = (
    *("plain", "plain", "plain", "forget", "keep", "tiny", "empty", "replace"),
    *("revise", "revise", "revise", "revise"),
)


@settings(max_examples=150, deadline=None)
@given(
    shape=st.sampled_from([(1,), (7,), (400,), (12, 12), (20, 9)]),
    dtype=st.sampled_from(["float64", *DTYPES]),
    seed=st.integers(0, 2**32),
    script=st.lists(
        st.one_of(
            st.sampled_from(CHANGES), st.tuples(st.integers(0, 2), st.integers(0, 4))
        ),
        min_size=1,
        max_size=40,
    ),
)
def test_clients_have_the_servers_model_bit_for_bit(
    shape: Shape, dtype: str, seed: int, script: list[str | tuple[int, int]]
) -> None:
    simulation = Simulation(shape, dtype, seed, 3)
    for item in script:
        if isinstance(item, str):
            simulation.change(item)
            continue
        # the server may believe in an older version than the client has, for a message
        # that it gave up was handled nevertheless; in a newer one; or in none
        client, behind = item
        stored = simulation.clients[client]
        version = (
            simulation.server.version
            if behind == 3 or not stored
            else (max(0, stored.version - behind))
        )
        simulation.send(client, None if behind == 4 else version)


def test_the_smallest_encoding_is_chosen() -> None:
    size = 2000
    server = broadcast_of(np.zeros(size))
    assert server.encode(None)[1]["model-encoding"] == "sparse"  # nothing but zeros
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
    # nothing new
    assert len(server.encode(2)[0]) == 0
    # a step that forgets is enough for anyone: a bit an entry
    server.advance(Step(0.0, 1.0, (SignAtom(np.ones(size, dtype=bool), -1.0, 2.0),)))
    record, config = server.encode(None)
    assert payload(record) < size
    assert_in_step(server, receive(record, config, None))
    # a step as large as the model, and steps that are larger together
    server.advance(Step(0.9, 0.1, (DenseAtom(np.ones(size)),)))
    assert server.encode(3)[1]["model-encoding"] == "dense"
    server = broadcast_of(np.zeros(size))
    for _ in range(100):
        server.advance(Step(0.9, 0.1, tuple(single(i, size) for i in range(10))))
        assert server._nbytes <= server.model.nbytes
    record, config = server.encode(0)
    assert config["model-encoding"] == "sparse"  # 10 entries; the steps: 1000 atoms
    assert payload(record) < 500


def test_entries_that_changed_since_a_version_are_enough() -> None:
    """That clients at any version get the same bits is shown above."""
    server = broadcast_of(np.random.default_rng(0).standard_normal(500))
    for behind in range(1, 9):
        model = server.model.copy()
        model[10 * behind : 10 * behind + 10] += 1.0
        server.revise(model)
        record, config = server.encode(0)
        assert config["model-encoding"] == "entries"
        # an index of two bytes and a value of eight, and the headers around them
        assert payload(record) <= 10 * 11 * behind + ENVELOPE // 2
    # whoever is too far behind gets it whole
    server.revise(np.flip(server.model))
    assert server.encode(0)[1]["model-encoding"] == "dense"


@settings(max_examples=100, deadline=None)
@given(
    shape=st.sampled_from([(20, 20), (400,)]),
    seed=st.integers(0, 2**32),
    decays=st.lists(st.sampled_from([0.0, 1.0, 0.5, 1e-60, 1e-120, -0.3])),
)
def test_any_steps_are_replayed(shape: Shape, seed: int, decays: list[float]) -> None:
    """Beside x ← decay · x + weight · s in plain NumPy."""
    rng = np.random.default_rng(seed)
    x = start = rng.standard_normal(shape)
    kept, iterate = start.copy(), ReplayedIterate(start)
    for decay in [*decays, *[0.5] * 300, 0.9]:
        atom, weight = random_atom(rng, shape), float(rng.random())
        iterate.step(decay, weight, atom)
        x = (decay * x if decay else np.zeros(shape)) + weight * atom.dense()
    np.testing.assert_allclose(iterate.dense(), x, rtol=1e-12, atol=1e-12)
    array = np.full(shape, 7.0)
    iterate.add_to(array, -0.5)
    np.testing.assert_allclose(array, 7.0 - 0.5 * x, rtol=1e-12, atol=1e-12)
    assert np.array_equal(start, kept)


def test_a_few_bytes_declare_no_model_of_gigabytes() -> None:
    sent = [np.zeros(0, dtype=np.int64), np.zeros(0)]
    config = {"model-encoding": "sparse", "model-version": 0}
    config["model-shapes"] = Layout(((2 * 10**8,),)).to_list()
    with pytest.raises(ValueError, match="declare 200000000 parameters"):
        receive(ArrayRecord(sent), config, None)
