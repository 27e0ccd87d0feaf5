"""Who holds what: groups found by brute force, and everything that does not fit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedtrellis.dual.alignment import (
    HASH_BYTES,
    Alignment,
    Group,
    align,
)
from strategies.hybrid import freeze, thaw

Hashes = NDArray[np.uint8]


def _hash(sample: int) -> bytes:
    return hashlib.sha256(str(sample).encode()).digest()[:HASH_BYTES]


def _hashes(samples: Sequence[int]) -> Hashes:
    data = b"".join(_hash(sample) for sample in samples)
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, HASH_BYTES)


def _align(
    samples: Mapping[str, Sequence[int]],
    features: Mapping[str, Sequence[str]] | None = None,
    **options: Any,
) -> Alignment:
    hashes = {name: _hashes(held) for name, held in samples.items()}
    return align(hashes, features or {n: [f"x{n}"] for n in samples}, **options)


@st.composite
def _holdings(draw: st.DrawFn) -> dict[str, list[int]]:
    count = draw(st.integers(1, 6))
    held = st.lists(st.integers(0, 25), min_size=1, max_size=20, unique=True)
    return {str(i): draw(held) for i in range(count)}


@settings(max_examples=200, deadline=None)
@given(samples=_holdings(), parts=st.integers(1, 4))
def test_groups_are_those_of_brute_force(
    samples: dict[str, list[int]], parts: int
) -> None:
    alignment = _align(samples, parts=parts)
    holders = {
        sample: tuple(name for name in samples if sample in samples[name])
        for sample in set().union(*samples.values())
    }
    assert alignment.num_samples == len(holders)
    found: dict[int, int] = {}  # sample: group
    for g, group in enumerate(alignment.groups):
        assert group.shared == (len(group.holders) > 1)
        # a slot is one sample, the same for all holders, and in the hashes' order
        slots = [
            [samples[name][row] for row in alignment.rows[name][g]]
            for name in group.holders
        ]
        assert all(slot == slots[0] for slot in slots)
        assert len(slots[0]) == group.size > 0
        ordered = [_hash(sample) for sample in slots[0]]
        assert ordered == sorted(ordered)
        assert group.digest == hashlib.sha256(b"".join(ordered)).hexdigest()
        for sample in slots[0]:
            assert holders[sample] == group.holders
            assert sample not in found
            found[sample] = g
        for name in samples:
            assert (g in alignment.rows[name]) == (name in group.holders)
    assert set(found) == set(holders)
    # `parts` groups for each set of holders, as even as can be
    for held_by in set(holders.values()):
        sizes = [group.size for group in alignment.groups if group.holders == held_by]
        count = sum(h == held_by for h in holders.values())
        assert len(sizes) == min(parts, count)
        assert max(sizes) - min(sizes) <= 1
    for name in samples:
        groups = [
            g for g, group in enumerate(alignment.groups) if name in group.holders
        ]
        assert alignment.client_groups(name) == groups
        rows = np.concatenate([alignment.rows[name][g] for g in groups])
        assert sorted(rows) == list(range(len(samples[name])))
    assert alignment.horizontal == all(len(h) == 1 for h in holders.values())


@settings(max_examples=50, deadline=None)
@given(samples=_holdings(), parts=st.integers(1, 3), seed=st.integers(0, 99))
def test_order_of_a_clients_rows_does_not_matter(
    samples: dict[str, list[int]], parts: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shuffled = {
        n: [held[i] for i in rng.permutation(len(held))] for n, held in samples.items()
    }
    one, other = _align(samples, parts=parts), _align(shuffled, parts=parts)
    assert one.groups == other.groups
    for name, held in samples.items():
        for g, rows in one.rows[name].items():
            assert [held[i] for i in rows] == [
                shuffled[name][i] for i in other.rows[name][g]
            ]


def test_columns_and_the_models_order() -> None:
    samples = {"0": [1, 2], "1": [2, 3], "2": [3]}
    features = {"0": ["b", "a"], "1": ["c", "a"], "2": ["d"]}
    alignment = _align(samples, features)
    assert alignment.feature_names == ["b", "a", "c", "d"]
    assert {k: v.tolist() for k, v in alignment.columns.items()} == {
        "0": [0, 1],
        "1": [2, 1],
        "2": [3],
    }
    alignment = _align(samples, features, feature_names=["a", "b", "c", "d"])
    assert alignment.columns["0"].tolist() == [1, 0]
    assert alignment.columns["1"].tolist() == [2, 0]
    assert not alignment.horizontal


def test_overlaps_are_found_where_a_sample_and_a_feature_are_shared() -> None:
    samples = {"0": [1, 2], "1": [2, 3], "2": [3, 4], "3": [9]}
    features = {"0": ["a"], "1": ["a", "b"], "2": ["c"], "3": ["a", "b", "c"]}
    alignment = _align(samples, features)
    (g,) = [
        i for i, group in enumerate(alignment.groups) if group.holders == ("0", "1")
    ]
    # 1 and 2 share sample 3 but no feature; 3 shares features but no sample
    assert alignment.overlaps() == {"0": [g], "1": [g]}


@settings(max_examples=50, deadline=None)
@given(samples=_holdings(), parts=st.integers(1, 3))
def test_state_round_trip(samples: dict[str, list[int]], parts: int) -> None:
    alignment = _align(samples, parts=parts)
    state = freeze([alignment, {("a", 1): b"bytes"}, {3, 1}, None, -np.inf])
    assert all(array.dtype.kind in "biuU" for array in state.values())  # savez takes it
    again, *rest = thaw(state, (Alignment, Group))
    assert rest == [{("a", 1): b"bytes"}, {3, 1}, None, -np.inf]
    np.testing.assert_equal(vars(again), vars(alignment))
    assert again.groups[0].shared == alignment.groups[0].shared


@pytest.mark.parametrize(
    ("samples", "features", "names", "reason"),
    [
        ({"a": [1, 2, 1]}, {"a": ["f"]}, None, "client a has 1 sample ids twice"),
        ({"a": []}, {"a": ["f"]}, None, "client a has no samples or no features"),
        ({"a": [1]}, {"a": []}, None, "client a has no samples or no features"),
        ({"a": [1]}, {"a": ["f", "f"]}, None, "client a names a feature twice"),
        ({"a": [1]}, {"a": ["f", "g"]}, ["f"], "client a has feature 'g', which"),
        ({"a": [1]}, {"a": ["f"]}, ["f", "g", "h"], "feature 'g' of the model .2 in"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    samples: dict[str, list[int]],
    features: dict[str, list[str]],
    names: list[str] | None,
    reason: str,
) -> None:
    with pytest.raises(ValueError, match=reason) as error:
        _align(samples, features, feature_names=names)
    assert "\n" not in str(error.value)


def test_malformed_hashes_are_refused() -> None:
    wide, flat = (2, HASH_BYTES - 1), 2 * HASH_BYTES
    wrong: Any = (np.zeros(wide, np.uint8), np.zeros(flat, np.uint8))
    for hashes in (*wrong, np.zeros((2, HASH_BYTES))):
        with pytest.raises(ValueError, match="client a: its samples' hashes are malf"):
            align({"a": hashes}, {"a": ["f"]})
