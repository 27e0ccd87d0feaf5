"""What HyFDCA's server receives, what clients are sent, and what both refuse."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_to_proto

from clients.hyfdca import proposals
from fedtrellis import LocalGrid
from fedtrellis.dual import weights as dual_weights
from fedtrellis.dual.alignment import HASH_BYTES
from fedtrellis.encryption import EncryptionError, load_evaluation
from fedtrellis.encryption.cipher import PlainCipher, split_blob
from fedtrellis.encryption.fixed_point import Coding
from fedtrellis.encryption.node_secrets import shared_run_key
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import decode, record_arrays
from fedtrellis.wire.protocol import ARRAYS, CONFIG, MODEL, RESTORE, STATUS
from tests.harness import refused
from tests.strategies.hyfdca_runs import Array, Run, Split, Sums, small


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


def _single(received: bytes, values: Array) -> bool:
    """Whether four values in a row are among the bytes, as float32 or float16."""
    starts = range(0, len(values) - 3, 4)
    return any(
        values[start : start + 4].astype(dtype).tobytes() in received
        for dtype in ("<f4", "<f2")
        for start in starts
        if np.abs(values[start : start + 4]).min() > 1e-4
    )


def _is_in(values: Any, every: Array, relative: float = 1e-12) -> int:
    """How many of the values are among all that was received."""
    values = np.ravel(values)
    values = values[np.abs(values) > 1e-4]
    size = relative * np.abs(values)
    below = np.searchsorted(every, values - size, "left")
    return int((np.searchsorted(every, values + size, "right") > below).sum())


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
    loss, kind = options.pop("loss"), options.pop("kind", "hybrid")
    split = small(loss, kind, n=48)
    if options.pop("weighted", False):
        split.weights = np.random.default_rng(5).uniform(0.5, 2.0, split.n)
    alphas, products, w = [], list[Array](), np.zeros(split.p)

    def each(run: Run, _: int) -> None:
        """What must stay with the clients."""
        nonlocal w
        products.append(split.X @ w)
        for rows, columns in split.parts:
            products.append(split.X[np.ix_(rows, columns)] @ w[columns])
        w = run.steps.w.copy()
        alphas.append(run.check())

    run, grid = _recorded(split, 8, each=each, backup_every=2, **options)
    received, every = b"".join(grid.received), _floats(grid)
    assert len(grid.answers) > 2 * split.num_clients
    assert run.strategy.cipher is not None
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
    # the search finds what is there: v_k of the last round, which is sent in the clear
    if not options.get("secure_sum", True):
        sent = [c for kind, c in grid.answers if kind in ("propose", "primal")]
        (v, *_) = record_arrays(cast(ArrayRecord, sent[-1][ARRAYS]))
        assert _is_in(v, every) == np.sum(np.abs(v) > 1e-4) > 0
    far = [alpha for alpha in alphas if np.abs(alpha).max() > 1e-3]
    assert len(far) > 4
    # a chance hit has a probability of some 1e-5 a value
    orders = [
        split.parts[int(name)][0][rows]
        for name, groups in run.strategy.alignment.rows.items()
        for rows in groups.values()
    ]
    secrets = [*far, *products, (split.X**2).sum(axis=1), split.X]
    lists = [far[-1], split.X @ w]
    if loss == "squared":
        secrets.append(split.y)
    if split.weights is not None:
        # weights of single samples, and their sum on one client
        lists.append(split.weights)
        sums = [split.weights[rows].sum() for rows, _ in split.parts]
        secrets += [split.weights, np.array(sums)]
    for what in secrets:
        assert _is_in(what, every) == 0
    for what in lists:
        for order in (*orders, *(rows for rows, _ in split.parts)):
            assert not _single(received, what[order])


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
    every, received = _floats(grid), b"".join(grid.received)
    assert len(hidden) == 2 * 6 * split.num_clients
    for values in hidden:
        assert _is_in(values, every) == 0
        # nor as the integers that were hidden
        for bits in (40, 50, 0):
            fixed = np.rint(np.ldexp(values, bits)).astype("<i8")
            for value in fixed[np.abs(fixed) > 2**20]:
                assert value.tobytes() not in received
    for kind, content in grid.answers:
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
    assert min(map(len, secrets)) >= 32
    assert not any(secret in received for secret in secrets)
    for kind, content in grid.answers:
        if kind in ("align", "labels", "inner_product"):
            arrays = record_arrays(cast(ArrayRecord, content[ARRAYS]))
            if kind == "align":
                context = arrays[-1].tobytes()
                assert not load_evaluation(context)._root
                assert len(context) < 1000  # no room for a key of the scheme
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
    with pytest.raises(SettingsError):
        Run(small(n=24), 3, client={"loss": "squared"})
    assert not list(tmp_path.rglob("*.key"))


@pytest.mark.parametrize("options", [{"least": 2}, {"step": "practical", **OPEN}])
def test_a_client_is_sent_its_own_features_weights_and_its_own_groups(
    options: dict[str, Any],
) -> None:
    split = small(parts="irregular")
    run, grid = _recorded(split, 6, local_fraction=0.2, **options)
    there = 0
    for name, kind, content in grid.requests:
        if not content:
            continue  # the introduction
        config: dict[str, Any] = dict(cast(ConfigRecord, content[CONFIG]))
        own_rows, columns = split.parts[int(name)]
        (rows,) = record_arrays(cast(ArrayRecord, content[MODEL]))
        assert rows.shape[1] in (0, len(columns))
        there += rows.size
        groups = set(run.strategy.alignment.client_groups(name))
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
            assert sorted(decode(arrays["rows"])) == list(range(len(own_rows)))
        # two holders of each group report its sums
        assert not {*config.get("report", [])} & {*config.get("second-report", [])}
        assert "feature-names" not in config
        assert kind != "propose" or config["propose"]
    assert there


def _refused(split: Split, reason: str, grid: Any = None, **options: Any) -> Recorded:
    """One line before round 1, and nothing of the iteration has been asked."""
    grid = grid or Recorded(split.app(), split.num_clients)
    refused(reason, lambda: Run(split, 5, grid=grid, **options))
    later = {"inner_product", "propose", "dual", "primal"}
    assert not later & {kind for _, kind, _ in grid.requests}
    return cast(Recorded, grid)


def _set(name: str, change: Callable[[Any], Any]) -> Callable[[int, Any], None]:
    """Client 1 has something else."""
    return lambda k, c: setattr(c, name, change(getattr(c, name))) if k == 1 else None


def _with(index: Any, value: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        changed = array.copy()
        changed[index] = value
        return changed

    return change


LABEL = "client 1: (label 0 is .*must be -1 or \\+1|labels has NaN or infinite entries)"
#: What client 1 has instead, and what is said of it; of columns, names and the loss see
#: the tests of the baselines.
UNFIT: list[tuple[str, Callable[[Any], Any], str]] = [
    ("labels", lambda y: _with(3, -y[3])(y), "client 0: 1 samples have other labels"),
    ("labels", _with(0, np.inf), LABEL),
    ("labels", _with(0, 0.0), LABEL),
    ("feature_names", lambda n: [*n[:-1], "a\nb"], "client 1: .*has a line break"),
    ("sample_ids", lambda ids: [*ids[:-1], ids[0]], "client 1 has 1 sample ids twice"),
    ("sample_ids", lambda ids: ids[:-1], r"shape \(16, 6\) with 15 sample ids"),
]


@pytest.mark.parametrize(("name", "change", "reason"), UNFIT)
def test_what_does_not_fit(name: str, change: Any, reason: str) -> None:
    split = small(n=48)
    split.change = _set(name, change)
    _refused(split, reason)


def test_numbers_out_of_range() -> None:
    pytest.importorskip("tenseal")
    split = small(n=48)
    split.change = _set("features", lambda X: 1e9 * X)
    # ‖x_i‖² is said only where it is used
    reason = "client 1: a value is not finite, or too large for the fixed point"
    _refused(split, reason, encryption="tenseal-bfv", step="line-search")
    reason = "client 1: its part of a sum is too large to be hidden.*standardize = true"
    refused(reason, lambda: Run(split, 5))


def test_a_sample_that_nobody_labels(logged: list[str]) -> None:
    """How many there are stays on the node, unless all is one simulation."""
    split = small(n=48)
    split.change = lambda k, c: setattr(c, "labels", _with([0, 1], np.nan)(c.labels))
    reason = "2 samples have labels on none of their holders"
    _refused(split, f"client 0: {reason}")
    key = PlainCipher.generate()
    grid = Recorded(split.app(key=key), split.num_clients)
    context = key.evaluation_bytes()
    _refused(split, "labels do not fit together", grid, context=context)
    assert any(reason in line for line in logged)
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
