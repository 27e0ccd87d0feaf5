"""The server's half of secure sums: blocks of clients, and what they come to.

What the clients do is in :mod:`fedtrellis.wire.summing`. A block's mean stands for the
answer of each of its members, so that a method whose server is linear in answers goes
on as it is, and keeps the blocks' vectors where it would keep the clients'. A strategy
of Flower's is given one reply a round, the weighted mean over the blocks that answered.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from logging import INFO, WARNING
from math import floor, log2, sqrt
from statistics import mode
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedtrellis.encryption.block_sum import (
    ATTEMPT_BYTES,
    LEAST,
    MOST_DEVIATION,
    Introduction,
    LostKeyError,
    deal,
    total_of,
)
from fedtrellis.encryption.fixed_point import Coding, Words
from fedtrellis.privacy import Accountant
from fedtrellis.server.aggregation import Cohorts, Mean
from fedtrellis.server.conversation import Answer, Conversation, Entries, refusal_of
from fedtrellis.settings import SettingsError, need, setting
from fedtrellis.wire.arrays import FloatArray, Layout
from fedtrellis.wire.exchange import (
    Client,
    Reason,
    Registry,
    Traffic,
    await_nodes,
    exchange,
)
from fedtrellis.wire.flower_internals import is_simulation, log
from fedtrellis.wire.local_grid import LocalGrid
from fedtrellis.wire.protocol import identity_order
from fedtrellis.wire.summing import ATTEMPT, RECORD

#: How often a client that is silent is asked in one round.
ATTEMPTS = 3
# Deviations of noise that a word has room for, in the sum
_ROOM = 8.0


class SecureSum(Mean):
    """The mean, of sums over fixed blocks of clients of which nobody sees a term.

    Every number is rounded to a multiple of 2^−f, f the largest with which a block's
    sum fits. A silent client costs its block the round. With ``clip`` a client's vector
    is shortened to that length, and takes 4 bytes a number instead of 8; with
    ``noise_multiplier`` z each of a block's m + t members, t of them colluding, adds
    noise of deviation z·clip/√m, of the discrete Gaussian.

    Raises
    ------
    SettingsError
        Before round 1: there are too few clients, or they do not agree on keys.
    TimeoutError
        One never answered.

    Examples
    --------
    >>> from fedtrellis import SecureSum
    >>> from fedtrellis.strategies import FedAvgGD
    >>> strategy = FedAvgGD(aggregation=SecureSum(block_size=5))
    >>> strategy.aggregator.seen_by
    'client'
    """

    name = "secure-sum"
    about = "the mean, of masked sums over fixed blocks of clients"
    seen_by = "client"

    least: int = setting(  # type: ignore[misc]
        LEAST, "clients of a block, at least", minimum=LEAST
    )
    colluders: int = setting(
        0,
        "clients that may share what they know with the server; a block has two more",
        symbol="t",
        minimum=0,
    )
    block_size: int = setting(
        None, "clients of a block; auto: one block of all", minimum=3
    )
    value_range: float = setting(
        1e5,
        "largest number that a client hides, without a clip; a larger one is refused",
        above=0.0,
        only={"clip": (None,)},
    )
    clip: float = setting(
        None,
        "the length that a client's vector is clipped to; auto: none",
        symbol="C",
        above=0.0,
    )
    noise_multiplier: float = setting(
        0.0,
        "standard deviation of a block's noise, in units of the clip; 0: none",
        symbol="z",
        minimum=0.0,
    )
    delta: float = setting(
        1e-5, "the probability that ε does not hold", symbol="δ", above=0.0, below=1.0
    )
    exposed: Literal["refuse", "accept"] = setting(  # type: ignore[misc]
        "refuse",
        "whether clients' evaluations may travel in the clear",
        choices=("refuse", "accept"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if z := self.noise_multiplier:
            need("dp_accounting", "secure-sum.noise-multiplier", "privacy")
            if self.clip is None:
                why = "needs secure-sum.clip, a length"
                raise SettingsError(f"secure-sum.noise-multiplier = {z:g} {why}")

    @property
    def no_resume(self) -> str:  # type: ignore[override]
        """With noise: no checkpoint knows what was released after it."""
        why = "ε would be too small: rounds after the checkpoint count, too"
        return why if self.noise_multiplier else ""

    # --------------------------------------------------------------- before the rounds

    def begin(self, cohorts: Cohorts) -> None:
        """Deal the clients into blocks, and settle the fixed point and the noise."""
        clients = list(cohorts.clients)
        least = max(self.least, self.colluders + 2)
        size = max(self.block_size or len(clients), least)
        #: The clients, as they were dealt.
        self.blocks: list[list[str]] = deal(clients, size, least)
        self._block_of = {name: block for block in self.blocks for name in block}
        sizes = [len(block) for block in self.blocks]
        z, self._deviation = self.noise_multiplier, 0.0
        room, word = self.value_range, 64
        if self.clip is not None:
            # σ/√m a client, and the sum is noisy enough without the colluders'
            self._deviation = z * self.clip / sqrt(min(sizes) - self.colluders)
            room, word = self.clip + _ROOM * self._deviation, 32
        self._coding = Coding.of_range(room, max(sizes), word)
        if self._deviation:
            finest = floor(log2(MOST_DEVIATION / self._deviation))
            bits = min(self._coding.bits, finest)
            self._coding = replace(self._coding, bits=bits)
            self._accountant = Accountant(z, self.delta, mechanism="exponential")
        self._asked: Counter[str] = Counter()  # attempts, by client
        #: First members of the blocks that have no keys yet, or not any more.
        self.anew = {block[0] for block in self.blocks}
        #: What all have to be sent alike.
        self.told = f"{self._coding} {self.clip} {z} {self.colluders}"
        log(INFO, "secure sums over blocks of %s clients", ", ".join(map(str, sizes)))

    def prepare(self, conversation: Conversation, timeout: float) -> None:
        """Two waves in which the members of each block agree on keys."""
        self._agree(conversation, conversation.ask_everyone, self.blocks, timeout)

    def _agree(
        self,
        conversation: Conversation,
        ask: Callable[..., dict[str, Answer]],
        blocks: Sequence[Sequence[str]],
        timeout: float,
    ) -> None:
        """Let the members of blocks agree on keys; who cannot stay in :attr:`anew`."""
        keys: dict[str, Introduction] = {}

        def take(answer: Answer) -> None:
            keys[answer.client] = Introduction.of(answer.client, answer.arrays)

        beginning = {"beginning": secrets.token_bytes(ATTEMPT_BYTES)}
        names = [name for block in blocks for name in block]
        answers = ask("train.sum_keys", lambda name: beginning, take, timeout, names)
        conversation.note_version(*answers.values())
        entries: dict[str, Any] = {}
        for block in blocks:
            if keys.keys() >= set(block):
                theirs = [keys[name] for name in block]
                sent = {
                    "members": [one.name for one in theirs],
                    "member-keys": [one.key for one in theirs],
                    "member-fresh": [one.fresh for one in theirs],
                    "sum-told": self.told.encode(),
                }
                entries |= dict.fromkeys(block, sent)
        members = list(entries)
        agreed = ask("train.sum_agree", entries.__getitem__, None, timeout, members)
        conversation.note_version(*agreed.values())
        self.anew -= {block[0] for block in blocks if agreed.keys() >= set(block)}

    # --------------------------------------------------------------------- in a round

    def cohort(self, server_round: int, drawn: Sequence[str]) -> list[str]:
        """The blocks whose first member was drawn, whole; at least one."""
        there = set(drawn)
        blocks = [block for block in self.blocks if block[0] in there]
        blocks = blocks or [self.blocks[server_round % len(self.blocks)]]
        return [name for block in blocks for name in block]

    def entries(self, cohort: Sequence[str]) -> dict[str, Any]:
        """What each of a round's clients is sent."""
        coding = self._coding
        return {
            ATTEMPT: secrets.token_bytes(ATTEMPT_BYTES),
            "sum-bits": coding.bits,
            "sum-word": coding.word,
            "sum-terms": max(map(len, self.blocks)),
            "sum-clip": self.clip or 0.0,
            "sum-deviation": self._deviation * 2.0**coding.bits,
        }

    def ask(
        self, conversation: Conversation, t: int, entries: Entries, timeout: float
    ) -> Sequence[Answer]:
        """Ask whole blocks: each member's answer is its block's mean."""
        answers = self.ask_blocks(conversation, t, entries, timeout)
        points = conversation.strategy._sent_arrays[0]
        return self.opened(conversation, answers, points)

    def ask_blocks(
        self, conversation: Conversation, t: int, entries: Entries, timeout: float
    ) -> list[Answer]:
        """Ask whole blocks, and those who are silent again; keys anew where lost."""
        again = partial(conversation.ask_again, attempts=ATTEMPTS)
        for block in [block for block in self.blocks if block[0] in self.anew]:
            log(WARNING, "the block of client %s agrees on new keys", block[0])
            self._agree(conversation, partial(again, 0), [block], timeout)
        clients = [n for n in entries if self._block_of[n][0] not in self.anew]
        before = len(conversation.traffic.rejected)
        answers = again(t, "train", entries.__getitem__, None, timeout, clients)
        for name, why in conversation.traffic.rejected[before:]:
            if why.refusal == LostKeyError.code:
                self.anew.add(self._block_of[name][0])
        self._asked.update(clients)
        return list(answers.values())

    def opened(
        self, conversation: Conversation, answers: Sequence[Answer], points: int
    ) -> list[Answer]:
        """The answers of complete blocks: each member's is its block's mean.

        ``points`` is how many of an answer's first arrays are models. The strategy's
        ``_anew`` has those whose states, as it replays them, begin anew then.
        """
        strategy, result = conversation.strategy, list[Answer]()
        model, layout = strategy.broadcast.model, strategy.broadcast.layout
        weights = strategy._weights_in_sums()
        least = strategy._sent_arrays[1] * model.size
        for members, total in self.sums(conversation, answers, least):
            names = [answer.client for answer in members]
            if strategy._replayed and (lost := strategy._without_state(names)):
                why = f"its block begins anew: client {', '.join(lost)} had to"
                for name in names:
                    conversation.reject(name, why)
                strategy._anew.update(names)
                continue
            total /= sum(weights[name] for name in names)
            arrays = []
            for index, part in enumerate(total[:least].reshape(-1, *model.shape)):
                point = part + model if index < points else part
                arrays.append(point.astype(layout.point_dtype))
            mean: Any = {"arrays": arrays, "numbers": total[least:], "norm": None}
            result += [replace(answer, **mean) for answer in members]
        return result

    def sums(
        self, conversation: Conversation, answers: Sequence[Answer], least: int
    ) -> Iterator[tuple[list[Answer], FloatArray]]:
        """The members' answers and the sum of each block in which all answered.

        A sum has at least so many numbers.
        """
        by_name = {answer.client: answer for answer in answers}
        for block in self.blocks:
            there = [by_name[name] for name in block if name in by_name]
            try:
                if missing := ", ".join(n for n in block if n not in by_name):
                    lack = f"its block's sum is lost without client {missing}"
                    raise ValueError(lack)
                yield there, self.total(there, least)
            except ValueError as error:
                for answer in there:
                    conversation.reject(answer.client, str(error))

    def total(self, members: Sequence[Answer], least: int) -> FloatArray:
        """What the members' terms add up to; ValueError if they do not."""
        terms: list[Words] = []
        for answer in members:
            term: Any = answer.arrays[0] if len(answer.arrays) == 1 else np.zeros(0)
            if term.dtype != self._coding.dtype or term.ndim != 1:
                raise ValueError(f"client {answer.client} sent no term of a sum")
            terms.append(term)
        sizes = {term.size for term in terms}
        if len(sizes) > 1 or min(sizes) <= least:
            raise ValueError(f"the block's terms have {sizes} words")
        return self._coding.values(total_of(terms))

    # ---------------------------------------------------------------------- afterwards

    def metrics(self) -> dict[str, float]:
        """ε of the block that was asked most, void attempts included."""
        if not self._deviation:
            return {}
        most = max(self._asked.values(), default=0)
        return {"epsilon": self._accountant.epsilon(most)}

    def warning(self) -> str:
        """What ε is about."""
        about = "secure-sum: ε is about the models, for a client's whole data"
        return about if self.noise_multiplier else ""

    def finish(self, conversation: Conversation) -> None:
        """Let the clients of a simulation remove the key that they made."""
        conversation.ask_in_the_end("train.sum_finish", {})


# -------------------------------------------------------- around Flower's strategies

# What looks at single answers, and is a FedAvg to Python
_REFUSED = {
    *("FedMedian", "Krum", "MultiKrum", "Bulyan", "FedTrimmedAvg", "QFedAvg"),
    *("FedXgbBagging", "FedXgbCyclic"),
}


class SecureSums(Strategy):
    """One of Flower's averaging strategies, on sums over fixed blocks of clients.

    The server learns sums over whole blocks of at least three clients, and no client's
    own model, metrics or number of examples. A silent client is asked three times in a
    round; then its block's answers are lost.

    Parameters
    ----------
    strategy : FedAvg
        FedAvg, FedAvgM, FedAdam, FedAdagrad, FedYogi, FedProx, or a class of one's own
        that derives from them. ``fraction_train`` draws blocks, at least one;
        ``min_available_nodes`` are waited for before the blocks are dealt, and who
        comes later takes no part.
    largest_weight : float
        w_max, the largest weight of a client, as a rule its number of examples; the
        clients send w_i/w_max times what they hide. It is public, and a larger weight
        is refused.
    metrics : sequence of str
        Numbers of the clients' train metrics whose weighted mean is wanted: they are
        summed, too. Others are not sent.
    **settings
        ``block_size``, ``least``, ``colluders``, ``value_range`` and ``exposed`` of
        :class:`~fedtrellis.SecureSum`. ``exposed="accept"`` allows
        ``fraction_evaluate``: the clients' evaluations travel in the clear.

    Raises
    ------
    SettingsError
        The strategy looks at single answers, or a setting is not allowed; before round
        1: clients do not agree on keys.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg, Krum
    >>> from fedtrellis import SecureSums
    >>> strategy = SecureSums(FedAvg(fraction_evaluate=0.0), block_size=5)
    >>> try:
    ...     SecureSums(Krum(fraction_evaluate=0.0))
    ... except ValueError as error:
    ...     print(error)
    SecureSums cannot wrap Krum, which needs single answers; it takes FedAvg, ...
    """

    def __init__(
        self,
        strategy: FedAvg,
        *,
        largest_weight: float = 1e5,
        metrics: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        kinds = {kind.__name__ for kind in type(strategy).__mro__}
        if not isinstance(strategy, FedAvg) or kinds & _REFUSED:
            raise SettingsError(
                f"SecureSums cannot wrap {type(strategy).__name__}, which needs single "
                "answers; it takes FedAvg, FedAvgM, FedAdam, FedAdagrad, FedYogi, "
                "FedProx and what derives from these"
            )
        self._sum = SecureSum(**settings)
        if self._sum.clip:
            raise SettingsError(f"clip = {self._sum.clip:g}: SecureSums takes none")
        if strategy.fraction_evaluate > 0.0 and self._sum.exposed != "accept":
            raise SettingsError(
                f"fraction_evaluate = {strategy.fraction_evaluate:g}: evaluations "
                "would travel in the clear; give 0.0, or exposed='accept' to SecureSums"
            )
        if not 0.0 < largest_weight < np.inf or self._sum.value_range < 1.0:
            raise SettingsError(
                f"largest_weight = {largest_weight:g} must be a positive number, and "
                f"value_range = {self._sum.value_range:g} at least 1"
            )
        self.strategy, self.largest_weight = strategy, float(largest_weight)
        self.metrics = list(metrics)
        self._apps: _Apps | None = None  # from round 1 on
        self._timeout = 3600.0

    # ----------------------------------------------------------------- Flower's hooks

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        *rest: Any,
        **more: Any,
    ) -> Result:
        """Run the rounds, as Flower does; the blocks are dealt anew."""
        self._timeout, self._apps = timeout, None
        try:
            return super().start(
                grid, initial_arrays, num_rounds, timeout, *rest, **more
            )
        finally:
            if self._apps is not None and self._apps.simulated:
                self._sum.finish(self._apps)  # the clients' key for the run

    def summary(self) -> None:
        """Log the settings."""
        log(INFO, "\t├──> Secure sums over fixed blocks of clients")
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask whole blocks, where the strategy draws clients; no messages are left."""
        drawn = list(self.strategy.configure_train(server_round, arrays, config, grid))
        if any(message.content is not drawn[0].content for message in drawn):
            raise SettingsError("SecureSums: all clients of a round must get the same")
        self._mean: list[Message] = []
        if not drawn:
            return []
        apps = self._apps = self._apps or self._begin(grid)
        names = {client.node_id: n for n, client in apps.clients.items()}
        there = [names.get(message.metadata.dst_node_id, "") for message in drawn]
        cohort = self._sum.cohort(server_round, there)
        term = {
            **self._sum.entries(cohort),
            **{"arrays": self.strategy.arrayrecord_key, "metrics": self.metrics},
            **{"weight": self.strategy.weighted_by_key, "largest": self.largest_weight},
        }
        apps.content, apps.traffic = {**drawn[0].content}, Traffic()
        entries = dict.fromkeys(cohort, term)
        answers = self._sum.ask_blocks(apps, server_round, entries, self._timeout)
        layout = Layout(tuple(array.numpy().shape for array in arrays.values()))
        # of the changes, the metrics and the weight
        least = layout.size + len(self.metrics) + 1
        totals = [total for _, total in self._sum.sums(apps, answers, least)]
        asked = sum(block[0] in entries for block in self._sum.blocks)
        log(INFO, "secure sums: %d of %d blocks", len(totals), asked)
        total: FloatArray = np.sum(totals, axis=0) if totals else np.zeros(1)
        if total[-1] > 0.0:
            self._mean = [self._synthetic(total, arrays, layout, drawn[0])]
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the strategy take the mean over the blocks for a reply."""
        return self.strategy.aggregate_train(server_round, self._mean)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does: in the clear."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the strategy does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def _begin(self, grid: Grid) -> _Apps:
        """Deal the clients into blocks, in which all agree on keys: three waves."""
        wanted = max(self.strategy.min_available_nodes, self._sum.least)
        await_nodes(grid, wanted, self._timeout)
        nodes = {str(node_id): Client(node_id) for node_id in grid.get_node_ids()}
        apps = _Apps(grid, nodes)
        hello = "train.sum_hello", lambda name: dict[str, Any](), None
        answers = apps.ask_again(0, *hello, self._timeout, list(nodes), ATTEMPTS)
        if silent := len(nodes) - len(answers):
            raise SettingsError(
                f"{silent} of {len(nodes)} clients gave no name: does their ClientApp "
                "have mods=[secure_sum_mod], from fedtrellis?"
            )
        names = {node: one.metrics["client-id"] for node, one in answers.items()}
        clients = {name: nodes[node] for node, name in names.items()}
        if len(clients) < len(names):
            raise SettingsError(f"two clients have one name, {mode(names.values())!r}")
        apps.clients, apps.names = clients, sorted(clients, key=identity_order)
        self._sum.begin(Cohorts(apps.names, 1.0, None, 1.0, 0))
        told = f"{self.largest_weight} {self.metrics} {self._sum.value_range}"
        self._sum.told = told
        self._sum.prepare(apps, self._timeout)
        return apps

    def _synthetic(
        self, total: FloatArray, model: ArrayRecord, layout: Layout, asked: Message
    ) -> Message:
        """The one reply of a round: means, and the sum of weights."""
        weight = total[-1]
        changes, rest = np.split(total[:-1] / weight, [layout.size])
        arrays = {}
        for name, change in zip(model, layout.layers(changes), strict=True):
            old = model[name].numpy()
            # a mean of whole numbers is none: float64, as Flower has it
            dtype = old.dtype if old.dtype.kind == "f" else np.float64
            arrays[name] = Array(np.asarray(old + change, dtype))
        metrics = dict(zip(self.metrics, map(float, rest), strict=True))
        metrics[self.strategy.weighted_by_key] = float(weight * self.largest_weight)
        content: dict[str, Any] = {
            self.strategy.arrayrecord_key: ArrayRecord(arrays),
            "metrics": MetricRecord({**metrics}),
        }
        return Message(RecordDict(content), reply_to=asked)


class _Apps(Conversation):
    """What is said to apps with secure_sum_mod, whose clients have no names yet."""

    def __init__(self, grid: Grid, clients: dict[str, Client]) -> None:
        Registry.__init__(self, grid)
        self.clients = clients
        self.session = secrets.token_hex(16)
        self.simulated = isinstance(grid, LocalGrid) or is_simulation(grid)
        # what a round's messages have beside the record on sums
        self.content: dict[str, Any] = {}

    def ask(
        self, server_round: int, kind: str, entries: Entries, timeout: float
    ) -> list[Answer]:
        """One wave of train messages; those who do not answer are rejected."""
        step = kind.removeprefix("train.sum_") if "." in kind else "term"
        common: dict[str, Any] = {"session": self.session, "step": step}
        common["simulated"] = self.simulated
        content = self.content if step == "term" else {}
        messages = []
        for name, entry in entries.items():
            record = ConfigRecord({**common, **entry})
            node_id, sent = self.clients[name].node_id, {**content, RECORD: record}
            messages.append(Message(RecordDict(sent), node_id, "train"))
        of, answers = {self.clients[name].node_id: name for name in entries}, []
        replies = exchange(self.grid, messages, timeout, self.traffic, of)
        for node_id, reply in replies.items():
            name = of[node_id]
            if isinstance(reply, Message) and RECORD not in reply.content:
                reply = Reason("it answered in the clear, without secure_sum_mod")
            if isinstance(reply, Reason):
                self.reject(name, reply)
                continue
            status: Any = reply.content[RECORD]
            if refusal := refusal_of(status):
                self.reject(name, refusal)
                continue
            arrays: Any = reply.content["arrays"]
            metrics = {"client-id": status["client-id"]}
            answers.append(Answer(name, arrays.to_numpy_ndarrays(), metrics))
        return answers
