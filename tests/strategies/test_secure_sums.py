"""``aggregation = "secure-sum"``: the plain run's model, and blocks' sums only."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

import clients
import strategies
from fedtrellis import LocalGrid, SecureSum
from fedtrellis.encryption import block_sum
from fedtrellis.encryption.block_sum import BlockMember
from fedtrellis.encryption.cipher import write_key_pair
from fedtrellis.encryption.identity import write_identity, write_roster
from fedtrellis.encryption.node_secrets import NodeSecrets, _run_key_path
from fedtrellis.objectives import LeastSquares
from fedtrellis.privacy import Accountant
from fedtrellis.settings import SettingsError
from fedtrellis.wire.protocol import NodeReply
from tests.harness import (
    Array,
    Played,
    Recorder,
    Stop,
    distance,
    grid_of,
    in_part,
    node_states,
    number_of,
    play,
    readable,
    refused,
)
from tests.strategies.methods import EVERY, P

N = 10
FAULTS: dict[str, Any] = {"request_loss": 0.2, "reply_loss": 0.2, "seed": 5}
REFUSING = "fedfw|naive|hy|zeroth-order-rfl|zeroth-order-sgd fedkseed|fedgia gram"
CASES = [name for name in EVERY if not re.match(REFUSING, name)]
# what a block that sat out is given are its means, or S comes from sums
APART = re.compile("first-order-rfl|fedgia")


def go(
    case: str,
    rounds: int,
    *,
    kind: type[LocalGrid] = LocalGrid,
    nodes: Sequence[dict[str, Any]] = ({},) * N,
    grid: Any = None,
    faults: Any = (),
    wiped: Any = (),
    **settings: Any,
) -> Played[Any]:
    """A run of ten clients, with plain sums unless the settings say otherwise."""
    # FedGiA's C is empty with secure sums
    configs = [{"slow": True, **one} for one in nodes]
    made = grid or EVERY[case].grid(N, kind, node_configs=configs, **dict(faults))
    made.wiped = {*wiped}
    how: Any = {"seed": 3, "max_failed_rounds": 100, "local_deadline": None}
    return EVERY[case].play(made, rounds, **how | settings)


def hidden(**how: Any) -> Any:
    return SecureSum(block_size=3, **how)


@pytest.mark.parametrize(
    ("case", "more"),
    in_part([*((case, {}) for case in CASES), ("fedgia", {"sigma": 1.0})]),
)
def test_the_model_is_the_plain_run_s_over_the_same_blocks(
    case: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Clients lost, answers that come late, blocks that are drawn; and after a stop."""
    apart = APART.match(case)
    lossy: Any = {} if apart else {"faults": FAULTS, "participation": 0.8}
    run = go(case, 12, aggregation=hidden(), last_fault=10, **lossy, **more)
    sizes = {len(round_) for round_ in run.used}
    assert sizes <= {0, 3, 4, 6, 7, 10}
    assert apart or len(sizes) > 2
    plain = go(case, 12, sets=run.used, **more)
    assert np.abs(run.model - plain.model).max() < 1e-9
    assert np.abs(run.model - EVERY[case].start).max() > 1e-3
    how: Any = {"wiped": [(6, 4)], **more}  # its block begins anew
    whole = go(case, 12, aggregation=hidden(), **how)
    how |= {"checkpoint": tmp_path / "c", "aggregation": hidden()}
    go(case, 12, callbacks=[Stop(6)], **how)
    rest = go(case, 12, aggregation=hidden(), resume=tmp_path / "c", **more)
    assert np.abs(rest.model - whole.model).max() < 1e-9


def _heard(
    nodes: Sequence[dict[str, Any]] = ({},) * N,
) -> tuple[dict[bytes, dict[str, Array]], Any]:
    """What each client said at each attempt; a repeat says nothing new."""
    faults: Any = {"encode": True, **FAULTS}
    how: Any = {"aggregation": hidden(), "last_fault": 10}
    run = go("fedavg-gd", 12, kind=Recorder, nodes=nodes, faults=faults, **how)
    grid: Any = run.grid
    asked = {
        message.metadata.message_id: record["sum-attempt"]
        for message in chain.from_iterable(grid.requests.values())
        for record in message.content.config_records.values()
        if "sum-attempt" in record
    }
    terms: dict[bytes, dict[str, Array]] = defaultdict(dict)
    for message in chain.from_iterable(grid.answers.values()):
        attempt = asked.get(message.metadata.reply_to_message_id)
        if attempt and message.has_content():
            reply = NodeReply.of(message.content)
            for array in reply.arrays or ():
                said = terms[attempt].setdefault(str(reply.client), np.array(array))
                assert np.array_equal(said, array)
    return terms, run


def test_only_whole_blocks_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost, late and repeated answers; with the masks taken out each can be read."""
    terms, run = _heard()
    blocks = {tuple(block) for block in run.strategy.aggregator.blocks}
    assert {len(block) for block in blocks} == {3, 4}
    assert any(len(answers) < N for answers in terms.values())
    assert readable(terms, range(1, 5)) == blocks
    with monkeypatch.context() as without:
        without.setattr(block_sum, "_mask", lambda *_, **more: None)
        terms, _ = _heard()
    assert {(str(i),) for i in range(N)} <= readable(terms, [1])


def test_with_a_colluder_s_keys_the_rest_of_its_block_can_be_read_as_a_whole(
    tmp_path: Path,
) -> None:
    nodes = _files(tmp_path)
    terms, run = _heard(nodes)
    blocks = [tuple(block) for block in run.strategy.aggregator.blocks]
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


@pytest.mark.parametrize(
    ("case", "key"),
    [
        *(("scaffold", "control"), ("fedlmo ef21", "estimate")),
        *(("feddr", ""), ("compressed-sgd top-k", "")),
    ],
)
def test_a_client_that_lost_its_state(case: str, key: str) -> None:
    """What the server keeps of its block is the mean of what its members have."""
    wipe: Any = {"kind": Recorder, "wiped": {(4, 4), (7, 9), (9, 4)}}
    run = go(case, 10, aggregation=hidden(), **wipe)
    lost = [t for t, used in enumerate(run.used, 1) if len(used) < N]
    assert lost == ([4, 7, 9] if key else [])
    if key:
        kept = getattr(run.strategy, run.strategy._replayed)
        states = node_states(run.strategy, run.grid)
        for block in run.strategy.aggregator.blocks:
            mean = np.mean([states[name][key] for name in block], axis=0)
            assert distance(kept[block[0]], mean) < 1e-9
            assert np.abs(mean).max() > 1e-3
    if case == "scaffold":  # c is of who is left, in the same round
        strategy = go(case, 4, aggregation=hidden(), **wipe).strategy
        c = np.mean(list(strategy._controls.values()), axis=0)
        assert distance(strategy._control, c) < 1e-12


def test_a_client_asked_again_has_the_same_noise() -> None:
    noise: Any = {"privacy": "local", "privacy_clip": 1.0, "step_size": 0.01}
    noise |= {"privacy_noise_multiplier": 1.0, "aggregation": hidden()}
    run = go("zeroth-order-sgd", 5, faults={"reply_loss": 0.5, "seed": 5}, **noise)
    why = [text for record in run.strategy.history for _, text in record.rejected]
    assert why
    assert not any("something else" in text for text in why)


@pytest.mark.slow
def test_noise_adds_up_and_its_epsilon_is_the_accountant_s() -> None:
    z, clip, t = 4.0, 0.5, 1
    aggregation: Any = SecureSum(
        block_size=5, colluders=t, clip=clip, noise_multiplier=z, delta=1e-5
    )
    start = np.full(6, 0.1)
    still = [LeastSquares(np.eye(6), start) for _ in range(N)]  # of no change at all
    strategy = strategies.FedAvgGD(step_size=0.01, aggregation=aggregation, seed=0)
    run: Any = play(strategy, grid_of(clients.FedAvgGDClient, still), start, 200)
    # local steps pull back towards the minimum, by less than a tenth of the noise
    moved = np.diff([start, *run.models], axis=0).std()
    # σ²: two blocks' 5 clients of z C/√(5 − t) each, in the mean of all 10
    expected = z * clip / np.sqrt(5 - t) * np.sqrt(10) / 10
    assert moved == pytest.approx(expected, rel=0.1)
    accountant = Accountant(z, 1e-5, mechanism="exponential")
    told = [record.train["epsilon"] for record in strategy.history if record.round]
    assert told[9] == pytest.approx(accountant.epsilon(10), rel=1e-6)


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
    run = go("fedgia", 8, nodes=nodes, aggregation="secure-sum")
    assert np.abs(run.model - go("fedgia", 8).model).max() < 1e-9
    asked = run.strategy.conversation.clients
    assert not any("majoriser" in asked[str(i)].properties for i in range(N))
    refused("its node has a key, and hides it", lambda: go("fedgia", 1, nodes=nodes))
    # whatever the method asks for, and in whichever phase
    more: Any
    for case, more in (("fedavg-gd", {}), ("fedgia", {"sigma": 1.0})):
        with pytest.raises(RuntimeError, match="its fit would travel in the clear"):
            go(case, 1, nodes=nodes, max_failed_rounds=1, **more)
    # or an evaluation, whatever else it is asked for
    method, sums = EVERY["fedavg-gd"], SecureSum(exposed="accept")
    asking = method.strategy(aggregation=sums, client_evaluate_every=1)
    trick: Any = {"evaluate_config": ConfigRecord({"sum-attempt": bytes(16)})}
    play(asking, method.grid(N, node_configs=nodes), method.start, 1, **trick)
    rejected = asking.history[-1].rejected
    assert sum("its evaluate would travel" in why for _, why in rejected) == 2 * N
    strangers = [*nodes[:-1], _files(tmp_path / "b")[-1]]
    with pytest.raises(SettingsError, match="another key than this node's roster"):
        go("fedavg-gd", 1, nodes=strangers, aggregation="secure-sum")


@pytest.mark.parametrize("where", ["hello", "fit", "python"])
def test_an_error_beside_a_key_quotes_no_data(tmp_path: Path, where: str) -> None:
    class Bad(LeastSquares):
        def gradient(self, x: Any) -> Any:
            raise ValueError("could not convert string to float: 'Mueller'")

    def client(context: Any, loss: Any) -> Any:
        if where == "hello" and number_of(context) == 1:
            loss.gradient(0.0)
        made: Any = clients.FedAvgGDClient(context, loss)
        made.node = SimpleNamespace(kind=("run", "key")[where == "python"])
        return made

    class Listening(LocalGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            replies = super().pull_messages(message_ids)
            said.update(m.error.reason for m in replies if m.has_error())
            return replies

    write_key_pair(tmp_path / "key", tmp_path / "context", "stream")
    said: set[str | None] = set()
    nodes: Any = [{"key-file": str(tmp_path / "key")} for _ in range(4)]
    nodes = [{}] * 4 if where == "python" else nodes  # the client has its key itself
    losses = [*EVERY["fedavg-gd"].losses[:4]]
    losses[1] = Bad(np.eye(P), np.ones(P))
    method = replace(EVERY["fedavg-gd"], losses=losses, client=client)
    with suppress(RuntimeError):
        grid = method.grid(4, Listening, node_configs=nodes)
        method.play(grid, 1, aggregation="secure-sum", max_failed_rounds=9)
    reasons = {(reason or "").partition(": ")[2] for reason in said}
    assert reasons == {"client 1 failed; its node's log says why"}


NOISY = SecureSum(clip=1.0, noise_multiplier=1.0)


def test_too_few_clients_and_an_evaluation_that_is_accepted() -> None:
    refused("needs secure-sum.clip", lambda: SecureSum(noise_multiplier=1.0))
    noisy: Any = {"resume": "c", "aggregation": NOISY}
    refused("ε would be too small", lambda: strategies.FedAvgGD(**noisy))
    loud = SecureSum(clip=1.0, noise_multiplier=1e10)
    refused("less than the rounding", lambda: go("fedavg-gd", 1, aggregation=loud))
    two: Any = {"grid": EVERY["fedavg-gd"].grid(2), "aggregation": "secure-sum"}
    refused("at least 3 clients", lambda: go("fedavg-gd", 1, **two))
    accepted = SecureSum(exposed="accept")
    run = go("fedavg-gd", 2, aggregation=accepted, client_evaluate_every=1)
    assert run.strategy.history[-1].client_evaluation
    # the run's key goes with the run
    path = _run_key_path(run.strategy.conversation.session)
    assert not path.exists()
    assert not path.with_suffix(".ledgers").exists()
