"""Who holds what: groups found by brute force, and everything that does not fit."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedtrellis.dual.alignment import (
    HASH_BYTES,
    Agreement,
    Alignment,
    Group,
    GroupStep,
    HeldGroup,
    align,
)
from fedtrellis.encryption.block_sum import Introduction
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


# ----------------------------------------------------------------------- the agreement


def _member(name: str) -> Introduction:
    return Introduction(name, "f" * 16, hashlib.sha256(name.encode()).digest())


def _agreed(samples: dict[str, list[int]], features: dict[str, list[str]]) -> Agreement:
    alignment = align({k: _hashes(v) for k, v in samples.items()}, features)
    new = align({k: _hashes(v[:1]) for k, v in samples.items()}, features).groups
    members = [_member(name) for name in samples]
    return Agreement.of({"session": "s", "answers": 5}, members, alignment, new)


def _small() -> Agreement:
    return _agreed(
        {"a": [1, 2, 3], "b": [2, 3], "c": [4]},
        {"a": ["x", "y"], "b": ["z"], "c": ["y"]},
    )


def test_the_digest_changes_with_everything_that_is_agreed() -> None:
    one = _small()
    g = next(g for g, (holders, _, _) in enumerate(one.groups) if len(holders) > 1)
    holders, size, digest = one.groups[g]
    before, after = one.groups[:g], one.groups[g + 1 :]
    others = [
        replace(one, settings={**one.settings, "answers": 6}),
        replace(one, settings={**one.settings, "more": 0}),
        replace(one, members=one.members[::-1]),
        replace(one, features=one.features[::-1]),
        replace(one, held=one.held[::-1]),
        replace(one, groups=one.groups[::-1]),
        replace(one, new_groups=one.new_groups[:-1]),
        replace(one, groups=(*before, (holders, size + 1, digest), *after)),
        replace(one, groups=(*before, (holders, size, "0" * 64), *after)),
        replace(one, groups=(*before, (holders[::-1], size, digest), *after)),
    ]
    member = one.members[0]._replace
    changed = [member(name="0"), member(key="0"), member(fresh=b"0")]
    others += [replace(one, members=(own, *one.members[1:])) for own in changed]
    assert len({other.digest for other in [one, *others]}) == len(others) + 1


def _edited(edit: Callable[[dict[str, Any]], Any]) -> bytes:
    content = json.loads(_small().to_bytes())
    edit(content)
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "edit",
    [
        lambda c: c.pop("settings"),
        lambda c: c.update(settings=[1]),
        lambda c: c.update(extra=1),
        lambda c: c.update(members=[]),
        lambda c: c["members"].append(c["members"][0]),
        lambda c: c["members"][0].append("more"),
        lambda c: c["held"].pop(),
        lambda c: c["held"].__setitem__(0, "zz"),
        lambda c: c["held"].__setitem__(0, "c0c0"),
        lambda c: c["groups"][0].__setitem__(0, []),
        lambda c: c["groups"][0].__setitem__(0, [0, 0]),
        lambda c: c["groups"][0].__setitem__(0, [3]),
        lambda c: c["groups"][0].__setitem__(0, [-1]),
        lambda c: c["groups"][0].__setitem__(1, 0),
        lambda c: c["groups"][0].__setitem__(1, 1.5),
        lambda c: c["new-groups"].append([[0], 1]),
    ],
)
def test_what_contradicts_itself_is_refused(edit: Any) -> None:
    with pytest.raises(ValueError, match="the agreement is malformed"):
        Agreement.from_bytes(_edited(edit))


def test_what_is_no_agreement_is_refused() -> None:
    data = _small().to_bytes()
    for wrong in (b"", b"[]", b"\xff", data[:-1], data + b" ", b"[" * 100_000):
        with pytest.raises(ValueError, match="the agreement is malformed"):
            Agreement.from_bytes(wrong)


# --------------------------------------------------------------- what a client is told

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
