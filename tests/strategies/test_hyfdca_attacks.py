"""A server that departs from the protocol, alone or with a client: what it is refused.

Each test is against the real client with a real key. Where a wave is attacked, the run
goes on afterwards, with keys and α unharmed (``attacked``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context

from clients import HyFDCAClient
from clients.hyfdca import hidden_sums
from clients.hyfdca.rules import NodeRules
from clients.hyfdca.secrets import RosterSecrets
from fedtrellis import LocalGrid, client_app
from fedtrellis.dual.agreement import Agreement
from fedtrellis.dual.questions import query_of
from fedtrellis.encryption import (
    EncryptionError,
    RefusedError,
    backend_class,
)
from fedtrellis.encryption.identity import Identity
from fedtrellis.encryption.intersection import blind
from fedtrellis.encryption.ledger import Ledger
from fedtrellis.encryption.masks import add_masks, common_secret, from_words
from fedtrellis.encryption.roster import Roster
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import record_arrays
from fedtrellis.wire.protocol import ARRAYS
from strategies import HyFDCA
from strategies.hybrid import ROWS
from strategies.hyfdca.masked_sums import MaskedSums, WrongReportError
from tests.strategies.hyfdca_attacker import (
    Config,
    Hand,
    attacked,
    shared_and_local,
)
from tests.strategies.hyfdca_runs import Array, Run, Split, small

INNER = "train.inner_product"
REFUSED = str(RefusedError())


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers go where they are removed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


# ----------------------------------------------------------- one client out of the sum


def _one_group(c: Config) -> Config:
    return {**c, "propose": c["propose"][:1], "versions": c["versions"][:1]}


def _fewer_groups(c: Config) -> Config:
    """As if this client had the first of its groups only."""
    lists = ("groups", "steps", "alpha-ids", "mix-counts", "keep-counts", "versions")
    mix, keep = c["mix-counts"][0], c["keep-counts"][0]
    less = {key: c[key][:1] for key in (*lists, "propose")}
    less |= {"mix-ids": c["mix-ids"][:mix], "keep-ids": c["keep-ids"][:keep]}
    return {**c, **less, "mix-weights": c["mix-weights"][:mix]}


def _another_step(c: Config) -> Config:
    """One group stands where it was, the other at its beginning."""
    return {**c, "steps": [0, *c["steps"][1:]], "alpha-ids": [0, *c["alpha-ids"][1:]]}


PARTS: dict[str, tuple[Callable[[Config], Config], str]] = {
    "one of its groups": (_one_group, "propose is"),
    "not all groups": (_fewer_groups, "groups is"),
    "it alone reports": (lambda c: {**c, "report": c["propose"]}, "report is"),
    "nobody reports": (lambda c: {**c, "report": []}, "report is"),
    "no second report": (lambda c: {**c, "second-report": []}, "second-report is"),
    "a shared group as its own": (
        lambda c: {**c, "local": c["propose"], "rows": [0] * len(c["propose"])},
        "local is",
    ),
    "two w": (lambda c: {**c, ROWS: np.vstack([c[ROWS]] * 2)}, "shape"),
    "the second w": (lambda c: {**c, "rows": [1], ROWS: np.vstack([c[ROWS]] * 2)}, ""),
    "two versions": (
        lambda c: {**c, "versions": [c["versions"][0] - 1, *c["versions"][1:]]},
        "not all asked at one version",
    ),
    "groups at two steps": (_another_step, "do not all stand at one step"),
    "another point as α": (
        lambda c: {**c, "alpha-ids": [i - 1 for i in c["alpha-ids"]]},
        "is not point",
    ),
    "somebody else's question": (
        lambda c: {**c, "inputs": c["inputs"][::-1]},
        "inputs",
    ),
    "not all peers": (lambda c: {**c, "nonces": c["nonces"][:2]}, "all members"),
}


def test_parts_of_a_sum_are_not_to_be_had() -> None:
    def attack(hand: Hand) -> None:
        assert len(hand.honest["1"]["propose"]) == 2
        for name, (change, reason) in PARTS.items():
            asked = change(hand.honest["1"])
            if "inputs" not in reason and "members" not in reason:
                asked = hand.sealed("1", asked)
            assert reason in hand.refused("1", asked), name

    attacked(attack)


@pytest.mark.parametrize("what", ["w", "mixture"])
def test_clients_that_are_asked_different_things_make_no_sum(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both holders of one sample group are told something else than all the others.

    Each question is one that an honest server might ask. Were the sum right, its
    difference from an honest one would be the v_k of these two alone.
    """
    told = {"0", "1"}
    sums: list[Array] = []
    entries_of, complete = MaskedSums._entries_of, MaskedSums._complete_sum
    now = {"round": 0}

    def other(self: MaskedSums, name: str) -> dict[str, Any]:
        config = entries_of(self, name)
        if now["round"] != 4 or name not in told:
            return config
        if what == "w":
            config["query"] = query_of(self.lies)  # type: ignore[attr-defined]
            if ROWS in config:
                config[ROWS] = 0.5 * config[ROWS]
            return config
        count = config["mix-counts"][0]
        hand = Hand(None, None, 4, "", {}, self.strategy.chain)  # type: ignore
        return hand.mixed(config, [1.0, *[0.0] * (count - 1)])

    class Lies(HyFDCA):
        chain = b""

        def ask(  # type: ignore[override]
            self,
            conversation: Any,
            t: int,
            kind: str,
            entries: Any,
            *rest: Any,
            **options: Any,
        ) -> Any:
            now["round"] = t
            steps: Any = self._steps
            if steps is not None and t < 4:
                type(self).chain = steps.units[0].chain

            def told_apart(name: str) -> Any:
                config = dict(entries(name))
                if (t, kind, what) == (4, INNER, "w") and name in told:
                    hand = Hand(self, conversation, t, kind, {}, b"")
                    marks = list(config["weights"])
                    for one in told:
                        own = 0.5 * self.own(one, steps.units[0].snapshot)[0]
                        marks = hand.at(one, {"weights": marks}, own)["weights"]
                    steps.lies = marks
                    config |= {"weights": marks, ROWS: 0.5 * config[ROWS]}
                return config

            return super().ask(conversation, t, kind, told_apart, *rest, **options)

    def look(self: MaskedSums) -> Any:
        stage = self._stage
        if stage is not None and set(stage.words) == set(self.strategy.clients):
            total = np.zeros(len(self.alignment.feature_names), dtype=np.uint64)
            for name, words in stage.words.items():
                columns = self.alignment.columns[name]
                total[columns] += words[: len(columns)]
            sums.append(from_words(total))
        return complete(self)

    monkeypatch.setattr(MaskedSums, "_entries_of", other)
    monkeypatch.setattr(MaskedSums, "_complete_sum", look)
    key = backend_class("stream").generate()
    with pytest.raises(WrongReportError):
        Run(
            shared_and_local(),
            6,
            strategy=Lies,
            encryption="stream",
            client={"key": key},
        )
    *honest, broken = sums
    assert len(honest) == 3
    assert np.abs(honest).max() < 100.0
    assert np.median(np.abs(broken)) > 1e5  # uniform in ±2^23


def test_masks_hide_every_single_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are what they hide plus numbers that look uniform, in every place."""
    answers: list[Any] = []

    def attack(hand: Hand) -> None:
        for name, config in hand.honest.items():
            answers.append(hand.words(name, config))

    attacked(attack)
    high = np.concatenate(answers) >> np.uint64(44)  # v_k is below 2^44 in size
    assert 0.3 < np.mean(high >= 2**19) < 0.7
    assert len(np.unique(high)) > 0.95 * len(high)


# ------------------------------------------------------------------- nonces and replies


def test_a_burnt_nonce_answers_one_question_and_always_alike() -> None:
    def attack(hand: Hand) -> None:
        asked = hand.honest["2"]
        first, again = hand.words("2", asked), hand.words("2", asked)
        assert first.size
        assert np.array_equal(first, again)
        nonces = [bytes(16) if i == 5 else n for i, n in enumerate(asked["nonces"])]
        for other in ({"nonces": nonces}, {"inputs": _foreign(asked["inputs"])}):
            # another T: nothing but the nonce that is next
            assert not hand.words("2", {**asked, **other}).size

    attacked(attack, client={"rules": NodeRules(noise=0.1)}, harmless=False)


def _foreign(inputs: list[bytes]) -> list[bytes]:
    return [*inputs[:5], bytes(32)]


def test_noise_is_not_averaged_out_by_asking_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At one w and one α a client adds the same noise under every T; else another."""
    noises: list[tuple[str, bytes, Array]] = []
    drawn = hidden_sums.HiddenSums._noise

    def noted(self: Any, config: Any, mark: bytes, shape: Any) -> Array:
        found = drawn(self, config, mark, shape)
        noises.append((self.client_id, mark, found))
        return found

    monkeypatch.setattr(hidden_sums.HiddenSums, "_noise", noted)

    def attack(hand: Hand) -> None:
        asked = hand.honest["2"]
        hand.words("2", asked)
        nonces = list(asked["nonces"])
        for _ in range(5):
            ledger = _ledger(hand, "2")
            nonces[2] = ledger.nonce
            assert hand.words("2", {**asked, "nonces": nonces}).size
        assert _ledger(hand, "2").answers == before + 1

    before = 3
    run = attacked(attack, client={"rules": NodeRules(noise=0.1)}, harmless=False)
    assert run.strategy.noisy
    own = [(mark, noise) for name, mark, noise in noises if name == "2"]
    asked_again = own[3:9]
    assert len({mark for mark, _ in asked_again}) == 1
    assert all(np.array_equal(noise, own[3][1]) for _, noise in asked_again)
    assert len({noise.tobytes() for _, noise in own}) == len({m for m, _ in own}) > 5


def _ledger(hand: Hand, name: str) -> Ledger:
    """A client's own ledger, read behind its back."""
    from fedtrellis.encryption import run_ledgers

    folder = run_ledgers(hand.conversation.session)
    return Ledger.open(folder, hand.conversation.session, name, True)


# ------------------------------------------------------------------ chosen w, mixtures


def test_weights_beyond_the_bound() -> None:
    def attack(hand: Hand) -> None:
        for name, config in hand.honest.items():
            w = np.full_like(config[ROWS][0], 1e9)
            for far in (w, np.where(np.arange(len(w)), 0.0, np.nan)):
                reason = hand.refused(name, hand.at(name, config, far))
                assert "max-weight-norm" in reason or "is not finite" in reason

    attacked(attack, of=INNER)
    own = NodeRules(max_weight_norm=1e-6)
    with pytest.raises(SettingsError, match="of norm 1e-06 at most"):
        attacked(lambda hand: None, client={"rules": own})


def test_mixtures_out_of_the_simplex() -> None:
    def attack(hand: Hand) -> None:
        rest = [0.0] * (hand.honest["0"]["mix-counts"][0] - 2)
        for weights in ((1.5, -0.5), (0.7, 0.7), (np.nan, 1.0), (2.0, 0.0)):
            for name in ("0", "3"):
                asked = hand.mixed(hand.honest[name], [*weights, *rest])
                assert "is none" in hand.refused(name, hand.sealed(name, asked))

    attacked(attack)


def test_another_mixture_than_the_chain_has() -> None:
    def attack(hand: Hand) -> None:
        config = hand.honest["0"]
        count = config["mix-counts"][0]
        other = hand.mixed(config, [1.0, *[0.0] * (count - 1)])
        asked = hand.sealed("0", {**other, "chain": config["chain"]})
        assert "is another one" in hand.refused("0", asked)
        # nor is α given up for the zeros of the beginning
        begun = {**config, "steps": [0, 0], "alpha-ids": [0, 0]}
        assert "before step 0" in hand.refused("0", hand.sealed("0", begun))

    attacked(attack)


def test_more_answers_than_declared() -> None:
    def attack(hand: Hand) -> None:
        """A new w, again and again; the run has declared 7 + 10 answers."""
        for i in range(40):
            w = hand.strategy.steps.w * (1.0 - 0.01 * i)
            found = _answers_at(hand, w, 100 + i)
            if isinstance(found, str):
                assert "(answers; " in found
                answered.append(i)
                return

    answered: list[int] = []
    with pytest.raises(SettingsError, match="as many as its node allows"):
        attacked(attack, split=_horizontal(), harmless=False)
    assert answered == [7 + 10 - 3]
    few = NodeRules(answers=3)
    with pytest.raises(SettingsError, match="at 3 different weights"):
        attacked(lambda hand: None, client={"rules": few}, at=3)


def _horizontal() -> Split:
    """Every client has its samples to itself, so that it is sent w in one wave."""
    return small(parts="horizontal")


def _answers_at(hand: Hand, w: Array, version: int) -> Any:
    """The words of client 0, whose samples are all its own, at another w."""
    config = dict(hand.honest["0"])
    nonces = list(config["nonces"])
    nonces[0] = _ledger(hand, "0").nonce
    config |= {"versions": [version], ROWS: w[None], "nonces": nonces}
    return hand.send("0", hand.sealed("0", config))


def test_going_back_more_often_than_allowed() -> None:
    """To an earlier iteration, at the same w or at another."""

    def attack(hand: Hand) -> None:
        for i in range(20):
            for version in (100, 50):
                found = _answers_at(hand, hand.strategy.steps.w, version)
                if isinstance(found, str):
                    assert "(resumes)" in found
                    turned.append(i)
                    return

    turned: list[int] = []
    with pytest.raises(SettingsError, match="(resumes)"):
        attacked(
            attack,
            split=_horizontal(),
            client={"rules": NodeRules(answers=1000, resumes=4)},
            harmless=False,
        )
    assert turned == [4]


# ------------------------------------------------------------------------- forged sums


@pytest.mark.parametrize("of", ["group", "wave", "norms", "run", "list"])
def test_a_sum_of_something_else_is_refused(
    of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another group, wave, quantity or run of the same name, or none at all."""
    key = backend_class("stream").generate()
    seen: dict[str, list[bytes]] = {}

    def note(hand: Hand) -> None:
        (g,) = [k for k in hand.honest["0"] if k.startswith("scores/")]
        seen["old"] = hand.honest["0"][g]

    if of in ("wave", "run"):
        monkeypatch.setattr(
            "fedtrellis.server.conversation.secrets.token_hex", lambda n: "ab" * n
        )
        attacked(note, key=key, at=4 if of == "run" else 3, harmless=False)
        # the node starts over; its ledger of that run is gone
        from fedtrellis.encryption import remove_run_key

        remove_run_key("ab" * 4)

    def attack(hand: Hand) -> None:
        (key,) = [k for k in hand.honest["0"] if k.startswith("scores/")]
        (other,) = [k for k in hand.honest["2"] if k.startswith("scores/")]
        g = int(key.partition("/")[2])
        sums = {
            "group": hand.honest["2"][other],
            "norms": hand.strategy._labels[g].norms,
            "list": [],
        }
        blobs = seen["old"] if seen else sums[of]
        asked = {**hand.honest["0"], key: blobs}
        assert (
            "refused" in hand.refused("0", hand.sealed("0", asked)).lower() or not blobs
        )

    attacked(attack, key=key)


# --------------------------------------------------------- phases that a run has not


def test_phases_that_are_none_of_this_run() -> None:
    """Those of the paper's steps answer v_k and sums of losses in the clear."""

    def attack(hand: Hand) -> None:
        for name, config in hand.honest.items():
            asked = {
                **config,
                **{"dual": config["propose"], "moved": [], "renew": []},
                **{"gamma": 1.0, "c": 1.0, "iteration": 1, "step": "practical"},
                **{"secure-sum": False, ROWS: np.zeros((1, 6))},
                **{"evaluators": ["0", "1"], "owners": []},
            }
            for phase in ("dual", "primal"):
                reason = hand.refused(name, asked, f"train.{phase}")
                assert "a phase that a run with step = 'bundle' does not have" in reason
            for phase in ("blind", "evaluate"):
                reason = hand.refused(name, asked, f"train.{phase}")
                assert "no identity and roster" in reason
            for phase in ("open", "new_samples"):
                hand.refused(name, asked, f"train.{phase}")

    attacked(attack)


def test_requests_do_not_change_settings() -> None:
    """What was agreed on stands over whatever a request says."""

    def attack(hand: Hand) -> None:
        asked = hand.honest["0"]
        loose = {"secure-sum": False, "encryption": "none", "exposed": "accept"}
        loose |= {"answers": 10**9, "regularization": 1e-12, "least": 2}
        loose |= {"proposals": ["dual-point"] * 3, "local-fraction": 1e-9}
        found = hand.send("0", {**asked, **loose})
        assert not isinstance(found, str)
        words, *_ = record_arrays(cast(ArrayRecord, found[ARRAYS]))
        assert np.array_equal(words, hand.words("0", asked))  # the same question
        assert "numbers" not in cast(ConfigRecord, found["status"])

    attacked(attack)


def test_the_end_of_a_simulation_is_none_of_a_nodes_keys() -> None:
    from fedtrellis.encryption import run_ledgers

    def attack(hand: Hand) -> None:
        folder = run_ledgers(hand.conversation.session)
        before = sorted(folder.iterdir())
        hand.send("0", {"forget-key": True}, "train.finish")
        assert sorted(folder.iterdir()) == before != []

    attacked(attack)


# -------------------------------------------------------------------------- agreement


def test_a_client_is_given_its_samples_in_groups_of_one() -> None:
    """And in another order, or an agreement of the server's own."""

    def attack(hand: Hand) -> None:
        honest = hand.restored("0")
        n = len(honest["rows"])
        singles = {
            "rows": honest["rows"],
            "groups": np.arange(n),
            "sizes": np.ones(n, dtype=np.int64),
        }
        turned = {"rows": honest["rows"][::-1]}
        own = json.loads(honest["agreement"].tobytes())
        own["settings"]["secure-sum"] = False
        data = json.dumps(own, sort_keys=True, separators=(",", ":")).encode()
        other = {"agreement": np.frombuffer(data, np.uint8)}
        changes: list[dict[str, Any]] = [singles, turned, other]
        for change in changes:
            found = hand.send("0", hand.honest["0"], None, {**honest, **change})
            assert isinstance(found, str)
            assert "has not agreed to" in found
        for name in ("labels", "norms", "points/0", "ids/0", "chain/0", "sealed/0"):
            given: dict[str, Any] = {**honest, name: turned["rows"]}
            found = hand.send("0", hand.honest["0"], None, given)
            assert isinstance(found, str)
            assert f"takes no {name!r} back" in found

    attacked(attack)


def test_no_second_agreement_and_no_joining_twice() -> None:
    def attack(hand: Hand) -> None:
        honest = hand.restored("0")
        config = {**hand.honest["0"], "loss": "hinge", "smoothing": 1.0}
        reason = hand.refused("0", {**config, "send-context": False}, "train.align")
        assert "has agreed to a run" in reason
        own = json.loads(honest["agreement"].tobytes())
        own["settings"]["answers"] = 10**6
        data = json.dumps(own, sort_keys=True, separators=(",", ":")).encode()
        given: dict[str, Any] = {**honest, "agreement": np.frombuffer(data, np.uint8)}
        found = hand.send("0", config, "train.agree", given)
        assert isinstance(found, str)
        assert "has agreed to something else" in found

    attacked(attack)


def _wrongly_agreed(change: Callable[[dict[str, Any]], Any], reason: str) -> None:
    """No label leaves a client that is shown an agreement which is not so."""
    sent: list[str] = []

    class Writes(HyFDCA):
        def ask_everyone(self, conversation: Any, kind: str, *rest: Any) -> Any:
            sent.append(kind)
            if kind == "train.agree":
                content = json.loads(self.agreement.to_bytes())
                change(content)
                data = json.dumps(content, sort_keys=True, separators=(",", ":"))
                self._agreement = Agreement.from_bytes(data.encode())
            return super().ask_everyone(conversation, kind, *rest)

    key = backend_class("stream").generate()
    with pytest.raises(SettingsError, match=reason):
        Run(small(), 3, strategy=Writes, encryption="stream", client={"key": key})
    assert sent == ["train.align", "train.agree"]


def _member(content: dict[str, Any]) -> None:
    """A seventh client, which is said to hold every feature."""
    content["members"].append(["6", content["members"][0][1], "00" * 16])
    content["held"].append("fff0")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c["settings"].pop("secure-sum"), "settle secure-sum"),
        (lambda c: c["settings"].pop("answers"), "settle answers"),
        (lambda c: c["settings"].update(propose=[]), "settle propose"),
        (lambda c: c["settings"].update({"num-clients": 1}), "settle num-clients"),
        (lambda c: c["settings"].update({"num-samples-all": 1}), "number of samples"),
        (
            lambda c: c["settings"].update(proposals=["proximal"] * 50),
            "settle proposals",
        ),
        (lambda c: c["settings"].update(step="practical"), "settle proposals"),
        (lambda c: c["settings"].update(encryption="none"), "the key is of backend"),
        (lambda c: c["settings"].update({"secure-sum": False}), "secure-sum is off"),
        (
            lambda c: c["settings"].update({"local-fraction": 1e-9}),
            "that move in one step",
        ),
        (lambda c: c["settings"].update(regularization=0.0), "settle regularization"),
        (lambda c: c["settings"].update(session="0" * 8), "another session"),
        (lambda c: c["members"][0].__setitem__(2, "00" * 16), "not have its nonce"),
        (
            lambda c: c["members"][3].__setitem__(1, "0" * 16),
            "not all clients have one",
        ),
        (lambda c: c["features"].__setitem__(0, "0" * 16), "other features"),
        (lambda c: c["held"].__setitem__(0, "fff0"), "other features"),
        (lambda c: c["groups"][0].__setitem__(1, 31), "other samples"),
        (lambda c: c["groups"][0].__setitem__(2, "0" * 64), "other samples"),
        (lambda c: c["groups"][0].__setitem__(0, [0]), "other samples"),
    ],
)
def test_an_agreement_that_is_not_so(
    change: Callable[[dict[str, Any]], Any], reason: str
) -> None:
    _wrongly_agreed(change, reason)


def test_no_label_leaves_unless_everybody_has_agreed() -> None:
    """Also not where the server makes somebody up, or shows each another agreement."""
    seen: list[str] = []

    class Hides(HyFDCA):
        def restore(self, client: str) -> Any:
            arrays, entries = super().restore(client)
            if "confirmations" in entries:
                macs = list(entries["confirmations"])
                macs[3] = macs[2] if client != "2" else bytes(32)
                entries["confirmations"] = macs
            return arrays, entries

        def ask_everyone(self, conversation: Any, kind: str, *rest: Any) -> Any:
            seen.append(kind)
            return super().ask_everyone(conversation, kind, *rest)

    key = backend_class("stream").generate()
    with pytest.raises(SettingsError, match="client 3 has not agreed to the same run"):
        Run(small(), 3, strategy=Hides, encryption="stream", client={"key": key})
    assert seen[-1] == "train.labels"


# --------------------------------------------------- without a common key: a roster


class Nodes:
    """Identities of all clients, and a roster of them."""

    def __init__(self, split: Split, folder: Path) -> None:
        self.split, self.folder = split, folder
        names = [str(k) for k in range(split.num_clients)]
        self.identities = {name: Identity.generate(name) for name in names}
        self.roster = Roster({n: i.public for n, i in self.identities.items()})

    def app(self) -> Any:
        def client_fn(context: Context) -> HyFDCAClient:
            name = str(context.node_config["partition-id"])
            return self.split.client(
                context,
                identity=self.identities[name],
                roster=self.roster,
                ledger=self.folder / name,
            )

        return client_app(client_fn)

    def attacked(self, attack: Callable[[Hand], Any], **options: Any) -> Run:
        grid = LocalGrid(self.app(), self.split.num_clients)
        return attacked(attack, split=self.split, grid=grid, **options)


def test_server_and_a_client_open_nothing_of_other_groups(tmp_path: Path) -> None:
    """Client 2 hands all it has to the server; groups 0 to 2 are of others."""
    nodes = Nodes(shared_and_local(), tmp_path)
    found: list[int] = []

    def attack(hand: Hand) -> None:
        strategy = hand.strategy
        agreement, identity = strategy.agreement, nodes.identities["2"]
        own = agreement.index("2")
        sealed = dict(strategy._sealed)
        received = {h: box for (h, to), box in sealed.items() if to == "2"}
        traitor = RosterSecrets(
            "2", agreement, identity, nodes.roster, received, "stream"
        )
        unit = cast(Any, strategy.steps).units[0]
        for g, blobs in unit.scores.items():
            holders = agreement.holders(g)
            label = ("product", g, unit.version, hand.honest["0"]["query"])
            if "2" in holders:
                # of its own groups it opens each sum, as it does in the run,
                cipher = traitor.cipher(holders)
                size = agreement.groups[g][1]
                z = cipher.decrypt(blobs, label, size, holders)
                # and each holder's share: what the other's part of x_iᵀw is
                for name in holders:
                    share = hand.shares[name][:1]
                    assert cipher.decrypt(share, label, size, [name]).shape == z.shape
                found.append(g)
                continue
            with pytest.raises(EncryptionError):
                traitor.cipher(holders)
            for other in agreement.holder_sets:
                if "2" in other:
                    with pytest.raises(EncryptionError):
                        traitor.cipher(other).decrypt(blobs, label, 16, holders)
            for (of, to), box in sealed.items():
                if of == holders:
                    named = RosterSecrets(
                        to, agreement, identity, nodes.roster, {of: box}, "stream"
                    )
                    with pytest.raises(EncryptionError):
                        named.cipher(of)
        assert len(found) == 1
        _check_masks(hand, nodes, traitor, own)

    nodes.attacked(attack)
    assert found


def _check_masks(hand: Hand, nodes: Nodes, traitor: RosterSecrets, own: int) -> None:
    """Without its own masks, a term is still hidden by those with all other holders."""
    agreement = hand.strategy.agreement
    words = hand.words("0", hand.honest["0"])
    # the most that it can know: its pair's secret and all that both were asked
    for known in ((), (b"",)):
        rest = words.copy()
        secret = common_secret(traitor.pair("0"), *known)
        add_masks(rest, 0, [(own, secret, np.arange(len(rest)))], b"\0" * 32)
        assert np.median(np.abs(from_words(rest))) > 1e5
    # and it has no pair's secret but its own
    for other in ("3", "4"):
        theirs = nodes.identities["0"].pair_secret(nodes.roster.members[other])
        assert traitor.pair(other) != theirs != traitor.pair("0")
    assert agreement.holders_of_features.min() == 3


def test_a_server_that_tries_ids_of_its_own_is_refused(tmp_path: Path) -> None:
    """Evaluators answer for what roster clients sent, once, and not under two names."""
    nodes = Nodes(small(n=48), tmp_path)
    tried: list[str] = []

    class Tries(HyFDCA):
        def ask_everyone(
            self, conversation: Any, kind: str, entries: Any, *rest: Any
        ) -> Any:
            hand = Hand(self, conversation, 0, kind, {}, b"")
            if kind == "train.evaluate" and not tried:
                honest = dict(entries("0"))
                guess = blind(["sample patient-000001"], 12345, conversation.session)
                own = {"points/1": guess.tobytes()}
                for change in (
                    own,  # ids that nobody sent
                    {"mac/1": honest["mac/2"]},
                    {"owners": ["stranger", *honest["owners"][1:]]},
                    # one client's points under another's name
                    {"points/1": honest["points/2"], "mac/1": honest["mac/2"]},
                ):
                    fresh = tmp_path / "0"
                    for path in fresh.iterdir():  # the node forgets each attempt
                        if Ledger.open(
                            fresh, conversation.session, "0", True
                        ).evaluated:
                            ledger = Ledger.open(fresh, conversation.session, "0", True)
                            ledger.evaluated = ""
                            ledger.save()
                        assert path
                    tried.append(hand.refused("0", {**honest, **change}))
                ledger = Ledger.open(tmp_path / "0", conversation.session, "0", True)
                ledger.evaluated = ""
                ledger.save()
            if kind == "train.align" and len(tried) == 4:
                honest = dict(entries("3"))
                again = {"evaluators": ["0", "0"]}
                tried.append(hand.refused("3", {**honest, **again}))
                blinded = {"points/0": honest["points/1"]}
                tried.append(hand.refused("3", {**honest, **blinded}))
                # a second question of an evaluator, with what was right the first time
                asked = {**honest, "owners": ["3"], "mac/0": bytes(32)}
                tried.append(hand.refused("0", asked, "train.evaluate"))
            return super().ask_everyone(conversation, kind, entries, *rest)

    grid = LocalGrid(nodes.app(), nodes.split.num_clients)
    Run(nodes.split, 3, strategy=Tries, encryption="stream", grid=grid)
    expected = [
        *["has not sent", "has not sent", "roster", "has not sent"],
        *["are evaluated by 2", "has not sent", "has evaluated other ids"],
    ]
    assert len(tried) == len(expected)
    for reason, part in zip(tried, expected, strict=True):
        assert part in reason, reason


def test_a_roster_run_without_encryption_needs_the_nodes_word(tmp_path: Path) -> None:
    nodes = Nodes(small(n=48), tmp_path)
    grid = LocalGrid(nodes.app(), nodes.split.num_clients)
    with pytest.raises(SettingsError, match="nothing is encrypted"):
        Run(nodes.split, 3, encryption="none", grid=grid)


# ------------------------------------------------------------------------ new samples


def test_scores_of_small_groups_are_not_measured() -> None:
    """Else the means with and without one give a single sample's loss away."""
    from clients.hyfdca.new_samples import Scoring

    client: Any = Scoring.__new__(Scoring)
    client.new_samples = type("New", (), {"labels": np.ones(6)})
    client.client_id = "0"
    client._rules = NodeRules()
    client._new_rows = lambda: {0: np.arange(4), 1: np.arange(4, 6)}
    client._count_answer = lambda config, mark: None
    client._open_ledger = lambda config: type("L", (), {"save": lambda self: None})()
    config = {"loss": "hinge", "smoothing": 1.0}
    both = client._measured(config, np.linspace(-1, 1, 6)[None])
    assert both[1] == 4
    alone = client._measured(
        config, np.array([[*np.linspace(-1, 0.2, 4), np.nan, np.nan]])
    )
    assert alone[1:] == both[1:]
    assert alone[0] == pytest.approx(both[0], rel=1e-12)
    few = np.full((1, 6), np.nan)
    few[:, 4:] = 1.0
    assert client._measured(config, few) == (0.0, 0, {})
