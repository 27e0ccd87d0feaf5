"""Who holds what: groups found by brute force, and the agreement on it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrellis.dual.alignment import HASH_BYTES, Agreement, Alignment, Group, align
from fedtrellis.encryption.block_sum import Introduction
from strategies.hybrid import freeze, thaw
from tests.harness import refused


def _hash(sample: int) -> bytes:
    return hashlib.sha256(str(sample).encode()).digest()[:HASH_BYTES]


def _align(
    samples: Mapping[str, Sequence[int]],
    features: Mapping[str, Sequence[str]] | None = None,
    **options: Any,
) -> Alignment:
    hashes = {
        name: np.array([np.frombuffer(_hash(sample), np.uint8) for sample in held])
        for name, held in samples.items()
    }
    return align(hashes, features or {n: [f"x{n}"] for n in samples}, **options)


@st.composite
def _holdings(draw: st.DrawFn) -> dict[str, list[int]]:
    count = draw(st.integers(1, 6))
    held = st.lists(st.integers(0, 25), min_size=1, max_size=20, unique=True)
    return {str(i): draw(held) for i in range(count)}


@settings(max_examples=60, deadline=None)
@given(samples=_holdings(), parts=st.integers(1, 4))
def test_groups_are_brute_force_s(samples: dict[str, list[int]], parts: int) -> None:
    alignment = _align(samples, parts=parts)
    holders = {
        sample: tuple(name for name in samples if sample in samples[name])
        for sample in set().union(*samples.values())
    }
    found: set[int] = set()
    for g, group in enumerate(alignment.groups):
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
        assert {holders[sample] for sample in slots[0]} == {group.holders}
        assert not found & set(slots[0])
        found |= set(slots[0])
    assert found == set(holders)
    # `parts` groups for each set of holders, as even as can be
    for held_by in set(holders.values()):
        sizes = [group.size for group in alignment.groups if group.holders == held_by]
        assert len(sizes) == min(parts, list(holders.values()).count(held_by))
        assert max(sizes) - min(sizes) <= 1
    for name in samples:
        groups = [g for g, one in enumerate(alignment.groups) if name in one.holders]
        assert alignment.client_groups(name) == groups == list(alignment.rows[name])
        rows = np.concatenate([alignment.rows[name][g] for g in groups])
        assert sorted(rows) == list(range(len(samples[name])))
    assert alignment.horizontal == all(len(h) == 1 for h in holders.values())
    # and a checkpoint has all of it
    state = freeze([alignment, {("a", 1): b"bytes"}, {3, 1}, None, -np.inf])
    assert all(array.dtype.kind in "biuU" for array in state.values())  # savez takes it
    again, *rest = thaw(state, (Alignment, Group))
    assert rest == [{("a", 1): b"bytes"}, {3, 1}, None, -np.inf]
    np.testing.assert_equal(vars(again), vars(alignment))


def _agreed() -> Agreement:
    samples = {"a": [1, 2, 3], "b": [2, 3], "c": [4]}
    alignment = _align(samples, {"a": ["x", "y"], "b": ["z"], "c": ["y"]})
    new = _align({k: v[:1] for k, v in samples.items()}).groups
    members = [Introduction(name, "f" * 16, name.encode() * 32) for name in samples]
    return Agreement.of({"session": "s", "answers": 5}, members, alignment, new)


def test_the_digest_changes_with_everything_that_is_agreed() -> None:
    one = _agreed()
    assert Agreement.from_bytes(one.to_bytes()).digest == one.digest
    (holders, size, digest), *groups = one.groups
    member = one.members[0]._replace
    others = [
        replace(one, settings={**one.settings, "answers": 6}),
        *(replace(one, **{k: getattr(one, k)[::-1]}) for k in ("features", "held")),
        replace(one, new_groups=one.new_groups[:-1]),
        replace(one, groups=((holders, size + 1, digest), *groups)),
        replace(one, groups=((holders, size, "0" * 64), *groups)),
        replace(one, members=one.members[::-1]),
        replace(one, members=(member(key="0"), *one.members[1:])),
        replace(one, members=(member(fresh=b"0"), *one.members[1:])),
    ]
    assert len({other.digest for other in [one, *others]}) == len(others) + 1


def test_what_is_no_agreement_is_refused() -> None:
    whole = _agreed().to_bytes()
    data = [b"", b"[]", b"\xff", whole[:-1], b"[" * 100_000]
    for edit in (
        lambda c: c.pop("settings"),
        lambda c: c.update(settings=[1]),
        lambda c: c["members"][0].append("more"),
    ):
        content: Any = json.loads(whole)
        edit(content)  # type: ignore[no-untyped-call]
        data.append(json.dumps(content).encode())
    for wrong in data:
        why = "the agreement is malformed"
        refused(why, partial(Agreement.from_bytes, wrong), ValueError)
