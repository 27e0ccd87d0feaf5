"""``aggregation = "secure-sum"``: the plain run's model, and blocks' sums only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

import clients
import strategies
from fedtrellis import LocalGrid, SecureSum
from fedtrellis.domains import L1Ball
from fedtrellis.encryption import block_sum
from fedtrellis.encryption.block_sum import BlockMember
from fedtrellis.encryption.identity import write_identity, write_roster
from fedtrellis.encryption.node_secrets import NodeSecrets, _run_key_path
from fedtrellis.manifolds import Sphere
from fedtrellis.objectives import LeastSquares
from fedtrellis.privacy import Accountant
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import decode
from fedtrellis.wire.protocol import NodeReply
from tests.harness import (
    Array,
    Played,
    app_of,
    contexts,
    grid_of,
    memory_of,
    play,
    readable,
)

N, P = 10, 6
_rng = np.random.default_rng(0)
LOSSES = [
    LeastSquares(
        _rng.standard_normal((20 + k, P)),
        _rng.standard_normal(20 + k),
        scale="half-mean",
    )
    for k in range(N)
]
START = np.full(P, 0.1)
FAULTS: dict[str, Any] = {"request_loss": 0.2, "reply_loss": 0.2, "seed": 5}

CASES: dict[str, dict[str, Any]] = {
    "FedAvgGD": {},
    "FedAvgGD weights": {"client_weights": "examples"},
    "FedProx": {"proximal_weight": 0.5},
    "LocalSGD": {},
    "FedOpt": {"optimizer": "adam"},
    "Scaffold": {},
    "CompressedSGD": {"kept_fraction": 0.3},
    "CompressedSGD qsgd": {"compressor": "qsgd"},
    "CompressedSGD sign": {"compressor": "sign"},
    "ProjectedFedAvg": {},
    "FedDR": {"proximal_step": 1.0},
    "FedLMO": {"batch_size": 0},
    "FedLMO averaged": {"variant": "averaged"},
    "FedLMO local": {"variant": "local"},
    "FedLMO server": {"variant": "server"},
    "FedLMO ef21": {"variant": "ef21"},
    "FirstOrderRFL": {},
    "ZerothOrderSGD": {"step_size": 0.02, "samples": 6, "batch_size": 0},
    "ZerothOrderSGD feedsign": {"variant": "feedsign", "batch_size": 0},
    "FedGiA": {},
    "FedGiA fixed": {"sigma": 1.0},
}
# what a block that sat out is given are its means, or S comes from sums
_APART = ("FirstOrderRFL", "FedGiA")


def made(case: str, kind: Any = None, **options: Any) -> Any:
    name = case.partition(" ")[0]
    made_of: list[Any] = []
    if name in ("ProjectedFedAvg", "FedDR"):
        made_of = [L1Ball(1.0)]
    if "RFL" in name:
        made_of = [Sphere((P,))]
    kind = kind or getattr(strategies, name)
    return kind(*made_of, **CASES[case], seed=3, **options)


def the_grid(case: str, kind: type[LocalGrid] = LocalGrid, **options: Any) -> LocalGrid:
    name = case.partition(" ")[0]
    more = [Sphere((P,))] if "RFL" in name else []
    app = app_of(getattr(clients, f"{name}Client"), LOSSES, *more)
    nodes = options.pop("node_configs", [{}] * N)
    # FedGiA's C is empty with secure sums
    return kind(app, N, node_configs=[{"slow": True, **n} for n in nodes], **options)


def replayed(case: str, used: list[list[int]], **options: Any) -> Played[Any]:
    """The plain run, with the clients of another run's rounds."""
    base = getattr(strategies, case.partition(" ")[0])

    class Replay(base):  # type: ignore[misc,valid-type]
        def sample(self, server_round: int) -> Any:
            return [str(i) for i in used[server_round - 1]]

    return play(made(case, Replay, **options), the_grid(case), START, len(used))


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_the_plain_run_s_over_the_same_blocks(case: str) -> None:
    """Clients lost, answers that come late, and blocks that are drawn."""
    apart = case in _APART
    how = {} if apart else FAULTS
    options = {} if apart else {"participation": 0.8}
    if "GiA" in case:
        options = {}
    strategy = made(case, aggregation=SecureSum(block_size=3), **options)
    run = play(strategy, the_grid(case, **how), START, 50, last_fault=45)
    sizes = {len(round_) for round_ in run.used}
    assert sizes <= {0, 3, 4, 6, 7, 10}
    assert apart or len(sizes) > 2
    plain = replayed(case, run.used)
    assert np.abs(run.model - plain.model).max() < 1e-9
    assert np.abs(run.model - START).max() > 1e-3


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_narrow_models(dtype: str) -> None:
    options: Any = {"dtype": dtype}
    run = play(
        made("FedAvgGD", aggregation="secure-sum", **options),
        the_grid("FedAvgGD"),
        START,
        10,
    )
    plain = play(made("FedAvgGD", **options), the_grid("FedAvgGD"), START, 10)
    close = 1e-6 if dtype == "float32" else 5e-3
    assert np.abs(run.model - plain.model).max() < close


class Listening(LocalGrid):
    """Keeps every message that the server received, and what it was asked for."""

    received: list[tuple[str, bytes, Any]]
    asked: dict[str, bytes]

    def push_messages(self, messages: Iterable[Message]) -> Any:
        sent = list(messages)
        ids = list(super().push_messages(sent))
        for key, message in zip(ids, sent, strict=True):
            for record in message.content.config_records.values():
                if "sum-attempt" in record:
                    asked = self.__dict__.setdefault("asked", {})
                    asked[key] = record["sum-attempt"]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Any:
        found = list(super().pull_messages(message_ids))
        for message in found:
            attempt = self.__dict__.get("asked", {}).get(
                message.metadata.reply_to_message_id
            )
            if attempt is None or message.has_error():
                continue
            reply = NodeReply.of(message.content)
            if reply.arrays:
                received = self.__dict__.setdefault("received", [])
                name = str(reply.client)
                received.append((name, attempt, np.array(reply.arrays[0])))
        return found


def _heard(
    case: str, nodes: list[dict[str, Any]] | None = None, **options: Any
) -> tuple[dict[bytes, dict[str, Array]], Any]:
    more = {} if nodes is None else {"node_configs": nodes}
    grid: Any = the_grid(case, Listening, encode=True, **FAULTS, **more)
    strategy = made(case, aggregation=SecureSum(block_size=3, **options))
    run = play(strategy, grid, START, 12, last_fault=10)
    terms: dict[bytes, dict[str, Array]] = defaultdict(dict)
    for name, attempt, words in grid.received:
        before = terms[attempt].setdefault(name, words)
        assert np.array_equal(before, words)  # a repeat says nothing new
    return terms, run


def test_of_real_messages_only_whole_blocks_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lost, late and repeated answers; with the masks taken out each can be read."""
    terms, run = _heard("FedAvgGD")
    blocks = {tuple(block) for block in run.strategy.aggregator._blocks}
    assert {len(block) for block in blocks} == {3, 4}
    assert any(len(answers) < N for answers in terms.values())
    assert readable(terms, range(1, 5)) == blocks
    with monkeypatch.context() as without:
        without.setattr(block_sum, "_mask", lambda *_, **more: None)
        terms, _ = _heard("FedAvgGD")
    assert {(str(i),) for i in range(N)} <= readable(terms, [1])


def test_with_a_colluder_s_keys_the_rest_of_its_block_can_be_read_as_a_whole(
    tmp_path: Path,
) -> None:
    nodes = _files(tmp_path)
    terms, run = _heard("FedAvgGD", nodes)
    blocks = [tuple(block) for block in run.strategy.aggregator._blocks]
    (traitor, *rest), *others = sorted(blocks, key=len, reverse=True)
    assert len(rest) == 3
    secrets = NodeSecrets(traitor, nodes[int(traitor)])
    member = BlockMember(secrets, run.strategy.conversation.session)
    for attempt, answers in terms.items():
        answers.pop(traitor, None)
        for name, key in member._agreed()[0]["keys"].items():
            if name in answers:  # what it added for the traitor, who comes before it
                mask = bytes.fromhex(key), attempt, None
                words: Any = answers[name].copy()
                answers[name] = words
                block_sum._mask(words, *mask, add=int(traitor) < int(name))
    assert readable(terms, range(1, 5)) == {tuple(rest), *others}


def test_a_node_s_memory_and_file_lost_in_the_middle() -> None:
    """The block begins anew, and the model is the plain run's over the same blocks."""

    class Server(strategies.FedAvgGD):
        def sample(self, server_round: int) -> Any:
            if server_round == 4:
                folder = _run_key_path(self.conversation.session).with_suffix(
                    ".ledgers"
                )
                for path in sorted(folder.glob("*.block"))[:2]:
                    path.unlink()
            return super().sample(server_round)

    strategy = made("FedAvgGD", Server, aggregation=SecureSum(block_size=3))
    run = play(strategy, the_grid("FedAvgGD"), START, 12)
    sizes = [len(used) for used in run.used]
    assert sizes[:3] == [N] * 3
    assert sizes[3] < N
    assert sizes[4:] == [N] * 8
    assert any(
        "keys of its block" in str(why) for _, why in strategy.history[3].rejected
    )
    plain = replayed("FedAvgGD", run.used)
    assert np.abs(run.model - plain.model).max() < 1e-9


@pytest.mark.parametrize("case", ["Scaffold", "FedLMO ef21", "FedDR", "CompressedSGD"])
def test_a_client_that_lost_its_state(case: str) -> None:
    """What the server keeps of its block is the mean of what its members have."""
    grid = the_grid(case)
    base = getattr(strategies, case.partition(" ")[0])

    class Server(base):  # type: ignore[misc,valid-type]
        def sample(self, server_round: int) -> Any:
            if server_round in (4, 9):
                context = contexts(grid)[server_round % N]
                for key in list(context.state):
                    del context.state[key]
            return super().sample(server_round)

    options = {} if case == "FedDR" else {"participation": 1.0}
    strategy = made(case, Server, aggregation=SecureSum(block_size=3), **options)
    run = play(strategy, grid, START, 14)
    lost = [t for t, used in enumerate(run.used, 1) if len(used) < N]
    replays = strategy._replayed != ""
    assert lost == ([4, 9] if replays else [])
    if replays:
        key = {"Scaffold": "control", "FedLMO ef21": "estimate"}[case]
        states = [memory_of(strategy, contexts(grid)[i]) for i in range(N)]
        held = [decode(state.provisional.arrays[key]) for state in states]
        kept = getattr(strategy, strategy._replayed)
        for block in strategy.aggregator._blocks:
            mean = np.mean([held[int(name)] for name in block], axis=0)
            assert np.abs(kept[block[0]] - mean).max() < 1e-9
            assert np.abs(mean).max() > 1e-3


def test_a_server_resumed_from_an_old_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    grid = the_grid("Scaffold", node_configs=_files(tmp_path))
    options: Any = {"aggregation": SecureSum(block_size=3)}
    play(made("Scaffold", **options, checkpoint=checkpoint), grid, START, 5)
    old = checkpoint.read_bytes()
    play(
        made("Scaffold", **options, resume=checkpoint, checkpoint=checkpoint),
        grid,
        START,
        9,
    )
    checkpoint.write_bytes(old)
    again = play(made("Scaffold", **options, resume=checkpoint), grid, START, 12)
    plain = play(made("Scaffold"), the_grid("Scaffold"), START, 12)
    assert np.abs(again.model - plain.model).max() < 1e-9


def test_noise_adds_up_and_its_epsilon_is_the_accountant_s() -> None:
    z, clip, t = 4.0, 0.5, 1
    aggregation = SecureSum(
        block_size=5, colluders=t, clip=clip, noise_multiplier=z, delta=1e-5
    )
    still = [LeastSquares(np.eye(P), START) for _ in range(N)]  # of no change at all
    moved = []
    strategy = strategies.FedAvgGD(aggregation=aggregation, seed=0)
    run = play(strategy, grid_of(clients.FedAvgGDClient, still), START, 200)
    steps = np.diff([START, *run.models], axis=0)
    # local steps pull back towards the minimum, by less than a tenth of the noise
    moved = steps.std()
    # σ²: two blocks' 5 clients of z C/√(5 − t) each, in the mean of all 10
    expected = z * clip / np.sqrt(5 - t) * np.sqrt(10) / 10
    assert moved == pytest.approx(expected, rel=0.1)
    accountant = Accountant(z, 1e-5, mechanism="exponential")
    told = [record.train["epsilon"] for record in strategy.history if record.round]
    assert told[9] == pytest.approx(accountant.epsilon(10), rel=1e-6)


def test_void_rounds_count_and_a_clip_takes_four_bytes() -> None:
    how: Any = {"clip": 0.5, "noise_multiplier": 4.0, "block_size": 5}
    strategy = made("FedAvgGD", aggregation=SecureSum(**how))
    play(
        strategy,
        the_grid("FedAvgGD", request_loss=0.2, reply_loss=0.2, seed=1),
        START,
        6,
    )
    sizes = [len(record.used) if not isinstance(record.used, int) else record.used
             for record in strategy.history if record.round]  # fmt: skip
    assert min(sizes) < N
    accountant = Accountant(4.0, 1e-5, mechanism="exponential")
    last = [r.train for r in strategy.history if "epsilon" in r.train][-1]
    assert last["epsilon"] == pytest.approx(accountant.epsilon(6), rel=1e-6)
    assert strategy.aggregator._coding.word == 32


def _files(folder: Path) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    made_of = [write_identity(folder / f"{i}.identity", str(i)) for i in range(N)]
    write_roster(folder / "roster", {one.name: one.public for one in made_of})
    roster = str(folder / "roster")
    # these runs begin at a model that no earlier run has sent
    keys = {"roster-file": roster, "releases": "accept"}
    return [{"identity-file": str(folder / f"{i}.identity"), **keys} for i in range(N)]


def test_identities_rosters_and_what_such_nodes_do_not_say(tmp_path: Path) -> None:
    nodes = _files(tmp_path / "a")
    case = "FedGiA"
    run = play(
        made(case, aggregation="secure-sum"),
        the_grid(case, node_configs=nodes),
        START,
        8,
    )
    plain = play(made(case), the_grid(case), START, 8)
    assert np.abs(run.model - plain.model).max() < 1e-9
    asked = run.strategy.conversation.client
    assert not any("majoriser" in asked(str(i)).properties for i in range(N))
    with pytest.raises(SettingsError, match="its node has a key, and hides it"):
        play(made(case), the_grid(case, node_configs=nodes), START, 1)
    # whatever the method asks for, and in whichever phase
    for other in (strategies.FedAvgGD(), strategies.FedGiA(sigma=1.0)):
        kind = getattr(clients, f"{type(other).__name__}Client")
        grid = LocalGrid(app_of(kind, LOSSES), N, node_configs=nodes)
        with pytest.raises(RuntimeError, match="its fit would travel in the clear"):
            play(other, grid, START, 1)
    strangers = [*nodes[:-1], _files(tmp_path / "b")[-1]]
    with pytest.raises(SettingsError, match="another key than this node's roster"):
        play(
            made("FedAvgGD", aggregation="secure-sum"),
            the_grid("FedAvgGD", node_configs=strangers),
            START,
            1,
        )


def test_a_number_out_of_range_costs_its_block_the_round_and_is_not_told() -> None:
    large = [LeastSquares(np.eye(P), np.full(P, 1e3)), *LOSSES[1:]]
    strategy = made("FedAvgGD", aggregation=SecureSum(block_size=3, value_range=10.0))
    run = play(strategy, grid_of(clients.FedAvgGDClient, large), START, 2)
    assert [len(used) for used in run.used] == [7, 7]
    reasons = [str(why) for record in strategy.history for _, why in record.rejected]
    said = [why for why in reasons if "too large for the fixed point" in why]
    assert said
    assert not any(letter.isdigit() for letter in said[0].replace("client 0", ""))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda s: strategies.FedFW(L1Ball(1.0), aggregation=s),
            "does not apply to fedfw",
        ),
        (
            lambda s: strategies.ZerothOrderRFL(Sphere((P,)), aggregation=s),
            "does not apply to zeroth-order-rfl",
        ),
        (
            lambda s: strategies.ZerothOrderSGD(variant="fedkseed", aggregation=s),
            "with variant = 'fedkseed'; allowed: mean, median",
        ),
        (
            lambda s: strategies.FedAvgGD(aggregation=s, client_evaluate_every=1),
            "evaluations travel in the clear",
        ),
        (
            lambda s: strategies.FedAvgGD(
                resume=Path("c"),
                aggregation=SecureSum(clip=1.0, noise_multiplier=1.0),
            ),
            "ε would be too small",
        ),
        (lambda s: SecureSum(noise_multiplier=1.0), "needs secure-sum.clip"),
    ],
)
def test_what_does_not_go_with_sums_is_refused(make: Any, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        make("secure-sum")


def test_too_few_clients_and_an_evaluation_that_is_accepted() -> None:
    two = grid_of(clients.FedAvgGDClient, LOSSES[:2])
    with pytest.raises(SettingsError, match="at least 3 clients"):
        play(strategies.FedAvgGD(aggregation="secure-sum"), two, START, 1)
    accepted = SecureSum(exposed="accept")
    run = play(
        made("FedAvgGD", aggregation=accepted, client_evaluate_every=1),
        the_grid("FedAvgGD"),
        START,
        2,
    )
    assert run.strategy.history[-1].client_evaluation


def test_the_run_s_key_goes_with_the_run() -> None:
    run = play(
        made("FedAvgGD", aggregation="secure-sum"), the_grid("FedAvgGD"), START, 2
    )
    path = _run_key_path(run.strategy.conversation.session)
    assert not path.exists()
    assert not path.with_suffix(".ledgers").exists()
