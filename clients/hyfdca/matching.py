"""Names for samples that only clients can make, with a common key or without one."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrellis.dual.alignment import HASH_BYTES
from fedtrellis.encryption.intersection import (
    blind,
    evaluate,
    pseudonyms,
    scalar_from,
    unblind,
)
from fedtrellis.encryption.labels import encode_items, expand
from fedtrellis.settings import SettingsError

from .._split_data import check_split_data
from .base import (
    Config,
    Fit,
    keyed_hashes,
)
from .consent import ConsentingClient

__all__ = ["Matching", "as_bytes", "as_text", "same_bytes"]

# So that one of them and the server together cannot try ids.
_EVALUATORS = 2
_POINT_BYTES = 32


class Matching(ConsentingClient):
    """Hashes of ids: under the common key, or with the help of two clients."""

    # ------------------------------------------------ ids without a common key (roster)

    def fit_blind(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Blinded ids, and a MAC of them for each evaluator."""
        self._check_roster()
        check_split_data(self, config)
        # what is blinded with this nonce is unblinded with it, whatever happens
        self._open_ledger(config).save()
        points = blind(self._all_ids(), self._blinding(config), config["session"])
        macs = [
            self._points_mac(config, "blinded", points, other, self.client_id)
            for other in config["evaluators"]
        ]
        return [points, as_bytes(b"".join(macs))], 0, {}

    def fit_evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> Fit:
        """Every client's points times this evaluator's secret, and MACs of them.

        An evaluator takes points of clients of its roster only, as their MACs show:
        else a server could try ids of its own.
        """
        self._check_roster()
        ledger = self._open_ledger(config)
        if ledger.agreement is not None:
            raise SettingsError(
                f"client {self.client_id} has agreed to this run already"
            )
        # once in a run: who colludes with the server could try ids otherwise
        count = len(config["owners"])
        asked = [config[f"points/{i}"] for i in range(count)]
        mark = hashlib.sha256(encode_items(*config["owners"], *asked)).hexdigest()
        if ledger.evaluated not in ("", mark) or len(set(config["owners"])) != count:
            raise SettingsError(
                f"client {self.client_id} has evaluated other ids for this run already"
            )
        ledger.evaluated = mark
        ledger.save()
        secret = scalar_from(self.node.identity.derive("evaluate", config["session"]))
        answer: list[NDArray[Any]] = []
        for i, owner in enumerate(config["owners"]):
            points = _points(config[f"points/{i}"])
            expected = self._points_mac(
                config, "blinded", points, self.client_id, owner
            )
            if not same_bytes(expected, config[f"mac/{i}"]):
                raise SettingsError(
                    f"client {self.client_id} was given ids of client {owner} that "
                    "this client has not sent"
                )
            found = evaluate(points, secret)
            mac = self._points_mac(config, "evaluated", found, owner, self.client_id)
            answer += [found, as_bytes(mac)]
        return answer, 0, {}

    def _check_roster(self) -> None:
        if self.key_kind != "roster":
            raise SettingsError(
                f"client {self.client_id} has no identity and roster to blind ids with"
            )

    def _all_ids(self) -> list[str]:
        """Ids of the samples, and of the new ones, which are ids of another kind."""
        new = [] if self.new_samples is None else self.new_samples.sample_ids
        return [f"sample {i}" for i in self.sample_ids] + [f"new {i}" for i in new]

    def _blinding(self, config: Config) -> int:
        nonce = self._open_ledger(config).nonce
        return scalar_from(self.node.identity.derive("blind", config["session"], nonce))

    def _points_mac(
        self,
        config: Config,
        what: str,
        points: NDArray[np.uint8],
        to: str,
        sender: str,
    ) -> bytes:
        """The MAC of some points, of one of two clients for the other."""
        other = to if sender == self.client_id else sender
        if other == self.client_id:  # an evaluator's own points
            secret = self.node.identity.derive("points")
        elif other not in self.node.roster.members:
            raise SettingsError(f"client {other} is not in this node's roster")
        else:
            secret = self.node.identity.pair_secret(self.node.roster.members[other])
        context = ("points", what, config["session"], sender, to)
        return expand(secret, *context, points.tobytes())

    def _pseudonyms(self, config: Config) -> NDArray[np.uint8]:
        """The samples' hashes, then the new samples': shape (n + n_new, 16)."""
        if self.key_kind == "roster":
            evaluated = []
            if len(set(config["evaluators"])) != _EVALUATORS:
                raise SettingsError(
                    f"client {self.client_id}: ids are evaluated by {_EVALUATORS} "
                    f"clients, not by {config['evaluators']}"
                )
            for i, evaluator in enumerate(config["evaluators"]):
                points = _points(config[f"points/{i}"])
                mac = self._points_mac(
                    config, "evaluated", points, self.client_id, evaluator
                )
                if not same_bytes(mac, config[f"mac/{i}"]):
                    raise SettingsError(
                        f"client {self.client_id} was given ids that client "
                        f"{evaluator} has not sent"
                    )
                evaluated.append(unblind(points, self._blinding(config)))
            return pseudonyms(*evaluated)
        cipher = self._common_key(config)
        hashes = keyed_hashes(cipher, "sample", self.sample_ids, HASH_BYTES)
        if self.new_samples is not None:
            ids = self.new_samples.sample_ids
            hashes += keyed_hashes(cipher, "new-sample", ids, HASH_BYTES)
        return as_bytes(hashes).reshape(-1, HASH_BYTES)


def as_text(text: str) -> NDArray[np.uint8]:
    """Text as an array of bytes."""
    return as_bytes(text.encode())


def as_bytes(data: bytes) -> NDArray[np.uint8]:
    """Bytes as an array."""
    return np.frombuffer(data, dtype=np.uint8)


def _points(data: bytes) -> NDArray[np.uint8]:
    """Points of the curve, shape (n, 32), as a request has them."""
    if not isinstance(data, bytes) or len(data) % _POINT_BYTES:
        raise ValueError("the request's points are malformed")
    return as_bytes(data).reshape(-1, _POINT_BYTES)


def same_bytes(expected: bytes, given: Any) -> bool:
    """Whether a request has these bytes; it takes as long whatever it has."""
    return isinstance(given, bytes) and hmac.compare_digest(expected, given)
