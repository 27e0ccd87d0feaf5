"""What HyFDCA tells a client of its groups: the records, and how they travel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedtrellis.dual.alignment import GroupStep, HeldGroup
from fedtrellis.dual.bundle import Mixture

# Three groups: one with a mixture of two points, one that has not moved, one of which
# the client lost α.
RECORDS = [
    GroupStep(4, 2, 9, [3, 7], [0.25, 0.75], [3]),
    GroupStep(5, 0, 0),
    GroupStep(8, 1, 2, [1], [1.0], [0, 1], alpha=[b"a", b"b"]),
]
ENTRIES: dict[str, Any] = {
    "groups": [4, 5, 8],
    "steps": [2, 0, 1],
    "alpha-ids": [9, 0, 2],
    "mix-counts": [2, 0, 1],
    "mix-ids": [3, 7, 1],
    "mix-weights": [0.25, 0.75, 1.0],
    "keep-counts": [1, 0, 2],
    "keep-ids": [3, 0, 1],
    "alpha/8": [b"a", b"b"],
}


def plain(record: GroupStep) -> tuple[Any, ...]:
    lists = (list(record.ids), list(record.weights), list(record.keep))
    return record.group, record.step, record.alpha_id, *lists, record.alpha


def test_records_travel_as_the_entries_they_always_were() -> None:
    packed = GroupStep.pack(RECORDS)
    assert list(packed.items()) == list(ENTRIES.items())
    assert [plain(r) for r in GroupStep.unpack(packed)] == [plain(r) for r in RECORDS]


def test_a_mixture_is_a_records_own() -> None:
    mixture = Mixture(np.array([3, 7]), np.array([0.25, 0.75]), np.array([3]), 9)
    assert plain(GroupStep(4, 2, 9, **mixture.lists)) == plain(RECORDS[0])


@pytest.mark.parametrize("key", [key for key in ENTRIES if "/" not in key])
def test_entries_that_do_not_fit_together_are_refused(key: str) -> None:
    missing = {k: v for k, v in ENTRIES.items() if k != key}
    with pytest.raises(KeyError):
        GroupStep.unpack(missing)
    if key in ("groups", "steps", "alpha-ids", "mix-counts", "keep-counts"):
        with pytest.raises(ValueError, match="zip"):
            GroupStep.unpack({**missing, key: ENTRIES[key][:-1]})


def test_held_groups_deal_out_a_clients_samples() -> None:
    rows = [np.array([4, 0]), np.array([1, 2, 3])]
    arrays = HeldGroup.pack({6: rows[0], 11: rows[1]})
    first, second = HeldGroup.unpack(arrays, 5)
    assert (first.group, first.own) == (6, slice(0, 2))
    assert (second.group, second.own) == (11, slice(2, 5))
    for held, expected in ((first, rows[0]), (second, rows[1])):
        np.testing.assert_array_equal(held.rows, expected)
    for key, wrong in (
        ("rows", np.array([4, 0, 1, 2, 2])),
        ("sizes", np.array([2, 4])),
        ("sizes", np.array([6, -1])),
    ):
        with pytest.raises(ValueError, match="do not deal out this client's 5 samples"):
            HeldGroup.unpack({**arrays, key: wrong}, 5)
