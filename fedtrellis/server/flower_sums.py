"""Secure sums around one of Flower's own strategies.

The clients' half is the mod of :mod:`fedtrellis.wire.summing`. Blocks, keys and masks
are those of ``aggregation = "secure-sum"``; the strategy inside is given one reply a
round, the weighted mean over the blocks that answered whole.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedtrellis.encryption.block_sum import Introduction
from fedtrellis.server.aggregation import Cohorts
from fedtrellis.server.secure_sum import (
    ATTEMPTS,
    SecureSum,
    Take,
    beginning,
    introduction,
)
from fedtrellis.settings import SettingsError
from fedtrellis.wire.arrays import FloatArray
from fedtrellis.wire.flower_internals import is_simulation, log
from fedtrellis.wire.local_grid import LocalGrid
from fedtrellis.wire.protocol import identity_order
from fedtrellis.wire.summing import RECORD

__all__ = ["SecureSums"]

_SETTINGS = {"least", "colluders", "block_size", "value_range", "exposed"}
# What looks at single answers, and is a FedAvg to Python
_REFUSED = {
    *("FedMedian", "Krum", "MultiKrum", "Bulyan", "FedTrimmedAvg", "QFedAvg"),
    *("FedXgbBagging", "FedXgbCyclic"),
}
Configs = Mapping[int, Mapping[str, Any]]


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
        if unknown := sorted(set(settings) - _SETTINGS):
            raise SettingsError(
                f"SecureSums takes no {unknown[0]}; it takes largest_weight, metrics, "
                + ", ".join(sorted(_SETTINGS))
            )
        self._sum = SecureSum(**settings)
        if strategy.fraction_evaluate > 0.0 and self._sum.exposed != "accept":
            raise SettingsError(
                f"fraction_evaluate = {strategy.fraction_evaluate:g}: clients' "
                "evaluations would travel in the clear; give fraction_evaluate=0.0, or "
                "exposed='accept' to SecureSums"
            )
        if not 0.0 < largest_weight < np.inf or self._sum.value_range < 1.0:
            raise SettingsError(
                f"largest_weight = {largest_weight:g} must be a positive number, and "
                f"value_range = {self._sum.value_range:g} at least 1"
            )
        self.strategy, self.largest_weight = strategy, float(largest_weight)
        self.metrics = list(metrics)
        self._timeout = 3600.0
        self._ids: dict[str, int] = {}  # by client; empty before round 1

    # ----------------------------------------------------------------- Flower's hooks

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds, as Flower does; the blocks are dealt anew."""
        self._timeout, self._ids = timeout, {}
        configs = train_config, evaluate_config
        try:
            return super().start(
                grid, initial_arrays, num_rounds, timeout, *configs, evaluate_fn
            )
        finally:
            if self._ids and self._simulated:
                # the clients' key for the run
                self._timeout = min(timeout, 30.0)
                self._begin_wave("finish")
                self._ask({i: {} for i in self._ids.values()}, lambda *answer: None)

    def summary(self) -> None:
        """Log the settings."""
        log(INFO, "\t├──> Secure sums over fixed blocks of clients")
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask whole blocks, where the strategy draws clients."""
        drawn = list(self.strategy.configure_train(server_round, arrays, config, grid))
        if any(message.content is not drawn[0].content for message in drawn):
            raise SettingsError("SecureSums: all clients of a round must get the same")
        self._grid, self._model = grid, arrays
        self._asked: Message | None = None
        if not drawn:
            return []
        if not self._ids:
            self._begin()
        for block in [b for b in self._sum.blocks if b[0] in self._sum.anew]:
            log(WARNING, "the block of client %s agrees on new keys", block[0])
            self._agree([block])
        names = {i: name for name, i in self._ids.items()}
        there = [names.get(message.metadata.dst_node_id, "") for message in drawn]
        cohort = self._sum.cohort(server_round, there)
        term = {
            **self._sum.entries(cohort),
            **{"arrays": self.strategy.arrayrecord_key, "metrics": self.metrics},
            **{"weight": self.strategy.weighted_by_key, "largest": self.largest_weight},
        }
        self._begin_wave("term", drawn[0].content)
        self._terms = {self._ids[name]: term for name in cohort}
        messages = self._requests(self._terms)
        self._asked = messages[0]
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add up the blocks, and let the strategy take their mean for a reply."""
        if self._asked is None:
            return self.strategy.aggregate_train(server_round, [])
        names = {i: name for name, i in self._ids.items()}
        terms: dict[str, list[Any]] = {}
        refused: dict[str, str] = {}

        def take(node_id: int, _: str, arrays: list[Any]) -> None:
            terms[names[node_id]] = arrays

        def refuse(node_id: int, code: str, why: str) -> None:
            refused[names[node_id]] = why
            self._sum.refused(names[node_id], code)

        self._ask(self._terms, take, refuse, replies)
        totals = []
        blocks = [b for b in self._sum.blocks if self._ids[b[0]] in self._terms]
        for block in blocks:
            try:
                for name in block:
                    if name not in terms:
                        raise ValueError(refused.get(name, f"client {name} is silent"))
                totals.append(self._sum.total({name: terms[name] for name in block}))
            except ValueError as error:
                log(WARNING, "the block of client %s is left out: %s", block[0], error)
        log(INFO, "secure sums: %d of %d blocks", len(totals), len(blocks))
        total: FloatArray = np.sum(totals, axis=0) if totals else np.zeros(1)
        means = [self._synthetic(total, self._asked)] if total[-1] > 0.0 else []
        return self.strategy.aggregate_train(server_round, means)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does: in the clear."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the strategy does."""
        # without terms that come late
        there = [r for r in replies if r.has_error() or RECORD not in r.content]
        return self.strategy.aggregate_evaluate(server_round, there)

    # ------------------------------------------------------------------------- blocks

    def _begin(self) -> None:
        """Deal the clients into blocks, in which all agree on keys: two waves."""
        self._simulated = isinstance(self._grid, LocalGrid) or is_simulation(self._grid)
        self._session = secrets.token_hex(16)
        wanted = max(self.strategy.min_available_nodes, self._sum.least)
        while len(nodes := list(self._grid.get_node_ids())) < wanted:
            log(INFO, "Waiting for nodes: %d of at least %d", len(nodes), wanted)
            time.sleep(1)
        members: dict[int, Introduction] = {}

        def take(node_id: int, name: str, arrays: Sequence[Any]) -> None:
            members[node_id] = introduction(name, arrays)

        self._begin_wave("keys")
        self._ask(dict.fromkeys(nodes, beginning()), take)
        if len(members) < len(nodes):
            raise SettingsError(
                f"{len(nodes) - len(members)} of {len(nodes)} clients sent no key: "
                "does their ClientApp have mods=[secure_sum_mod], from fedtrellis?"
            )
        self._ids = {one.name: node_id for node_id, one in members.items()}
        if len(self._ids) < len(members):
            raise SettingsError("two clients have one name (client-id, partition-id)")
        names = sorted(self._ids, key=identity_order)
        self._sum.begin(Cohorts(names, 1.0, None, 1.0, 0))
        by_name = {one.name: one for one in members.values()}
        self._agree(self._sum.blocks, by_name)
        if self._sum.anew:
            raise SettingsError("not all clients answered when keys were agreed on")

    def _agree(
        self,
        blocks: Sequence[Sequence[str]],
        members: Mapping[str, Introduction] | None = None,
    ) -> None:
        """Agree on keys; a block in which one is silent does in the next round."""

        def wave(step: str, entries: Mapping[str, Any], take: Take) -> None:
            nodes = {self._ids[name]: entry for name, entry in entries.items()}
            self._begin_wave(step)
            self._ask(nodes, lambda _, name, arrays: take(name, arrays))

        told = f"{self.largest_weight} {self.metrics} {self._sum.value_range}"
        self._sum.agree(blocks, wave, told, members)

    # ----------------------------------------------------------------------- messages

    def _begin_wave(self, step: str, content: Mapping[str, Any] | None = None) -> None:
        """Settle what the messages of a step have in common; a repeat is not late."""
        self._common: dict[str, Any] = {
            **{"session": self._session, "simulated": self._simulated},
            **{"step": step, "wave": secrets.token_hex(16)},
        }
        self._content = {**(content or {})}

    def _requests(self, configs: Configs) -> list[Message]:
        """Train messages to nodes, with what is about sums."""
        messages = []
        for node_id, config in configs.items():
            record = ConfigRecord({**self._common, **config})
            records = RecordDict({**self._content, RECORD: record})
            messages.append(Message(records, node_id, "train"))
        return messages

    def _ask(
        self,
        configs: Configs,
        take: Callable[[int, str, list[Any]], object],
        refuse: Callable[[int, str, str], object] | None = None,
        replies: Iterable[Message] | None = None,
    ) -> None:
        """A wave, and again to those whose answers were lost; logs an error's text.

        ``take`` uses an answer, or raises ValueError to drop it; ``refuse`` hears who
        refuses for good, which without it is a SettingsError. ``replies`` are those to
        the first attempt, where Flower has made it.
        """
        done: set[int] = set()
        for _ in range(ATTEMPTS):
            waiting = {i: config for i, config in configs.items() if i not in done}
            if not waiting:
                break
            if replies is None:
                messages = self._requests(waiting)
                replies = self._grid.send_and_receive(messages, timeout=self._timeout)
            for reply in replies:
                node_id = reply.metadata.src_node_id
                if reply.has_error():
                    log(WARNING, "node %d failed: %s", node_id, reply.error.reason)
                    continue
                if RECORD not in reply.content:
                    raise SettingsError(
                        "a client answered in the clear: its ClientApp needs "
                        "mods=[secure_sum_mod], from fedtrellis"
                    )
                status: Any = reply.content[RECORD]
                arrays: Any = reply.content["arrays"]
                if status["wave"] != self._common["wave"] or node_id not in waiting:
                    continue  # late from another
                try:
                    if "refused" not in status:
                        take(node_id, status["client-id"], arrays.to_numpy_ndarrays())
                    elif refuse is None:
                        raise SettingsError(str(status["why"]))
                    else:
                        refuse(node_id, status["refused"], status["why"])
                    done.add(node_id)
                except SettingsError:
                    raise
                except ValueError as error:
                    log(WARNING, "node %d: %s", node_id, error)
            replies = None

    def _synthetic(self, total: FloatArray, asked: Message) -> Message:
        """The one reply of a round: means, and the sum of weights."""
        weight = total[-1]
        means = total[:-1] / weight
        arrays, start = {}, 0
        for name, array in self._model.items():
            old = array.numpy()
            change = means[start : start + old.size].reshape(old.shape)
            start += old.size
            # a mean of whole numbers is none: float64, as Flower has it
            dtype = old.dtype if old.dtype.kind == "f" else np.float64
            arrays[name] = Array(np.asarray(old + change, dtype))
        metrics = dict(zip(self.metrics, map(float, means[start:]), strict=True))
        metrics[self.strategy.weighted_by_key] = float(weight * self.largest_weight)
        content: dict[str, Any] = {
            self.strategy.arrayrecord_key: ArrayRecord(arrays),
            "metrics": MetricRecord({**metrics}),
        }
        return Message(RecordDict(content), reply_to=asked)
