"""What HyFDCA's server receives, what clients are sent, and what both refuse."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import recorddict_to_proto
from numpy.typing import NDArray

from clients import HyFDCAClient
from clients.hyfdca import proposals
from fedtrellis import LocalGrid, client_app
from fedtrellis.dual import weights as dual_weights
from fedtrellis.dual.alignment import HASH_BYTES
from fedtrellis.encryption import EncryptionError, load_evaluation
from fedtrellis.encryption.cipher import PlainCipher, split_blob
from fedtrellis.encryption.fixed_point import Coding
from fedtrellis.encryption.node_secrets import shared_run_key
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import decode, record_arrays
from fedtrellis.wire.protocol import ARRAYS, CONFIG, MODEL, RESTORE, STATUS
from strategies.hyfdca.mixtures import MixtureSteps
from tests.harness import Recorder
from tests.strategies.hyfdca_runs import Array, Run, Split, irregular, small


class Recorded(LocalGrid):
    """Keeps all that travels: the answers as bytes, the requests as they are."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, encode=True, **options)
        self.received: list[bytes] = []
        self.answers: list[tuple[str, str, RecordDict]] = []
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
        self.answers.append((name, kind, answer.content))


def _recorded(split: Split, rounds: int, **options: Any) -> tuple[Run, Recorded]:
    options = {"encryption": "stream", **options}
    if options["encryption"] == "tenseal-bfv":
        pytest.importorskip("tenseal")
    client = options.pop("client", {})
    grid = Recorded(split.app(**client), split.num_clients)
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


def _single(received: bytes, values: Array) -> bool:
    """Whether four values in a row are among the bytes, as float32 or float16."""
    starts = range(0, len(values) - 3, 4)
    return any(
        values[start : start + 4].astype(dtype).tobytes() in received
        for dtype in ("<f4", "<f2")
        for start in starts
        if np.abs(values[start : start + 4]).min() > 1e-4
    )


def _is_in(values: Array, every: Array, relative: float = 1e-12) -> int:
    """How many of the values are among all that was received."""
    values = values[np.abs(values) > 1e-4]
    size = relative * np.abs(values)
    below = np.searchsorted(every, values - size, "left")
    return int((np.searchsorted(every, values + size, "right") > below).sum())


class Notes:
    """α, the inner products and the squared norms that must stay with the clients."""

    def __init__(self) -> None:
        self.alpha: list[Array] = []
        self.products: list[Array] = []
        self.w = np.zeros(0)

    def __call__(self, run: Run, _: int) -> None:
        split = run.split
        w = self.w if self.w.size else np.zeros(split.p)
        self.products.append(split.X @ w)
        for rows, columns in split.parts:
            self.products.append(split.X[np.ix_(rows, columns)] @ w[columns])
        self.w = run.steps.w.copy()
        self.alpha.append(run.check())


# --------------------------------------------------------------- what the server gets


OPEN = {"secure_sum": False, "exposed": "accept"}


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "logistic", "encryption": "tenseal-bfv"},
        {"loss": "squared", "local_fraction": 0.5, "slots": "chosen"},
        {"loss": "logistic", **OPEN, "step": "practical"},
        {"loss": "squared", **OPEN, "kind": "horizontal", "local_passes": 1},
        {"loss": "logistic", "weighted": True, "class_weight": "balanced"},
    ],
    ids=["bfv", "chosen", "practical", "passes", "weights"],
)
def test_no_secret_is_among_the_bytes_that_the_server_receives(
    options: dict[str, Any],
) -> None:
    """Losses whose α and labels are no round numbers; text is looked for as bytes."""
    loss = options.pop("loss")
    kind = options.pop("kind", "hybrid")
    split, notes = small(loss, kind, n=48), Notes()
    if options.pop("weighted", False):
        split.weights = np.random.default_rng(5).uniform(0.5, 2.0, split.n)
    run, grid = _recorded(split, 8, each=notes, backup_every=2, **options)
    received = b"".join(grid.received)
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
        for dtype in ("<f8", "<f4", "<i8", "<i4", "<i2", "i1"):
            if loss == "squared" and "f" not in dtype:
                continue
            y = split.y[rows].astype(dtype)
            assert y.tobytes() not in received
            assert (y[:8] > 0).tobytes() not in received
    every = _floats(grid)
    # the search finds what is there: v_k of the last round, which is sent in the clear
    if not options.get("secure_sum", True):
        sent = [c for _, kind, c in grid.answers if kind in ("propose", "primal")]
        (v, *_) = record_arrays(cast(ArrayRecord, sent[-1][ARRAYS]))
        assert _is_in(np.ravel(v), every) == np.sum(np.abs(v) > 1e-4) > 0
    far = [alpha for alpha in notes.alpha if np.abs(alpha).max() > 1e-3]
    assert len(far) > 4
    # a chance hit has a probability of some 1e-5 a value
    orders = [
        split.parts[int(name)][0][rows]
        for name, groups in run.strategy.alignment.rows.items()
        for rows in groups.values()
    ]
    for what in (*far, *notes.products, (split.X**2).sum(axis=1)):
        assert _is_in(np.asarray(what), every) == 0
    for what in (far[-1], split.X @ notes.w):
        for order in (*orders, *(rows for rows, _ in split.parts)):
            assert not _single(received, what[order])
    if loss == "squared":
        assert _is_in(split.y, every) == 0
    assert _is_in(split.X.ravel(), every) == 0
    if split.weights is not None:
        # weights of single samples, nor their sum on one client
        sums = [split.weights[rows].sum() for rows, _ in split.parts]
        for own in (split.weights, np.array(sums)):
            assert _is_in(own, every) == 0
        for rows in orders:
            assert not _single(received, split.weights[rows])
    assert run.strategy.cipher is not None


def test_with_secure_sums_no_single_contribution_is_among_the_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor a client's sums of losses: what each hid is noted behind its back."""
    split = small("logistic", n=48)
    hidden: list[Array] = []
    coded, in_parts = Coding.words, dual_weights.in_parts

    def noted(self: Coding, values: Array, terms: int) -> Any:
        if self.bits:
            hidden.append(np.ravel(values))
        return coded(self, values, terms)

    def noted_too(values: Array, *rest: Any) -> Any:
        hidden.append(np.ravel(values))
        return in_parts(values, *rest)

    monkeypatch.setattr(Coding, "words", noted)
    monkeypatch.setattr(proposals, "in_parts", noted_too)
    _, grid = _recorded(split, 6)
    every = _floats(grid)
    assert len(hidden) == 2 * 6 * split.num_clients
    received = b"".join(grid.received)
    for values in hidden:
        assert _is_in(values, every) == 0
        # nor as the integers that were hidden
        for bits in (40, 50, 0):
            fixed = np.rint(np.ldexp(values, bits)).astype("<i8")
            for value in fixed[np.abs(fixed) > 2**20]:
                assert value.tobytes() not in received
    for _, kind, content in grid.answers:
        if kind == "propose":
            words, *blobs = record_arrays(cast(ArrayRecord, content[ARRAYS]))
            assert words.dtype == np.uint64
            assert all(blob.dtype == np.uint8 for blob in blobs)
            assert "numbers" not in cast(ConfigRecord, content[STATUS])


def test_the_server_has_no_secret_key() -> None:
    split = small(n=48)
    secrets: list[bytes] = []

    def each(run: Run, _: int) -> None:
        key = shared_run_key(run.strategy.conversation.session, "tenseal-bfv")
        assert key._root
        whole, shared = key.secret_bytes(), key._file.secret
        assert shared is not None
        secrets.extend([shared, whole[len(whole) // 2 :][:64], key._file.payload[-64:]])

    run, grid = _recorded(split, 2, each=each, encryption="tenseal-bfv")
    cipher = run.strategy.cipher
    assert cipher is not None
    assert not cipher._root
    with pytest.raises(EncryptionError, match="needs the clients' key"):
        cipher.derive("draw")
    received = b"".join(grid.received)
    assert secrets
    for secret in secrets:
        assert len(secret) >= 32
        assert secret not in received
    for _, kind, content in grid.answers:
        if kind not in ("align", "labels", "inner_product"):
            continue
        arrays = record_arrays(cast(ArrayRecord, content[ARRAYS]))
        if kind == "align":
            context = arrays[-1].tobytes()
            assert not load_evaluation(context)._root
            assert len(context) < 1000  # there is no room for a key of the scheme
            continue
        for array in arrays:
            header, _rest = split_blob(array.tobytes())
            assert header.fingerprint == cipher.fingerprint


def test_a_runs_own_key_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    during: list[int] = []

    def each(run: Run, _: int) -> None:
        during.append(len(list(tmp_path.rglob("*.key"))))

    Run(small(n=24), 3, each=each)
    assert during == [1, 1, 1]
    assert not list(tmp_path.rglob("*.key"))
    with pytest.raises(SettingsError):
        Run(small(n=24), 3, client={"loss": "squared"})
    assert not list(tmp_path.rglob("*.key"))


# ------------------------------------------------------------- what clients are sent


@pytest.mark.parametrize("options", [{"least": 2}, {"step": "practical", **OPEN}])
def test_a_client_is_sent_its_own_features_weights_and_its_own_groups(
    options: dict[str, Any],
) -> None:
    split = irregular()
    run, grid = _recorded(split, 6, local_fraction=0.2, **options)
    alignment = run.strategy.alignment
    weights: list[Array] = []
    for name, kind, content in grid.requests:
        if not content:
            continue  # the introduction
        config = dict(cast(ConfigRecord, content[CONFIG]))
        columns = split.parts[int(name)][1]
        (rows,) = record_arrays(cast(ArrayRecord, content[MODEL]))
        assert rows.shape[1] in (0, len(columns))
        if rows.size:
            weights.append(rows)
        groups = set(alignment.client_groups(name))
        for key, value in config.items():
            what, _, g = key.partition("/")
            if g:
                assert what in ("scores", "alpha", "labels", "counts", "norms")
                assert int(g) in groups
                assert all(isinstance(blob, bytes) for blob in cast(list[Any], value))
        for key in ("groups", "products", "propose", "dual", "moved"):
            assert set(cast(list[int], config.get(key, []))) <= groups
        arrays = cast(ArrayRecord, content.get(RESTORE, ArrayRecord()))
        if "rows" in arrays:
            assert set(decode(arrays["groups"]).tolist()) == groups
            n_k = len(split.parts[int(name)][0])
            assert decode(arrays["sizes"]).sum() == n_k
            assert sorted(decode(arrays["rows"])) == list(range(n_k))
        assert "feature-names" not in config
        assert kind != "propose" or config["propose"]
    assert weights


# ------------------------------------------------------------------- what does not fit


def _refused(split: Split, app: Any, reason: str, **options: Any) -> None:
    """One line before round 1, and nothing of the iteration has been asked."""
    grid = Recorder(app, split.num_clients)
    with pytest.raises(SettingsError, match=reason) as error:
        Run(split, 5, grid=grid, **options)
    assert "\n" not in str(error.value)
    later = {"train.inner_product", "train.propose", "train.dual", "train.primal"}
    assert not later & {message.metadata.message_type for message in grid.sent}


def _app(split: Split, **of_client_1: Callable[[Any], Any]) -> Any:
    """The split's clients, of which number 1 has something else."""

    def client_fn(context: Context) -> HyFDCAClient:
        client = split.client(context)
        if client.client_id == "1":
            for name, change in of_client_1.items():
                setattr(client, name, change(getattr(client, name)))
        return client

    return client_app(client_fn)


def _with(index: Any, value: Any) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def change(array: NDArray[Any]) -> NDArray[Any]:
        changed = array.copy()
        changed[index] = value
        return changed

    return change


FINITE = "label 0 is .*must be -1 or \\+1|labels has NaN or infinite entries"
#: What client 1 has instead, and what is said of it.
UNFIT: list[tuple[dict[str, Callable[[Any], Any]], str]] = [
    (
        {"labels": lambda y: _with(3, -y[3])(y)},
        "client 0: 1 samples have other labels on another client",
    ),
    ({"features": _with((4, 2), np.nan)}, "client 1: the features are not finite"),
    ({"features": _with((4, 2), np.inf)}, "client 1: the features are not finite"),
    ({"labels": _with(0, np.inf)}, f"client 1: ({FINITE})"),
    ({"labels": _with(0, 0.0)}, f"client 1: ({FINITE})"),
    ({"labels": lambda y: y[:3]}, r"client 1: labels have shape \(3,\), expected"),
    (
        {"feature_names": lambda names: [*names[:-1], "shoe size"]},
        "client 1 has feature 'shoe size', which is not among",
    ),
    (
        {"feature_names": lambda names: [*names[:-1], names[0]]},
        "client 1 names a feature twice",
    ),
    (
        {"feature_names": lambda names: [*names[:-1], "a\nb"]},
        "client 1: a feature's name has a line break",
    ),
    (
        {"sample_ids": lambda ids: [*ids[:-1], ids[0]]},
        "client 1 has 1 sample ids twice",
    ),
    (
        {"sample_ids": lambda ids: ids[:-1]},
        r"client 1: features of shape \(16, 6\) with 15 sample ids",
    ),
    (
        {"loss": lambda _: "logistic"},
        "client 1: loss = 'hinge' on the server, 'logistic' here",
    ),
]


@pytest.mark.parametrize(("changes", "reason"), UNFIT)
def test_what_does_not_fit(changes: Any, reason: str) -> None:
    split = small(n=48)
    _refused(split, _app(split, **changes), reason)


def test_numbers_out_of_range_and_a_feature_that_nobody_holds() -> None:
    pytest.importorskip("tenseal")
    split = small(n=48)
    app = _app(split, features=lambda X: 1e9 * X)
    # ‖x_i‖² is said only where it is used
    reason = "client 1: a value is not finite, or too large for the fixed point"
    _refused(split, app, reason, encryption="tenseal-bfv", step="line-search")
    reason = "client 1: its part of a sum is too large to be hidden.*standardize = true"
    with pytest.raises(SettingsError, match=reason) as error:
        Run(split, 5, grid=LocalGrid(app, split.num_clients))
    assert "\n" not in str(error.value)
    wide = Split(np.hstack([split.X, np.ones((48, 1))]), split.y, split.parts)
    reason = "feature 'blood pressure' of the model .1 in all. is held by no client"
    names = [*split.names, "blood pressure"]
    _refused(wide, split.app(), reason, feature_names=names)


@pytest.mark.parametrize("own_key", [False, True])
def test_a_sample_that_nobody_labels(
    own_key: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """How many there are stays on the node, unless all is one simulation."""
    split = small(n=48)

    def labelled(k: int) -> Array:
        y = split.y[split.parts[k][0]].copy()
        y[:2] = np.nan
        return y

    split.labelled = labelled
    reason = "2 samples have labels on none of their holders"
    if not own_key:
        _refused(split, split.app(), f"client 0: {reason}")
        return
    key = PlainCipher.generate()
    grid = Recorded(split.app(key=key), split.num_clients)
    with caplog.at_level("ERROR", logger="flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        with pytest.raises(SettingsError, match="labels do not fit together"):
            Run(split, 5, grid=grid, context=key.evaluation_bytes())
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert reason in caplog.text
    assert not any(b"2 samples" in data for data in grid.received)


@pytest.mark.parametrize(
    ("exposed", "label"),
    [("accept", -1.0), ("accept", 1.0), ("refuse", 1.0), ("leave-out", 1.0)],
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
    parts = [(np.arange(k, 48, 4), np.arange(4)) for k in range(4)]
    sums: list[Array] = []
    honest = MixtureSteps._complete_sum

    def noted(self: MixtureSteps, words: dict[str, NDArray[np.uint64]]) -> Any:
        found = honest(self, words)
        sums.append(found[0])
        return found

    monkeypatch.setattr(MixtureSteps, "_complete_sum", noted)
    split = Split(X, y, parts)
    if exposed == "accept":
        Run(split, 2, encryption="stream", exposed=exposed)
        (alpha, *_) = (sums[0][:, 3] - sums[0][:, :3].sum(axis=1)).tolist()
        assert alpha * label > 1e-3
        return
    with pytest.raises(SettingsError, match="are all zero in 1 of its samples only"):
        Run(split, 2, encryption="stream", exposed=exposed)
    assert not sums


def test_an_entry_that_two_clients_hold() -> None:
    """Sharing a feature is allowed, unless a sample's value of it counts twice."""
    split = small(n=48)
    rows, columns = split.parts[1]
    split.parts[1] = rows, np.append(columns, 0)
    reason = "clients 0 and 1 both hold 16 of the same entries"
    _refused(split, split.app(), reason)
    # zeros are no entries, and neither are those of another sample
    half = len(rows) // 2

    def halves(context: Context) -> HyFDCAClient:
        client = split.client(context)
        if client.client_id in "01":
            X = client.features.copy()
            mine = np.arange(len(rows)) < half
            at = 0 if client.client_id == "0" else len(columns)
            X[mine if client.client_id == "1" else ~mine, at] = 0.0
            client.features = X
        return client

    grid = LocalGrid(client_app(halves), split.num_clients)
    run = Run(split, 60, grid=grid, memory=40)
    assert abs(split.relative(run.model)) < 1e-6
