"""What HyFDCA's server receives, what clients are sent, and what both refuse."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_to_proto

from clients.hyfdca import proposals
from fedtrellis import LocalGrid
from fedtrellis.dual.alignment import HASH_BYTES
from fedtrellis.dual.weights import in_parts
from fedtrellis.encryption import EncryptionError, load_evaluation
from fedtrellis.encryption.cipher import PlainCipher
from fedtrellis.encryption.fixed_point import Coding
from fedtrellis.encryption.node_secrets import shared_run_key
from fedtrellis.wire.arrays import decode, record_arrays
from fedtrellis.wire.protocol import ARRAYS, CONFIG, MODEL, RESTORE
from tests.harness import refused
from tests.strategies.hyfdca_runs import APART, Array, Run, Split, Sums, small


class Recorded(LocalGrid):
    """Keeps all that travels: the answers as bytes, the requests as they are."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, encode=True, **options)
        self.received: list[bytes] = []
        self.answers: list[tuple[str, RecordDict]] = []
        self.requests: list[tuple[str, str, RecordDict]] = []

    def _answer(self, message: Message, strikes: set[str], answer: Any) -> None:
        context = self._contexts[message.metadata.dst_node_id]
        name = str(context.node_config["partition-id"])
        kind = message.metadata.message_type.removeprefix("train.")
        self.requests.append((name, kind, message.content))
        super()._answer(message, strikes, answer)
        if isinstance(answer, str):
            self.received.append(answer.encode())
            return
        proto = recorddict_to_proto(answer.content)
        self.received.append(proto.SerializeToString())
        self.answers.append((kind, answer.content))


def _recorded(split: Split, rounds: int, **options: Any) -> tuple[Run, Recorded]:
    options = {"encryption": "stream", **options}
    if options["encryption"] == "tenseal-bfv":
        pytest.importorskip("tenseal")
    grid = Recorded(split.app(), split.num_clients)
    return Run(split, rounds, grid=grid, **options), grid


def _floats(grid: Recorded) -> Array:
    """Every float64 that the server could read in the answers, at any byte offset."""
    found: list[Array] = []
    for data in grid.received:
        for offset in range(8):
            size = max(len(data) - offset, 0) // 8
            found.append(np.frombuffer(data, "<f8", size, offset))
    with np.errstate(all="ignore"):
        every = np.concatenate(found)
        return np.sort(every[np.isfinite(every) & (np.abs(every) > 1e-4)])


def _is_in(values: Any, every: Array, relative: float = 1e-12) -> int:
    """How many of the values are among all that was received."""
    values = np.ravel(values)
    values = values[np.abs(values) > 1e-4]
    size = relative * np.abs(values)
    below = np.searchsorted(every, values - size, "left")
    return int((np.searchsorted(every, values + size, "right") > below).sum())


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "logistic", "encryption": "tenseal-bfv"},
        {"loss": "squared", "local_fraction": 0.5},
        {"loss": "logistic", **APART, "step": "practical"},
        {"loss": "logistic", "weighted": True, "class_weight": "balanced"},
    ],
    ids=["bfv", "part", "practical", "weights"],
)
def test_no_secret_is_among_the_bytes_that_the_server_receives(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses whose α and labels are no round numbers; text is looked for as bytes.

    What each client hid in its sums is noted behind its back.
    """
    loss = options.pop("loss")
    split = small(loss, n=48)
    if options.pop("weighted", False):
        split.weights = np.random.default_rng(5).uniform(0.5, 2.0, split.n)
    alphas, products, w = [], list[Array](), np.zeros(split.p)
    hidden: list[Array] = []

    coded = Coding.words

    def noted(self: Coding, values: Array, terms: int) -> Any:
        hidden.append(np.ravel(values) if self.bits else np.zeros(0))
        return coded(self, values, terms)

    def noted_too(values: Array, *rest: Any) -> Any:
        hidden.append(np.ravel(values))
        return in_parts(values, *rest)

    monkeypatch.setattr(Coding, "words", noted)
    monkeypatch.setattr(proposals, "in_parts", noted_too)

    def each(run: Run, _: int) -> None:
        """What must stay with the clients."""
        nonlocal w
        products.append(split.X @ w)
        for rows, columns in split.parts:
            products.append(split.X[np.ix_(rows, columns)] @ w[columns])
        w = run.steps.w.copy()
        alphas.append(run.check())

    _, grid = _recorded(split, 8, each=each, backup_every=2, **options)
    received, every = b"".join(grid.received), _floats(grid)
    assert len(grid.answers) > 2 * split.num_clients
    # ids, in the clear or hashed by whoever has no key
    for name in split.ids:
        assert name.encode() not in received
        for algorithm in ("md5", "sha1", "sha256", "sha512", "blake2b", "sha3_256"):
            digest = hashlib.new(algorithm, name.encode()).digest()
            assert digest[:HASH_BYTES] not in received
            assert digest.hex()[: 2 * HASH_BYTES].encode() not in received
    # labels, as any array of numbers
    for rows, _ in split.parts:
        for dtype in ("<f8", "<f4", *("<i8", "<i4", "<i2", "i1") * (loss != "squared")):
            assert split.y[rows].astype(dtype).tobytes() not in received
        assert (split.y[rows][:8] > 0).tobytes() not in received
    # the search finds what is there: v_k of the last round, which is sent in the clear
    if not options.get("secure_sum", True):
        sent = [c for kind, c in grid.answers if kind in ("propose", "primal")]
        (v, *_) = record_arrays(cast(ArrayRecord, sent[-1][ARRAYS]))
        assert _is_in(v, every) == np.sum(np.abs(v) > 1e-4) > 0
    else:
        assert len(hidden) >= 2 * 8 * split.num_clients
    far = [alpha for alpha in alphas if np.abs(alpha).max() > 1e-3]
    assert len(far) > 4
    secrets = [*far, *products, *hidden, (split.X**2).sum(axis=1), split.X]
    if loss == "squared":
        secrets.append(split.y)
    if split.weights is not None:
        # weights of single samples, and their sum on one client
        sums = [split.weights[rows].sum() for rows, _ in split.parts]
        secrets += [split.weights, np.array(sums)]
    # a chance hit has a probability of some 1e-5 a value
    for what in secrets:
        assert _is_in(what, every) == 0
    # nor as the integers that were hidden
    for bits, one in product((40, 50), [one for one in hidden if one.size]):
        fixed = np.rint(np.ldexp(one[np.abs(one) < 8192.0], bits)).astype("<i8")
        for value in fixed[np.abs(fixed) > 2**20]:
            assert value.tobytes() not in received


def test_the_server_has_no_secret_key() -> None:
    split = small(n=48)
    secrets: list[bytes] = []

    def each(run: Run, _: int) -> None:
        key = shared_run_key(run.strategy.conversation.session, "tenseal-bfv")
        whole, shared = key.secret_bytes(), key._file.secret
        assert shared is not None
        secrets.extend([shared, whole[len(whole) // 2 :][:64], key._file.payload[-64:]])

    run, grid = _recorded(split, 2, each=each, encryption="tenseal-bfv")
    with pytest.raises(EncryptionError, match="needs the clients' key"):
        run.strategy.cipher.derive("draw")
    received = b"".join(grid.received)
    assert min(map(len, secrets)) >= 32
    assert not any(secret in received for secret in secrets)
    for kind, content in grid.answers:
        if kind == "align":
            context = record_arrays(cast(ArrayRecord, content[ARRAYS]))[-1].tobytes()
            assert not load_evaluation(context)._root
            assert len(context) < 1000  # no room for a key of the scheme


@pytest.mark.parametrize("options", [{"least": 2}, {"step": "practical", **APART}])
def test_a_client_is_sent_its_own_features_weights_and_its_own_groups(
    options: dict[str, Any],
) -> None:
    split = small(parts="irregular")
    run, grid = _recorded(split, 6, local_fraction=0.2, **options)
    there = 0
    for name, _, content in grid.requests:
        if not content:
            continue  # the introduction
        config: dict[str, Any] = dict(cast(ConfigRecord, content[CONFIG]))
        own_rows, columns = split.parts[int(name)]
        (rows,) = record_arrays(cast(ArrayRecord, content[MODEL]))
        assert rows.shape[1] in (0, len(columns))
        there += rows.size
        groups = set(run.strategy.alignment.client_groups(name))
        for what, _, g in (key.partition("/") for key in config):
            if g:
                assert what in ("scores", "alpha", "labels", "counts", "norms")
                assert int(g) in groups
        for key in ("groups", "products", "propose", "dual", "moved"):
            assert set(cast(list[int], config.get(key, []))) <= groups
        arrays = cast(ArrayRecord, content.get(RESTORE, ArrayRecord()))
        if "rows" in arrays:
            assert set(decode(arrays["groups"]).tolist()) == groups
            assert sorted(decode(arrays["rows"])) == list(range(len(own_rows)))
        assert "feature-names" not in config
    assert there


def _refused(
    split: Split, why: str, grid: Any = None, iterates: bool = False, **options: Any
) -> None:
    """One line, of most before round 1: nothing of the iteration has been asked."""
    grid = grid or Recorded(split.app(), split.num_clients)
    refused(why, lambda: Run(split, 5, grid=grid, **options))
    later = {"inner_product", "propose", "dual", "primal"}
    assert iterates == bool(later & {kind for _, kind, _ in grid.requests})


LABEL = "client 1: (label 0 is .*must be -1 or \\+1|labels has NaN or infinite entries)"
OTHER = "client 0: 1 samples have other labels"
RANGE = "client 1: norms: a number is not below [0-9.e+]+, too large to be"
SUM = "client 1: its part of a sum is too large to be hidden.*standardize = true"
#: What client 1 has instead, options, and what is said of it; of columns, names and the
#: loss see the tests of the baselines.
UNFIT: list[tuple[str, Callable[[Any], Any], dict[str, Any], str]] = [
    ("labels", lambda y: np.append(y[:-1], -y[-1]), {}, OTHER),
    ("labels", lambda y: np.append(np.inf, y[1:]), {}, LABEL),
    ("labels", lambda y: np.append(0.0, y[1:]), {}, LABEL),
    ("feature_names", lambda n: [*n[:-1], "a\nb"], {}, "client 1: .*a line break"),
    ("sample_ids", lambda ids: [*ids[:-1], ids[0]], {}, "client 1 has 1 sample ids tw"),
    ("sample_ids", lambda ids: ids[:-1], {}, r"shape \(16, 6\) with 15 sample ids"),
    # ‖x_i‖² is said only where it is used
    ("features", lambda X: 1e9 * X, {"step": "line-search"}, RANGE),
    ("features", lambda X: 1e60 * X, {}, SUM),
]


@pytest.mark.parametrize(("name", "change", "options", "reason"), UNFIT)
def test_misfits(name: str, change: Any, options: dict[str, Any], reason: str) -> None:
    split = small(n=48)

    def spoil(k: int, client: Any) -> None:
        if k == 1:
            setattr(client, name, change(getattr(client, name)))

    split.change = spoil
    _refused(split, reason, iterates=reason == SUM, encryption="stream", **options)


def test_a_sample_that_nobody_labels(logged: list[str]) -> None:
    """How many there are stays on the node, unless all is one simulation."""
    split, none = small(n=48), [np.nan, np.nan]
    split.change = lambda k, c: setattr(c, "labels", np.append(none, c.labels[2:]))
    reason = "2 samples have labels on none of their holders"
    _refused(split, f"client 0: {reason}")
    key = PlainCipher.generate()
    grid = Recorded(split.app(key=key), split.num_clients)
    context = key.evaluation_bytes()
    _refused(split, "labels do not fit together", grid, context=context)
    assert any(reason in line for line in logged)
    assert not any(b"2 samples" in data for data in grid.received)


@pytest.mark.parametrize(
    ("exposed", "label"), [("accept", -1.0), ("accept", 1.0), ("leave-out", 1.0)]
)
def test_the_label_of_a_sample_of_no_category(
    exposed: str, label: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V of the constant less V of all categories is that sample's α, with its label."""
    rng = np.random.default_rng(7)
    X = np.column_stack([np.eye(3)[np.arange(48) % 3], np.ones(48)])
    X[0, :3] = 0.0
    y = rng.choice([-1.0, 1.0], 48)
    y[0] = label
    split = Split(X, y, [(np.arange(k, 48, 4), np.arange(4)) for k in range(4)])
    sums = Sums(monkeypatch)
    if exposed == "accept":
        Run(split, 2, encryption="stream", exposed=exposed)
        (alpha, *_) = (sums[0][:, 3] - sums[0][:, :3].sum(axis=1)).tolist()
        assert alpha * label > 1e-3
        return
    reason = "are all zero in 1 of its samples only"
    refused(reason, lambda: Run(split, 2, encryption="stream", exposed=exposed))
    assert not sums


def test_an_entry_that_two_clients_hold() -> None:
    """Sharing a feature is allowed, unless a sample's value of it counts twice."""
    split = small(n=48)
    rows, columns = split.parts[1]
    split.parts[1] = rows, np.append(columns, 0)
    _refused(split, "clients 0 and 1 both hold 16 of the same entries")
    # zeros are no entries, and neither are those of another sample
    mine = np.arange(len(rows)) < len(rows) // 2

    def halves(k: int, client: Any) -> None:
        if k < 2:
            client.features[mine if k else ~mine, k * len(columns)] = 0.0

    split.change = halves
    assert abs(split.relative(Run(split, 60, memory=40).model)) < 1e-6
